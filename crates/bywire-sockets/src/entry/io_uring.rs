//! liburing's functions that make rings. liburing makes system calls by its own instructions, so its functions are
//! hooked by name.

use core::ffi::{CStr, c_int, c_uint, c_void};

use super::take_over;
use crate::process::io_uring;

take_over! {
    /// Makes a ring. The result is the error.
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        type Real = unsafe extern "C-unwind" fn(c_uint, *mut c_void, c_uint) -> c_int;
        // SAFETY: the type of liburing's function of this name, and the program's own arguments.
        made(c"io_uring_queue_init", |real| unsafe { core::mem::transmute::<*mut c_void, Real>(real)(entries, ring, flags) })
    }

    /// The same, with parameters.
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        type Real = unsafe extern "C-unwind" fn(c_uint, *mut c_void, *mut c_void) -> c_int;
        // SAFETY: the type of liburing's function of this name, and the program's own arguments.
        made(c"io_uring_queue_init_params", |real| unsafe { core::mem::transmute::<*mut c_void, Real>(real)(entries, ring, parameters) })
    }

    /// The same, in memory of the program.
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, length: usize) -> c_int {
        type Real = unsafe extern "C-unwind" fn(c_uint, *mut c_void, *mut c_void, *mut c_void, usize) -> c_int;
        // SAFETY: the type of liburing's function of this name, and the program's own arguments.
        made(c"io_uring_queue_init_mem", |real| unsafe { core::mem::transmute::<*mut c_void, Real>(real)(entries, ring, parameters, memory, length) })
    }

    /// Makes a ring without mapping it.
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
        type Real = unsafe extern "C-unwind" fn(c_uint, *mut c_void) -> c_int;
        // SAFETY: the type of liburing's function of this name, and the program's own arguments.
        made(c"io_uring_setup", |real| unsafe { core::mem::transmute::<*mut c_void, Real>(real)(entries, parameters) })
    }
}

fn made(name: &CStr, real: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    if !io_uring::permit() {
        return -io_uring::REFUSED;
    }
    io_uring::of_liburing(name).map_or(-libc::ENOSYS, real)
}
