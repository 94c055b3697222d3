//! The messages between the services of two nodes, over a [channel](crate::channel).
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
//! The keeper of the fabric spreads its file:
//!
//! ```text
//! service of the keeper              service of another node
//! FileSerial                 ──►                         the file has changed
//!                            ◄──    FileAsk              its own file is older, or it has just started
//! FilePart                   ──►                         again and again, until it has the whole file
//!                            ◄──    FileHeld             it uses the file
//! ```
//!
//! A machine that has an invitation joins the fabric, and then asks for the file in the same way:
//!
//! ```text
//! service of the keeper              `bywire join`
//!                            ◄──    Join
//! Joined | NotJoined         ──►
//! ```
//!
//! A message is one value of [`ServiceMessage`], encoded by [`crate::service::to_bytes`]. A service vouches for the
//! name, user and incarnation of its own ports, which it has verified. A message does not name the sender's node,
//! because the channel proves it.
//!
//! Both services add 32 random bytes to the secret of a connection, so that neither chooses it alone. The secret of the
//! channel is not used, because a channel may be replaced between the two messages, and then the two ends would use
//! different ones.

use serde::{Deserialize, Serialize};

use crate::handshake::{PublicKey, macs};
use crate::keys::{SECRET_BYTES, Security};
use crate::service::{Introduction, NotConnected};

/// The most groups of a user in a message. Their names fit if they have 64 bytes or fewer on average.
pub const GROUPS_MAX: usize = 32;

/// A message from one service to another.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceMessage {
    /// A port of the sender requests a connection to a port of the receiver.
    Connect {
        /// The sender's number for the request, unique among its requests under way.
        request: u32,
        /// The receiver's port.
        port: String,
        /// The sender's port.
        from: PortIdentity,
        /// The protection that the sender wants.
        security: Security,
        /// The sender's part of the connection.
        half: Half,
    },
    /// The port has accepted.
    Accept {
        /// The number in `Connect`.
        request: u32,
        /// The end of the port that asked.
        asking: EndName,
        /// The identity of the accepting port.
        by: PortIdentity,
        /// The protection of packets. It is plain only if both nodes want that.
        security: Security,
        /// The sender's part of the connection.
        half: Half,
    },
    /// No connection was made.
    Decline {
        /// The number in `Connect`.
        request: u32,
        /// The reason.
        reason: NotConnected,
    },
    /// The requesting port has ended. If the other port has accepted already, the connection has ended.
    Cancel {
        /// The number in `Connect`.
        request: u32,
    },
    /// A port of the sender's has ended, or has ended connections.
    Ended {
        /// Which.
        connections: Vec<ConnectionName>,
        /// Why.
        reason: PortEnd,
    },
    /// Asks which of these connections are alive.
    Check {
        /// Which, as the sender knows them.
        connections: Vec<ConnectionName>,
    },
    /// The connections of a `Check` whose processes live, even if they have been silent for long.
    Alive {
        /// Their connections.
        connections: Vec<ConnectionName>,
    },
    /// The serial of the sender's fabric file.
    FileSerial {
        /// The serial.
        serial: u64,
    },
    /// Asks for a part of the receiver's fabric file, if that is newer than the sender's.
    FileAsk {
        /// The serial of the sender's file.
        held: u64,
        /// The serial of the file of which the sender has parts already, or 0.
        wanted: u64,
        /// The bytes of it that the sender has.
        offset: u32,
    },
    /// A part of the sender's fabric file.
    FilePart(FilePart),
    /// The sender uses the receiver's fabric file, or a newer one.
    FileHeld {
        /// The serial of the file that it uses.
        serial: u64,
    },
    /// Asks the keeper to add the sender, which has used an invitation, to the fabric.
    Join {
        /// The sender's name, which is that of the invitation.
        name: String,
        /// Its addresses. If there are none, it has the one that its packets come from.
        addresses: Vec<String>,
        /// The UDP port of its service.
        udp_port: u16,
    },
    /// The sender's fabric file has the receiver.
    Joined,
    /// The receiver was not added.
    NotJoined(NotJoined),
}

/// Why a node was not added to the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotJoined {
    /// The invitation has been used by another machine.
    #[error("another machine has used the invitation")]
    Used,
    /// The time of the invitation is over.
    #[error("the invitation has expired")]
    Expired,
    /// Anything else, in words.
    #[error("{0}")]
    Rejected(String),
}

/// A part of a fabric file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart {
    /// The serial of the file.
    pub serial: u64,
    /// The bytes of the whole file.
    pub length: u32,
    /// Where the part begins.
    pub offset: u32,
    /// The part.
    pub bytes: Vec<u8>,
}

/// One end of a connection. Its node is the one whose channel says so.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EndName {
    /// The name of the port, which its service has verified.
    pub port: String,
    /// The incarnation of the port.
    pub incarnation: u64,
    /// The port's number for the connection.
    pub connection: u32,
}

/// A connection, named by both its ends. A service acts only if both belong to one connection. So nobody can end or keep a
/// connection by naming one end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConnectionName {
    /// The end of the message's receiver.
    pub receiver: EndName,
    /// The end of its sender.
    pub sender: EndName,
}

/// The identity of a port, as its own service states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortIdentity {
    /// Its name.
    pub port: String,
    /// The name of its user, or a number if the user has no name.
    pub user: String,
    /// The names of its user's groups, at most [`GROUPS_MAX`].
    pub groups: Vec<String>,
    /// A number that differs between incarnations of the port.
    pub incarnation: u64,
}

/// The part of one end in a connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Half {
    /// The greeting of the port.
    pub introduction: Introduction,
    /// The UDP port to which packets go, at the address of the node.
    pub udp_port: u16,
    /// The longest UDP payload that the route carries, as this node's kernel says.
    pub route_bytes: u16,
    /// Random bytes.
    pub random: [u8; SECRET_BYTES],
}

/// Why a port's end of a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortEnd {
    /// Its process has ended.
    Ended,
    /// It has released the connection, or does not know it.
    Released,
}

/// The properties of one end that the secret depends on.
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

/// The secret of a connection. It depends on the random bytes of both services and on the identities of both ends.
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
        // The random bytes are not printed.
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
            Self::Ended { connections, reason } => {
                write!(formatter, "Ended({} connections, {reason:?})", connections.len())
            }
            Self::Check { connections } => write!(formatter, "Check({} connections)", connections.len()),
            Self::Alive { connections } => write!(formatter, "Alive({} connections)", connections.len()),
            Self::FileSerial { serial } => write!(formatter, "FileSerial({serial})"),
            Self::FileAsk { held, wanted, offset } => {
                write!(formatter, "FileAsk(behind {held}, {wanted} from {offset})")
            }
            Self::FilePart(FilePart { serial, length, offset, bytes }) => {
                write!(formatter, "FilePart({} bytes of {serial} at {offset} of {length})", bytes.len())
            }
            Self::FileHeld { serial } => write!(formatter, "FileHeld({serial})"),
            Self::Join { name, .. } => write!(formatter, "Join({name})"),
            Self::Joined => formatter.write_str("Joined"),
            Self::NotJoined(reason) => write!(formatter, "NotJoined({reason:?})"),
        }
    }
}
