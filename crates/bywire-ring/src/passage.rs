//! How a socket leaves the kernel while calls may be on their way into it.
//!
//! A call counts itself and then looks at the stage. A thread that changes the stage looks at the counts after that.
//! Whichever comes second sees the other. So no call sleeps in the kernel on a socket whose calls look at the rings
//! first.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Counts a call that is about to enter the kernel. [`is_open`] is for after it, and [`leave`] follows in any case.
#[inline(always)]
pub fn enter<W: Word>(count: &W) {
    // SeqCst: pairs with the loads in `close`.
    count.fetch_add(1, Ordering::SeqCst);
}

/// May a call still enter the kernel? At the stage `closed` it may not.
#[inline(always)]
pub fn is_open<W: Word>(stage: &W, closed: u32) -> bool {
    // SeqCst: pairs with the store in `close`: either `close` sees this call counted, or this call sees the new
    // stage.
    stage.load(Ordering::SeqCst) != closed
}

/// Counts out a call that is back.
#[inline(always)]
pub fn leave<W: Word>(count: &W) {
    // SeqCst: pairs with the loads in `close`; the bytes that the call has moved are counted before.
    count.fetch_add(1u32.wrapping_neg(), Ordering::SeqCst);
}

/// Lets no further call into the kernel. `false`: calls are there, and [`open`] follows.
pub fn close<W: Word>(stage: &W, closed: u32, counts: [&W; 3]) -> bool {
    // SeqCst: pairs with the load in `is_open`.
    stage.store(closed, Ordering::SeqCst);
    // SeqCst: pairs with the additions in `enter` and `leave`.
    counts.iter().all(|count| count.load(Ordering::SeqCst) == 0)
}

/// Lets calls into the kernel again, at the stage `before`.
pub fn open<W: Word>(stage: &W, before: u32) {
    // SeqCst: pairs with the load in `is_open`.
    stage.store(before, Ordering::SeqCst);
}
