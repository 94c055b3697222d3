//! What `bywire status` shows of a node's service.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::keys::Security;

/// One thing that a service knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// The service itself. It comes first.
    Service(Service),
    /// A node of the fabric.
    Node(Node),
    /// A registered port. Its user and the service's own see it.
    Port(Port),
    /// A connection of such a port.
    Connection(Connection),
}

/// The service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The fabric's name.
    pub fabric: String,
    /// The number of this state of the fabric file.
    pub serial: u64,
    /// This node's name.
    pub node: String,
    /// Its UDP port.
    pub udp_port: u16,
    /// Is everything encrypted?
    pub is_encrypted: bool,
    /// How long it runs.
    pub uptime_s: u64,
    /// Packets from whom no key of the fabric has proved itself, by what was wrong with them.
    pub strangers: Vec<(String, u64)>,
    /// The last key of a stranger who knows this node's key and whom the fabric does not have, and where it came from.
    pub last_unknown: Option<([u8; 32], SocketAddr)>,
    /// What is wrong with the fabric file that was read last, if it was not taken.
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
    /// Where its packets come from.
    pub address: Option<SocketAddr>,
    /// The smoothed round-trip time.
    pub rtt_us: Option<u64>,
    /// What has happened, each with its number.
    pub counters: Vec<(String, u64)>,
    /// What prevents a channel.
    pub complaint: Option<String>,
}

/// The state of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// It is this node.
    Own,
    /// No channel is needed.
    Idle,
    /// A channel is wanted and not there.
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
    /// May ports of other machines connect?
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
    /// Its user, as its own service says.
    pub peer_user: String,
    /// How packets are protected. `None`: it is older than the service, which was not told.
    pub security: Option<Security>,
}
