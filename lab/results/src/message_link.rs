//! The links of the message layer.

use crate::names;

names! {
    /// The carrier of messages between two ports.
    Link, "link of level msg" {
        Shm = "shm": "rings in sealed shared memory",
        Udp = "udp": "UDP between two nodes of a fabric, each with a service of its own",
    }
}

/// The parameter of a cell that states how its packets were protected between nodes of a fabric.
pub const SECURITY: &str = "security";

names! {
    /// How packets between two machines are protected.
    Security, "security" {
        /// Against strangers who see them and send their own.
        Encrypted = "encrypted",
        /// Against accidents, and strangers who see nothing.
        Plain = "plain",
    }
}
