//! Faults that are planted on purpose, so that a test can show that the simulator finds them. They exist only in a
//! build with debug assertions, as tests are.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Lost bytes are not sent again.
    LostForgotten,
    /// More bytes are sent than the credit allows.
    LimitIgnored,
    /// An acknowledgement of a packet after a gap also counts for the gap.
    GapSkipped,
    /// Memory returns to the program when it was sent, instead of when it was acknowledged.
    TakenBackEarly,
    /// Lost credit is not sent again.
    CreditForgotten,
    /// More credit is announced than was given.
    LimitTooHigh,
    /// More bytes are reported as consumed than were.
    TakenTooHigh,
    /// Bytes that overlap others are stored at the wrong offset.
    OverlapMisplaced,
    /// Waiting bytes are lost when memory grows.
    WaitingForgotten,
    /// A duplicate packet is accepted.
    DuplicateTaken,
    /// Packets that never arrived are acknowledged.
    GapAcknowledged,
    /// A packet that asks for no acknowledgement shares its number with the next one.
    NumberReused,
    /// A silent peer is never probed.
    ProbeForgotten,
    /// The congestion window holds nothing back.
    WindowIgnored,
    /// A check is not compared.
    TagUnchecked,
    /// A key is replaced before the peer has it.
    KeyTooSoon,
    /// No key replaces the second one.
    KeysEnd,
    /// Pieces of two datagrams are joined.
    DatagramsMixed,
    /// A close is sent only once.
    CloseOnce,
    /// Packets remain long although long ones vanish.
    BlackHoleIgnored,
    /// A hello makes a channel before a packet has been opened with its keys.
    HelloPromoted,
    /// A replayed hello counts as a new one.
    OldHelloTaken,
    /// Of two channels that are begun at once, each node uses the other's.
    OwnChannelGoes,
    /// An answered hello waits without limit.
    CandidateForever,
    /// A message that arrived in an earlier channel is accepted again.
    MessageTwice,
    /// A message that was lost with its channel is not sent again.
    MessageForgotten,
    /// A hello is sent again with the same ephemeral key.
    EphemeralRepeated,
    /// The nodes' shared secret is not mixed in.
    SharedSecretIgnored,
    /// A sender that does not know the node's public key gets an answer.
    Mac1Unchecked,
    /// A cookie is valid for every address.
    CookieForAll,
    /// The secret of cookies never changes.
    CookieForever,
    /// Handshakes are not counted.
    LoadIgnored,
    /// A replayed hello takes the place of an answered one at once.
    CandidateDisplaced,
    /// A channel moves to wherever its first packet comes from.
    AddressUnproved,
    /// A channel keeps its first keys.
    KeysForever,
    /// The keys before a renewal stay valid.
    OldKeysKept,
    /// A renewal looks for the node at its other addresses.
    RenewalMoves,
    /// A hello that is repeated from another address gets the same answer there, and the channel goes there.
    AnswerShared,
    /// A region that may only be read can be written.
    RightIgnored,
    /// Every piece of a put is written to its beginning.
    PutMisplaced,
    /// A put ends with its answer, while packets are still filled from its memory.
    PutAnsweredEarly,
    /// A put that was given up ends twice.
    PutEndsTwice,
    /// The note of a put is dropped.
    NoteForgotten,
    /// A message counts as delivered once it is acknowledged.
    DeliveredEarly,
    /// The end of a connection is not reported for messages that wait to be delivered.
    UndeliveredForgotten,
    /// The sender of a message is not told at once that it was consumed.
    UrgeForgotten,
    /// A short message overtakes long ones of its priority.
    ShortOvertakes,
    /// The program is not told that there is room again.
    RoomForgotten,
    /// The program is told again and again that there is room.
    RoomRepeated,
    /// A piece of a long message is stored behind its place.
    LongMisplaced,
    /// A part of a short message in several packets is stored behind its place.
    ShortMisplaced,
    /// Every piece of a get has the first bytes.
    GotRepeated,
    /// An answer for which there is no room is dropped.
    AnswerForgotten,
    /// The program is told of a message without a buffer only once, even if it posts one that is too small.
    NeedToldOnce,
    /// A head that has arrived in part waits for more bytes than it has.
    HeadAwaitsMore,
    /// Data that has arrived is lost when its sender leaves.
    DrainForgotten,
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
pub const CHANNEL_BUGS: [Bug; 18] = [
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
    Bug::CandidateDisplaced,
    Bug::AddressUnproved,
    Bug::AnswerShared,
    Bug::KeysForever,
    Bug::OldKeysKept,
    Bug::RenewalMoves,
];

/// Every fault of the transfers over a connection. `bywire` has them.
pub const TRANSFER_BUGS: [Bug; 18] = [
    Bug::RightIgnored,
    Bug::PutMisplaced,
    Bug::PutAnsweredEarly,
    Bug::PutEndsTwice,
    Bug::NoteForgotten,
    Bug::DeliveredEarly,
    Bug::UndeliveredForgotten,
    Bug::UrgeForgotten,
    Bug::ShortOvertakes,
    Bug::RoomForgotten,
    Bug::RoomRepeated,
    Bug::LongMisplaced,
    Bug::ShortMisplaced,
    Bug::GotRepeated,
    Bug::AnswerForgotten,
    Bug::NeedToldOnce,
    Bug::HeadAwaitsMore,
    Bug::DrainForgotten,
];

#[cfg(debug_assertions)]
mod chosen {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static CHOSEN: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Plants a fault, or none, in the code that this thread runs.
    pub fn plant(bug: Option<Bug>) {
        CHOSEN.set(bug);
    }

    /// Is this fault planted?
    pub fn is(bug: Bug) -> bool {
        CHOSEN.get() == Some(bug)
    }
}

#[cfg(debug_assertions)]
pub use chosen::{is, plant};

/// Is this fault planted?
#[cfg(not(debug_assertions))]
pub const fn is(_: Bug) -> bool {
    false
}
