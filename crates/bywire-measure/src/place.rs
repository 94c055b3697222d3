//! Where the two ends of a pair run, and on which cores.

use std::net::IpAddr;
use std::sync::Arc;

use crate::far::Host;
use crate::namespaces::{Namespace, Namespaces};
use crate::star::Star;

/// Where the two ends of a pair run.
#[derive(Clone)]
pub enum Place {
    /// Two processes of this machine.
    Processes,
    /// Two threads of one fresh process.
    Threads,
    /// Two processes in namespaces with a cable between them.
    Namespaces(Arc<Namespaces>),
    /// Two processes in two nodes of several that a switch joins.
    Nodes {
        /// All of them.
        star: Arc<Star>,
        /// Where the source runs.
        source: usize,
        /// Where the target runs.
        target: usize,
    },
    /// The target on another machine.
    Host(Arc<Host>),
}

impl Place {
    /// The address that a target listens on.
    pub fn target_address(&self) -> IpAddr {
        match self {
            Self::Namespaces(namespaces) => namespaces.target.address().into(),
            Self::Nodes { star, target, .. } => star.nodes[*target].address().into(),
            _ => [127, 0, 0, 1].into(),
        }
    }

    /// The namespaces that were made for it.
    pub fn namespaces(&self) -> Vec<&Namespace> {
        match self {
            Self::Namespaces(namespaces) => vec![&namespaces.source, &namespaces.target],
            Self::Nodes { star, .. } => star.nodes.iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The processes that carry what the two ends exchange, where it is not the kernel alone.
    pub fn carriers(&self) -> &[u32] {
        match self {
            Self::Namespaces(namespaces) => namespaces.carriers(),
            Self::Nodes { star, .. } => star.carriers(),
            _ => &[],
        }
    }
}

/// The cores that the two ends are pinned to; absent: not pinned, or chosen by the other machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The source's.
    pub source: Option<u32>,
    /// The target's.
    pub target: Option<u32>,
}

impl Cores {
    /// True where two different ones are known.
    pub fn apart(self) -> bool {
        self.source.is_some() && self.target.is_some() && self.source != self.target
    }
}
