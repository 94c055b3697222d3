//! The level `eth`: the kernel's own TCP and UDP over a link that carries Ethernet frames between two namespaces.
//!
//! The carrying process is `bywire eth up`, from this very program. It is killed when this process ends for any reason,
//! and the interfaces end with it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::exit_status::Misuse;
use crate::namespaces::{self, Namespace, NamespaceLink, Namespaces, PREFIX_LENGTH, Side};
use crate::options::{MTU_BYTES, Request};
use crate::scratch_directory::{ScratchDirectory, nonce};
use crate::service_process::{ServiceProcess, TIMEOUT};
use crate::switched_network::SwitchedNetwork;

pub use bywire_results::ethernet::{LEVEL, Link, Protocol};

/// The name of the interfaces.
pub(crate) const INTERFACE: &str = "by0";

/// The interval between status requests, which take a few milliseconds each.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The largest share of packets that may be lost, in percent.
const LOSS_PERCENT_MAX: f64 = 50.0;

/// The rates that the switch in a veth link keeps, in Mb/s.
const RATE_MBITS: std::ops::RangeInclusive<u32> = 1..=40_000;

/// How frames are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameLink {
    /// The link.
    pub link: Link,
    /// MTU of both interfaces.
    pub mtu_bytes: u32,
    /// Take all available frames at each wake-up, instead of one.
    pub coalesce: bool,
    /// Let the interfaces segment long sends.
    pub segmentation: bool,
    /// Of a million packets that reach an end of a veth link, this many are dropped at random.
    pub lost_ppm: u32,
    /// The rate of the switch in the middle of a veth link, for each direction. `None`: there is no switch.
    pub rate_mbits: Option<u32>,
}

/// A link for frames of up to `mtu_bytes`.
///
/// # Errors
/// The link does not support the MTU.
pub fn frame_link(link: Link, mtu_bytes: u32, coalesce: bool, segmentation: bool) -> Result<FrameLink> {
    let (least, most) = (68, if link == Link::Veth { 65_535 } else { 65_521 });
    ensure!(
        (least..=most).contains(&mtu_bytes),
        Misuse(format!("an MTU of {mtu_bytes} is out of bounds: give --mtu {least} to {most} bytes"))
    );
    Ok(FrameLink { coalesce, segmentation, ..FrameLink::of(link, mtu_bytes) })
}

/// The request for the level `eth`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ethernet {
    pub(crate) protocol: Protocol,
    pub(crate) frame_link: FrameLink,
}

impl Ethernet {
    /// The Ethernet part of `request`, or `None` if it is for another level.
    pub(crate) fn asked(request: &Request) -> Result<Option<Self>> {
        if request.level != LEVEL {
            return Ok(None);
        }
        let link: Link = request.link.as_deref().map_or(Ok(Link::OneProcess), str::parse)?;
        let protocol: Protocol = request.protocol.as_deref().map_or(Ok(Protocol::Tcp), str::parse)?;
        ensure!(
            request.between.as_deref().is_none_or(|between| between == "namespaces"),
            "level eth joins two namespaces that it makes: leave out --between"
        );
        let mtu_bytes = request.mtu_bytes.unwrap_or(MTU_BYTES);
        let (coalesce, segmentation) =
            (request.coalesce.unwrap_or(true), request.segmentation.unwrap_or(true));
        let frame_link = frame_link(link, mtu_bytes, coalesce, segmentation)?;
        Ok(Some(Self { protocol, frame_link }))
    }
}

impl FrameLink {
    /// A link that coalesces and segments, loses nothing and has no limit of its own.
    pub const fn of(link: Link, mtu_bytes: u32) -> Self {
        Self { link, mtu_bytes, coalesce: true, segmentation: true, lost_ppm: 0, rate_mbits: None }
    }

    /// The veth link that `request` describes.
    ///
    /// # Errors
    /// A share that cannot be lost, or a rate that cannot be kept.
    pub(crate) fn cable(request: &Request) -> Result<Self> {
        let lost_percent = request.loss_percent.unwrap_or(0.0);
        ensure!(
            (0.0..=LOSS_PERCENT_MAX).contains(&lost_percent),
            Misuse(format!("--loss is out of bounds: give 0 to {LOSS_PERCENT_MAX} percent"))
        );
        ensure!(
            request.rate_mbits.is_none_or(|rate| RATE_MBITS.contains(&rate)),
            Misuse(format!(
                "--rate is out of bounds: give {} to {} Mb/s",
                RATE_MBITS.start(),
                RATE_MBITS.end()
            ))
        );
        Ok(Self {
            segmentation: request.segmentation.unwrap_or(true),
            lost_ppm: (lost_percent * 10_000.0) as u32,
            rate_mbits: request.rate_mbits,
            ..Self::of(Link::Veth, request.mtu_bytes.unwrap_or(MTU_BYTES))
        })
    }

    /// Two namespaces joined this way.
    ///
    /// # Errors
    /// One line with the reason why this machine or this user cannot, and what to do.
    pub fn open(self) -> Result<Namespaces> {
        let namespaces = match (self.link, self.rate_mbits) {
            (Link::Veth, None) => Namespaces::veth_pair(self.mtu_bytes)?,
            (Link::Veth, Some(_)) => {
                SwitchedNetwork::bridge(2, self.mtu_bytes, self.rate_mbits)?.into_pair()?
            }
            (Link::OneProcess | Link::TwoProcesses, _) => {
                Namespaces::joined(|source, target| self.join(&[source, target]))?
            }
        };
        self.restrict([&namespaces.source, &namespaces.target])?;
        Ok(namespaces)
    }

    /// Makes each end drop the share of packets that the link loses, and send segments of one frame if the interfaces must not segment.
    fn restrict<'a>(self, sides: impl IntoIterator<Item = &'a Namespace> + Clone) -> Result<()> {
        if self.lost_ppm > 0 {
            sides.clone().into_iter().try_for_each(|side| side.lose(namespaces::INTERFACE, self.lost_ppm))?;
        }
        if self.segmentation {
            return Ok(());
        }
        let interface = if self.link == Link::Veth { namespaces::INTERFACE } else { INTERFACE };
        for side in sides {
            side.configure(&format!("link set {interface} gso_max_segs 1\n"))
                .context("cannot turn segmentation offload off")?;
        }
        Ok(())
    }

    /// Makes `count` namespaces around a switch of this link.
    ///
    /// # Errors
    /// As [`FrameLink::open`].
    pub fn open_network(self, nodes: u32) -> Result<SwitchedNetwork> {
        let network = match self.link {
            Link::Veth => SwitchedNetwork::bridge(nodes, self.mtu_bytes, self.rate_mbits)?,
            Link::OneProcess | Link::TwoProcesses => {
                SwitchedNetwork::joined(nodes, |sides| self.join(sides))?
            }
        };
        self.restrict(&network.nodes)?;
        Ok(network)
    }

    fn join(self, sides: &[Side]) -> Result<NamespaceLink> {
        let namespaces: Vec<&Namespace> = sides.iter().map(|side| side.namespace).collect();
        ensure!(
            !namespaces.iter().any(|namespace| namespace.is_unprivileged())
                && Path::new("/dev/net/tun").exists(),
            "level eth makes interfaces of its own: run as root, with /dev/net/tun (`modprobe tun`)"
        );
        let scratch_directory = ScratchDirectory::of(&nonce())?;
        let place = scratch_directory.path();
        let carriers = match self.link {
            Link::TwoProcesses => namespaces
                .iter()
                .enumerate()
                .map(|(node, namespace)| Carrier::start(self, place, &format!("node{node}"), &[namespace]))
                .collect::<Result<_>>()?,
            _ => vec![Carrier::start(self, place, "all", &namespaces)?],
        };
        let processes = await_peers(place, carriers.len())?;
        // The processes are dropped first, because they remove their sockets from the directory.
        Ok(NamespaceLink { name: self.link.name(), processes, kept: Box::new((carriers, scratch_directory)) })
    }
}

/// A running `bywire eth up`. Dropping it ends it, and the interfaces with it.
struct Carrier {
    _service: ServiceProcess,
}

impl Carrier {
    /// Starts one with an interface in each of `namespaces`. The interfaces exist when this returns.
    fn start(frame_link: FrameLink, directory: &Path, node: &str, namespaces: &[&Namespace]) -> Result<Self> {
        let mut command = bywire(directory, &["eth", "up", "--network", "laboratory", "--node", node]);
        command.args(["--mtu", &frame_link.mtu_bytes.to_string()]);
        command.args(["--coalesce", if frame_link.coalesce { "on" } else { "off" }]);
        for namespace in namespaces {
            let (path, address) = (namespace.path(), namespace.address());
            let interface = format!("{}:{INTERFACE}={address}/{PREFIX_LENGTH}", path.display());
            command.args(["--interface", &interface]);
        }
        // One line for each interface.
        let service = ServiceProcess::start(&mut command, "bywire eth up", namespaces.len())?;
        Ok(Self { _service: service })
    }
}

/// This program's own file, with its sockets in `directory`.
fn bywire(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).env("BYWIRE_RUNTIME_DIR", directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Waits until each node knows the interfaces of the others. Returns the processes that carry frames.
fn await_peers(directory: &Path, nodes: usize) -> Result<Vec<u32>> {
    let until = Instant::now() + TIMEOUT;
    loop {
        let output = bywire(directory, &["eth", "status", "--json"]).stderr(Stdio::null()).output()?;
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let known = status.as_array().map_or(&[][..], Vec::as_slice);
        if known.len() == nodes && known.iter().all(|node| knows(node, nodes - 1)) {
            let carriers = known.iter().filter_map(|node| node["carriers"].as_array()).flatten();
            return Ok(carriers
                .filter_map(|carrier| carrier["process"].as_u64())
                .map(|id| id as u32)
                .collect());
        }
        ensure!(Instant::now() < until, "the processes of `bywire eth up` have not found each other in time");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// True if the status of a node lists this many other nodes with their interfaces.
fn knows(node: &Value, others: usize) -> bool {
    let peers = node["peers"].as_array().map_or(&[][..], Vec::as_slice);
    peers.iter().filter(|peer| peer["interfaces_count"].as_u64() > Some(0)).count() >= others
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_measurement_waits_until_both_nodes_know_each_other() {
        let alone = json!({ "peers": [] });
        let greeted = json!({ "peers": [{ "interfaces_count": 0 }] });
        let ready = json!({ "peers": [{ "interfaces_count": 1 }] });
        assert!(knows(&alone, 0) && !knows(&alone, 1));
        assert!(!knows(&greeted, 1) && knows(&ready, 1));
    }
}
