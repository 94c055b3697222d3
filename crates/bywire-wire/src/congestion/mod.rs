//! Congestion control: how many bytes may be in flight.

pub mod cubic;
mod slow_start;

/// The packets that may be in flight in a new connection (RFC 6928).
pub const INITIAL_PACKETS: u64 = 10;
/// The packets that may always be in flight.
pub const MINIMUM_PACKETS: u64 = 2;

/// Newly acknowledged packets.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When the acknowledgement arrived.
    pub now_ns: u64,
    /// Bytes of packets that are newly acknowledged.
    pub bytes: u64,
    /// When the newest of them left.
    pub sent_at_ns: u64,
    /// The newest packet that is acknowledged.
    pub largest: u64,
    /// The number that the next packet will have.
    pub next_number: u64,
    /// The latest round-trip time.
    pub latest_ns: u64,
    /// The shortest round-trip time.
    pub min_ns: u64,
    /// The smoothed round-trip time.
    pub smoothed_ns: u64,
    /// True if the window limited the sender. It grows only then.
    pub is_used: bool,
}

/// A congestion control algorithm.
pub trait Congestion: std::fmt::Debug {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;
    /// Is it in slow start?
    fn is_slow_start(&self) -> bool;
    /// Notes acknowledged packets.
    fn on_arrival(&mut self, arrival: Arrival);
    /// Notes lost packets, the newest of which left at `sent_at_ns`. `is_persistent`: the path may have changed.
    fn on_loss(&mut self, now_ns: u64, sent_at_ns: u64, is_persistent: bool);
    /// Notes that the next packets are those of a new connection on the same path, whose numbers begin anew.
    fn on_new_numbers(&mut self);
    /// Notes a new packet size.
    fn set_packet_bytes(&mut self, bytes: u64);
}
