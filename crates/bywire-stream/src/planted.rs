//! Faults that are planted on purpose, so that a test can show that the simulator finds them. They exist only in a
//! build with debug assertions, as tests are.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// More bytes are sent than the credit allows.
    CreditIgnored,
    /// Credit is announced twice.
    CreditDoubled,
    /// Credit that the sender waits for is not announced.
    CreditForgotten,
    /// An ended stream keeps its part of the pool.
    PoolLeaks,
    /// Messages of the low lane do not wait for those of the high one.
    LanesUnordered,
    /// A message of the low lane names no message of the high one.
    AfterForgotten,
    /// A stream returns to the high lane while its bytes are under way on the low one.
    LaneChangedEarly,
    /// A low message overtakes one that is held.
    HeldOvertaken,
    /// Held messages are not counted by their sender.
    HeldUnbounded,
    /// The sender waits for an acknowledgement that it has not asked for.
    AcknowledgementUnasked,
    /// The end of a direction is sent before its last bytes.
    HalfEarly,
    /// A stream that was asked to return goes on sending.
    ReturnIgnored,
    /// A direction that returns is cut where its reader had stopped, and not where its writer says.
    BackMisplaced,
    /// A direction returns without the bytes before the offset.
    BackEarly,
    /// Bytes that arrive after a reset are reported.
    ResetReports,
    /// Records that were under way when a stream was reset end the connection.
    LateRecordRefused,
    /// The opener uses a slot again before its peer is done.
    SlotReusedEarly,
    /// The opener of a stream that was refused never ends it.
    RefusedForgotten,
    /// A stream that is at the end of its turn keeps it.
    TurnKept,
    /// A stream that has got credit is not sent again.
    CreditSleeps,
    /// The last record of a stream overtakes its bytes.
    DoneEarly,
}

/// Every fault.
pub const BUGS: [Bug; 21] = [
    Bug::CreditIgnored,
    Bug::CreditDoubled,
    Bug::CreditForgotten,
    Bug::PoolLeaks,
    Bug::LanesUnordered,
    Bug::AfterForgotten,
    Bug::LaneChangedEarly,
    Bug::HeldOvertaken,
    Bug::HeldUnbounded,
    Bug::AcknowledgementUnasked,
    Bug::HalfEarly,
    Bug::ReturnIgnored,
    Bug::BackMisplaced,
    Bug::BackEarly,
    Bug::ResetReports,
    Bug::LateRecordRefused,
    Bug::SlotReusedEarly,
    Bug::RefusedForgotten,
    Bug::TurnKept,
    Bug::CreditSleeps,
    Bug::DoneEarly,
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

    /// Returns whether this fault is planted.
    pub fn is(bug: Bug) -> bool {
        CHOSEN.get() == Some(bug)
    }
}

#[cfg(debug_assertions)]
pub use chosen::{is, plant};

/// Returns whether this fault is planted.
#[cfg(not(debug_assertions))]
pub const fn is(_: Bug) -> bool {
    false
}
