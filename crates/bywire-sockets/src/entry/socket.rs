//! Calls that make, connect, accept, configure and shut down sockets.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use libc::{sockaddr, socklen_t};

use super::take_over;
use crate::connection::fallback::to_kernel;
use crate::connection::sockets::{self, Socket};
use crate::memory::arena::linger;
use crate::os::user_access::are_readable;
use crate::os::{errno, kernel, real};
use crate::process::lifecycle;

/// Options that carried bytes would not honour.
const SOCKET_OPTIONS: [c_int; 14] = [
    libc::SO_ATTACH_FILTER,
    libc::SO_ATTACH_BPF,
    libc::SO_LOCK_FILTER,
    libc::SO_RCVLOWAT,
    libc::SO_ZEROCOPY,
    libc::SO_BINDTODEVICE,
    libc::SO_PEEK_OFF,
    libc::SO_TXTIME,
    // SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, and their 64-bit variants.
    29,
    35,
    37,
    63,
    64,
    65,
];
/// Options of the socket level that bound its buffers.
const BUFFER_OPTIONS: [c_int; 5] =
    [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE, kernel::BUFFERS_SET];
/// `SO_RCVTIMEO` and `SO_SNDTIMEO`, old and new.
const TIME_OUTS: [c_int; 4] = [20, 21, 66, 67];
/// `TCP_MD5SIG`, `TCP_REPAIR`, `TCP_FASTOPEN`, `TCP_FASTOPEN_CONNECT`, `TCP_INQ`, `TCP_ULP`.
const TCP_OPTIONS: [c_int; 6] = [14, 19, 23, 30, 36, 31];

take_over! {
    /// Makes a socket.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let fd = unsafe { real::socket(domain, kind, protocol) };
        lifecycle::after_socket(fd, domain, kind, protocol);
        fd
    }

    /// Accepts a connection.
    fn accept(listener: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let fd = unsafe { real::accept(listener, address, length) };
        lifecycle::after_accept(listener, fd);
        fd
    }

    /// Accepts a connection.
    fn accept4(listener: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let fd = unsafe { real::accept4(listener, address, length, flags) };
        lifecycle::after_accept(listener, fd);
        fd
    }

    /// Connects. On a connected socket it can only dissolve the connection.
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the program's own address, which can be read at least as far as its family.
        let parts = length >= 2 && are_readable(address.cast::<u16>(), 1) && unsafe { (*address).sa_family } == libc::AF_UNSPEC as u16;
        if parts && let Some(Ok(connection)) = sockets::socket(fd).map(Socket::carried) {
            errno::keep(|| connection.reset());
        }
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::connect(fd, address, length) }
    }

    /// Shuts down one direction or both.
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        lifecycle::shutdown(fd, how, || unsafe { real::shutdown(fd, how) })
    }

    /// Reads an option.
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let status = unsafe { real::getsockopt(fd, level, name, value, length) };
        if status == 0 && level == libc::SOL_SOCKET && name == libc::SO_LINGER {
            hide_linger(fd, value, length);
        }
        status
    }

    /// Sets an option.
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        let is_refused = match level {
            libc::SOL_SOCKET => SOCKET_OPTIONS.contains(&name),
            libc::IPPROTO_TCP => TCP_OPTIONS.contains(&name),
            _ => false,
        };
        if is_refused {
            let is_carried = sockets::socket(fd).is_some_and(|socket| socket.is_carried());
            if is_carried && level == libc::IPPROTO_TCP && name == libc::TCP_ULP {
                return errno::fail(libc::ENOPROTOOPT) as c_int;
            }
            to_kernel(fd, Reason::Option);
        }
        if level == libc::SOL_SOCKET && name == libc::SO_LINGER
            && let Some(socket) = sockets::socket(fd)
        {
            socket.shared.lingers.store(linger::PROGRAMS, Ordering::Relaxed);
        }
        // SAFETY: the program's own arguments, as they came.
        let status = unsafe { real::setsockopt(fd, level, name, value, length) };
        if level == libc::SOL_SOCKET && name == libc::SO_LINGER
            && let Some(socket) = sockets::socket(fd)
            && errno::keep(|| !kernel::lingers(fd))
        {
            socket.shared.lingers.store(linger::UNSET, Ordering::Relaxed);
        }
        if level == libc::SOL_SOCKET && TIME_OUTS.contains(&name)
            && let Some(socket) = sockets::socket(fd)
        {
            // A timeout was set at some time: from now on the kernel is asked.
            socket.shared.has_timeout.iter().for_each(|place| place.store(2, Ordering::Relaxed));
        }
        let bounds_buffers = match level {
            libc::SOL_SOCKET => BUFFER_OPTIONS.contains(&name),
            libc::IPPROTO_TCP => name == libc::TCP_NOTSENT_LOWAT,
            _ => false,
        };
        if bounds_buffers && let Some(Ok(connection)) = sockets::socket(fd).map(Socket::mapped) {
            errno::keep(|| connection.change_bounds());
        }
        status
    }
}

/// Hides the linger setting that this library has made: the program did not set it.
fn hide_linger(fd: c_int, value: *mut c_void, length: *mut socklen_t) {
    let is_ours = sockets::socket(fd)
        .is_some_and(|socket| socket.shared.lingers.load(Ordering::Relaxed) == linger::OURS);
    if is_ours {
        // SAFETY: the kernel has written this many bytes there.
        unsafe { core::ptr::write_bytes(value.cast::<u8>(), 0, length.read() as usize) };
    }
}
