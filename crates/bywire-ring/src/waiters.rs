//! Calls that sleep with a socket whose last descriptor is closed: they are left another one, and whoever comes last closes it.
//!
//! `kept` is 0, or stands for that descriptor.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// One more waits.
pub fn begin<W: Word>(waiters: &W) {
    // SeqCst: pairs with the loads in `are_there` and `keep`.
    waiters.fetch_add(1, Ordering::SeqCst);
}

/// One less; [`left`] follows.
pub fn end<W: Word>(waiters: &W) {
    // SeqCst: pairs with the loads in `are_there`, `keep` and `left`.
    waiters.fetch_add(1u32.wrapping_neg(), Ordering::SeqCst);
}

/// Has one to be kept for them?
pub fn are_there<W: Word>(waiters: &W) -> bool {
    // SeqCst: pairs with the additions in `begin` and `end`.
    waiters.load(Ordering::SeqCst) != 0
}

/// Keeps `descriptor` for them, as what the program has is about to be closed: what is to be closed, if nobody waits any more.
pub fn keep<W: Word>(waiters: &W, kept: &W, descriptor: u32) -> Option<u32> {
    // SeqCst: pairs with the additions in `end` and the swap in `take`, by the load that follows: either that one sees that
    // nobody waits, or the last waiter sees what is kept.
    // By a swap, which no other one comes before that has not seen it.
    kept.swap(descriptor, Ordering::SeqCst);
    left(waiters, kept)
}

/// What is to be closed, if nobody waits any more: of several that ask, one gets it.
pub fn left<W: Word>(waiters: &W, kept: &W) -> Option<u32> {
    // SeqCst: pairs with the swap in `keep`, behind the addition in `end`.
    if are_there(waiters) { None } else { take(kept) }
}

/// What is kept, which is the caller's to close.
pub fn take<W: Word>(kept: &W) -> Option<u32> {
    // SeqCst: pairs with the swap in `keep`; of two that take it, one gets it.
    Some(kept.swap(0, Ordering::SeqCst)).filter(|kept| *kept != 0)
}
