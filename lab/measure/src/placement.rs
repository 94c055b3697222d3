//! The places and the cores of the two ends of a pair.

use std::net::IpAddr;
use std::sync::Arc;

use crate::fabric_pair::FabricPair;
use crate::namespaces::{Namespace, Namespaces};
use crate::plan::{Ends, RuntimeDirectories};
use crate::remote_target::Host;

/// The places where the two ends of a pair run.
#[derive(Clone)]
pub enum Placement {
    /// Two processes of this machine.
    Processes,
    /// Two threads of one fresh process.
    Threads,
    /// Two processes in two of several namespaces that are joined.
    Namespaces { network: Arc<Namespaces>, source: usize, target: usize },
    /// Two processes on two nodes of a fabric.
    Fabric(Arc<FabricPair>),
    /// The source on this machine, the target on another one.
    Host(Arc<Host>),
}

impl Placement {
    /// The address that a target listens on.
    pub fn target_address(&self) -> IpAddr {
        match self {
            Self::Namespaces { network, target, .. } => network.nodes[*target].address().into(),
            _ => [127, 0, 0, 1].into(),
        }
    }

    /// The namespaces that were made for it.
    pub fn namespaces(&self) -> Vec<&Namespace> {
        match self {
            Self::Namespaces { network, .. } => network.nodes.iter().collect(),
            _ => self.ends().into_iter().flatten().collect(),
        }
    }

    /// The processes that carry the messages of the two ends, if it is not the kernel alone.
    pub fn carriers(&self) -> &[u32] {
        match self {
            Self::Namespaces { network, .. } => network.carriers(),
            Self::Fabric(pair) => pair.services(),
            _ => &[],
        }
    }

    /// The namespaces that the source and the target run in, if they have any of their own.
    pub fn ends(&self) -> Option<[&Namespace; 2]> {
        match self {
            Self::Namespaces { network, source, target } => {
                Some([*source, *target].map(|end| &network.nodes[end]))
            }
            Self::Fabric(pair) => Some(pair.namespaces.pair()),
            _ => None,
        }
    }

    /// The directories with the sockets of both ends' nodes, if a fabric joins them.
    pub fn runtime_directories(&self) -> Option<&RuntimeDirectories> {
        match self {
            Self::Fabric(pair) => Some(pair.runtime_directories()),
            _ => None,
        }
    }
}

/// The cores that the two ends are pinned to. Absent if an end is not pinned, or the other machine chooses.
pub type Cores = Ends<Option<u32>>;

impl Cores {
    /// Returns whether both are known and different.
    pub fn apart(self) -> bool {
        self.source.is_some() && self.target.is_some() && self.source != self.target
    }

    /// Those that are known.
    pub fn known(self) -> impl Iterator<Item = u32> {
        [self.source, self.target].into_iter().flatten()
    }
}
