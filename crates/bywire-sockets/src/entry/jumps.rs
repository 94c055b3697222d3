//! The C library's jumps, by which a handler may leave a call of this library's.

use core::ffi::{c_int, c_void};

use super::take_over;
use crate::os::{jumps, real};

take_over! {
    /// Goes on where `setjmp` was called.
    fn longjmp(place: *mut c_void, value: c_int) -> () {
        jumps::leave_for(stack_in(place));
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::longjmp(place, value) }
    }

    /// Goes on where `_setjmp` was called.
    fn _longjmp(place: *mut c_void, value: c_int) -> () {
        jumps::leave_for(stack_in(place));
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::_longjmp(place, value) }
    }

    /// Goes on where `sigsetjmp` was called.
    fn siglongjmp(place: *mut c_void, value: c_int) -> () {
        jumps::leave_for(stack_in(place));
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::siglongjmp(place, value) }
    }

    /// The three in programs that are compiled with `_FORTIFY_SOURCE`.
    fn __longjmp_chk(place: *mut c_void, value: c_int) -> () {
        jumps::leave_for(stack_in(place));
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::__longjmp_chk(place, value) }
    }

    /// Goes on where `getcontext` was called, or at the beginning of what `makecontext` has made.
    fn setcontext(context: *const libc::ucontext_t) -> c_int {
        // SAFETY: the program's own structure, which the C library reads next.
        let registers = unsafe { &(*context).uc_mcontext.gregs };
        if let Some(pointer) = registers.get(libc::REG_RSP as usize) {
            jumps::leave_for(*pointer as usize);
        }
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::setcontext(context) }
    }
}

/// Where a `jmp_buf` of the GNU C library goes on to: the seventh of its words, as `PTR_MANGLE` of its x86-64 sysdep.h hides it.
fn stack_in(place: *const c_void) -> usize {
    const STACK_POINTER: usize = 6;
    let guard: usize;
    // SAFETY: reads the word of a thread's control block that the C library has put there for this; a live `jmp_buf` of the
    // program's has eight words.
    unsafe {
        core::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
        place.cast::<usize>().add(STACK_POINTER).read().rotate_right(17) ^ guard
    }
}
