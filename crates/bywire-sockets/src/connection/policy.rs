//! When it pays to offer a connection to the pairing service, and whether this program may offer any.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use bywire_pairing::reason::Reason;

use crate::memory::arena::{SharedSocket, stage};

/// Calls that moved data after which a connection is offered.
static CALLS_MIN: AtomicU32 = AtomicU32::new(8);
/// Why nothing is offered any more, plus one.
static GIVEN_UP: AtomicU8 = AtomicU8::new(0);

/// Stops offering: no connection of this program is carried from here on, for this reason.
pub fn give_up(reason: Reason) {
    GIVEN_UP.store(reason as u8 + 1, Ordering::Relaxed);
    CALLS_MIN.store(u32::MAX, Ordering::Relaxed);
}

/// Why no connection of this program is carried any more.
pub fn given_up() -> Option<Reason> {
    GIVEN_UP.load(Ordering::Relaxed).checked_sub(1).and_then(Reason::of)
}

/// Whether this is one of the first calls that move data over a socket, which go to the kernel only. If so, it is
/// counted. Of several calls at once, one may be counted.
#[inline(always)]
pub fn is_early(shared: &SharedSocket) -> bool {
    let calls = shared.calls.load(Ordering::Relaxed);
    let is_early =
        calls < CALLS_MIN.load(Ordering::Relaxed) && shared.stage.load(Ordering::Relaxed) == stage::PLAIN;
    if is_early {
        shared.calls.store(calls + 1, Ordering::Relaxed);
    }
    is_early
}

/// Calls that moved data after which a connection is offered.
pub fn calls_min() -> u32 {
    CALLS_MIN.load(Ordering::Relaxed)
}

/// Whether the program has code that may change the flags of a descriptor unseen by this library.
static FLAGS_CHANGE_UNSEEN: AtomicBool = AtomicBool::new(false);

/// From here on the kernel is asked for the flags of a descriptor each time.
pub fn distrust_flags() {
    FLAGS_CHANGE_UNSEEN.store(true, Ordering::Relaxed);
}

/// Returns whether the flags of a descriptor are those that this library has seen last.
pub fn are_flags_known() -> bool {
    !FLAGS_CHANGE_UNSEEN.load(Ordering::Relaxed)
}

/// Sets that number.
pub fn configure(calls_min: u32) {
    CALLS_MIN.store(calls_min, Ordering::Relaxed);
}
