//! Waking threads that sleep in the kernel on many descriptors at once, with one doorbell for a whole program.
//!
//! The doorbell is a descriptor that every epoll set of the program watches edge-triggered. One ring wakes one sleeper of
//! each set. A word in a page of the program says whether any thread sleeps, and counts changes. A peer rings once
//! for each value of the word, however much it publishes meanwhile.
//!
//! ```text
//! sleeper: word + 1 → fence → look → sleep        peer: publish → fence → look at the word
//!                                                       asleep, and not rung for this value: ring
//! thread that takes the ring: word changes → fence → look
//! ```
//!
//! The last line ensures that no ring is lost. In a set, the kernel hands the ring to one thread: the sleeper, or a
//! thread that only looks in passing. The kernel puts the other threads back to sleep without telling them. So the
//! word changes before the thread that took the ring looks. A publication that this look does not find comes from a
//! peer that sees the change and rings again.

use core::sync::atomic::Ordering;

use crate::stream::Segment;

/// The word's offset in the page.
pub const WORD_OFFSET: usize = 0;
/// The word counts changes from this bit on, and the current sleepers in the bits below.
const CHANGE: u64 = 1 << 20;

/// Announces a sleeper. It looks at everything once more before it sleeps.
pub fn announce<S: Segment>(page: &S) {
    // Relaxed: ordered by the fence.
    page.add(WORD_OFFSET, CHANGE + 1, Ordering::Relaxed);
    // Pairs with the fence of a peer before `must_ring`: either the peer sees the sleeper, or the sleeper sees what
    // the peer has published.
    page.fence();
}

/// Announces `count` sleepers that went to sleep without announcing themselves. The caller has published what they
/// sleep for before, followed by a fence. After this, the caller looks at everything, or wakes a thread that does.
pub(crate) fn announce_others<S: Segment>(page: &S, count: u32) {
    // Relaxed: ordered by the fence.
    page.add(WORD_OFFSET, (CHANGE + 1).wrapping_mul(count.into()), Ordering::Relaxed);
    // Pairs with the fence of a peer before `must_ring`, as in `announce`: either the peer sees the sleepers, or the
    // thread that looks next sees what the peer has published.
    page.fence();
}

/// Counts out a sleeper that is awake. A thread that was woken by the doorbell has called [`take`] before.
pub fn rise<S: Segment>(page: &S) {
    // Relaxed: a peer that still sees the sleeper rings once for nothing.
    page.add(WORD_OFFSET, 1u64.wrapping_neg(), Ordering::Relaxed);
}

/// Withdraws `count` sleepers of [`announce_others`] that another thread has announced too, or that were already
/// awake.
pub(crate) fn take_back<S: Segment>(page: &S, count: u32) {
    // Relaxed, as in `rise`.
    page.add(WORD_OFFSET, u64::from(count).wrapping_neg(), Ordering::Relaxed);
}

/// Notes that this thread has taken a ring from the kernel, whichever thread it was meant for. The caller looks at
/// everything after this.
pub fn take<S: Segment>(page: &S) {
    // Relaxed: ordered by the fence.
    page.add(WORD_OFFSET, CHANGE, Ordering::Relaxed);
    // Pairs with the fence of a peer before `must_ring`: either the peer rings for the new value, or this thread sees
    // what the peer has published.
    page.fence();
}

/// The number of announced sleepers.
pub fn sleepers<S: Segment>(page: &S) -> u64 {
    // Relaxed: a hint.
    page.load(WORD_OFFSET, Ordering::Relaxed) % CHANGE
}

/// After a publication and a fence: does the doorbell have to be rung? `rung` is the value for which it was rung last.
/// Returns the new value, which the caller keeps once it has rung.
#[inline]
pub fn must_ring<S: Segment>(page: &S, rung: u64) -> Option<u64> {
    // Relaxed: ordered by the caller's fence, which pairs with those of `announce` and `take`.
    let word = page.load(WORD_OFFSET, Ordering::Relaxed);
    (!word.is_multiple_of(CHANGE) && word != rung).then_some(word)
}
