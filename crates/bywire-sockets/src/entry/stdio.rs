//! Calls of the C library that write to a descriptor or close one themselves. The connection of a socket that they write
//! to returns to the kernel.

use core::ffi::{c_char, c_int, c_void};

use bywire_pairing::reason::Reason;

use super::take_over;
use crate::connection::fallback::to_kernel;
use crate::os::{errno, real};
use crate::process::lifecycle;

take_over! {
    /// Writes formatted text.
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        to_kernel(fd, Reason::Stdio);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::vdprintf(fd, format, arguments) }
    }

    /// Writes formatted text, checked by the compiler.
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        to_kernel(fd, Reason::Stdio);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::__vdprintf_chk(fd, flag, format, arguments) }
    }

    /// Closes a stream, and its descriptor.
    fn fclose(stream: *mut c_void) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        lifecycle::close(descriptor(stream), || unsafe { real::fclose(stream) })
    }

    /// Opens another file by an existing stream, whose descriptor is closed.
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void {
        // SAFETY: the program's own arguments, as they came.
        replace(stream, || unsafe { real::freopen(path, mode, stream) })
    }

    /// Opens another file by an existing stream, whose descriptor is closed.
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut c_void) -> *mut c_void {
        // SAFETY: the program's own arguments, as they came.
        replace(stream, || unsafe { real::freopen64(path, mode, stream) })
    }
}

/// The descriptor of a stream; -1: it has none.
fn descriptor(stream: *mut c_void) -> c_int {
    // SAFETY: the program's own stream.
    errno::keep(|| unsafe { libc::fileno(stream.cast()) })
}

fn replace(stream: *mut c_void, real: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let leaving = lifecycle::before_close(descriptor(stream));
    let opened = real();
    errno::keep(|| lifecycle::after_close(leaving));
    opened
}

/// Defines functions with variable arguments. `$before` gets the descriptor and returns the address where the call
/// continues, with the stack and all argument registers as they were.
macro_rules! take_texts_over {
    ($($(#[$doc:meta])* fn $name:ident => $before:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The requirements of C's function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                core::arch::naked_asm!(
                    // The stack must be aligned to 16 bytes at a call.
                    "sub rsp, 184",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "mov [rsp + 24], rcx",
                    "mov [rsp + 32], r8",
                    "mov [rsp + 40], r9",
                    // The number of vector registers in use.
                    "mov [rsp + 48], rax",
                    "movups [rsp + 56], xmm0",
                    "movups [rsp + 72], xmm1",
                    "movups [rsp + 88], xmm2",
                    "movups [rsp + 104], xmm3",
                    "movups [rsp + 120], xmm4",
                    "movups [rsp + 136], xmm5",
                    "movups [rsp + 152], xmm6",
                    "movups [rsp + 168], xmm7",
                    "call {before}",
                    "mov r11, rax",
                    "mov rdi, [rsp]",
                    "mov rsi, [rsp + 8]",
                    "mov rdx, [rsp + 16]",
                    "mov rcx, [rsp + 24]",
                    "mov r8, [rsp + 32]",
                    "mov r9, [rsp + 40]",
                    "mov rax, [rsp + 48]",
                    "movups xmm0, [rsp + 56]",
                    "movups xmm1, [rsp + 72]",
                    "movups xmm2, [rsp + 88]",
                    "movups xmm3, [rsp + 104]",
                    "movups xmm4, [rsp + 120]",
                    "movups xmm5, [rsp + 136]",
                    "movups xmm6, [rsp + 152]",
                    "movups xmm7, [rsp + 168]",
                    "add rsp, 184",
                    "jmp r11",
                    before = sym $before,
                )
            }
        )*
    };
}

take_texts_over! {
    /// Writes formatted text.
    fn dprintf => before_text;

    /// Writes formatted text, checked by the compiler.
    fn __dprintf_chk => before_checked_text;
}

extern "C" fn before_text(fd: c_int) -> usize {
    to_kernel(fd, Reason::Stdio);
    real::dprintf_address()
}

extern "C" fn before_checked_text(fd: c_int) -> usize {
    to_kernel(fd, Reason::Stdio);
    real::checked_dprintf_address()
}
