//! Calls that sleep in the kernel on a socket while its last descriptor is closed. A duplicate descriptor is kept for
//! them, and the last of them closes it.
//!
//! `kept` is 0, or a number that stands for the kept descriptor.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Counts one more waiting call.
pub fn begin<W: Word>(waiters: &W) {
    // SeqCst: pairs with the loads in `are_there` and `keep`.
    waiters.fetch_add(1, Ordering::SeqCst);
}

/// Counts one waiting call less; [`left`] follows.
pub fn end<W: Word>(waiters: &W) {
    // SeqCst: pairs with the loads in `are_there`, `keep` and `left`.
    waiters.fetch_add(1u32.wrapping_neg(), Ordering::SeqCst);
}

/// Does a descriptor have to be kept for waiting calls?
pub fn are_there<W: Word>(waiters: &W) -> bool {
    // SeqCst: pairs with the additions in `begin` and `end`.
    waiters.load(Ordering::SeqCst) != 0
}

/// Keeps `descriptor` for the waiting calls, as the program's own is about to be closed. Returns the descriptor that
/// the caller has to close, if no call waits any more.
pub fn keep<W: Word>(waiters: &W, kept: &W, descriptor: u32) -> Option<u32> {
    // SeqCst: pairs with the additions in `end` and the swap in `take`, through the load that follows: either that
    // load sees that no call waits, or the last waiter sees the kept descriptor. A swap, so that no other swap
    // overtakes it without seeing its value.
    kept.swap(descriptor, Ordering::SeqCst);
    left(waiters, kept)
}

/// Returns the kept descriptor for the caller to close, if no call waits any more. Of several callers, one gets it.
pub fn left<W: Word>(waiters: &W, kept: &W) -> Option<u32> {
    // SeqCst: pairs with the swap in `keep`, after the addition in `end`.
    if are_there(waiters) { None } else { take(kept) }
}

/// Takes the kept descriptor, which the caller has to close.
pub fn take<W: Word>(kept: &W) -> Option<u32> {
    // SeqCst: pairs with the swap in `keep`. Of two callers, one gets the descriptor.
    Some(kept.swap(0, Ordering::SeqCst)).filter(|kept| *kept != 0)
}
