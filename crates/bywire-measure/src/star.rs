//! Several network namespaces around one switch: as many hosts on one machine, as the kernel's own network sees them.
//!
//! The switch is a bridge in a namespace of its own, or whatever else leads an interface into each node. All of it is
//! gone with this program, as two namespaces with a cable are; see [`crate::namespaces`].

use anyhow::{Context, Result};

use crate::ending::Misuse;
use crate::namespaces::{self, INTERFACE, Joint, Namespace, PREFIX_LENGTH, Side};

/// How many nodes there may be.
pub const NODES: std::ops::RangeInclusive<u32> = 2..=64;

/// Nodes with what joins them.
#[derive(Debug)]
pub struct Star {
    /// What joins them; it goes first.
    joint: Joint,
    /// Each with an address in one network.
    pub nodes: Vec<Namespace>,
}

impl Star {
    /// So many nodes at the ports of a bridge, with `mtu_bytes` everywhere.
    ///
    /// # Errors
    /// One line with the reason why this machine or this user cannot, and what to do.
    pub fn bridge(count: u32, mtu_bytes: u32) -> Result<Self> {
        namespaces::check_mtu(mtu_bytes)?;
        check(count)?;
        // The last one becomes the switch.
        let mut made = namespaces::make(count as usize + 1)?;
        let switch = made.pop().context("no namespace was made")?;
        let set_up = || -> Result<()> {
            switch.namespace().configure("link add br0 type bridge\nlink set br0 up\n")?;
            for (port, node) in made.iter().enumerate() {
                let (node, switch_process) = (node.namespace(), switch.process());
                node.configure(&format!(
                    "link add {INTERFACE} mtu {mtu_bytes} type veth peer name port{port} mtu {mtu_bytes} netns {switch_process}\n\
                     address add {}/{PREFIX_LENGTH} dev {INTERFACE}\nlink set {INTERFACE} up\n",
                    node.address()
                ))?;
                switch.namespace().configure(&format!("link set port{port} master br0 up\n"))?;
            }
            Ok(())
        };
        set_up().context("cannot set up a bridge (does this kernel have bridge and veth?)")?;
        let joint = Joint { link: "bridge", processes: Vec::new(), kept: Box::new(switch.into_namespace()) };
        Ok(Self { joint, nodes: made.into_iter().map(namespaces::Made::into_namespace).collect() })
    }

    /// So many nodes, joined by `join`, which leads an interface into each and has it up when it returns.
    ///
    /// # Errors
    /// One line with the reason why this machine or this user cannot, or what `join` said.
    pub fn joined(count: u32, join: impl FnOnce(&[Side]) -> Result<Joint>) -> Result<Self> {
        check(count)?;
        let made = namespaces::make(count as usize)?;
        let sides: Vec<Side> = made.iter().map(namespaces::Made::side).collect();
        let joint = join(&sides)?;
        Ok(Self { joint, nodes: made.into_iter().map(namespaces::Made::into_namespace).collect() })
    }

    /// What joins them, in the word of a cell.
    pub fn link(&self) -> &'static str {
        self.joint.link
    }

    /// The processes that carry what crosses, where it is not the kernel alone.
    pub fn carriers(&self) -> &[u32] {
        &self.joint.processes
    }
}

fn check(count: u32) -> Result<(), Misuse> {
    if NODES.contains(&count) {
        return Ok(());
    }
    Err(Misuse(format!("--nodes {count} is out of bounds: give {} to {}", NODES.start(), NODES.end())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn every_node_reaches_every_other_through_the_bridge() {
        let star = match Star::bridge(3, 9000) {
            Ok(star) => star,
            Err(reason) => {
                eprintln!("not run: {reason:#}");
                return;
            }
        };
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            // Without ping(8) a look at the neighbours will do: a connection that is refused has found its host.
            let mut command = Command::new("bash");
            let address = star.nodes[to].address();
            command.args(["-c", &format!("exec 3<>/dev/tcp/{address}/9")]);
            star.nodes[from].enter(&mut command).unwrap();
            let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
            assert!(said.contains("refused"), "{said}");
        }
    }

    #[test]
    fn one_node_alone_is_refused() {
        assert!(Star::bridge(1, 1500).unwrap_err().to_string().contains("2 to 64"));
    }
}
