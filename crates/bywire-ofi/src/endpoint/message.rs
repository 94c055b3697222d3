//! A message as the program describes it.

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The target's index in the address vector.
    pub to: u64,
    pub tag: u64,
    pub data: Option<u64>,
    /// Does it complete only after a receive has matched it?
    pub is_synchronous: bool,
    /// Is the payload the program's again when the call returns?
    pub is_injected: bool,
}
