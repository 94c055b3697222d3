//! The C library's `errno` of this thread.

use core::ffi::c_int;

/// The current error number.
pub fn last() -> c_int {
    // SAFETY: the C library's address of this thread's own variable.
    unsafe { *libc::__errno_location() }
}

/// Sets the error number.
pub fn set(number: c_int) {
    // SAFETY: the C library's address of this thread's own variable.
    unsafe { *libc::__errno_location() = number }
}

/// Sets the error number and returns what a failed call returns.
pub fn fail(number: c_int) -> isize {
    set(number);
    -1
}

/// Runs `work` and restores the error number.
pub fn keep<T>(work: impl FnOnce() -> T) -> T {
    let kept = last();
    let result = work();
    set(kept);
    result
}
