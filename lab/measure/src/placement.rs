//! Where the two ends of a pair run, and on which cores.

use std::net::IpAddr;
use std::sync::Arc;

use crate::fabric_pair::FabricPair;
use crate::namespaces::{Namespace, Namespaces};
use crate::plan::RuntimeDirectories;
use crate::remote_target::Host;
use crate::switched_network::SwitchedNetwork;

/// Where the two ends of a pair run.
#[derive(Clone)]
pub enum Placement {
    /// Two processes of this machine.
    Processes,
    /// Two threads of one fresh process.
    Threads,
    /// Two processes in two namespaces that are joined.
    Namespaces(Arc<Namespaces>),
    /// Two processes in two nodes of several that a switch joins.
    Nodes {
        /// All of them.
        network: Arc<SwitchedNetwork>,
        /// Where the source runs.
        source: usize,
        /// Where the target runs.
        target: usize,
    },
    /// Two processes on two nodes of a fabric.
    Fabric(Arc<FabricPair>),
    /// The source on this machine, the target on another one.
    Host(Arc<Host>),
}

impl Placement {
    /// The address that a target listens on.
    pub fn target_address(&self) -> IpAddr {
        match self {
            Self::Namespaces(namespaces) => namespaces.target.address().into(),
            Self::Nodes { network, target, .. } => network.nodes[*target].address().into(),
            _ => [127, 0, 0, 1].into(),
        }
    }

    /// The namespaces that were made for it.
    pub fn namespaces(&self) -> Vec<&Namespace> {
        match self {
            Self::Namespaces(namespaces) => vec![&namespaces.source, &namespaces.target],
            Self::Nodes { network, .. } => network.nodes.iter().collect(),
            Self::Fabric(pair) => vec![&pair.namespaces.source, &pair.namespaces.target],
            _ => Vec::new(),
        }
    }

    /// The processes that carry the messages of the two ends, if it is not the kernel alone.
    pub fn carriers(&self) -> &[u32] {
        match self {
            Self::Namespaces(namespaces) => namespaces.carriers(),
            Self::Nodes { network, .. } => network.carriers(),
            Self::Fabric(pair) => pair.services(),
            _ => &[],
        }
    }

    /// The namespaces that the source and the target run in, if they have any of their own.
    pub fn ends(&self) -> Option<[&Namespace; 2]> {
        match self {
            Self::Namespaces(namespaces) => Some([&namespaces.source, &namespaces.target]),
            Self::Nodes { network, source, target } => {
                Some([&network.nodes[*source], &network.nodes[*target]])
            }
            Self::Fabric(pair) => Some([&pair.namespaces.source, &pair.namespaces.target]),
            _ => None,
        }
    }

    /// Where the nodes of both ends have their sockets, if a fabric joins them.
    pub fn runtime_directories(&self) -> Option<&RuntimeDirectories> {
        match self {
            Self::Fabric(pair) => Some(pair.runtime_directories()),
            _ => None,
        }
    }
}

/// The cores that the two ends are pinned to. Absent if an end is not pinned, or the other machine chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The source's.
    pub source: Option<u32>,
    /// The target's.
    pub target: Option<u32>,
}

impl Cores {
    /// True if both are known and different.
    pub fn apart(self) -> bool {
        self.source.is_some() && self.target.is_some() && self.source != self.target
    }
}
