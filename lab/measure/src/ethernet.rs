//! The level `eth`: the kernel's own TCP and UDP over a link that carries Ethernet frames between two namespaces.
//!
//! The carrying process is `bywire eth up`, from this very program. It is killed when this process ends for any reason,
//! and the interfaces end with it. Over link `udp` each namespace is a node of a fabric, with a node service and a
//! carrying process of its own, and a wire below the interfaces joins the nodes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bywire_command::exit_status::Misuse;
use bywire_results::message_link::Security;
use serde_json::Value;

use crate::bounds::bounded;
use crate::interrupt::awaited;
use crate::namespaces::{self, Namespace, NamespaceLink, Namespaces, PREFIX_LENGTH, Side};
use crate::node_services::{NodePlace, NodeServices};
use crate::options::{MTU_BYTES, Request};
use crate::scratch_directory::{ScratchDirectory, nonce};
use crate::service_process::{ServiceProcess, TIMEOUT};

pub use bywire_results::ethernet::{LEVEL, Link, Protocol};

/// The command of the processes that carry frames, for people.
const CARRIER: &str = "bywire eth up";
pub(crate) const INTERFACE: &str = "by0";
/// The bytes of a packet of the wire that are not part of the frame's packet: headers, and an acknowledgement beside it.
/// `bywire eth up --fabric` leaves as many on a wire of 1500 bytes.
const PACKET_OVERHEAD_BYTES: u32 = 150;
/// The least MTU of a wire between nodes, whose packets are not cut any finer.
const WIRE_MTU_BYTES_MIN: u32 = 1280;
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
    /// MTU of the interfaces.
    pub mtu_bytes: u32,
    /// The wire below the interfaces, for link `udp`.
    pub wire: Option<Wire>,
    /// Take all available frames at each wake-up, instead of one.
    pub coalesce: bool,
    /// Let the interfaces segment long sends.
    pub segmentation: bool,
    /// The number of packets that are dropped at random, of a million that reach an end of a veth link.
    pub lost_ppm: u32,
    /// The rate of the switch in the middle of a veth link, for each direction. `None`: there is no switch.
    pub rate_mbits: Option<u32>,
}

/// The wire between the nodes of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wire {
    /// Its MTU.
    pub mtu_bytes: u32,
    /// The protection of packets.
    pub security: Security,
}

/// A link for frames of up to `mtu_bytes`, or over a wire with that MTU. Fails if the link does not support the MTU.
pub fn frame_link(link: Link, mtu_bytes: u32, coalesce: bool, segmentation: bool) -> Result<FrameLink> {
    let bounds = match link {
        Link::Veth => namespaces::MTU_BYTES,
        Link::Udp => WIRE_MTU_BYTES_MIN..=65_521,
        Link::OneProcess | Link::TwoProcesses => 68..=65_521,
    };
    bounded("mtu", mtu_bytes, bounds, " bytes")?;
    Ok(FrameLink { coalesce, segmentation, ..FrameLink::of(link, mtu_bytes) })
}

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
        let coalesce = request.coalesce.unwrap_or(true);
        let mut frame_link = frame_link(link, mtu_bytes, coalesce, request.segmentation.unwrap_or(true))?;
        if let (Some(wire), Some(security)) = (&mut frame_link.wire, &request.security) {
            wire.security = security.parse().map_err(Misuse::of)?;
        }
        Ok(Some(Self { protocol, frame_link }))
    }
}

impl FrameLink {
    /// A link that coalesces and segments, loses nothing and has no limit of its own. Nodes of a fabric have an encrypted
    /// wire with that MTU.
    pub const fn of(link: Link, mtu_bytes: u32) -> Self {
        let (overhead_bytes, wire) = match link {
            Link::Udp => (PACKET_OVERHEAD_BYTES, Some(Wire { mtu_bytes, security: Security::Encrypted })),
            Link::OneProcess | Link::TwoProcesses | Link::Veth => (0, None),
        };
        let mtu_bytes = mtu_bytes.saturating_sub(overhead_bytes);
        Self { link, mtu_bytes, wire, coalesce: true, segmentation: true, lost_ppm: 0, rate_mbits: None }
    }

    /// Nodes of a fabric, whose interfaces have the MTU that fills the packets of their wire.
    pub const fn between_nodes(wire: Wire) -> Self {
        Self { wire: Some(wire), ..Self::of(Link::Udp, wire.mtu_bytes) }
    }

    /// The veth link that `request` describes. Fails if the share cannot be lost, or if the rate cannot be kept.
    pub(crate) fn cable(request: &Request) -> Result<Self> {
        let lost_percent = request.loss_percent.unwrap_or(0.0);
        let lost_percent = bounded("loss", lost_percent, 0.0..=LOSS_PERCENT_MAX, " percent")?;
        let rate = request.rate_mbits.map(|rate| bounded("rate", rate, RATE_MBITS, " Mb/s"));
        Ok(Self {
            segmentation: request.segmentation.unwrap_or(true),
            lost_ppm: (lost_percent * 10_000.0) as u32,
            rate_mbits: rate.transpose()?,
            ..Self::of(Link::Veth, request.mtu_bytes.unwrap_or(MTU_BYTES))
        })
    }

    /// Two namespaces joined this way, or `nodes` around a switch. Fails with one line: why this machine or this user cannot,
    /// and what to do.
    pub fn open(self, nodes: Option<u32>) -> Result<Namespaces> {
        let count = nodes.unwrap_or(2);
        let namespaces = match (self.link, nodes, self.rate_mbits) {
            (Link::Veth, None, None) => Namespaces::veth_pair(self.mtu_bytes)?,
            (Link::Veth, ..) => Namespaces::bridge(count, self.mtu_bytes, self.rate_mbits)?,
            (Link::OneProcess | Link::TwoProcesses | Link::Udp, ..) => {
                Namespaces::joined(count, |sides| self.join(sides))?
            }
        };
        self.restrict(&namespaces.nodes)?;
        Ok(namespaces)
    }

    /// Makes each end drop the share of packets that the link loses, and send segments of one frame if the interfaces must
    /// not segment.
    fn restrict(self, sides: &[Namespace]) -> Result<()> {
        if self.lost_ppm > 0 {
            sides.iter().try_for_each(|side| side.lose(namespaces::INTERFACE, self.lost_ppm))?;
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

    fn join(self, sides: &[Side]) -> Result<NamespaceLink> {
        let namespaces: Vec<&Namespace> = sides.iter().map(|side| side.namespace).collect();
        ensure!(
            !namespaces.iter().any(|namespace| namespace.is_unprivileged())
                && Path::new("/dev/net/tun").exists(),
            "level eth makes interfaces of its own: run as root, with /dev/net/tun (`modprobe tun`)"
        );
        if let Some(wire) = self.wire {
            return self.join_nodes(wire, sides);
        }
        let scratch_directory = ScratchDirectory::of(&nonce())?;
        let place = scratch_directory.path();
        let carriers = match self.link {
            Link::TwoProcesses => namespaces
                .iter()
                .enumerate()
                .map(|(node, namespace)| self.carrier(place, &format!("node{node}"), &[namespace]))
                .collect::<Result<_>>()?,
            _ => vec![self.carrier(place, "all", &namespaces)?],
        };
        let processes = await_peers(place, carriers.len(), carriers.len() - 1)?;
        // The processes are dropped first, because they remove their sockets from the directory.
        Ok(NamespaceLink { name: self.link.name(), processes, kept: Box::new((carriers, scratch_directory)) })
    }

    /// Joins nodes of a fabric, which has a cable between two nodes and a switch between more.
    fn join_nodes(self, wire: Wire, sides: &[Side]) -> Result<NamespaceLink> {
        let switch = match *sides {
            [source, target] => {
                namespaces::lay_cable([source, target], wire.mtu_bytes, Namespace::wire_address)?;
                None
            }
            _ => Some(namespaces::connect(sides, wire.mtu_bytes, Namespace::wire_address, None)?),
        };
        let places = sides.iter().enumerate().map(|(number, side)| NodePlace {
            name: format!("node{number}"),
            namespace: side.namespace,
            address: side.namespace.wire_address(),
        });
        let places: Vec<NodePlace> = places.collect();
        let services = NodeServices::start(&places, wire.security)?;
        let mut carriers = Vec::new();
        for (side, directory) in sides.iter().zip(&services.runtime_directories) {
            carriers.push(self.carrier_on_node(directory, side.namespace)?);
        }
        let mut processes = services.processes.clone();
        for directory in &services.runtime_directories {
            processes.extend(await_peers(directory, 1, sides.len() - 1)?);
        }
        // The carriers are dropped first, because they remove their sockets from the directories of the services.
        Ok(NamespaceLink { name: self.link.name(), processes, kept: Box::new((carriers, services, switch)) })
    }

    /// Starts a `bywire eth up` with an interface in each of `namespaces`. The interfaces exist when this returns, and end
    /// with the process.
    fn carrier(self, directory: &Path, node: &str, namespaces: &[&Namespace]) -> Result<ServiceProcess> {
        let mut command = self.carrying(directory);
        command.args(["--node", node]);
        for namespace in namespaces {
            let (path, address) = (namespace.path(), namespace.address());
            let interface = format!("{}:{INTERFACE}={address}/{PREFIX_LENGTH}", path.display());
            command.args(["--interface", &interface]);
        }
        ServiceProcess::start(&mut command, CARRIER, namespaces.len())
    }

    /// Starts one on the node of a fabric whose service has its sockets in `directory`.
    fn carrier_on_node(self, directory: &Path, namespace: &Namespace) -> Result<ServiceProcess> {
        let mut command = self.carrying(directory);
        let interface = format!("-:{INTERFACE}={}/{PREFIX_LENGTH}", namespace.address());
        command.args(["--fabric", "--interface", &interface]);
        namespace.enter(&mut command)?;
        ServiceProcess::start(&mut command, CARRIER, 1)
    }

    fn carrying(self, directory: &Path) -> Command {
        let mut command = bywire(directory, &["eth", "up", "--network", "laboratory"]);
        command.args(["--mtu", &self.mtu_bytes.to_string()]);
        command.args(["--coalesce", if self.coalesce { "on" } else { "off" }]);
        command
    }
}

/// This program's own file, with its sockets in `directory`.
fn bywire(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).env("BYWIRE_RUNTIME_DIR", directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Waits until each of the commands in `directory` knows the interfaces of `others`. Returns the processes that carry
/// frames.
fn await_peers(directory: &Path, commands: usize, others: usize) -> Result<Vec<u32>> {
    let found = awaited(LOOK_AGAIN, TIMEOUT, || {
        let output = bywire(directory, &["eth", "status", "--json"]).stderr(Stdio::null()).output()?;
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let known = status.as_array().map_or(&[][..], Vec::as_slice);
        let is_complete = known.len() == commands && known.iter().all(|node| knows(node, others));
        let carriers = known.iter().filter_map(|node| node["carriers"].as_array()).flatten();
        let processes = carriers.filter_map(|carrier| carrier["process"].as_u64());
        Ok(is_complete.then(|| processes.map(|process| process as u32).collect()))
    })?;
    found.context("the processes of `bywire eth up` have not found each other in time")
}

/// Returns whether the status of a node lists this many other nodes with their interfaces.
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
