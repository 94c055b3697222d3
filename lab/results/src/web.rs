//! Words of the level `web`, and the results of its open loops.

use serde::{Deserialize, Serialize};

use crate::{ethernet, names};

/// The level's name, on the command line and in cells.
pub const LEVEL: &str = "web";

/// The load of each open loop, as a share of the peak.
pub const SHARES: [f64; 3] = [0.5, 0.7, 0.9];

names! {
    /// The requested documents.
    Test, "test of level web" {
        File = "web-file": "requests per second for one file, then latency at 50, 70 and 90 % of that",
        Zipf = "web-zipf": "the same for files of 0.1 to 900 KB, the i-th requested in proportion to 1/i^α",
    }
}

names! {
    /// A web server.
    Server, "server" {
        /// With one worker process.
        Nginx = "nginx",
        /// With its event module and one process of threads.
        Apache = "apache",
    }
}

names! {
    /// The link of requests and responses.
    Link, "link of level web" {
        Tcp = "tcp": "the kernel's TCP over loopback",
        Unix = "unix": "the kernel's Unix-domain sockets (nginx; Apache listens on none)",
        Veth = "veth": "the kernel's TCP between two namespaces over its own cable",
        Eth = "eth": "the kernel's TCP between two namespaces over Ethernet of the fabric (needs root)",
        Sock = "sock": "TCP over loopback, carried in memory as by `bywire run`",
    }
}

names! {
    /// Which documents of a Zipf trace are popular.
    Rank, "rank" {
        /// The smallest.
        SmallFirst = "small-first",
        /// Popularity is independent of the size.
        Independent = "independent",
    }
}

impl Link {
    /// The link of the level `eth` that joins the two namespaces, if it needs namespaces.
    pub fn frame_link(self) -> Option<ethernet::Link> {
        match self {
            Self::Veth => Some(ethernet::Link::Veth),
            Self::Eth => Some(ethernet::Link::OneProcess),
            Self::Tcp | Self::Unix | Self::Sock => None,
        }
    }
}

impl Server {
    /// Its name for readers.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Apache => "Apache",
        }
    }
}

/// The detail with an [`OpenLoop`] for each open loop.
pub const LOADS: &str = "open_loads";

/// An open loop was not sustained if its rate of answers is below this share of the intended rate, by more than
/// [`CHANCE`].
const SUSTAINED_SHARE_MIN: f64 = 0.95;

/// The standard deviations that chance may cause, because the moments of requests are drawn at random.
const CHANCE: f64 = 3.0;

/// One open loop of a cell, over all pairs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenLoop {
    /// The share of the peak.
    pub share: f64,
    /// The requested rate.
    pub intended_per_second: f64,
    /// The rate of answers.
    pub answered_per_second: f64,
    /// Requests that became due.
    pub due: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// The CPU time of the server's processes for each request.
    pub server_cpu_us_per_request: f64,
    /// From the time when a request was due to its answer, as (ns, count).
    pub from_intended_send_ns: Vec<(u64, u64)>,
    /// From the time when it was sent.
    pub from_send_ns: Vec<(u64, u64)>,
    /// Whether it was [sustained](Self::is_sustained), by the session.
    pub sustained: bool,
}

impl OpenLoop {
    /// True if it was answered completely and at the requested rate.
    pub fn is_sustained(&self) -> bool {
        let chance = CHANCE / (self.due as f64).max(1.0).sqrt();
        let share_min = SUSTAINED_SHARE_MIN.min(1.0 - chance);
        self.answered >= self.due && self.answered_per_second >= share_min * self.intended_per_second
    }
}
