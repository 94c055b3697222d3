//! When it pays to offer a connection to the pairing service, and whether this program may offer any.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use bywire_pairing::reason::Reason;

use crate::memory::arena::{SharedSocket, stage};

/// Calls that moved data after which a connection is offered.
static CALLS_MIN: AtomicU32 = AtomicU32::new(8);
/// Why nothing is offered any more, plus one.
static GIVEN_UP: AtomicU8 = AtomicU8::new(0);

/// See [`crate::pairing::requirement`].
static IS_REQUIRED: AtomicBool = AtomicBool::new(false);

/// From here on no connection goes to a node of the fabric but through an engine.
pub fn require() {
    IS_REQUIRED.store(true, Ordering::Relaxed);
}

/// Returns whether no connection goes to a node of the fabric but through an engine.
#[inline(always)]
pub fn is_required() -> bool {
    IS_REQUIRED.load(Ordering::Relaxed)
}

/// Stops offering: no connection of this program is carried from here on, for this reason.
pub fn give_up(reason: Reason) {
    GIVEN_UP.store(reason as u8 + 1, Ordering::Relaxed);
    CALLS_MIN.store(u32::MAX, Ordering::Relaxed);
}

/// Why no connection of this program is carried any more.
pub fn given_up() -> Option<Reason> {
    GIVEN_UP.load(Ordering::Relaxed).checked_sub(1).and_then(Reason::of)
}

/// Whether this is one of the first calls that move data over a socket, which go to the kernel only. If so, it is
/// counted. Of several calls at once, one may be counted.
#[inline(always)]
pub fn is_early(shared: &SharedSocket) -> bool {
    let calls = shared.calls.load(Ordering::Relaxed);
    let is_early =
        calls < CALLS_MIN.load(Ordering::Relaxed) && shared.stage.load(Ordering::Relaxed) == stage::PLAIN;
    if is_early {
        shared.calls.store(calls + 1, Ordering::Relaxed);
    }
    is_early
}

/// Calls that moved data after which a connection is offered.
pub fn calls_min() -> u32 {
    CALLS_MIN.load(Ordering::Relaxed)
}

/// Whether the program has code that may change the flags of a descriptor unseen by this library.
static FLAGS_CHANGE_UNSEEN: AtomicBool = AtomicBool::new(false);

/// From here on the kernel is asked for the flags of a descriptor each time.
pub fn distrust_flags() {
    FLAGS_CHANGE_UNSEEN.store(true, Ordering::Relaxed);
}

/// Returns whether the flags of a descriptor are those that this library has seen last.
pub fn are_flags_known() -> bool {
    !FLAGS_CHANGE_UNSEEN.load(Ordering::Relaxed)
}

/// Sets that number.
pub fn configure(calls_min: u32) {
    CALLS_MIN.store(calls_min, Ordering::Relaxed);
}

/// Addresses of programs whose protocols pass descriptors: D-Bus, systemd and X11.
const PASSING: [&[u8]; 5] =
    [b"/run/dbus/", b"/var/run/dbus/", b"/run/systemd/", b"/tmp/.X11-unix/", b"\0/tmp/.X11-unix/"];

/// Returns whether a program that has connected to this address, which the kernel has read, speaks such a protocol. It is not
/// worth an offer, which costs more than a short program's whole conversation.
pub fn passes_descriptors(address: *const libc::sockaddr, length: libc::socklen_t) -> bool {
    const FAMILY_BYTES: usize = size_of::<libc::sa_family_t>();
    let length = (length as usize).min(size_of::<libc::sockaddr_un>());
    if length <= FAMILY_BYTES {
        return false;
    }
    // SAFETY: the kernel has read this many bytes there, and a family comes first.
    let (family, name) = unsafe {
        let bytes = core::slice::from_raw_parts(address.cast::<u8>(), length);
        (address.cast::<libc::sa_family_t>().read_unaligned(), bytes.get(FAMILY_BYTES..).unwrap_or(&[]))
    };
    let is_bus_of_user = || {
        name.starts_with(b"/run/user/")
            && name.split(|byte| *byte == 0).next().is_some_and(|path| path.ends_with(b"/bus"))
    };
    i32::from(family) == libc::AF_UNIX
        && (PASSING.iter().any(|prefix| name.starts_with(prefix)) || is_bus_of_user())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(name: &[u8]) -> bool {
        let mut bytes = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes().to_vec();
        bytes.extend(name);
        passes_descriptors(bytes.as_ptr().cast(), bytes.len() as u32)
    }

    #[test]
    fn buses_and_displays_pass_descriptors_and_databases_do_not() {
        for name in [
            &b"/run/dbus/system_bus_socket\0"[..],
            b"/run/user/1000/bus\0",
            b"\0/tmp/.X11-unix/X0",
            b"/run/systemd/private\0",
        ] {
            assert!(passes(name), "{name:?}");
        }
        for name in [
            &b"/run/postgresql/.s.PGSQL.5432\0"[..],
            b"/run/user/1000/redis.sock\0",
            b"",
            b"\0",
            b"/run/dbus",
        ] {
            assert!(!passes(name), "{name:?}");
        }
    }
}
