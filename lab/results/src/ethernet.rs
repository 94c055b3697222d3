//! Words of the level `eth`: the kernel's TCP and UDP over Ethernet between two namespaces.

use crate::names;

/// The level's name, on the command line and in cells.
pub const LEVEL: &str = "eth";

names! {
    /// A way to carry frames between the two namespaces.
    Link, "link of level eth" {
        OneProcess = "one-process": "one process has both interfaces: from one TAP straight into the other",
        TwoProcesses = "two-processes": "a process for each interface; frames cross by the message layer",
        Udp = "udp": "two nodes of a fabric on a cable, with an interface each; frames cross in UDP packets",
        Veth = "veth": "the kernel's own cable, to compare with",
    }
}

impl Link {
    /// The links that need no fabric.
    pub const WITHIN_MACHINE: [Self; 3] = [Self::OneProcess, Self::TwoProcesses, Self::Veth];
}

names! {
    /// The protocol between the ends.
    Protocol, "protocol" {
        /// The kernel's TCP.
        Tcp = "tcp",
        /// The kernel's UDP.
        Udp = "udp",
    }
}
