//! Calls that make, duplicate, configure and close descriptors.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::stream::Route;

use super::data::waiting_bytes;
use super::take_over;
use crate::connection::sockets;
use crate::epoll::control;
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::user_access::are_readable;
use crate::os::{errno, kernel, real};
use crate::pairing::requirement::to_kernel;
use crate::process::{inline, lifecycle, sandbox};
use crate::transfer::datagrams;

take_over! {
    /// Closes.
    fn close(fd: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        lifecycle::close(fd, || unsafe { real::close(fd) })
    }

    /// Closes, by another name of the C library's.
    fn __close(fd: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        lifecycle::close(fd, || unsafe { real::close(fd) })
    }

    /// Closes a range of descriptors.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
            sandbox::before_unshare();
        }
        // SAFETY: the program's own arguments, as they came.
        lifecycle::close_range(first, last, flags, |first, last| unsafe { real::close_range(first, last, flags) })
    }

    /// Closes all descriptors from a number on.
    fn closefrom(first: c_int) -> () {
        let _closed = lifecycle::close_range(first.max(0) as c_uint, c_uint::MAX, 0, close_all);
    }

    /// Duplicates.
    fn dup(fd: c_int) -> c_int {
        if descriptors::kind(fd) == DescriptorKind::Hidden {
            return errno::fail(libc::EBADF) as c_int;
        }
        // SAFETY: the program's own arguments, as they came.
        let new = unsafe { real::dup(fd) };
        lifecycle::after_dup(fd, new);
        new
    }

    /// Duplicates to a given number.
    fn dup2(old: c_int, new: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        lifecycle::duplicate_over(old, new, || unsafe { real::dup2(old, new) })
    }

    /// Duplicates to a given number, by another name of the C library's.
    fn __dup2(old: c_int, new: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        unsafe { dup2(old, new) }
    }

    /// Duplicates to a given number.
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let real = || unsafe { real::dup3(old, new, flags) };
        // A call that fails leaves `new` as it is.
        if flags & !libc::O_CLOEXEC != 0 { real() } else { lifecycle::duplicate_over(old, new, real) }
    }

    /// Has many operations.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        control_file(fd, command, argument)
    }

    /// Has many operations, by another name of the C library's.
    fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        control_file(fd, command, argument)
    }

    /// Has many operations.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        control_file(fd, command, argument)
    }

    /// Has many operations.
    fn ioctl(fd: c_int, request: usize, argument: *mut c_void) -> c_int {
        control_device(fd, request, argument)
    }

    /// Makes a stream of the C library, whose own calls are not hooked.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        to_kernel(fd, Reason::Stdio);
        // SAFETY: the program's own arguments, as they came.
        unsafe { real::fdopen(fd, mode) }
    }

    /// Makes such a stream, by another name of the C library's.
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        // SAFETY: the program's own arguments, as they came.
        unsafe { fdopen(fd, mode) }
    }

    /// Changes an epoll set.
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int {
        if matches!(descriptors::kind(fd), DescriptorKind::Socket(_)) {
            inline::examine_once();
        }
        control::control(set, operation, fd, event)
    }

    /// Makes an epoll set.
    fn epoll_create1(flags: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let fd = unsafe { real::epoll_create1(flags) };
        new_set(fd)
    }

    /// Makes an epoll set.
    fn epoll_create(size: c_int) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        let fd = unsafe { real::epoll_create(size) };
        new_set(fd)
    }
}

/// Closes a range of descriptors that the library does not know. Kernels before 5.9 close them one by one.
fn close_all(first: c_uint, last: c_uint) -> c_int {
    // SAFETY: no pointers. The program wants all of them closed.
    unsafe {
        let status = real::close_range(first, last, 0);
        if status == 0 || errno::last() != libc::ENOSYS {
            return status;
        }
        for fd in first..=last.min(kernel::highest_possible()) {
            real::close(fd as c_int);
        }
    }
    0
}

fn new_set(fd: c_int) -> c_int {
    if fd >= 0 && crate::pairing::offer::is_possible() {
        errno::keep(|| lifecycle::track_set(fd));
    }
    fd
}

fn control_file(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the program's own arguments.
    let real = || unsafe { real::fcntl(fd, command, argument) };
    match descriptors::kind(fd) {
        DescriptorKind::Untracked => return real(),
        DescriptorKind::Hidden => return errno::fail(libc::EBADF) as c_int,
        DescriptorKind::Socket(_) | DescriptorKind::EpollSet(_) | DescriptorKind::Datagram(_) => {}
    }
    if command == libc::F_SETFL && argument as c_int & libc::O_ASYNC != 0 {
        to_kernel(fd, Reason::Signals);
    }
    let result = real();
    if command == libc::F_SETFL && result == 0 {
        keep_waiting(fd, argument as c_int & libc::O_NONBLOCK == 0);
    }
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        lifecycle::after_dup(fd, result);
    }
    result
}

fn control_device(fd: c_int, request: usize, argument: *mut c_void) -> c_int {
    // SAFETY: the program's own arguments.
    let real = || unsafe { real::ioctl(fd, request, argument) };
    let Some(socket) = sockets::socket(fd) else { return control_datagrams(fd, request, argument, &real) };
    let set = |value: c_int| {
        // SAFETY: the program's int.
        unsafe { argument.cast::<c_int>().write_unaligned(value) };
        0
    };
    match request as u64 {
        libc::FIONREAD if socket.is_carried() && are_readable(argument.cast::<c_int>(), 1) => {
            waiting_bytes(socket).map_or_else(real, set)
        }
        libc::TIOCOUTQ if socket.is_carried() && !argument.is_null() => {
            let status = real();
            let Ok(connection) = socket.carried() else { return status };
            let unread = match sockets::STREAM.route(&connection.own) {
                Ok(Route::Back(_)) if connection.owes() => {
                    connection.shared.owed.load(Ordering::Relaxed) as usize
                }
                Ok(Route::Ring) => {
                    sockets::STREAM.unread_by_peer(&connection.own, &connection.remote).unwrap_or(0)
                }
                _ => 0,
            };
            if status == 0 && unread > 0 {
                // SAFETY: the program's int, which the kernel has written.
                let queued = unsafe { argument.cast::<c_int>().read_unaligned() };
                return set(queued.saturating_add(unread as c_int));
            }
            status
        }
        libc::FIONBIO if !argument.is_null() => {
            let status = real();
            if status == 0 {
                // SAFETY: the program's int.
                keep_waiting(fd, unsafe { argument.cast::<c_int>().read_unaligned() } == 0);
            }
            status
        }
        libc::FIOASYNC => {
            drop(socket);
            to_kernel(fd, Reason::Signals);
            real()
        }
        _ => real(),
    }
}

/// `ioctl` on what may be a UDP socket.
fn control_datagrams(fd: c_int, request: usize, argument: *mut c_void, real: &dyn Fn() -> c_int) -> c_int {
    if !crate::datagram::sockets::are_any() {
        return real();
    }
    match request as u64 {
        libc::FIOASYNC => to_kernel(fd, Reason::Signals),
        libc::FIONREAD if are_readable(argument.cast::<c_int>(), 1) => {
            if let Some(waiting) = datagrams::waiting_bytes(fd) {
                // SAFETY: the program's int.
                unsafe { argument.cast::<c_int>().write_unaligned(waiting as c_int) };
                return 0;
            }
        }
        _ => {}
    }
    real()
}

/// Notes whether calls on the socket block from now on.
fn keep_waiting(fd: c_int, waits: bool) {
    // An unpaired socket is not asked about here. Later questions go to the kernel.
    if !sockets::is_unpaired(fd)
        && let Some(socket) = sockets::socket(fd)
    {
        socket.shared.waits.store(if waits { 1 } else { 2 }, Ordering::Relaxed);
    }
}
