//! How many bytes may be in flight.

pub mod cubic;
mod slow_start;

/// Packets of a connection that has just begun (RFC 6928).
pub const INITIAL_PACKETS: u64 = 10;
/// Packets that may always be in flight.
pub const MINIMUM_PACKETS: u64 = 2;

/// What arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When that became known.
    pub now_ns: u64,
    /// Bytes of packets that are newly acknowledged.
    pub bytes: u64,
    /// When the newest of them left.
    pub sent_at_ns: u64,
    /// The newest packet that is acknowledged.
    pub largest: u64,
    /// The number that the next packet will have.
    pub next_number: u64,
    /// The latest round trip.
    pub latest_ns: u64,
    /// The shortest and the smoothed one.
    pub min_ns: u64,
    /// The smoothed round trip.
    pub smoothed_ns: u64,
    /// The window was what held the sender back: only then it grows.
    pub is_used: bool,
}

/// A way to decide how many bytes may be in flight.
pub trait Congestion: std::fmt::Debug {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;
    /// Does the window still grow fast?
    fn is_slow_start(&self) -> bool;
    /// Packets have arrived.
    fn on_arrival(&mut self, arrival: Arrival);
    /// Packets are lost, the newest of which left at `sent_at_ns`. `is_persistent`: nothing is known of the path any more.
    fn on_loss(&mut self, now_ns: u64, sent_at_ns: u64, is_persistent: bool);
    /// The length of packets is another one now.
    fn set_packet_bytes(&mut self, bytes: u64);
}
