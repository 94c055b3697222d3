//! Words of the level `eth`: the kernel's TCP and UDP over whatever carries Ethernet frames.

use crate::names;

/// The level's name, on the command line and in cells.
pub const LEVEL: &str = "eth";

names! {
    /// A way to carry frames between the two namespaces.
    Link, "link of level eth" {
        /// Both interfaces belong to one process: from one TAP's read straight into the other's write.
        OneProcess = "one-process",
        /// A process for each interface; frames cross by the message layer.
        TwoProcesses = "two-processes",
        /// The kernel's own cable, to compare with.
        Veth = "veth",
    }
}

names! {
    /// What the ends speak.
    Protocol, "protocol" {
        /// The kernel's TCP.
        Tcp = "tcp",
        /// The kernel's UDP.
        Udp = "udp",
    }
}

impl Link {
    /// How it carries, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Self::OneProcess => "one process has both interfaces: from one TAP straight into the other",
            Self::TwoProcesses => "a process for each interface; frames cross by the message layer",
            Self::Veth => "the kernel's own cable, to compare with",
        }
    }
}
