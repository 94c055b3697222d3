//! What a port and its node's service say to each other, over a Unix socket of packets in the runtime directory.
//!
//! ```text
//! port                              service
//! Register + its UDP socket  ──►
//!                            ◄──    Registered | Refused
//! Connect                    ──►                         a channel to the other service, then:
//!                            ◄──    Established | NotConnected
//!                            ◄──    Offer                a port of another machine wants to connect
//! Accept | Decline           ──►
//!                            ◄──    Established          (to Accept)
//!                            ◄──    Ended                the other process has ended, or its node was removed
//! Release                    ──►                         this end has ended the connection
//! Inquire                    ──►                         nothing has come for long: does the other process live?
//!                            ◄──    Alive                it does; no answer where its service does not answer
//! ```
//!
//! A packet is one value of [`Request`] or [`Notice`], as `postcard` writes it. The service checks who a port is by what the
//! kernel says of the socket. It vouches for that to the other service, which vouches for it to its own port.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::keys::{SECRET_BYTES, Security, Side};

pub mod status;
use status::Entry;

/// The socket's name in the runtime directory. No port can have it: their sockets' names end in `.port`.
pub const SOCKET_NAME: &str = "node";
/// The version of this protocol.
pub const VERSION: u16 = 1;
/// The longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = 4096;
/// Connections that one `Register` brings along; the rest follows in further ones.
pub const KEPT_MAX: usize = 128;

/// From a port to its service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first packet, and again after the service was restarted. The port's UDP socket comes with it. Further ones on the
    /// same socket bring more connections that were kept, and no socket.
    Register {
        /// [`VERSION`].
        version: u16,
        /// The port's name, which the service verifies.
        port: String,
        /// A number that differs between incarnations of the port.
        incarnation: u64,
        /// May ports of other machines connect?
        is_reachable: bool,
        /// The port number of its UDP socket. The service cannot ask the kernel: the socket's lock is its owner's to hold.
        udp_port: u16,
        /// Connections that outlived the last service.
        kept: Vec<Kept>,
    },
    /// Asks for a connection.
    Connect {
        /// The port's number for this request.
        request: u32,
        /// The other node.
        node: String,
        /// The port there.
        port: String,
        /// What the other port is told.
        introduction: Introduction,
    },
    /// Agrees to an offer.
    Accept {
        /// The offer's number.
        offer: u32,
        /// What the other port is told.
        introduction: Introduction,
    },
    /// Declines an offer.
    Decline {
        /// The offer's number.
        offer: u32,
        /// Why.
        refusal: Refusal,
    },
    /// This end has ended a connection.
    Release {
        /// This end's number for the connection.
        connection: u32,
    },
    /// Asks whether the process at the other end lives.
    Inquire {
        /// This end's number for the connection.
        connection: u32,
    },
    /// Asks what `bywire status` shows. A port never does.
    Status {
        /// [`VERSION`].
        version: u16,
        /// The first entry that is wanted.
        from: u32,
    },
}

/// From the service to a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The port is known.
    Registered {
        /// This machine's name in the fabric.
        node: String,
    },
    /// The port is not taken; the socket closes.
    Refused(Unregistered),
    /// A port of another machine wants to connect.
    Offer {
        /// The service's number for it.
        offer: u32,
        /// Who it is.
        peer: Identity,
        /// What it says of itself.
        introduction: Introduction,
    },
    /// Both ends are known: packets may flow.
    Established(Box<Terms>),
    /// No connection was made.
    NotConnected {
        /// The port's number for its request.
        request: u32,
        /// Why.
        reason: NotConnected,
    },
    /// An offer that was accepted came to nothing.
    Withdrawn {
        /// The offer's number.
        offer: u32,
    },
    /// A connection is over: the peer's own service says so, or this one.
    Ended {
        /// This end's number for the connection.
        connection: u32,
        /// Why.
        reason: End,
    },
    /// The process at the other end lives, as its own service says. It may be stopped.
    Alive {
        /// This end's number for the connection.
        connection: u32,
    },
    /// A part of the answer to a `Status`.
    Status {
        /// Entries in the order in which they are shown.
        entries: Vec<Entry>,
        /// The first one that has not been told. `None`: these are the last ones.
        next: Option<u32>,
    },
}

/// What a port says of itself to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The port's own number for the connection, which packets to it bear.
    pub connection: u32,
    /// The longest message that it takes, in bytes.
    pub message_bytes_max: u64,
    /// Does it want payloads checked?
    pub integrity: bool,
    /// Bytes of each lane (reply, high, low) that may wait there at first.
    pub windows: [u64; 3],
}

/// Who a port of another machine is. Its own service vouches for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Its node.
    pub node: String,
    /// Its name there.
    pub port: String,
    /// The name of its user there; a number where the user has no name.
    pub user: String,
    /// The names of its user's groups, as far as they fit.
    pub groups: Vec<String>,
    /// A number that differs between incarnations of the port.
    pub incarnation: u64,
}

/// Everything that a port needs to make its end of a connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The number of the request or of the offer.
    pub answers: Answers,
    /// Which end this is.
    pub side: Side,
    /// How packets are protected.
    pub security: Security,
    /// What only the two ends, and their services, know.
    pub secret: [u8; SECRET_BYTES],
    /// Where the peer's packets come from, and go to.
    pub address: SocketAddr,
    /// Who it is.
    pub peer: Identity,
    /// What it says of itself.
    pub introduction: Introduction,
    /// The longest UDP payload that the route carries.
    pub route_bytes: u16,
}

/// What [`Terms`] answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answers {
    /// A `Connect` of the port's.
    Request(u32),
    /// An offer that it has accepted.
    Offer(u32),
}

/// A connection that a port has kept while there was no service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// This end's number.
    pub connection: u32,
    /// The other end's.
    pub peer_connection: u32,
    /// Who the other end is.
    pub peer: Identity,
}

/// Why a port is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unregistered {
    /// The service speaks another version of this protocol.
    Version,
    /// The name belongs to another process.
    Unverified,
    /// No UDP socket came with it, or one of another network namespace than the service's.
    OtherNetwork,
    /// The user has as many ports or connections as one may have.
    NoResources,
    /// What came is no registration.
    Malformed,
}

/// Why a port declines an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Its user may not connect.
    NotAdmitted,
    /// The port has as many peers as it may have.
    TooManyPeers,
    /// The port lacks memory or descriptors.
    NoResources,
}

/// Why no connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotConnected {
    /// The fabric has no such node.
    UnknownNode,
    /// The node does not answer.
    Unreachable,
    /// The node is up, and has no such port that other machines can reach.
    NoPort,
    /// The port has declined.
    Refused(Refusal),
    /// The other service speaks another version.
    Version,
    /// The port's owner has as many connections as one may have, here or there.
    NoResources,
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The other process has ended.
    PeerEnded,
    /// The other port was closed, or does not know the connection.
    PeerReleased,
    /// The other machine was restarted.
    NodeRestarted,
    /// The other node is in the fabric no more.
    NodeRemoved,
}

/// Bytes that are no packet of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet between a port and its service is malformed")]
pub struct Malformed;

/// The bytes of a packet.
///
/// # Errors
/// [`Malformed`]: it would be longer than a packet may be.
pub fn to_bytes(packet: &impl Serialize) -> Result<Vec<u8>, Malformed> {
    let bytes = postcard::to_stdvec(packet).map_err(|_| Malformed)?;
    if bytes.len() > PACKET_BYTES_MAX { Err(Malformed) } else { Ok(bytes) }
}

/// The packet in `bytes`. Nothing may follow it.
///
/// # Errors
/// [`Malformed`].
pub fn from_bytes<Packet: DeserializeOwned>(bytes: &[u8]) -> Result<Packet, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((packet, [])) => Ok(packet),
        _ => Err(Malformed),
    }
}

impl std::fmt::Debug for Terms {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the secret.
        let Self { answers, side, security, address, peer, .. } = self;
        write!(
            formatter,
            "Terms({answers:?}, {side:?}, {security:?}, {address}, {}/{})",
            peer.node, peer.port
        )
    }
}
