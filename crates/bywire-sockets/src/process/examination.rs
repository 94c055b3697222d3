//! The examination of the loaded objects, by one thread at a time. The thread holds the dynamic loader's lock meanwhile. A
//! child of a fork would have its copy of that lock held for ever, so no fork begins during an examination.

use crate::memory::lock::{Held, Lock, rank};

static EXAMINING: Lock<{ rank::EXAMINING }> = Lock::new();

/// Begins an examination, which ends with the guard.
pub fn hold() -> Held<'static, { rank::EXAMINING }> {
    EXAMINING.hold_undisturbed()
}

/// Waits for another thread's examination. There is none until the fork has ended.
pub fn before_fork() {
    EXAMINING.take();
}

/// Ends that in the parent.
pub fn after_fork_in_parent() {
    if EXAMINING.is_own() {
        EXAMINING.give();
    }
}

/// Ends it in the child.
pub fn after_fork_in_child() {
    EXAMINING.reset();
}
