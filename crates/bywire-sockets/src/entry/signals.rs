//! Calls that set signal handlers.

use core::ffi::c_int;

use super::take_over;
use crate::os::real;
use crate::process::signals;

take_over! {
    /// Sets a handler.
    fn sigaction(number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        signals::change(number, new, old)
    }

    /// Sets a handler.
    fn __sigaction(number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        signals::change(number, new, old)
    }

    /// Sets a handler.
    fn signal(number: c_int, handler: usize) -> usize {
        // SAFETY: the program's own arguments, as they came.
        signals::set(number, || unsafe { real::signal(number, handler) })
    }

    /// Sets a handler.
    fn bsd_signal(number: c_int, handler: usize) -> usize {
        // SAFETY: the program's own arguments, as they came.
        signals::set(number, || unsafe { real::signal(number, handler) })
    }

    /// Sets a handler.
    fn ssignal(number: c_int, handler: usize) -> usize {
        // SAFETY: the program's own arguments, as they came.
        signals::set(number, || unsafe { real::signal(number, handler) })
    }

    /// Sets a handler.
    fn sysv_signal(number: c_int, handler: usize) -> usize {
        // SAFETY: the program's own arguments, as they came.
        signals::set(number, || unsafe { real::sysv_signal(number, handler) })
    }

    /// Sets a handler.
    fn __sysv_signal(number: c_int, handler: usize) -> usize {
        // SAFETY: the program's own arguments, as they came.
        signals::set(number, || unsafe { real::sysv_signal(number, handler) })
    }

    /// Sets a handler.
    fn sigset(number: c_int, handler: usize) -> usize {
        // SAFETY: the program's own arguments, as they came.
        signals::set(number, || unsafe { real::sigset(number, handler) })
    }
}
