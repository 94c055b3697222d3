//! Several network namespaces around one switch: the kernel sees as many hosts on one machine.
//!
//! The switch is a bridge in a namespace of its own, or another link with an interface in each node. All of it ends
//! with this program, like the two namespaces of [`crate::namespaces`].

use std::net::Ipv4Addr;

use anyhow::{Context, Result};

use crate::namespaces::{self, Namespace, NamespaceLink, Namespaces, Side};
use crate::options::bounded;

/// The permitted number of nodes.
pub const NODES: std::ops::RangeInclusive<u32> = 2..=64;

/// The nodes and the switch.
#[derive(Debug)]
pub struct SwitchedNetwork {
    /// The switch. It is dropped first.
    link: NamespaceLink,
    /// The nodes, with addresses in one network.
    pub nodes: Vec<Namespace>,
}

impl SwitchedNetwork {
    /// Makes `count` nodes at the ports of a bridge, with an MTU of `mtu_bytes` everywhere. Each port lets pass what
    /// `rate_mbits` allows, and drops what its queue cannot hold. Fails with one line: why this machine or user cannot do
    /// this, and what to do.
    pub fn bridge(count: u32, mtu_bytes: u32, rate_mbits: Option<u32>) -> Result<Self> {
        namespaces::check_mtu(mtu_bytes)?;
        Self::joined(count, |sides| {
            let switch = connect(sides, mtu_bytes, Namespace::address, rate_mbits)?;
            Ok(NamespaceLink { name: "bridge", processes: Vec::new(), kept: Box::new(switch) })
        })
    }

    pub(crate) fn into_pair(self) -> Result<Namespaces> {
        Namespaces::of(self.link, self.nodes)
    }

    /// Makes `count` nodes joined by `join`, which makes an interface in each. The interfaces are up when it returns. Fails
    /// as [`SwitchedNetwork::bridge`], or with the error of `join`.
    pub fn joined(count: u32, join: impl FnOnce(&[Side]) -> Result<NamespaceLink>) -> Result<Self> {
        let count = bounded("nodes", count, NODES, "")?;
        let (link, nodes) = namespaces::joined(count as usize, join)?;
        Ok(Self { link, nodes })
    }

    /// The link's name in a cell.
    pub fn link(&self) -> &'static str {
        self.link.name
    }

    /// The processes that carry the frames, if it is not the kernel alone.
    pub fn carriers(&self) -> &[u32] {
        &self.link.processes
    }
}

/// Connects nodes to a bridge in a namespace of its own, which is returned. Each node gets a veth device with this address.
pub(crate) fn connect(
    nodes: &[Side],
    mtu_bytes: u32,
    address: fn(&Namespace) -> Ipv4Addr,
    rate_mbits: Option<u32>,
) -> Result<Namespace> {
    let switch = namespaces::make_one(nodes.len() + 1, nodes.first().map(|node| node.namespace))?;
    let set_up = || -> Result<()> {
        switch.namespace.configure("link add br0 type bridge\nlink set br0 up\n")?;
        for (port, node) in nodes.iter().map(|node| node.namespace).enumerate() {
            let port = format!("port{port}");
            node.add_veth(mtu_bytes, &port, switch.side().process)?;
            node.bring_up(address(node))?;
            switch.namespace.configure(&format!("link set {port} master br0 up\n"))?;
            rate_mbits.map_or(Ok(()), |rate| switch.namespace.shape(&port, rate))?;
        }
        Ok(())
    };
    set_up().context("cannot set up a bridge (does this kernel have bridge and veth?)")?;
    Ok(switch.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn every_node_reaches_every_other_through_the_bridge() {
        let network = SwitchedNetwork::bridge(3, 9000, None);
        let Ok(network) = network.inspect_err(|reason| eprintln!("not run: {reason:#}")) else { return };
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            // No ping(8) is needed: a refused connection has found its host.
            let mut command = Command::new("bash");
            let address = network.nodes[to].address();
            command.args(["-c", &format!("exec 3<>/dev/tcp/{address}/9")]);
            network.nodes[from].enter(&mut command).unwrap();
            let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
            assert!(said.contains("refused"), "{said}");
        }
    }

    #[test]
    fn a_network_of_one_node_is_refused() {
        assert!(SwitchedNetwork::bridge(1, 1500, None).unwrap_err().to_string().contains("2 to 64"));
    }
}
