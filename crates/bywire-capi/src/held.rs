//! What a port keeps for its program until the next call.

use bywire::Payload;

/// What the last event points to.
pub enum Held {
    /// Nothing of ours.
    Nothing,
    /// Memory of the library's.
    Payload(Payload),
}
