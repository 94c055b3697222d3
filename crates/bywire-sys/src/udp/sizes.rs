//! Sizes of buffers and batches.

/// A buffer of this size has room for every receive, also of coalesced packets.
pub const RECEIVE_BYTES: usize = 1 << 16;
/// The most packets in one batch: `UDP_MAX_SEGMENTS` of include/linux/udp.h before Linux 6.9.
pub const BATCH_PACKETS_MAX: usize = 64;
/// The most bytes in one batch, or in one packet: an IPv4 packet has at most 65,535, of which headers take 28.
pub const BATCH_BYTES_MAX: usize = 65_507;
