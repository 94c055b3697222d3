//! The state of a node's service that `bywire status` shows.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::keys::Security;

/// A position in the report of a service: the next entry. A caller that asks for one part after the other gets every entry that
/// exists all the time exactly once. The service keeps no state between the parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Position {
    /// The service itself.
    #[default]
    Start,
    /// The node at this place of the fabric file.
    Node(u32),
    /// The first port whose name is not less.
    Port(String),
    /// The first connection of that port whose number is not less, or of a later port.
    Connection(String, u32),
}

/// One thing that a service knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// The service itself. It comes first.
    Service(Service),
    /// A node of the fabric.
    Node(Node),
    /// A registered port. Only its own user and the service's user see it.
    Port(Port),
    /// A connection of such a port.
    Connection(Connection),
}

/// The service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The fabric's name.
    pub fabric: String,
    /// The number of the present version of the fabric file.
    pub serial: u64,
    /// This node's name.
    pub node: String,
    /// Its UDP port.
    pub udp_port: u16,
    /// Is everything encrypted?
    pub is_encrypted: bool,
    /// How long it has been running.
    pub uptime_s: u64,
    /// Packets without a valid key of the fabric, by the reason.
    pub strangers: Vec<(String, u64)>,
    /// The last stranger that knows this node's key but is not in the fabric: its key and its address.
    pub last_unknown: Option<([u8; 32], SocketAddr)>,
    /// The error in the latest fabric file, if it was rejected.
    pub complaint: Option<String>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its public key.
    pub key: [u8; 32],
    /// Addresses of the fabric file.
    pub addresses: Vec<String>,
    /// The channel to it.
    pub state: State,
    /// The address that its packets come from.
    pub address: Option<SocketAddr>,
    /// The smoothed round-trip time.
    pub rtt_us: Option<u64>,
    /// Named counts.
    pub counters: Vec<(String, u64)>,
    /// The reason why there is no channel.
    pub complaint: Option<String>,
}

/// The state of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It is this node.
    Own,
    /// No channel is needed.
    Idle,
    /// A channel is wanted, but does not exist yet.
    Opening,
    /// The other service answers.
    Up,
}

/// A registered port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: String,
    /// Its process.
    pub pid: i32,
    /// Is it open to ports of other machines?
    pub is_reachable: bool,
    /// Its UDP port.
    pub udp_port: u16,
    /// Bytes that wait in its UDP socket.
    pub waiting_bytes: u32,
    /// Packets that found no room there.
    pub dropped: u32,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The port of this machine.
    pub port: String,
    /// The other port's node.
    pub peer_node: String,
    /// The other port.
    pub peer_port: String,
    /// Its user, as its own service reports it.
    pub peer_user: String,
    /// How packets are protected.
    pub security: Security,
}
