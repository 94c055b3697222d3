//! Faults that are planted on purpose, so that a test can show that the simulator finds them. A build without
//! `--cfg planted` has none of them.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Lost bytes are not sent again.
    LostForgotten,
    /// More is sent than the credit allows.
    LimitIgnored,
    /// An acknowledgement behind a gap counts for the gap.
    GapSkipped,
    /// Memory goes back to the program when it was sent.
    TakenBackEarly,
    /// Credit that was lost is not told again.
    CreditForgotten,
    /// More credit is told than is given.
    LimitTooHigh,
    /// More is told to be consumed than is.
    TakenTooHigh,
    /// Bytes that overlap others go to the wrong place.
    OverlapMisplaced,
    /// Bytes that wait are lost when memory grows.
    WaitingForgotten,
    /// A packet that comes twice is taken twice.
    DuplicateTaken,
    /// Packets that never came are acknowledged.
    GapAcknowledged,
    /// A packet that asks for nothing gives its number to the next one.
    NumberReused,
    /// A silent peer is never asked.
    ProbeForgotten,
    /// The window of congestion holds nothing back.
    WindowIgnored,
    /// A check is not compared.
    TagUnchecked,
    /// A key follows another before the peer has that one.
    KeyTooSoon,
    /// No key follows the second one.
    KeysEnd,
    /// Pieces of two datagrams are joined.
    DatagramsMixed,
    /// A close is told once only.
    CloseOnce,
    /// Long packets that vanish stay long.
    BlackHoleIgnored,
    /// A hello makes a channel before a packet has opened under its keys.
    HelloPromoted,
    /// A hello that was seen before is as good as a new one.
    OldHelloTaken,
    /// Of two channels that are begun at once, each node takes the other's.
    OwnChannelGoes,
    /// An answered hello waits for ever.
    CandidateForever,
    /// A message that has come in an earlier channel is taken again.
    MessageTwice,
    /// A message that was lost with its channel is not sent again.
    MessageForgotten,
    /// A hello is sent again with the same ephemeral key.
    EphemeralRepeated,
    /// The secret that nodes share is not mixed in.
    SharedSecretIgnored,
    /// Whoever does not know the node's public key is heard as well.
    Mac1Unchecked,
    /// A cookie is good for every address.
    CookieForAll,
    /// The secret of cookies stays the same.
    CookieForever,
    /// Handshakes are not counted.
    LoadIgnored,
}

/// Every fault of a connection.
pub const BUGS: [Bug; 20] = [
    Bug::LostForgotten,
    Bug::LimitIgnored,
    Bug::GapSkipped,
    Bug::TakenBackEarly,
    Bug::CreditForgotten,
    Bug::LimitTooHigh,
    Bug::TakenTooHigh,
    Bug::OverlapMisplaced,
    Bug::WaitingForgotten,
    Bug::DuplicateTaken,
    Bug::GapAcknowledged,
    Bug::NumberReused,
    Bug::ProbeForgotten,
    Bug::WindowIgnored,
    Bug::TagUnchecked,
    Bug::KeyTooSoon,
    Bug::KeysEnd,
    Bug::DatagramsMixed,
    Bug::CloseOnce,
    Bug::BlackHoleIgnored,
];

/// Every fault of the channels between nodes.
pub const CHANNEL_BUGS: [Bug; 12] = [
    Bug::HelloPromoted,
    Bug::OldHelloTaken,
    Bug::OwnChannelGoes,
    Bug::CandidateForever,
    Bug::MessageTwice,
    Bug::MessageForgotten,
    Bug::EphemeralRepeated,
    Bug::SharedSecretIgnored,
    Bug::Mac1Unchecked,
    Bug::CookieForAll,
    Bug::CookieForever,
    Bug::LoadIgnored,
];

#[cfg(planted)]
mod chosen {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a fault in what this thread runs, or none.
    pub fn plant(bug: Option<Bug>) {
        CHOSEN.set(bug);
    }

    /// Is this fault planted?
    pub(crate) fn is(bug: Bug) -> bool {
        CHOSEN.get() == Some(bug)
    }
}

#[cfg(planted)]
pub(crate) use chosen::is;
#[cfg(planted)]
pub use chosen::plant;

/// Is this fault planted?
#[cfg(not(planted))]
pub(crate) const fn is(_: Bug) -> bool {
    false
}
