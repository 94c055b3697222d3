//! Memory that a port keeps for its program until the next call.

use bywire::Payload;

/// The memory that the last event points to.
pub enum EventMemory {
    /// No memory of the library.
    Nothing,
    /// Memory of the library.
    Payload(Payload),
}
