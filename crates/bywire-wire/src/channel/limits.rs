//! How long things take, and how much waits.

/// The longest message, in bytes. The shortest has one.
pub const MESSAGE_BYTES_MAX: usize = crate::service::PACKET_BYTES_MAX;
/// Bytes of messages to one node that may wait.
pub const QUEUE_BYTES_MAX: usize = 256 * 1024;
/// A wanted channel that was silent for so long is asked for a sign of life.
pub const KEEP_ALIVE_NS: u64 = 5_000_000_000;
/// A channel on which an answer is missing for so long is made anew.
pub const SILENT_NS: u64 = 1_000_000_000;
/// A channel on which an answer is missing for so long is given up.
pub const UNREACHABLE_NS: u64 = 30_000_000_000;
/// A wanted node that has no channel for so long is called unreachable.
pub const CONNECT_NS: u64 = 5_000_000_000;
/// A channel that nobody needs is closed when it was silent for so long.
pub const IDLE_NS: u64 = 60_000_000_000;
/// The second hello follows the first after so long; the time then doubles.
pub const RETRY_NS: u64 = 250_000_000;
/// It does not become longer than this.
pub const RETRY_NS_MAX: u64 = 16_000_000_000;
