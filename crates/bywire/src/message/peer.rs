//! Peers, and the terms for a program's traffic with them.

use std::fmt;

use crate::message::address::{Address, PortName};

/// One connection of a port. The handle is `Copy`. A new incarnation of the same peer gets a new handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Peer {
    /// The handle as a number, for interfaces in other languages.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The handle with this number. A number that was never given out names no peer.
    pub fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// One of two independent lanes; neither can block the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// For the bulk of the traffic.
    Low = 0,
    /// For messages that must not wait behind the bulk.
    High = 1,
}

/// Identifies an asynchronous transfer until its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferId(pub u64);

/// When a transfer counts as complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confirm {
    /// When the buffer may be used again. For a long message to another machine that is once the other end has all of it, as it
    /// may have to be sent again from there.
    #[default]
    Copied,
    /// When the target port has consumed the message.
    Delivered,
}

/// Whose process a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A process of this machine. The kernel attests both numbers.
    Local {
        /// Its user.
        uid: u32,
        /// Its process in our pid namespace; 0 if it is in a namespace that we cannot see.
        pid: i32,
    },
    /// A process of another machine. Its node vouches for the user, so whoever is root there can be any of its users.
    Remote {
        /// The name of its user there; a number where the user has no name.
        user: String,
    },
}

/// Information about a peer. The kernel attests the identity of a peer of this machine, its own node that of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its node and port.
    pub address: Address,
    /// Whose process it is.
    pub owner: Owner,
    /// A number that differs between incarnations of the same port.
    pub incarnation: u64,
    /// The longest message that it accepts, in bytes.
    pub message_bytes_max: u64,
    /// Are payloads checked end to end?
    pub integrity: bool,
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Owner::Local { uid, pid } => write!(formatter, "{} (pid {pid}, uid {uid})", self.address),
            Owner::Remote { user } => write!(formatter, "{} (user {user})", self.address),
        }
    }
}

impl PeerInfo {
    /// Its port on its node.
    pub fn port(&self) -> &PortName {
        &self.address.port
    }

    /// Its process in our pid namespace. `None` for a process of another machine, and for one in a namespace that we
    /// cannot see.
    pub fn pid(&self) -> Option<i32> {
        match self.owner {
            Owner::Local { pid, .. } if pid > 0 => Some(pid),
            _ => None,
        }
    }

    /// Its user. `None` for a process of another machine.
    pub fn uid(&self) -> Option<u32> {
        match self.owner {
            Owner::Local { uid, .. } => Some(uid),
            Owner::Remote { .. } => None,
        }
    }
}
