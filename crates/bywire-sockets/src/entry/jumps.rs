//! The C library's jump functions, by which a handler may leave a call of this library.

use core::ffi::{c_int, c_void};

use super::take_over;
use crate::os::{jumps, real};

take_over! {
    /// Continues where `setjmp` was called.
    fn longjmp(place: *mut c_void, value: c_int) -> () {
        jumps::leave_for(stack_in(place));
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::longjmp(place, value) }
    }

    /// Continues where `_setjmp` was called.
    fn _longjmp(place: *mut c_void, value: c_int) -> () {
        jumps::leave_for(stack_in(place));
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::_longjmp(place, value) }
    }

    /// Continues where `sigsetjmp` was called.
    fn siglongjmp(place: *mut c_void, value: c_int) -> () {
        jumps::leave_for(stack_in(place));
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::siglongjmp(place, value) }
    }

    /// The variant of these three in programs that are compiled with `_FORTIFY_SOURCE`.
    fn __longjmp_chk(place: *mut c_void, value: c_int) -> () {
        jumps::leave_for(stack_in(place));
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::__longjmp_chk(place, value) }
    }

    /// Continues where `getcontext` was called, or at the start of a context of `makecontext`.
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

/// The stack pointer in a `jmp_buf` of the GNU C library: its seventh word, which `PTR_MANGLE` of its x86-64 sysdep.h
/// obfuscates.
fn stack_in(place: *const c_void) -> usize {
    const STACK_POINTER: usize = 6;
    let guard: usize;
    // SAFETY: reads the word of the thread control block that the C library keeps for this purpose. A live `jmp_buf` of
    // the program has eight words.
    unsafe {
        core::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
        place.cast::<usize>().add(STACK_POINTER).read().rotate_right(17) ^ guard
    }
}
