//! The start of the library, when a program loads it.

use core::ffi::{CStr, c_void};
use core::ptr;

use bywire_pairing::reason::Reason;

use crate::connection::{log, policy};
use crate::datagram::sockets as datagrams;
use crate::memory::arena;
use crate::os::{pid, real, sanitizer};
use crate::pairing::{offer, requirement, seek};
use crate::process::{exit, fork, inline, io_uring, lifecycle, loading, sandbox};
use crate::wakeup::spin;

unsafe extern "C" {
    /// The C library's function that registers what `quick_exit` runs. `at_quick_exit` calls it and is no symbol of the
    /// C library.
    fn __cxa_at_quick_exit(work: extern "C" fn(*mut c_void), library: *mut c_void) -> i32;
}

extern "C" fn end_quickly(_: *mut c_void) {
    exit::end();
}

/// Runs when the library is loaded.
pub fn begin() {
    real::find_all();
    loading::find_all();
    sanitizer::find_all();
    // SAFETY: names of environment variables, and handlers that live as long as the library.
    unsafe {
        let engine = libc::getenv(c"BYWIRE_SOCKETS_ENGINE".as_ptr());
        if !engine.is_null() {
            seek::configure(CStr::from_ptr(engine).to_bytes());
        }
        let path = libc::getenv(c"BYWIRE_SOCKETS_SERVICE".as_ptr());
        if path.is_null() {
            if policy::is_required() {
                requirement::end_program(Reason::Service);
            }
            return;
        }
        let filters = libc::getenv(c"BYWIRE_SOCKETS_FILTERS".as_ptr());
        let filters = (!filters.is_null()).then(|| CStr::from_ptr(filters));
        if sandbox::find(filters.and_then(|text| text.to_str().ok()?.parse().ok()).unwrap_or(0)) {
            if policy::is_required() {
                requirement::end_program(Reason::Sandbox);
            }
            return;
        }
        let log = libc::getenv(c"BYWIRE_LOG".as_ptr());
        if !log.is_null() {
            log::configure(CStr::from_ptr(log).to_bytes());
        }
        let loaded = libc::getenv(c"BYWIRE_SOCKETS_LOADED".as_ptr());
        if !loaded.is_null() {
            // A directory takes no descriptor. Programs that this one starts find it there, or else find their parent
            // gone.
            libc::mkdir(loaded, 0o700);
        }
        let calls = libc::getenv(c"BYWIRE_SOCKETS_CALLS".as_ptr());
        let calls = (!calls.is_null()).then(|| CStr::from_ptr(calls));
        let calls = calls.and_then(|text| text.to_str().ok()?.parse().ok());
        offer::configure(CStr::from_ptr(path).to_bytes(), calls);
        let rings = libc::getenv(c"BYWIRE_SOCKETS_IO_URING".as_ptr());
        if !rings.is_null() && CStr::from_ptr(rings) == c"1" {
            io_uring::keep();
        }
        let datagrams = libc::getenv(c"BYWIRE_SOCKETS_UDP".as_ptr());
        if !datagrams.is_null() && CStr::from_ptr(datagrams) == c"1" {
            datagrams::configure();
        }
        arena::found();
        pid::mark();
        let spins = libc::getenv(c"BYWIRE_SOCKETS_SPIN".as_ptr());
        if spins.is_null() || CStr::from_ptr(spins) != c"0" {
            let cores = libc::getenv(c"BYWIRE_SOCKETS_CORES".as_ptr());
            if !cores.is_null() {
                spin::configure(CStr::from_ptr(cores));
            }
        }
        // The handler that is registered first runs last.
        __cxa_at_quick_exit(end_quickly, ptr::null_mut());
        libc::pthread_atfork(
            Some(fork::before_fork),
            Some(fork::after_fork_in_parent),
            Some(lifecycle::after_fork_in_child),
        );
    }
    pid::note();
    inline::prepare();
    inline::find_go();
    lifecycle::track_inherited();
    if log::is_wanted() || policy::is_required() {
        // Otherwise nothing would name the reason if the program makes all of its calls by itself.
        inline::examine_once();
    }
}
