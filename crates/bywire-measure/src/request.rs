//! What is asked for, in the words of the command line.

use anyhow::{Context, Result, ensure};

use crate::ending::Misuse;
use crate::ethernet::{self, Carriage, Link, Protocol};
use crate::mpi::Choice;
use crate::plan::Level;
use crate::web;

/// The MTU of a veth pair unless asked otherwise.
pub(crate) const MTU_BYTES: u32 = 1500;

/// What is asked for, in the words of the command line; the same words for every level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// `memory`, `msg`, `unix`, `tcp`, `sock`, `udp`, `eth`, `mpi` or `web`.
    pub level: String,
    /// A test of that level.
    pub test: String,
    /// How the level is to carry the messages, where it has a choice.
    pub link: Option<String>,
    /// Whose MPI (`mpi`); Open MPI's by default.
    pub mpi: Option<String>,
    /// `processes` (default), `threads`, `namespaces`, or a host with `bywire serve`.
    pub between: Option<String>,
    /// What the ends speak (`eth`): `tcp` (default) or `udp`.
    pub protocol: Option<String>,
    /// Take all frames there are at each wake of a carrying process (`eth`); on by default.
    pub coalesce: Option<bool>,
    /// Leave the cutting of long sends into segments to the interfaces between namespaces; on by default.
    pub segmentation: Option<bool>,
    /// Idle peers that stay connected (`msg`); of tests with several connections: nodes around a switch.
    pub nodes: Option<u32>,
    /// How many connections at once (`streams`, `hotspot`, `fanin`, `fanout`).
    pub connections: Option<u32>,
    /// Length of a message, or of a buffer.
    pub size_bytes: Option<u64>,
    /// Length of a response (`rr`); as long as the request by default.
    pub response_bytes: Option<u64>,
    /// MTU of the link.
    pub mtu_bytes: Option<u32>,
    /// End-to-end check (`msg`).
    pub integrity: Option<bool>,
    /// Measuring time of the whole cell.
    pub time_seconds: Option<f64>,
    /// Cores of source and target.
    pub cores: Option<(u32, u32)>,
    /// Poll rather than sleep, or the reverse.
    pub spin: Option<bool>,
    /// Wait by `epoll_wait` before each receive (`unix`, `tcp`, `sock`).
    pub epoll: bool,
    /// Nagle's algorithm (`tcp`); off by default.
    pub nagle: Option<bool>,
    /// The kernel's algorithm of congestion control, by its name (`tcp`); the system's own by default.
    pub congestion: Option<String>,
    /// Compare every byte of every payload.
    pub verify: bool,
    /// Write and read no more of a payload than its first 8 bytes.
    pub untouched: bool,
    /// Send lent buffers rather than copies (`msg`).
    pub lent: bool,
    /// Socket buffers asked for in both directions at both ends.
    pub socket_buffer_bytes: Option<u64>,
    /// The key of a host's `bywire serve`.
    pub key: Option<Vec<u8>>,
    /// Lines walked (`memory cacheline`).
    pub lines: Option<u32>,
    /// Both cores at once (rates of `memory`).
    pub both_cores: bool,
    /// What only web servers are asked (`web`).
    pub web: web::Wish,
    /// Busy threads beside both ends, half of them on the core of each.
    pub load: Option<u32>,
    /// Slow the source down by so many percent, to see what a comparison finds.
    pub burden_percent: Option<u32>,
}

impl Request {
    /// A request with everything by default.
    pub fn new(level: &str, test: &str) -> Self {
        Self { level: level.to_owned(), test: test.to_owned(), ..Self::default() }
    }

    /// The same messages between two processes without anything between them that would have to be made first.
    ///
    /// # Errors
    /// What the levels `eth` and `mpi` have not.
    pub fn anywhere(&self) -> Result<Self> {
        if self.level == web::LEVEL {
            let (link, mtu_bytes, coalesce, segmentation) = (None, None, None, None);
            return Ok(Self { link, mtu_bytes, coalesce, segmentation, ..self.clone() });
        }
        let level = match Ethernet::asked(self)? {
            Some(ethernet) => ethernet.protocol.name().to_owned(),
            None => self.level.clone(),
        };
        let level = if Choice::asked(self)?.is_some() { Level::Tcp.name().to_owned() } else { level };
        let link = self.link.clone().filter(|_| self.level == level);
        let (between, mtu_bytes, key) = (None, None, None);
        let nodes = self.nodes.filter(|_| self.level == "msg");
        Ok(Self {
            level,
            link,
            between,
            mtu_bytes,
            key,
            nodes,
            protocol: None,
            coalesce: None,
            segmentation: None,
            mpi: None,
            ..self.clone()
        })
    }

    /// Fails on the first of `given` that means nothing here.
    pub(crate) fn refuse(&self, given: &[(&str, bool)]) -> Result<(), Misuse> {
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((flag, _)) => {
                Err(Misuse(format!("--{flag} means nothing for {} {}: leave it out", self.level, self.test)))
            }
        }
    }
}

/// What is asked of the level `eth`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ethernet {
    pub(crate) protocol: Protocol,
    pub(crate) carriage: Carriage,
}

impl Ethernet {
    /// Nothing where `request` is for another level.
    pub(crate) fn asked(request: &Request) -> Result<Option<Self>> {
        if request.level != ethernet::LEVEL {
            return Ok(None);
        }
        let link: Link = request.link.as_deref().map_or(Ok(Link::OneProcess), str::parse)?;
        let protocol: Protocol = request.protocol.as_deref().map_or(Ok(Protocol::Tcp), str::parse)?;
        request.refuse(&[("coalesce", request.coalesce.is_some() && link == Link::Veth)])?;
        ensure!(
            request.between.as_deref().is_none_or(|between| between == "namespaces"),
            "level eth joins two namespaces that it makes: leave out --between"
        );
        let mtu_bytes = request.mtu_bytes.unwrap_or(MTU_BYTES);
        let (coalesce, segmentation) =
            (request.coalesce.unwrap_or(true), request.segmentation.unwrap_or(true));
        let carriage = ethernet::carriage(link, mtu_bytes, coalesce, segmentation)?;
        Ok(Some(Self { protocol, carriage }))
    }
}

/// The kernel's names of algorithms have fewer bytes than this (`TCP_CA_NAME_MAX`).
const CONGESTION_BYTES_END: usize = 16;

/// Reads the name of an algorithm of congestion control.
///
/// # Errors
/// No algorithm can have that name.
pub fn parse_congestion(text: &str) -> Result<String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    ensure!(
        is_name && (1..CONGESTION_BYTES_END).contains(&text.len()),
        "no algorithm has that name: give one such as reno, of those in /proc/sys/net/ipv4/tcp_available_congestion_control"
    );
    Ok(text.to_owned())
}

/// Reads `A,B` as two cores.
///
/// # Errors
/// One line with the form that is understood.
pub fn parse_cores(text: &str) -> Result<(u32, u32)> {
    text.split_once(',')
        .and_then(|(source, target)| Some((source.trim().parse().ok()?, target.trim().parse().ok()?)))
        .with_context(|| format!("`{text}` is no pair of cores: write it like 0,1"))
}
