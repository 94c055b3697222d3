//! Finds programs that make system calls on connections by their own instructions, past this library: code with
//! `rustix`, as async-io and smol have, and a statically linked liburing.
//!
//! Calls that are made for files as often as for sockets are no evidence: the runtimes of sanitizers read and close their
//! own files so, and tcmalloc uses `fcntl`. Nor are `sendmsg` and `recvmsg`, by which crash reporters such as Firefox's
//! pass descriptors. A program with one of the calls below would see sockets whose bytes are elsewhere.
//!
//! To examine all code of a large program takes a while. So it is examined when the program first does what makes it
//! matter: it listens, has an epoll set report on a socket, or has a connection that is worth an offer.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::hash::Hasher;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::hash::DefaultHasher;

use bywire_pairing::reason::Reason;

use crate::connection::policy;
use crate::memory::vforked;
use crate::os::machine_code::{self, Call, Registers};
use crate::os::objects::{self, Object};
use crate::os::{arch, errno};
use crate::pairing::offer;
use crate::process::{examination, golang, sandbox};

/// The calls that only sockets, rings and loops of events need, besides [`arch::OLDER_WAITS`].
const CALLS: [libc::c_long; 24] = [
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
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// The calls that change whether a descriptor blocks. They are no evidence, but the kernel is asked from then on.
const FLAG_CALLS: [libc::c_long; 2] = [libc::SYS_fcntl, libc::SYS_ioctl];

/// The objects whose calls are no evidence: the C library and its loader, and what the kernel adds to every program.
const EXCUSED: [&CStr; 5] =
    [c"libc.so.6", arch::LOADER, c"libpthread.so.0", c"librt.so.1", c"linux-vdso.so.1"];
/// A function of liburing's shared library. Programs reach its calls through functions that are hooked.
const LIBURING: &CStr = c"io_uring_queue_init";

/// The objects that were examined. Others are examined again and again, if there are more.
static EXAMINED: [AtomicU64; 2048] = [const { AtomicU64::new(0) }; 2048];

/// Made when the library is loaded: later calls may come from handlers that have interrupted an allocation.
static REGISTERS: Kept = Kept(UnsafeCell::new(None));

struct Kept(UnsafeCell<Option<Registers>>);

// SAFETY: only a thread inside an examination uses it.
unsafe impl Sync for Kept {}

/// Whether the objects that were there at the first question are examined: a value of [`progress`].
static PROGRESS: AtomicU8 = AtomicU8::new(progress::NONE);

mod progress {
    pub const NONE: u8 = 0;
    /// Some thread has begun. Each thread that asks meanwhile examines all objects too.
    pub const BEGUN: u8 = 1;
    pub const DONE: u8 = 2;
}

/// Called when the library is loaded.
pub fn prepare() {
    let _held = examination::hold();
    // SAFETY: it is held.
    unsafe { (*REGISTERS.0.get()).get_or_insert_with(Registers::new) };
}

/// Called when the library is loaded: makes a program in Go TCP, or one that was linked with a library in Go.
pub fn find_go() {
    withdraw_for(|object| golang::is_made(object).then_some(Reason::Go));
}

/// Called before anything happens that inline calls would miss: a connection is offered, or the kernel reports a
/// registration's own name. A server calls it before it makes processes that would each examine the same.
#[inline]
pub fn examine_once() {
    // Acquire: pairs with the release store in `examine_first`. What was found comes before.
    if PROGRESS.load(Ordering::Acquire) != progress::DONE {
        examine_first();
    }
}

#[cold]
fn examine_first() {
    // A child in its parent's memory offers nothing, and withdraws by itself alone.
    if vforked::is_child() || !offer::is_possible() {
        return;
    }
    // Relaxed: pairs with the load in `examine_loaded` by the loader's own lock. A library that comes into the list after
    // the visit of `examine` finds this value.
    PROGRESS.fetch_max(progress::BEGUN, Ordering::Relaxed);
    errno::keep(examine);
    // Release: pairs with the acquire load in `examine_once`.
    PROGRESS.store(progress::DONE, Ordering::Release);
}

/// Called after libraries were loaded.
pub fn examine_loaded() {
    // Relaxed: the list of objects was changed before, under the loader's lock. If the first examination has not visited
    // it by then, it visits these libraries as well.
    if PROGRESS.load(Ordering::Relaxed) == progress::NONE { find_go() } else { examine() }
}

/// Makes the program TCP if one of its objects that were loaded since the last time makes such calls.
fn examine() {
    withdraw_for(|object| {
        let place = place_of(object)?;
        let reason = if golang::is_made(object) {
            Some(Reason::Go)
        } else {
            // SAFETY: `withdraw_for` holds the examination.
            evidence(object, unsafe { (*REGISTERS.0.get()).get_or_insert_with(Registers::new) })
        };
        if reason.is_none() {
            place.note();
        }
        reason
    });
}

/// Makes the program TCP if one of its objects is a reason for that.
fn withdraw_for(reason: impl Fn(&Object<'_>) -> Option<Reason>) {
    let mut object_path = Path { bytes: [0; Path::BYTES], length: 0 };
    let mut found = None;
    let held = examination::hold();
    objects::each(|object| {
        found = reason(object);
        if found.is_some() {
            object_path.set(object.path());
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    drop(held);
    if let Some(reason) = found {
        sandbox::withdraw_because_of(reason, object_path.text());
    }
}

/// Where it is noted that an object was examined.
struct Place {
    place: Option<&'static AtomicU64>,
    identity: u64,
}

impl Place {
    /// Notes that its object was examined.
    fn note(&self) {
        if let Some(place) = self.place {
            // Release: pairs with the acquire load in `place_of`. What was found comes before. Threads that examine
            // objects at once may both note theirs here; the one that is lost is examined again.
            place.store(self.identity, Ordering::Release);
        }
    }
}

/// `None`: this object was examined.
fn place_of(object: &Object<'_>) -> Option<Place> {
    let mut hasher = DefaultHasher::new();
    object.identify(&mut hasher);
    let identity = hasher.finish().max(1);
    let count = EXAMINED.len();
    for step in 0..count {
        let Some(place) = EXAMINED.get((identity as usize).wrapping_add(step) % count) else { break };
        // Acquire: pairs with the release store in `note`.
        let there = place.load(Ordering::Acquire);
        if there == identity {
            return None;
        }
        if there == 0 {
            return Some(Place { place: Some(place), identity });
        }
    }
    Some(Place { place: None, identity })
}

/// Returns whether an object's calls are no evidence.
fn is_excused(object: &Object<'_>) -> bool {
    let Some(tables) = object.tables() else { return false };
    objects::is_this_library(object)
        || tables.soname().is_some_and(|name| EXCUSED.contains(&name))
        || tables.definitions(LIBURING).next().is_some()
}

/// The reason for which an object makes its program TCP. Notes whether it changes flags of descriptors.
fn evidence(object: &Object<'_>, registers: &mut Registers) -> Option<Reason> {
    if is_excused(object) {
        return None;
    }
    let is_in = |calls: &[libc::c_long], number: u32| calls.contains(&libc::c_long::from(number));
    let is_wanted =
        |number| [&CALLS[..], &arch::OLDER_WAITS, &FLAG_CALLS].iter().any(|calls| is_in(calls, number));
    for code in object.code() {
        for call in machine_code::calls_in(code, registers, is_wanted) {
            match call {
                Call::Number(number) if is_in(&FLAG_CALLS, number) => policy::distrust_flags(),
                Call::Number(_) | Call::Any => return Some(Reason::Inline),
            }
        }
    }
    None
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
