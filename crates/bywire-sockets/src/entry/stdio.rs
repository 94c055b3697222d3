//! Calls of the C library that write to a descriptor or close one themselves. The connection of a socket that they write
//! to returns to the kernel.

use core::ffi::{c_char, c_int, c_void};

use bywire_pairing::reason::Reason;

use super::take_over;
use crate::os::{errno, real};
use crate::pairing::requirement::to_kernel;
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
                crate::os::arch::continue_after!($before)
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
