//! System calls that the library makes by itself, in addition to those of the program. Once a sandbox is installed
//! there are none.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::thread;

static ARE_OVER: AtomicBool = AtomicBool::new(false);

/// Whether the library may make no calls of its own any more.
#[inline(always)]
pub fn are_over() -> bool {
    // Relaxed: a call that must see the change asks `begin`.
    ARE_OVER.load(Ordering::Relaxed)
}

/// The number of threads that are in the library's own calls.
static BUSY: [Busy; STRIPES] = [const { Busy(AtomicU32::new(0)) }; STRIPES];
/// Several counters, so that threads do not contend for one cache line.
const STRIPES: usize = 16;
/// The thread that returns all connections to the kernel. It may still make calls until it is done.
static CLOSER: AtomicU32 = AtomicU32::new(0);

#[repr(C, align(64))]
struct Busy(AtomicU32);

/// One of the library's own calls, until dropped.
pub struct OwnCall(&'static AtomicU32);

/// Begins a call that the program did not make. `None`: the library may make none any more.
#[inline]
pub fn begin() -> Option<OwnCall> {
    let thread = thread::number();
    let count = &BUSY.get(thread as usize % STRIPES)?.0;
    // SeqCst: pairs with the load in `is_any`. Either that load counts this call, or this call sees that it may not be
    // made.
    count.fetch_add(1, Ordering::SeqCst);
    let call = OwnCall(count);
    // SeqCst: pairs with the store in `end`.
    let is_over = ARE_OVER.load(Ordering::SeqCst) && CLOSER.load(Ordering::Relaxed) != thread;
    (!is_over).then_some(call)
}

/// The same for a call that sleeps, which a handler may leave by a jump.
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

/// Ends a sleep of a thread that is counted there.
fn wakes(stripe: usize) {
    if let Some(busy) = BUSY.get(stripe) {
        // Release: pairs with the load in `is_any`. The call is over.
        busy.0.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for OwnCall {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the load in `is_any`. The call is over.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Clears the counts in a forked child: the parent's other threads do not exist there.
pub fn after_fork_in_child() {
    BUSY.iter().for_each(|busy| busy.0.store(0, Ordering::Relaxed));
    jumps::after_fork_in_child();
}

/// Ends the library's own calls, except those of this thread until [`end_for_all`].
pub fn end() {
    CLOSER.store(thread::number(), Ordering::Relaxed);
    // SeqCst: pairs with the load in `begin`.
    ARE_OVER.store(true, Ordering::SeqCst);
}

/// Ends the library's own calls of this thread too.
pub fn end_for_all() {
    CLOSER.store(0, Ordering::Relaxed);
}

/// Says whether the library may make any calls of its own. Called when it is loaded, before any thread starts.
pub fn forbid(are_forbidden: bool) {
    ARE_OVER.store(are_forbidden, Ordering::Relaxed);
}

/// Whether any thread is in one.
pub fn is_any() -> bool {
    // SeqCst: pairs with the changes in `begin`, and with the drop of what it returns.
    BUSY.iter().any(|busy| busy.0.load(Ordering::SeqCst) != 0)
}
