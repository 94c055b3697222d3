//! Waking threads that sleep in the kernel on many descriptors at once, by one bell for a whole program.
//!
//! The bell is a descriptor that every epoll set of the program watches by edge. Whoever makes it ring wakes one sleeper
//! of each set. A word in a page of the program's says whether anybody sleeps, and counts: a peer rings once for each value
//! of the word, however much it publishes meanwhile.
//!
//! ```text
//! sleeper: word + 1 → fence → look → sleep        peer: publish → fence → look at the word
//!                                                       asleep, and not rung for this value: ring
//! whoever takes the ring: word changes → fence → look
//! ```
//!
//! The last line is what keeps a ring from being lost. In a set, the ring comes to one thread: the sleeper, or one that
//! only looks in passing. The kernel puts the others to sleep again without a word to them. So the word changes before
//! the look of whoever has taken the ring: what that look does not find was published by a peer that sees the change,
//! and rings anew.

use core::sync::atomic::Ordering;

use crate::stream::Segment;

/// Where the word lies in the page.
pub const WORD_OFFSET: usize = 0;
/// In the word, from this bit on: changes. Below: who sleeps now.
const CHANGE: u64 = 1 << 20;

/// Announces a sleeper. It looks at everything once more before it sleeps.
pub fn announce<S: Segment>(page: &S) {
    // Relaxed: ordered by the fence.
    page.add(WORD_OFFSET, CHANGE + 1, Ordering::Relaxed);
    // Pairs with the fence of a peer before `must_ring`: either it sees the sleeper, or the sleeper what it has published.
    page.fence();
}

/// Announces so many sleepers that have lain down without it. What they sleep for was made known before, with a fence behind
/// it; whoever did so looks at everything after this, or wakes somebody who does.
pub(crate) fn announce_others<S: Segment>(page: &S, count: u32) {
    // Relaxed: ordered by the fence.
    page.add(WORD_OFFSET, (CHANGE + 1).wrapping_mul(count.into()), Ordering::Relaxed);
    // Pairs with the fence of a peer before `must_ring`, as in `announce`: either the peer sees the sleepers, or whoever looks
    // next what it has published.
    page.fence();
}

/// A sleeper is awake. One that was woken by the bell has called [`take`].
pub fn rise<S: Segment>(page: &S) {
    // Relaxed: a peer that still sees the sleeper rings once for nothing.
    page.add(WORD_OFFSET, 1u64.wrapping_neg(), Ordering::Relaxed);
}

/// So many were announced by [`announce_others`] that somebody else has announced, or that were awake by then.
pub(crate) fn take_back<S: Segment>(page: &S, count: u32) {
    // Relaxed, as in `rise`.
    page.add(WORD_OFFSET, u64::from(count).wrapping_neg(), Ordering::Relaxed);
}

/// This thread has taken a ring from the kernel, for whomever it was meant. It looks at everything after this.
pub fn take<S: Segment>(page: &S) {
    // Relaxed: ordered by the fence.
    page.add(WORD_OFFSET, CHANGE, Ordering::Relaxed);
    // Pairs with the fence of a peer before `must_ring`: either the peer rings for the new value, or this thread sees what it
    // has published.
    page.fence();
}

/// After a publication and a fence: has the bell to be rung? `rung` is the value for which it was rung last; the new one,
/// to be kept once it has been rung.
#[inline]
pub fn must_ring<S: Segment>(page: &S, rung: u64) -> Option<u64> {
    // Relaxed: ordered by the caller's fence, which pairs with those of `announce` and `take`.
    let word = page.load(WORD_OFFSET, Ordering::Relaxed);
    (!word.is_multiple_of(CHANGE) && word != rung).then_some(word)
}
