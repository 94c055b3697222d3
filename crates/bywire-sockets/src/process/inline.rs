//! Finds programs that make system calls on connections by their own instructions, past this library: code with
//! `rustix`, as async-io and smol have, and a statically linked liburing.
//!
//! Calls that are made for files as often as for sockets are no evidence: the runtimes of sanitizers read and close their
//! own files so, and tcmalloc uses `fcntl`. Nor are `sendmsg` and `recvmsg`, by which crash reporters such as Firefox's
//! pass descriptors. A program with one of the calls below would see sockets whose bytes are elsewhere.

use core::ffi::CStr;
use core::hash::Hasher;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};
use std::hash::DefaultHasher;

use bywire_pairing::reason::Reason;

use crate::os::machine_code;
use crate::os::objects::{self, Object};
use crate::process::sandbox;

/// The calls that only sockets, rings and loops of events need.
const CALLS: [libc::c_long; 27] = [
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// The objects whose calls are no evidence: the C library and its loader, and what the kernel adds to every program.
const EXCUSED: [&CStr; 5] =
    [c"libc.so.6", c"ld-linux-x86-64.so.2", c"libpthread.so.0", c"librt.so.1", c"linux-vdso.so.1"];
/// A function of liburing's shared library. Programs reach its calls through functions that are hooked.
const LIBURING: &CStr = c"io_uring_queue_init";

/// The objects that were examined. Others are examined again and again, if there are more.
static EXAMINED: [AtomicU64; 2048] = [const { AtomicU64::new(0) }; 2048];

/// Makes the program TCP if one of its objects that were loaded since the last time makes such calls.
pub fn examine() {
    let mut object_path = Path { bytes: [0; Path::BYTES], length: 0 };
    let mut is_found = false;
    objects::each(|object| {
        is_found = is_new(object) && !is_excused(object) && makes_calls(object);
        if is_found {
            object_path.set(object.path());
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    if is_found {
        sandbox::withdraw_because_of(Reason::Inline, object_path.text());
    }
}

/// Returns whether this object is examined for the first time.
fn is_new(object: &Object<'_>) -> bool {
    let mut hasher = DefaultHasher::new();
    object.identify(&mut hasher);
    let identity = hasher.finish().max(1);
    let count = EXAMINED.len();
    for step in 0..count {
        let Some(place) = EXAMINED.get((identity as usize).wrapping_add(step) % count) else { break };
        // Relaxed: a number that stands for itself. Threads that examine the same object at once do so both.
        let there = place.load(Ordering::Relaxed);
        if there == identity {
            return false;
        }
        if there == 0 {
            place.store(identity, Ordering::Relaxed);
            return true;
        }
    }
    true
}

fn is_excused(object: &Object<'_>) -> bool {
    let Some(tables) = object.tables() else { return false };
    objects::is_this_library(object)
        || tables.soname().is_some_and(|name| EXCUSED.contains(&name))
        || tables.definitions(LIBURING).next().is_some()
}

fn makes_calls(object: &Object<'_>) -> bool {
    let is_evidence = |number| CALLS.contains(&libc::c_long::from(number));
    object.code().any(|code| machine_code::call_in(code, is_evidence).is_some())
}

/// The path of an object, which may be unloaded at any time.
struct Path {
    bytes: [u8; Self::BYTES],
    length: usize,
}

impl Path {
    /// The end of a longer path is kept.
    const BYTES: usize = 160;

    fn set(&mut self, path: &CStr) {
        let mut path = path.to_bytes();
        if path.is_empty() {
            // SAFETY: the kernel passes the path of the program as a terminated string, or nothing.
            path = unsafe {
                let start = libc::getauxval(libc::AT_EXECFN) as *const core::ffi::c_char;
                if start.is_null() { b"-" } else { CStr::from_ptr(start).to_bytes() }
            };
        }
        let path = path.get(path.len().saturating_sub(Self::BYTES)..).unwrap_or(&[]);
        for (place, byte) in self.bytes.iter_mut().zip(path) {
            *place = if byte.is_ascii_graphic() || *byte == b' ' { *byte } else { b'?' };
        }
        self.length = path.len();
    }

    fn text(&self) -> &str {
        self.bytes.get(..self.length).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or("-")
    }
}
