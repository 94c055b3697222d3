//! Calls that make, connect, accept, configure and shut down sockets.

use core::ffi::{c_int, c_void};
use core::net::IpAddr;
use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use libc::{sockaddr, socklen_t};

use super::{descriptor, take_over};
use crate::connection::sleep::NEVER_WAITS;
use crate::connection::sockets::{self, Socket};
use crate::connection::{dissolving, options, policy, relayed, stall};
use crate::datagram::address::{NAME_BYTES, Name};
use crate::datagram::sockets as datagrams;
use crate::memory::arena::linger;
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::user_access::are_readable;
use crate::os::{errno, kernel, real};
use crate::pairing::requirement::{self, to_kernel};
use crate::process::{inline, lifecycle};
use crate::transfer::left;

/// `SO_RCVTIMEO` and `SO_SNDTIMEO`, old and new, in the order of `SharedSocket::has_timeout`.
const TIME_OUTS: [[c_int; 2]; 2] = [[20, 66], [21, 67]];
/// Options of the socket level that bound its buffers.
const BUFFER_OPTIONS: [c_int; 5] =
    [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE, kernel::BUFFERS_SET];

take_over! {
    /// Makes a socket.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let fd = unsafe { real::socket(domain, kind, protocol) };
        lifecycle::after_socket(fd, domain, kind, protocol);
        unless_refused(fd)
    }

    /// Accepts a connection.
    fn accept(listener: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let fd = unsafe { real::accept(listener, address, length) };
        lifecycle::after_accept(listener, fd);
        unless_refused(fd)
    }

    /// Accepts a connection.
    fn accept4(listener: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let fd = unsafe { real::accept4(listener, address, length, flags) };
        lifecycle::after_accept(listener, fd);
        unless_refused(fd)
    }

    /// Listens.
    fn listen(fd: c_int, queue: c_int) -> c_int {
        if matches!(descriptors::kind(fd), DescriptorKind::Socket(_)) {
            inline::examine_once();
        }
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::listen(fd, queue) }
    }

    /// Connects. A connected socket can only dissolve its connection.
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the program's own address, which can be read at least as far as its family.
        let parts = length >= 2 && are_readable(address.cast::<u16>(), 1) && unsafe { (*address).sa_family } == libc::AF_UNSPEC as u16;
        if !parts {
            dissolving::before_connect(fd);
            if let Err(number) = requirement::before_connect(fd, internet_address(address, length)) {
                return errno::fail(number) as c_int;
            }
        }
        let datagrams = if datagrams::are_any() { datagrams::socket(fd) } else { None };
        if let Some(socket) = &datagrams {
            errno::keep(|| socket.stop());
        }
        // SAFETY: the program's own arguments, as they came.
        let status = unsafe { real::connect(fd, address, length) };
        if let Some(socket) = &datagrams && status == 0 {
            errno::keep(|| keep_peer(socket));
        }
        if parts && status == 0 {
            dissolving::after_dissolving(fd);
        } else if status == 0 && policy::passes_descriptors(address, length)
            && let Some(socket) = sockets::socket(fd)
        {
            socket.stay(Reason::Ancillary);
        }
        // One that had begun to connect may be connected by now.
        let is_connected = !parts && (status == 0 || errno::last() == libc::EISCONN);
        if is_connected && let Some(number) = requirement::after_connect(fd) {
            return errno::fail(number) as c_int;
        }
        status
    }

    /// Connects, by another name of the C library's.
    fn __connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        unsafe { connect(fd, address, length) }
    }

    /// Shuts down one direction or both.
    fn shutdown(fd: c_int, how: c_int) -> c_int {
        // Either end of what it shuts down is the kernel's.
        datagrams::stay(fd, Reason::Short);
        // SAFETY: the program's own arguments, as they came.
        lifecycle::shutdown(fd, how, || unsafe { real::shutdown(fd, how) })
    }

    /// Reads an option.
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int {
        if options::moves_bytes(level, name) {
            to_kernel(fd, Reason::Option);
        }
        // SAFETY: the program's own arguments, as they came.
        let status = unsafe { real::getsockopt(fd, level, name, value, length) };
        if status == 0 && level == libc::SOL_SOCKET && name == libc::SO_LINGER {
            hide_linger(fd, value, length);
        }
        if status == 0 && level == libc::SOL_SOCKET && name == libc::SO_ERROR {
            add_error(fd, value, length);
        }
        status
    }

    /// Sets an option.
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int {
        let datagrams = if datagrams::are_any() { datagrams::socket(fd) } else { None };
        if let Some(socket) = &datagrams {
            if !options::suits_datagrams(level, name) {
                errno::keep(|| socket.stay(Reason::Option));
            }
            // SAFETY: the program's own arguments, as they came.
            let status = unsafe { real::setsockopt(fd, level, name, value, length) };
            if level == libc::SOL_SOCKET && [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE].contains(&name) {
                errno::keep(|| socket.change_allowance());
            }
            return status;
        }
        let is_foreign = level == libc::IPPROTO_TCP && sockets::socket(fd).is_some_and(|socket| socket.is_unix());
        if let Some(reason) = options::reason_to_stay(level, name).filter(|_| !is_foreign) {
            if reason == Reason::FastOpen && policy::is_required() {
                return errno::fail(libc::EOPNOTSUPP) as c_int;
            }
            let is_carried = |socket: Socket| socket.carried().is_ok_and(|connection| !connection.is_dissolved());
            let is_carried = sockets::socket(fd).is_some_and(is_carried);
            if is_carried && level == libc::IPPROTO_TCP && name == libc::TCP_ULP {
                return errno::fail(libc::ENOPROTOOPT) as c_int;
            }
            to_kernel(fd, reason);
        }
        let lingering = if level == libc::SOL_SOCKET && name == libc::SO_LINGER { sockets::socket(fd) } else { None };
        let lingering = lingering.filter(|socket| !socket.is_unix());
        if let Some(socket) = &lingering {
            errno::keep(|| relayed::leave(fd));
            socket.shared.lingers.store(linger::PROGRAMS, Ordering::Relaxed);
        }
        // SAFETY: the program's own arguments, as they came.
        let real = || unsafe { real::setsockopt(fd, level, name, value, length) };
        let is_pushed = level == libc::IPPROTO_TCP && name == libc::TCP_NODELAY;
        let status = if is_pushed { not_in_a_push(fd, real) } else { real() };
        if let Some(socket) = &lingering
            && errno::keep(|| !kernel::lingers(fd))
        {
            socket.shared.lingers.store(linger::UNSET, Ordering::Relaxed);
        }
        if level == libc::SOL_SOCKET && status == 0 {
            keep_timeout(fd, name, value.cast());
        }
        if level == libc::IPPROTO_TCP {
            left::note_option(fd, name);
        }
        if level == libc::IPPROTO_TCP && name == libc::TCP_USER_TIMEOUT
            && let Some(socket) = sockets::socket(fd)
        {
            stall::note_user_timeout(socket.shared);
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

/// A UDP socket was connected, or its connection was dissolved.
fn keep_peer(socket: &datagrams::Socket) {
    let mut name = Name::NONE;
    name.length = NAME_BYTES as socklen_t;
    // SAFETY: room for so many bytes.
    let status =
        unsafe { libc::getpeername(socket.fd, name.bytes.as_mut_ptr().cast(), &raw mut name.length) };
    socket.sending().set_peer(if status == 0 { name.address() } else { None });
}

/// Sets `TCP_NODELAY`. [`kernel::push`] changes it as well, for a moment, with the sending lock held.
fn not_in_a_push(fd: c_int, real: impl FnOnce() -> c_int) -> c_int {
    match sockets::socket(fd).map(Socket::mapped) {
        Some(Ok(connection)) => {
            let mut status = -1;
            connection.with_sending(|| status = real());
            status
        }
        _ => real(),
    }
}

/// Notes that a timeout was set. From now on the kernel is asked, unless the time is negative: calls never wait then,
/// and the kernel reports that there is no timeout.
fn keep_timeout(fd: c_int, name: c_int, value: *const i64) {
    let Some(direction) = TIME_OUTS.iter().position(|names| names.contains(&name)) else { return };
    let Some(socket) = sockets::socket(fd) else { return };
    // SAFETY: the kernel has read the seconds there.
    let is_negative = unsafe { value.read_unaligned() } < 0;
    if let Some(place) = socket.shared.has_timeout.get(direction) {
        place.store(if is_negative { NEVER_WAITS } else { 2 }, Ordering::Relaxed);
    }
}

/// The address of the internet that a connect names.
fn internet_address(address: *const sockaddr, length: socklen_t) -> Option<IpAddr> {
    let bytes = (length as usize).min(size_of::<libc::sockaddr_storage>());
    if !are_readable(address.cast::<u8>(), bytes) {
        return None;
    }
    // SAFETY: the program's own, which can be read.
    kernel::address_in(unsafe { core::slice::from_raw_parts(address.cast::<u8>(), bytes) })
}

/// Returns the descriptor of a new socket, unless the program must not have it.
fn unless_refused(fd: c_int) -> c_int {
    match requirement::refuses_new(fd) {
        None => fd,
        Some(number) => {
            // SAFETY: nobody else knows it.
            unsafe { descriptor::close(fd) };
            errno::fail(number) as c_int
        }
    }
}

/// Reports an error of the kernel's that this library has taken, or that a connect has ended with after all.
fn add_error(fd: c_int, value: *mut c_void, length: *mut socklen_t) {
    // SAFETY: the kernel has written this many bytes there.
    unsafe {
        let number = value.cast::<c_int>();
        if length.read() as usize == size_of::<c_int>()
            && number.read_unaligned() == 0
            && let Some(refused) = requirement::after_connect(fd)
        {
            return number.write_unaligned(refused);
        }
    }
    let Some(Ok(connection)) = sockets::socket(fd).map(Socket::mapped) else { return };
    // SAFETY: the kernel has written this many bytes there.
    unsafe {
        let number = value.cast::<c_int>();
        if length.read() as usize == size_of::<c_int>() && number.read_unaligned() != 0 {
            connection.note_told(number.read_unaligned());
        } else if length.read() as usize == size_of::<c_int>() {
            number.write_unaligned(connection.take_error_at_end().unwrap_or(0));
        }
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
