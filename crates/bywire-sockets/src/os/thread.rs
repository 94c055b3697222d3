//! The number of this thread.

use core::cell::Cell;

use crate::os::per_thread::per_thread;

per_thread!(static THREAD: Cell<u32>, "bywire_thread_number");

/// This thread's number. The kernel is asked once.
pub fn number() -> u32 {
    THREAD.with(|number| {
        if number.get() == 0 {
            // SAFETY: no arguments.
            number.set(unsafe { libc::syscall(libc::SYS_gettid) } as u32);
        }
        number.get()
    })
}

/// Forgets the number in a forked child, whose thread has another one.
pub fn forget() {
    THREAD.with(|number| number.set(0));
}
