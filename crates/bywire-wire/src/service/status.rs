//! The state of a node's service that `bywire status` shows.

use std::fmt;
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
    /// The address of the last stranger that sent a hello for another key than this node's.
    pub last_without_key: Option<SocketAddr>,
    /// The error in the latest fabric file, if it was rejected.
    pub complaint: Option<String>,
    /// Why the fabric file on the disk is older than the one in force, if it could not be written.
    pub unwritten: Option<String>,
    /// Its UDP sockets.
    pub sockets: Sockets,
}

/// Sizes and contents of UDP sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    /// The wanted size of the buffers, for each direction.
    pub wanted_bytes: u32,
    /// The size of the receive buffer. If it is less than wanted, `sysctl net.core.rmem_max` limits it.
    pub receive_bytes: u32,
    /// The size of the send buffer. If it is less than wanted, `sysctl net.core.wmem_max` limits it.
    pub send_bytes: u32,
    /// Memory of packets that wait to be received.
    pub waiting_bytes: u64,
    /// Packets that found no room.
    pub dropped: u64,
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
    /// May there be hosts behind its Ethernet interfaces?
    pub is_bridge: bool,
    /// The channel to it.
    pub state: State,
    /// The address that its packets come from.
    pub address: Option<SocketAddr>,
    /// For how long it has been in this state, in seconds.
    pub since_s: Option<u64>,
    /// The channel, while there is one.
    pub channel: Option<Channel>,
    /// The smoothed round-trip time.
    pub rtt_us: Option<u64>,
    /// Named counts.
    pub counters: Vec<(String, u64)>,
    /// The last connection with it of which no packet has arrived.
    pub blocked: Option<Blocked>,
    /// The error of the kernel for the last packet to an address of the node, if that packet could not leave.
    pub unsent: Option<Unsent>,
    /// The last sign that two machines have its key.
    pub copied_key: Option<CopiedKey>,
    /// The serial of its fabric file, if that is larger than the one of its keeper, this node.
    pub ahead: Option<u64>,
    /// The reason why there is no channel.
    pub complaint: Option<String>,
}

/// A connection of two ports that both services have made, and of which no packet has arrived here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// The UDP port here.
    pub udp_port: u16,
    /// The UDP port of the other machine.
    pub peer_udp_port: u16,
    /// How long ago it was given up, in seconds.
    pub ago_s: u64,
}

/// Two machines that have the key of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedKey {
    /// The address of the machine that has the node's place, and that of the other one.
    pub addresses: [SocketAddr; 2],
    /// How long ago the other one was heard while the first one had the place, in seconds.
    pub ago_s: u64,
}

/// A packet that could not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsent {
    /// Where it was to go.
    pub to: SocketAddr,
    /// Why it could not leave.
    pub reason: UnsentReason,
}

/// Why a packet could not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnsentReason {
    /// There is no route to the address.
    NoRoute,
    /// A packet filter of this machine blocks it.
    Denied,
    /// It is longer than the MTU of the network device.
    TooLong,
    /// Another error of the kernel, by its number.
    Other(i32),
}

impl fmt::Display for UnsentReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoute => formatter.write_str(
                "there is no route: check the addresses and routes of this machine (`ip route get ADDRESS`)",
            ),
            Self::Denied => formatter.write_str(
                "a packet filter of this machine blocks it: let UDP to that port through (`nft list ruleset`)",
            ),
            Self::TooLong => formatter.write_str(
                "the MTU of the network device is less than 1,228 bytes (1,248 for IPv6): raise it (`ip link set DEVICE mtu 1500`)",
            ),
            Self::Other(error) => write!(formatter, "{}", std::io::Error::from_raw_os_error(*error)),
        }
    }
}

/// A channel to another service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// How its packets are protected.
    pub security: Security,
    /// The longest packet that has arrived there so far, without the headers of IP and UDP.
    pub packet_bytes: u16,
    /// The longest packet that the route carries, as the kernel says.
    pub route_bytes: u16,
    /// Packets that have left.
    pub sent: u64,
    /// Packets that were lost, of these.
    pub lost: u64,
    /// How long ago the last packet came, in milliseconds.
    pub heard_ms: u64,
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
    /// Its UDP socket for all peers.
    pub sockets: Sockets,
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
