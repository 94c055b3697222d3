//! Limits of times and queues.

/// The longest message, in bytes. The shortest has one byte.
pub const MESSAGE_BYTES_MAX: usize = crate::service::PACKET_BYTES_MAX;
/// The most bytes of messages that wait for one node.
pub const QUEUE_BYTES_MAX: usize = 256 * 1024;
/// The most messages that wait for one node, because each takes memory besides its bytes.
pub const QUEUE_MESSAGES_MAX: usize = 4096;
/// A wanted channel that has been silent for this long is asked for a sign of life.
pub const KEEP_ALIVE_NS: u64 = 5_000_000_000;
/// A channel on which an answer has been missing for this long is made anew.
pub const SILENT_NS: u64 = 1_000_000_000;
/// A channel on which an answer has been missing for this long is given up.
pub const UNREACHABLE_NS: u64 = 30_000_000_000;
/// A channel in use whose keys are this old gets new ones by a handshake.
pub const RENEW_NS: u64 = 120_000_000_000;
/// The end that has answered the last handshake waits for so much longer, so that the two do not begin at once.
pub const RENEW_LATER_NS: u64 = 15_000_000_000;
/// A channel whose keys could not be renewed ends when they are this old.
pub const KEYS_NS_MAX: u64 = 300_000_000_000;
/// For so long after a renewal packets are accepted that were sent with the keys before.
pub const KEYS_OVERLAP_NS: u64 = 2_000_000_000;
/// A wanted node without a channel for this long is reported as unreachable.
pub const CONNECT_NS: u64 = 5_000_000_000;
/// A channel that neither end needs is closed after this silence.
pub const IDLE_NS: u64 = 60_000_000_000;
/// The time between the first hello and the second. It doubles with each further one.
pub const RETRY_NS: u64 = 250_000_000;
/// The longest time between two hellos.
pub const RETRY_NS_MAX: u64 = 16_000_000_000;
