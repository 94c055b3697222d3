//! C's error number of this thread.

use core::ffi::c_int;

/// The last one.
pub fn last() -> c_int {
    // SAFETY: the C library's address of this thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set(number: c_int) {
    // SAFETY: the C library's address of this thread's own variable.
    unsafe { *libc::__errno_location() = number }
}

/// Sets it, and is what a call then returns.
pub fn fail(number: c_int) -> isize {
    set(number);
    -1
}

/// Runs what must not change it.
pub fn keep<T>(work: impl FnOnce() -> T) -> T {
    let kept = last();
    let result = work();
    set(kept);
    result
}
