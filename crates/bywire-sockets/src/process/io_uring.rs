//! `io_uring`, through which a program reaches any descriptor past this library. It is refused, or else nothing is
//! carried.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use bywire_pairing::reason::Reason;

use crate::connection::policy;
use crate::os::real;
use crate::pairing::offer;
use crate::process::sandbox;

/// What the kernel and most containers return where `io_uring` is forbidden.
pub const REFUSED: c_int = libc::EPERM;
/// The library by which most programs make their rings.
const LIBURING: &CStr = c"liburing.so.2";

static IS_KEPT: AtomicBool = AtomicBool::new(false);

/// Allows the program to make rings.
pub fn keep() {
    IS_KEPT.store(true, Ordering::Relaxed);
}

/// Whether the program may make a ring now. If so, all its connections return to the kernel.
pub fn permit() -> bool {
    if !offer::is_configured() {
        return true;
    }
    if !IS_KEPT.load(Ordering::Relaxed) || policy::is_required() {
        return false;
    }
    sandbox::all_to_kernel(Reason::IoUring);
    true
}

/// The function of liburing behind the hook of the same name. It may have been loaded for a part of the program only.
pub fn of_liburing(name: &CStr) -> Option<*mut libc::c_void> {
    // SAFETY: valid names. A library that is loaded already stays loaded.
    let found = unsafe {
        let next = real::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if next.is_null() {
            let loaded = real::dlopen(LIBURING.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if loaded.is_null() { loaded } else { real::dlsym(loaded, name.as_ptr()) }
        } else {
            next
        }
    };
    (!found.is_null()).then_some(found)
}
