//! Words of the level `mpi`.

use crate::ethernet;
use crate::names;

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
        Tcp = "tcp": "the implementation's TCP over loopback",
        Veth = "veth": "the same over the kernel's cable between two namespaces (needs root)",
        Eth = "eth": "the same over Ethernet of the fabric, carried by one process (needs root)",
        Bywire = "bywire": "libfabric and Bywire's provider: in memory, and between namespaces in packets (needs root)",
    }
}

impl Link {
    /// Between namespaces that this joins.
    pub fn ethernet(self) -> Option<ethernet::Link> {
        match self {
            Self::Shm | Self::Tcp | Self::Bywire => None,
            Self::Veth => Some(ethernet::Link::Veth),
            Self::Eth => Some(ethernet::Link::OneProcess),
        }
    }
}
