//! The level of the ceilings, and bounds of messages.

/// The level of the ceilings: the limits that memory and kernel set on a machine.
pub const MEMORY: &str = "memory";

/// The level of what a figure sets Bywire against and no other level measures, such as another program.
pub const FIGURE: &str = "figure";

/// The longest message. Both ends keep a few whole ones in memory.
pub const SIZE_BYTES_MAX: u64 = 64 << 20;

/// The longest payload of a UDP datagram over IPv4: 65,535 less the headers.
pub const DATAGRAM_BYTES_MAX: u64 = 65_507;
