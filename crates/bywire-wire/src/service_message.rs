//! What the services of two nodes say to each other, over a [channel](crate::channel).
//!
//! ```text
//! service of the asking port         service of the other port
//! Connect                    ──►                         Offer to the port, which accepts or declines
//!                            ◄──    Accept | Decline
//! Cancel                     ──►                         the asking port has gone before
//! Ended                     ◄──►    Ended                a port has ended, or has released the connection
//! Check                     ◄──►    Alive for the connections that are alive, Ended for each that is not
//! ```
//!
//! A message is one value of [`ServiceMessage`], as [`crate::service::to_bytes`] writes it. A service vouches for its own
//! ports: name, user and incarnation are what it knows of them. It says nothing of nodes: that is what the channel proves.
//!
//! Both services add 32 random bytes to the secret of a connection, so that none of the two chooses it. The secret of the
//! channel is not mixed in: a channel may be replaced between the two messages, and then each would take another one.

use serde::{Deserialize, Serialize};

use crate::handshake::{PublicKey, macs};
use crate::keys::{SECRET_BYTES, Security};
use crate::service::{Introduction, NotConnected};

/// Connections that one [`ServiceMessage::Check`] asks about.
pub const CHECKED_MAX: usize = 128;
/// Groups of a user that are told. Their names fit as long as they have 64 bytes or fewer on average.
pub const GROUPS_MAX: usize = 32;

/// From one service to another.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceMessage {
    /// A port of the sender's wants to connect to a port of the receiver's.
    Connect {
        /// The sender's number for it, which no other one of its requests under way has.
        request: u32,
        /// The receiver's port.
        port: String,
        /// The sender's port.
        from: PortIdentity,
        /// How packets are to be protected, as far as the sender is concerned.
        security: Security,
        /// The sender's part of the connection.
        half: Half,
    },
    /// The port has agreed.
    Accept {
        /// The number in `Connect`.
        request: u32,
        /// Who the port is.
        by: PortIdentity,
        /// How packets are protected. It is plain only if both nodes say so.
        security: Security,
        /// The sender's part of the connection.
        half: Half,
    },
    /// No connection was made.
    Decline {
        /// The number in `Connect`.
        request: u32,
        /// Why.
        reason: NotConnected,
    },
    /// The port that asked is gone. If the other one has accepted already, the connection has ended.
    Cancel {
        /// The number in `Connect`.
        request: u32,
    },
    /// A port of the sender's has ended, or has ended a connection.
    Ended {
        /// The connection, as the receiver's port knows it.
        connection: ConnectionName,
        /// Why.
        reason: PortEnd,
    },
    /// Asks which of these connections are alive.
    Check {
        /// Connections, as the receiver's ports know them; at most [`CHECKED_MAX`]. Each with the name of the sender's end.
        connections: Vec<(ConnectionName, ConnectionName)>,
    },
    /// The processes that the sender was asked about and that live, however long they have been silent.
    Alive {
        /// Connections, as the receiver's ports know them; at most [`CHECKED_MAX`].
        connections: Vec<ConnectionName>,
    },
}

/// One end of a connection: a port, and that port's number for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConnectionName {
    /// The incarnation of the port.
    pub incarnation: u64,
    /// The port's number.
    pub connection: u32,
}

/// Who a port is, as its own service says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortIdentity {
    /// Its name.
    pub port: String,
    /// The name of its user; a number where the user has no name.
    pub user: String,
    /// The names of its user's groups, at most [`GROUPS_MAX`].
    pub groups: Vec<String>,
    /// A number that differs between incarnations of the port.
    pub incarnation: u64,
}

/// What one end contributes to a connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Half {
    /// What the port says of itself.
    pub introduction: Introduction,
    /// The UDP port to which packets go, at the address of the node.
    pub udp_port: u16,
    /// The longest UDP payload that the route carries, as this node's kernel says.
    pub route_bytes: u16,
    /// Random bytes.
    pub random: [u8; SECRET_BYTES],
}

/// Why a port's end of a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortEnd {
    /// Its process has ended.
    Ended,
    /// It has released the connection, or does not know it.
    Released,
}

/// One end of a connection, as far as the secret depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretHalf<'half> {
    /// The node.
    pub node: PublicKey,
    /// The incarnation of the port.
    pub incarnation: u64,
    /// The port's number for the connection.
    pub connection: u32,
    /// The random bytes of its service.
    pub random: &'half [u8; SECRET_BYTES],
}

/// The secret of a connection, out of what both services have added, and of who the two ends are.
pub fn connection_secret(initiator: SecretHalf, responder: SecretHalf) -> [u8; SECRET_BYTES] {
    let mut ends = Vec::new();
    for half in [initiator, responder] {
        ends.extend_from_slice(&half.node.0);
        ends.extend_from_slice(&half.incarnation.to_le_bytes());
        ends.extend_from_slice(&half.connection.to_le_bytes());
    }
    let random = [&initiator.random[..], responder.random].concat();
    macs::derive(&ends, &random, b"bywire connection")
}

impl std::fmt::Debug for Half {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the random bytes.
        write!(formatter, "Half(connection {}, UDP port {})", self.introduction.connection, self.udp_port)
    }
}

impl std::fmt::Debug for ServiceMessage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect { request, port, from, half, .. } => {
                write!(formatter, "Connect({request}, {} to {port}, {half:?})", from.port)
            }
            Self::Accept { request, by, half, .. } => {
                write!(formatter, "Accept({request}, {}, {half:?})", by.port)
            }
            Self::Decline { request, reason } => write!(formatter, "Decline({request}, {reason:?})"),
            Self::Cancel { request } => write!(formatter, "Cancel({request})"),
            Self::Ended { connection, reason } => write!(formatter, "Ended({connection:?}, {reason:?})"),
            Self::Check { connections } => write!(formatter, "Check({} connections)", connections.len()),
            Self::Alive { connections } => write!(formatter, "Alive({} connections)", connections.len()),
        }
    }
}
