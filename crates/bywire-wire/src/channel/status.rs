//! What channels tell the service: events, and what `bywire status` shows.

use std::net::SocketAddr;

use crate::handshake::PublicKey;
use crate::keys::Security;

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node can be spoken to. Messages of an earlier `Up` are over.
    Up {
        /// Which.
        node: PublicKey,
        /// Differs between starts of its machine.
        boot_id: [u8; 16],
        /// Differs between starts of its service.
        incarnation: u64,
        /// Where its service is.
        address: SocketAddr,
    },
    /// A node that is up has another address now.
    Moved {
        /// Which.
        node: PublicKey,
        /// Where its service is.
        address: SocketAddr,
    },
    /// A node's service says something. Messages come once and in order between `Up` and `Down`.
    Message {
        /// Which.
        node: PublicKey,
        /// What.
        bytes: Vec<u8>,
    },
    /// A node that was up cannot be spoken to any more, or what was under way is lost.
    Down {
        /// Which.
        node: PublicKey,
        /// Why.
        reason: DownReason,
    },
    /// A wanted node has not answered for [`super::CONNECT_NS`]. It is asked further, less and less often.
    Unreachable {
        /// Which.
        node: PublicKey,
    },
    /// A wanted node speaks other versions. It is asked further, less and less often.
    OtherVersion {
        /// Which.
        node: PublicKey,
    },
}

/// Why a node is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// Its service is another one now. `Up` follows.
    Restarted,
    /// Its service had given this one up. `Up` follows.
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

/// How one node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Is a channel to it kept?
    pub is_wanted: bool,
    /// Its channel, if there is one.
    pub channel: Option<ChannelStatus>,
    /// What was counted.
    pub counts: NodeCounts,
}

/// How a channel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelStatus {
    /// Where the other service is.
    pub address: SocketAddr,
    /// Differs between starts of its machine.
    pub boot_id: [u8; 16],
    /// Differs between starts of its service.
    pub incarnation: u64,
    /// How packets are protected.
    pub security: Security,
    /// The round-trip time.
    pub rtt_ns: u64,
    /// When a packet of the node came last.
    pub heard_at_ns: u64,
}

/// What was counted of one node. They tell whether packets left, came back, or had a wrong key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Hellos that have left.
    pub hellos_sent: u64,
    /// Answers that came and fit.
    pub answers_received: u64,
    /// Answers that came from somebody who knows this node's public key, and do not fit: the keys or the shared secrets of
    /// the two nodes differ, or a packet was damaged.
    pub answers_refused: u64,
    /// Cookies that came and fit: the node is under load.
    pub cookies_received: u64,
    /// Hellos of the node that were opened.
    pub hellos_received: u64,
    /// Hellos of the node that were sent before one that was taken.
    pub hellos_replayed: u64,
    /// Answers that have left.
    pub answers_sent: u64,
    /// The two nodes had no version in common.
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

/// What was counted of packets that are no node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Bytes that are no packet, and packets of channels that do not exist.
    pub foreign: u64,
    /// Handshakes whose sender does not know this node's public key.
    pub without_key: u64,
    /// Hellos that cannot be opened.
    pub unreadable: u64,
    /// Hellos of keys that are not in the table.
    pub unknown_keys: u64,
    /// The last of these keys, and where it came from.
    pub last_unknown: Option<(PublicKey, SocketAddr)>,
    /// Cookies that were given.
    pub cookies_sent: u64,
    /// Handshakes that were dropped because there were too many.
    pub dropped: u64,
}
