//! The number of this thread.

use core::cell::Cell;

thread_local! {
    // Constant and without a destructor: the thread-local variable allocates and registers nothing.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

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
