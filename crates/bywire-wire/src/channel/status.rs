//! What channels report to the service: events, and the state that `bywire status` shows.

use std::net::SocketAddr;

use crate::handshake::PublicKey;
use crate::keys::Security;
use crate::path::Path;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node is up: messages can be sent. Messages of an earlier `Up` are no longer under way.
    Up {
        /// The node.
        node: PublicKey,
        /// Differs between starts of its machine.
        boot_id: [u8; 16],
        /// Differs between starts of its service.
        incarnation: u64,
        /// The path to its service.
        path: Path,
    },
    /// A node that is up has a new address, or sends to another one of this node.
    Moved {
        /// The node.
        node: PublicKey,
        /// The path to its service.
        path: Path,
    },
    /// A message from a node's service. Messages come once and in order between `Up` and `Down`.
    Message {
        /// The node.
        node: PublicKey,
        /// The message.
        bytes: Vec<u8>,
    },
    /// The reply to an echo request.
    Echo {
        /// The node.
        node: PublicKey,
        /// The number of the request.
        number: u64,
    },
    /// A node that was up is down, or messages under way were lost.
    Down {
        /// The node.
        node: PublicKey,
        /// The reason.
        reason: DownReason,
    },
    /// A wanted node has not answered for [`super::CONNECT_NS`]. Attempts go on, at longer and longer intervals.
    Unreachable {
        /// The node.
        node: PublicKey,
    },
    /// A wanted node has no protocol version in common with this one. Attempts go on, at longer and longer intervals.
    OtherVersion {
        /// The node.
        node: PublicKey,
    },
}

/// Why a node is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// A new incarnation of its service is running. `Up` follows.
    Restarted,
    /// Its service had given up this one. `Up` follows.
    Reset,
    /// It was silent for [`super::UNREACHABLE_NS`].
    Unreachable,
    /// It was removed here.
    Removed,
    /// Its service has ended, or has removed this node.
    Closed,
    /// Neither end needed it.
    Idle,
    /// It has broken a rule.
    Broken,
}

/// The state of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Is a channel to it wanted?
    pub is_wanted: bool,
    /// When it came up, went down, or was wanted first. `None`: it was never wanted.
    pub since_ns: Option<u64>,
    /// Its channel, if there is one.
    pub channel: Option<ChannelStatus>,
    /// The last sign that two machines have its key.
    pub copied_key: Option<CopiedKey>,
    /// The counts.
    pub counts: NodeCounts,
    /// The counts at the time when it went down, or was wanted first.
    pub counts_before: NodeCounts,
}

/// Two machines that have the key of one node: a machine whose place another one with its key has taken is still there. The last
/// one to start has the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedKey {
    /// The address of the machine that has the place, and that of the other one.
    pub addresses: [SocketAddr; 2],
    /// When this was last seen.
    pub at_ns: u64,
}

/// The state of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelStatus {
    /// The path to the other service.
    pub path: Path,
    /// Differs between starts of its machine.
    pub boot_id: [u8; 16],
    /// Differs between starts of its service.
    pub incarnation: u64,
    /// How packets are protected.
    pub security: Security,
    /// The round-trip time.
    pub rtt_ns: u64,
    /// The longest packet that has arrived so far, and the longest one that the route carries, as the kernel says.
    pub packet_bytes: [u16; 2],
    /// Packets of the channel that have left, and how many of them were lost. Probes of a packet size do not count.
    pub sent_and_lost: [u64; 2],
    /// When the last packet of the node came.
    pub heard_at_ns: u64,
}

/// The counts of one node. They tell whether packets left, came back, or had a wrong key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Hellos that have left.
    pub hellos_sent: u64,
    /// Valid answers.
    pub answers_received: u64,
    /// Answers by a sender that knows this node's public key, but that are not valid: the keys or the shared secrets of
    /// the two nodes differ, or a packet was damaged.
    pub answers_refused: u64,
    /// Valid cookies: the node is under load.
    pub cookies_received: u64,
    /// Hellos of the node that were opened.
    pub hellos_received: u64,
    /// Hellos of the node that are older than an accepted one.
    pub hellos_replayed: u64,
    /// Answers that have left.
    pub answers_sent: u64,
    /// Handshakes in which the two nodes had no version in common.
    pub other_versions: u64,
    /// Packets of channels that have left.
    pub packets_sent: u64,
    /// Packets of channels that were opened.
    pub packets_received: u64,
    /// Packets of channels that were forged or damaged.
    pub packets_forged: u64,
    /// Channels that were made.
    pub channels: u64,
}

/// The counts of packets that belong to no node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Bytes that are not a packet, and packets of channels that do not exist.
    pub unrecognized: u64,
    /// Handshakes whose sender does not know this node's public key.
    pub without_key: u64,
    /// The address that the last of these that is as long as a hello came from. Its sender may have a wrong key of this node.
    pub last_without_key: Option<SocketAddr>,
    /// Hellos that cannot be opened.
    pub unreadable: u64,
    /// Hellos of keys that are not in the table.
    pub unknown_keys: u64,
    /// The last of these keys, and the address that it came from.
    pub last_unknown: Option<(PublicKey, SocketAddr)>,
    /// Cookies that were given.
    pub cookies_sent: u64,
    /// Handshakes that were dropped because there were too many.
    pub dropped: u64,
}
