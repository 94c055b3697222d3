//! The number of this thread.

use core::cell::Cell;

thread_local! {
    // Constant and without a destructor: nothing is allocated or registered for it.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// This thread's number, which the kernel is asked for once.
pub fn number() -> u32 {
    THREAD.with(|number| {
        if number.get() == 0 {
            // SAFETY: no arguments.
            number.set(unsafe { libc::syscall(libc::SYS_gettid) } as u32);
        }
        number.get()
    })
}

/// A forked child's only thread has another number.
pub fn forget() {
    THREAD.with(|number| number.set(0));
}
