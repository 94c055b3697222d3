//! Calls that the library makes of the kernel by itself, beside those of the program: once a sandbox closes there are none.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::thread;

static ARE_OVER: AtomicBool = AtomicBool::new(false);

/// Are there to be none any more?
#[inline(always)]
pub fn are_over() -> bool {
    // Relaxed: a call that has to see it asks `begin`.
    ARE_OVER.load(Ordering::Relaxed)
}

/// Threads that are in calls of the library's own.
static BUSY: [Busy; STRIPES] = [const { Busy(AtomicU32::new(0)) }; STRIPES];
/// So many counts, that threads do not take each other's line away.
const STRIPES: usize = 16;
/// The thread that brings everything back, for which nothing is closed before it is done.
static CLOSER: AtomicU32 = AtomicU32::new(0);

#[repr(C, align(64))]
struct Busy(AtomicU32);

/// A call of the library's own, until dropped.
pub struct OwnCall(&'static AtomicU32);

/// Begins a call that the program has not made; `None`: there are to be none any more.
#[inline]
pub fn begin() -> Option<OwnCall> {
    let thread = thread::number();
    let count = &BUSY.get(thread as usize % STRIPES)?.0;
    // SeqCst: pairs with the load in `is_any`: either this call is counted there, or sees that there are to be none.
    count.fetch_add(1, Ordering::SeqCst);
    let call = OwnCall(count);
    // SeqCst: pairs with the store in `end`.
    let is_over = ARE_OVER.load(Ordering::SeqCst) && CLOSER.load(Ordering::Relaxed) != thread;
    (!is_over).then_some(call)
}

/// The same for one that sleeps, which a handler may jump out of.
pub fn begin_sleep() -> Option<Noted> {
    let thread = thread::number();
    let stripe = thread as usize % STRIPES;
    let count = &BUSY.get(stripe)?.0;
    let noted = jumps::taking(GiveBack { ends: wakes, left: wakes, argument: stripe }, || {
        // SeqCst: pairs with the load in `is_any`, as in `begin`.
        count.fetch_add(1, Ordering::SeqCst);
    });
    // SeqCst: pairs with the store in `end`.
    let is_over = ARE_OVER.load(Ordering::SeqCst) && CLOSER.load(Ordering::Relaxed) != thread;
    (!is_over).then_some(noted)
}

/// A sleep is over, of a thread that is counted there.
fn wakes(stripe: usize) {
    if let Some(busy) = BUSY.get(stripe) {
        // Release: pairs with the load in `is_any`; the call is over.
        busy.0.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for OwnCall {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the load in `is_any`; the call is over.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Threads stayed behind, with the calls that they were in.
pub fn after_fork_in_child() {
    BUSY.iter().for_each(|busy| busy.0.store(0, Ordering::Relaxed));
    jumps::after_fork_in_child();
}

/// From here on there are to be none, but for those of this thread, until [`end_for_all`].
pub fn end() {
    CLOSER.store(thread::number(), Ordering::Relaxed);
    // SeqCst: pairs with the load in `begin`.
    ARE_OVER.store(true, Ordering::SeqCst);
}

/// This thread makes none any more either.
pub fn end_for_all() {
    CLOSER.store(0, Ordering::Relaxed);
}

/// When the library is loaded, before any thread starts: are there to be none at all?
pub fn forbid(are_forbidden: bool) {
    ARE_OVER.store(are_forbidden, Ordering::Relaxed);
}

/// Is a thread in one?
pub fn is_any() -> bool {
    // SeqCst: pairs with the changes in `begin` and by its drop.
    BUSY.iter().any(|busy| busy.0.load(Ordering::SeqCst) != 0)
}
