//! The C library's jump functions, by which a handler may leave a call of this library.

use core::ffi::{c_int, c_void};

use super::take_over;
use crate::os::{arch, jumps, real};

take_over! {
    /// Continues where `setjmp` was called.
    fn longjmp(place: *mut c_void, value: c_int) -> () {
        // SAFETY: the program's own arguments, as they came.
        unsafe {
            jumps::leave_for(arch::stack_in(place));
            real::longjmp(place, value)
        }
    }

    /// Continues where `_setjmp` was called.
    fn _longjmp(place: *mut c_void, value: c_int) -> () {
        // SAFETY: the program's own arguments, as they came.
        unsafe {
            jumps::leave_for(arch::stack_in(place));
            real::_longjmp(place, value)
        }
    }

    /// Continues where `sigsetjmp` was called.
    fn siglongjmp(place: *mut c_void, value: c_int) -> () {
        // SAFETY: the program's own arguments, as they came.
        unsafe {
            jumps::leave_for(arch::stack_in(place));
            real::siglongjmp(place, value)
        }
    }

    /// The variant of these three in programs that are compiled with `_FORTIFY_SOURCE`.
    fn __longjmp_chk(place: *mut c_void, value: c_int) -> () {
        // SAFETY: the program's own arguments, as they came.
        unsafe {
            jumps::leave_for(arch::stack_in(place));
            real::__longjmp_chk(place, value)
        }
    }

    /// Continues where `getcontext` was called, or at the start of a context of `makecontext`.
    fn setcontext(context: *const libc::ucontext_t) -> c_int {
        // SAFETY: the program's own structure, which the C library reads next.
        if let Some(place) = arch::stack_pointer(unsafe { &*context }) {
            jumps::leave_for(place);
        }
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setcontext(context) }
    }
}
