//! Words of the level `mpi`.

use crate::{ethernet, names};

names! {
    /// An MPI implementation.
    Implementation, "MPI implementation" {
        /// Open MPI as the distribution has it.
        OpenMpi = "open-mpi",
        /// MPICH as the Python Package Index has it.
        Mpich = "mpich",
    }
}

names! {
    /// The link between the two ranks.
    Link, "link of level mpi" {
        Shm = "shm": "the implementation's own shared memory",
        OfiShm = "ofi-shm": "libfabric's own shared memory, its provider shm (mpich)",
        OfiSm2 = "ofi-sm2": "the same, its newer provider sm2 (mpich)",
        Tcp = "tcp": "the implementation's TCP over loopback",
        Veth = "veth": "the same over the kernel's cable between two namespaces (needs root)",
        Eth = "eth": "the same over Ethernet of the fabric, carried by one process (needs root)",
        Bywire = "bywire": "libfabric and Bywire's provider: in memory, and between namespaces in packets (needs root)",
    }
}

impl Link {
    /// The provider of libfabric, of those that an implementation brings along, that carries the messages of one machine.
    pub fn libfabric_provider(self) -> Option<&'static str> {
        match self {
            Self::OfiShm => Some("shm"),
            Self::OfiSm2 => Some("sm2"),
            _ => None,
        }
    }

    /// Between namespaces that this joins.
    pub fn ethernet(self) -> Option<ethernet::Link> {
        match self {
            Self::Shm | Self::OfiShm | Self::OfiSm2 | Self::Tcp | Self::Bywire => None,
            Self::Veth => Some(ethernet::Link::Veth),
            Self::Eth => Some(ethernet::Link::OneProcess),
        }
    }
}
