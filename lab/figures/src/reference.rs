//! iperf3 and sockperf told to do what the laboratory does: the same cores, the same lengths, and the beginning of a
//! connection left out.

use anyhow::Result;
use bywire_results::cell::Unit;

use crate::contestant::Contestant;
use crate::ethernet::{self, Ends, Join};

/// How the server and the client of a reference program are connected.
#[derive(Clone)]
pub enum Network {
    /// Two processes of this machine's own network.
    Loopback,
    /// Two namespaces.
    Joined(Join),
}

/// iperf3's own length of a block over TCP, in bytes.
pub const IPERF3_BLOCK_BYTES: u64 = 128 << 10;

/// Sockperf's shortest message, in bytes.
pub const SOCKPERF_BYTES: u64 = 14;

/// Not iperf3's: what that leaves behind keeps sockperf, which reuses no address, from listening there for a minute.
const SOCKPERF_PORT: &str = "5202";

/// One TCP connection of iperf3 with `options` of its client, after a second that is left out: received bytes per second.
pub fn iperf3(network: Network, options: &'static [&str]) -> Contestant {
    let block = IPERF3_BLOCK_BYTES.to_string();
    let fixed = ["-l", &block, "-O", "1", "-t", "1"].map(str::to_owned);
    let told: Vec<String> = fixed.into_iter().chain(options.iter().map(|word| (*word).to_owned())).collect();
    let command = format!("iperf3 -c TARGET {}", told.join(" "));
    ethernet::program_contestant(&command, "iperf3", Unit::BytesPerSecond, move || {
        network.between(|ends| {
            let mut client = vec!["iperf3", "-c", &ends.address, "-J"];
            client.extend(told.iter().map(String::as_str));
            ethernet::received(&ends.converse(&["iperf3", "-s"], &client)?)
        })
    })
}

/// A ping-pong of sockperf over TCP: half-RTT in ns.
pub fn sockperf(network: Network) -> Contestant {
    let size = SOCKPERF_BYTES.to_string();
    let command = format!("sockperf pp --tcp -i TARGET -t 1 -m {size}");
    ethernet::program_contestant(&command, "sockperf", Unit::Nanoseconds, move || {
        network.between(|ends| {
            let server = ["sockperf", "sr", "--tcp", "-i", &ends.address, "-p", SOCKPERF_PORT];
            let client = ["sockperf", "pp", "--tcp", "-i", &ends.address, "-p", SOCKPERF_PORT];
            let client = [&client[..], &["-t", "1", "-m", &size]].concat();
            ethernet::half_rtt_ns(&ends.converse(&server, &client)?)
        })
    })
}

impl Network {
    fn between(&self, measure: impl Fn(&Ends) -> Result<f64>) -> Result<f64> {
        match self {
            Self::Loopback => measure(&Ends::of_this_machine()),
            Self::Joined(join) => {
                let namespaces = join()?;
                measure(&Ends::of(&namespaces))
            }
        }
    }
}
