//! Words of the level `mpi`.

use crate::ethernet;
use crate::names;

names! {
    /// Whose MPI.
    Implementation, "MPI implementation" {
        /// Open MPI as the distribution has it.
        OpenMpi = "open-mpi",
        /// MPICH as the Python Package Index has it.
        Mpich = "mpich",
    }
}

names! {
    /// What carries the messages between the two ranks.
    Link, "link of level mpi" {
        /// The implementation's own shared memory.
        Shm = "shm",
        /// The implementation's TCP over loopback.
        Tcp = "tcp",
        /// The same over the kernel's cable between two namespaces.
        Veth = "veth",
        /// The same over Ethernet of the fabric between two namespaces, carried by one process.
        Eth = "eth",
    }
}

impl Implementation {
    /// What it is, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI as the distribution has it",
            Self::Mpich => "MPICH as the Python Package Index has it",
        }
    }
}

impl Link {
    /// How it carries, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Shm => "the implementation's own shared memory",
            Self::Tcp => "the implementation's TCP over loopback",
            Self::Veth => "the same over the kernel's cable between two namespaces (needs root)",
            Self::Eth => "the same over Ethernet of the fabric, carried by one process (needs root)",
        }
    }

    /// Between namespaces that this joins.
    pub fn ethernet(self) -> Option<ethernet::Link> {
        match self {
            Self::Shm | Self::Tcp => None,
            Self::Veth => Some(ethernet::Link::Veth),
            Self::Eth => Some(ethernet::Link::OneProcess),
        }
    }
}
