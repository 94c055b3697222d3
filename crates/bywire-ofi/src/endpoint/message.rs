//! A message as the program describes it, and what carries its payload.

use bywire_match::{SendId, rma};

/// The kinds of messages, which do not match with each other's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    Tagged,
    Untagged,
}

impl Channel {
    pub const ALL: [Self; 2] = [Self::Tagged, Self::Untagged];
}

/// What a put of a port carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Message(Channel, SendId),
    Rma(rma::PutId),
}

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
