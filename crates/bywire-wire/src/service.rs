//! The protocol between a port and its node's service, over a Unix packet socket in the runtime directory.
//!
//! ```text
//! port                              service
//! Register + its UDP socket  ──►
//!                            ◄──    Registered | Refused (with another UDP socket, if the service lends its network)
//! Connect                    ──►                         a channel to the other service, then:
//!                            ◄──    Established | NotConnected
//!                            ◄──    Offer                a port of another machine wants to connect
//! Accept | Decline           ──►
//!                            ◄──    Established          (to Accept)
//!                            ◄──    Ended                the other process has ended, or its node was removed
//!                            ◄──    Moved                the other machine has another address
//! Release                    ──►                         this end has ended the connection
//! Blocked                    ──►                         no packet of the peer has come since Established
//! Inquire                    ──►                         nothing has come for long: does the other process live?
//!                            ◄──    Alive                it does; no answer where its service does not answer
//! ```
//!
//! A packet is one value of [`Request`] or [`Notice`], encoded by `postcard`. The service verifies the identity of a
//! port by what the kernel reports about the socket. It vouches for that to the other service, which vouches for it to
//! its own port.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::handshake::{CHALLENGE_BYTES, KEY_BYTES, MAC_BYTES, PublicKey};
use crate::keys::{SECRET_BYTES, Security, Side};
use crate::path::{MachinePath, Path};

pub mod status;
use status::{Entry, Position};

/// The socket's name in the runtime directory. No port can have it, because the names of their sockets end in `.port`.
pub const SOCKET_NAME: &str = "node";
/// The version of this protocol.
pub const VERSION: u16 = 2;
/// The longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = 4096;
/// The most bytes of a list in one packet. A longer list takes several packets: see [`parts`].
pub const LIST_BYTES_MAX: usize = 3500;
/// The most bytes of the names of a user's groups. With all else that a notice has beside them, they fit into a packet.
pub const GROUPS_BYTES_MAX: usize = 1536;

/// A packet from a port to its service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first packet. It is repeated after a restart of the service. The port's UDP socket comes with it. Further
    /// ones on the same socket carry more kept connections, and no socket.
    Register {
        /// [`VERSION`].
        version: u16,
        /// The port's name, which the service verifies.
        port: String,
        /// A number that differs between incarnations of the port.
        incarnation: u64,
        /// May ports of other machines connect?
        is_reachable: bool,
        /// The port number of its UDP socket. The service does not ask the kernel for it, because the socket's owner
        /// may hold the socket's lock.
        udp_port: u16,
        /// Connections that outlived the last service.
        kept: Vec<Kept>,
        /// No further ones follow.
        is_last: bool,
    },
    /// Asks for a connection.
    Connect {
        /// The port's number for this request.
        request: u32,
        /// The other node.
        node: String,
        /// The port there.
        port: String,
        /// The greeting for the other port.
        introduction: Introduction,
    },
    /// Accepts an offer.
    Accept {
        /// The offer's number.
        offer: u32,
        /// The greeting for the other port.
        introduction: Introduction,
    },
    /// Declines an offer.
    Decline {
        /// The offer's number.
        offer: u32,
        /// The reason.
        refusal: Refusal,
    },
    /// Reports that this end has ended a connection.
    Release {
        /// This end's number for the connection.
        connection: u32,
    },
    /// Asks whether the process at the other end is alive.
    Inquire {
        /// This end's number for the connection.
        connection: u32,
    },
    /// Asks for the entries of `bywire status`. Ports never do.
    Status {
        /// [`VERSION`].
        version: u16,
        /// The first entry of the part.
        from: Position,
    },
    /// Reports that no packet of the peer has arrived since a connection was established, before the port gives it up.
    Blocked {
        /// This end's number for the connection.
        connection: u32,
        /// The UDP port of the peer.
        peer_udp_port: u16,
    },
    /// Asks for an echo of another node's service, for `bywire ping`. Ports never do. The service keeps a channel to the node
    /// until this socket closes.
    Ping {
        /// [`VERSION`].
        version: u16,
        /// The other node.
        node: String,
        /// The program's number for this request.
        request: u32,
        /// The length of the echo, within the limits of [`crate::channel::echo`].
        bytes: u16,
    },
    /// Asks the service to read its fabric file again. Only root and the service's own user may.
    Reload {
        /// [`VERSION`].
        version: u16,
    },
    /// Asks for an invitation. Only root and the service's own user may, and only a program that can read the node's private
    /// key: a process of root in a container may have this socket and nothing else of the machine.
    Invite {
        /// [`VERSION`].
        version: u16,
        /// The name of the node that is to join.
        node: String,
        /// The proof of the key for that name and the challenge of [`Notice::Prove`]: see [`PrivateKey::prove`].
        ///
        /// [`PrivateKey::prove`]: crate::handshake::PrivateKey::prove
        proof: [u8; MAC_BYTES],
    },
}

/// A packet from the service to a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The port is registered. If its UDP socket is in another network namespace, one of the service's namespace comes with
    /// this, which the port uses instead.
    Registered {
        /// This machine's name in the fabric.
        node: String,
    },
    /// The port is refused, and the socket closes.
    Refused(Unregistered),
    /// A port of another machine wants to connect.
    Offer {
        /// The service's number for it.
        offer: u32,
        /// The requesting port's identity.
        peer: Identity,
        /// The requesting port's greeting.
        introduction: Introduction,
    },
    /// Both ends are known, and packets may flow.
    Established(Box<Terms>),
    /// No connection was made.
    NotConnected {
        /// The port's number for its request.
        request: u32,
        /// The reason.
        reason: NotConnected,
    },
    /// An accepted offer has failed.
    Withdrawn {
        /// The offer's number.
        offer: u32,
    },
    /// A connection has ended, as the peer's own service or this one reports.
    Ended {
        /// This end's number for the connection.
        connection: u32,
        /// The reason.
        reason: End,
    },
    /// The process at the other end is alive, as its own service reports. It may be stopped.
    Alive {
        /// This end's number for the connection.
        connection: u32,
    },
    /// A part of the answer to `Status`.
    Status {
        /// Entries in the order of display.
        entries: Vec<Entry>,
        /// The first entry of the next part. `None`: this is the last part.
        next: Option<Position>,
    },
    /// The other machine has another address now, or sends to another one of this machine. Packets of the connection take that path,
    /// to the same UDP port.
    Moved {
        /// This end's number for the connection.
        connection: u32,
        /// The path to it.
        path: MachinePath,
    },
    /// The echo of a `Ping`. One that is lost is not reported.
    Pong {
        /// The program's number for its request.
        request: u32,
        /// The round trip, as the service has measured it.
        rtt_ns: u64,
        /// The address of the other service.
        address: SocketAddr,
    },
    /// A `Ping` was not sent.
    NotPinged {
        /// The program's number for its request.
        request: u32,
        /// The reason.
        reason: NotPinged,
    },
    /// The fabric file has been read.
    Reloaded {
        /// The error in it, cut where it is long. The previous one is in use then.
        complaint: Option<String>,
    },
    /// The proof of an `Invite` is not the one for this program.
    Prove {
        /// What the proof has to be made for.
        challenge: [u8; CHALLENGE_BYTES],
        /// The path of the private key.
        key_file: String,
    },
    /// An invitation was made. Its line has a secret, and something else may have the place of the service or of its socket. So
    /// it is sealed by [`PrivateKey::seal`], for the program that has proved the key.
    ///
    /// [`PrivateKey::seal`]: crate::handshake::PrivateKey::seal
    Invited {
        /// Random bytes.
        salt: [u8; KEY_BYTES],
        /// The line.
        sealed: Vec<u8>,
    },
    /// No invitation was made.
    NotInvited(NotInvited),
}

/// Why no invitation was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotInvited {
    /// The fabric has no keeper.
    NoKeeper,
    /// Another node, of this name, is the keeper.
    OtherKeeper(String),
    /// The fabric has a node of this name.
    NameTaken,
    /// This is not a name for a node.
    NoName,
    /// There are as many nodes as a fabric may have.
    FabricFull,
    /// There are too many invitations.
    TooMany,
}

/// Why no echo was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotPinged {
    /// The fabric has no such node, or has it no longer.
    UnknownNode,
    /// It is this node.
    OwnNode,
    /// Too many echoes are under way.
    TooMany,
}

/// The greeting of a port for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The port's own number for the connection. Packets to the port have it.
    pub connection: u32,
    /// The longest message that it accepts, in bytes.
    pub message_bytes_max: u64,
    /// Does it want payloads checked?
    pub integrity: bool,
    /// The bytes of each lane (reply, high, low) that may wait at the port at first.
    pub windows: [u64; 3],
}

/// The identity of a port of another machine. Its own service vouches for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Its node.
    pub node: String,
    /// The key of that, which stays when the name goes to another machine.
    pub key: PublicKey,
    /// Its name there.
    pub port: String,
    /// The name of its user there, or a number if the user has no name.
    pub user: String,
    /// The names of its user's groups, as many as fit.
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
    /// The protection of packets.
    pub security: Security,
    /// The secret that only the two ends and their services know.
    pub secret: [u8; SECRET_BYTES],
    /// The path of packets, in both directions.
    pub path: Path,
    /// The peer's identity.
    pub peer: Identity,
    /// The peer's greeting.
    pub introduction: Introduction,
    /// The longest UDP payload that the route carries.
    pub route_bytes: u16,
}

/// The packet that [`Terms`] answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answers {
    /// A `Connect` of the port.
    Request(u32),
    /// An offer that the port has accepted.
    Offer(u32),
}

/// A connection that a port has kept while there was no service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// This end's number.
    pub connection: u32,
    /// How its packets are protected.
    pub security: Security,
    /// The key of the other end's node.
    pub node: PublicKey,
    /// The name of the port there.
    pub peer_port: String,
    /// The name of its user.
    pub peer_user: String,
    /// Which incarnation of the port it is.
    pub peer_incarnation: u64,
    /// The other end's number.
    pub peer_connection: u32,
    /// The path of its packets.
    pub path: MachinePath,
}

/// Why a port is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unregistered {
    /// The service speaks another version of this protocol.
    Version,
    /// The name belongs to another process.
    Unverified,
    /// No UDP socket came with it, or one of another network namespace than the service's.
    OtherNetwork,
    /// The user has reached the limit of ports or connections.
    NoResources,
    /// The packet is not a valid registration.
    Malformed,
}

/// Why a port declines an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Its user may not connect.
    NotAdmitted,
    /// The port has reached its limit of peers.
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
    /// The node is up, but has no such port that is open to other machines.
    NoPort,
    /// The port has declined.
    Refused(Refusal),
    /// The other service speaks another version.
    Version,
    /// The port's user has reached the limit of connections on this machine.
    NoResources,
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// The other process has ended.
    PeerEnded,
    /// The other port was closed, or does not know the connection.
    PeerReleased,
    /// The other machine was restarted.
    NodeRestarted,
    /// The other node is no longer in the fabric.
    NodeRemoved,
    /// The connection is plain, and the fabric is encrypted now.
    SecurityChanged,
}

/// The error for bytes that are not a packet of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet between a port and its service is malformed")]
pub struct Malformed;

/// The bytes of a packet.
///
/// # Errors
/// [`Malformed`]: it would be longer than the longest packet.
pub fn to_bytes(packet: &impl Serialize) -> Result<Vec<u8>, Malformed> {
    let bytes = postcard::to_stdvec(packet).map_err(|_| Malformed)?;
    if bytes.len() > PACKET_BYTES_MAX { Err(Malformed) } else { Ok(bytes) }
}

/// The packet in `bytes`, which must have nothing after it.
///
/// # Errors
/// [`Malformed`].
pub fn from_bytes<Packet: DeserializeOwned>(bytes: &[u8]) -> Result<Packet, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((packet, [])) => Ok(packet),
        _ => Err(Malformed),
    }
}

/// Divides a list so that each part fits into a packet. There is one part at least.
pub fn parts<Item: Serialize>(list: Vec<Item>) -> Vec<Vec<Item>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for item in list {
        let more = postcard::experimental::serialized_size(&item).unwrap_or(LIST_BYTES_MAX);
        if bytes + more > LIST_BYTES_MAX && bytes > 0 {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        parts.last_mut().expect("there is one from the start").push(item);
    }
    parts
}

impl std::fmt::Debug for Terms {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret is not printed.
        let Self { answers, side, security, path, peer, .. } = self;
        write!(
            formatter,
            "Terms({answers:?}, {side:?}, {security:?}, {}, {}/{})",
            path.peer, peer.node, peer.port
        )
    }
}
