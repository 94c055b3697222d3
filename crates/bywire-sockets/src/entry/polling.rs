//! Calls that wait for descriptors.

use core::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::data::is_valid_time;
use super::take_over;
use crate::epoll::wait::Wait;
use crate::os::user_access::are_readable;
use crate::os::{errno, kernel, own_call, real};
use crate::polling::{poll as polling, select as selecting};

take_over! {
    /// Waits for any of several descriptors.
    fn poll(files: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        poll_for(files, count, timeout_ms)
    }

    /// This call, by another name of the C library's.
    fn __poll(files: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
        poll_for(files, count, timeout_ms)
    }

    /// The same, checked by the compiler.
    fn __poll_chk(files: *mut pollfd, count: nfds_t, timeout_ms: c_int, _room: size_t) -> c_int {
        poll_for(files, count, timeout_ms)
    }

    /// The same, with a signal mask.
    fn ppoll(files: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        poll_with_mask(files, count, timeout, mask)
    }

    /// The same, checked by the compiler.
    fn __ppoll_chk(files: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, _room: size_t) -> c_int {
        poll_with_mask(files, count, timeout, mask)
    }

    /// Waits for any of several descriptors, and stores the time left.
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        let mut left = None;
        if own_call::are_over() {
            // SAFETY: the program's own arguments.
            return unsafe { real::select(count, read, write, except, timeout) };
        }
        if !is_time(timeout) {
            return errno::fail(libc::EFAULT) as c_int;
        }
        // SAFETY: null, or the program's own.
        let given = unsafe { timeout.as_ref() };
        if given.is_some_and(|given| given.tv_sec < 0 || given.tv_usec < 0) {
            return errno::fail(libc::EINVAL) as c_int;
        }
        let limit = given.map(|given| {
            (given.tv_sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(given.tv_usec.max(0) as u64 * 1000)
        });
        match selecting::select(count, [read, write, except], limit, core::ptr::null(), &mut left) {
            // SAFETY: the program's own arguments.
            None => unsafe { real::select(count, read, write, except, timeout) },
            Some(status) => {
                if let Some(left) = left {
                    let time = timeval { tv_sec: (left / 1_000_000_000) as i64, tv_usec: (left % 1_000_000_000 / 1000) as i64 };
                    // SAFETY: a timeout was given.
                    unsafe { timeout.write(time) };
                }
                status
            }
        }
    }

    /// This call, by another name of the C library's.
    fn __select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        // SAFETY: the program's own arguments, as they came.
        unsafe { select(count, read, write, except, timeout) }
    }

    /// The same, with a signal mask.
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if own_call::are_over() {
            // SAFETY: the program's own arguments.
            return unsafe { real::pselect(count, read, write, except, timeout, mask) };
        }
        if let Err(number) = check_time(timeout) {
            return errno::fail(number) as c_int;
        }
        // SAFETY: null, or the program's own.
        let limit = unsafe { polling::nanoseconds(timeout) };
        match selecting::select(count, [read, write, except], limit, mask, &mut None) {
            // SAFETY: the program's own arguments.
            None => unsafe { real::pselect(count, read, write, except, timeout, mask) },
            Some(status) => status,
        }
    }

    /// Waits for an epoll set.
    fn epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int {
        let real = |events: *mut epoll_event, count: c_int, timeout_ns: Option<u64>| {
            // SAFETY: the program's own arguments.
            unsafe { real::epoll_wait(set, events, count, to_milliseconds(timeout_ns)) }
        };
        Wait { set_fd: set, events, count, timeout_ns: of_milliseconds(timeout_ms), real: &real }.run()
    }

    /// The same, with a signal mask.
    fn epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int {
        wait_for_set(set, events, count, of_milliseconds(timeout_ms), mask)
    }

    /// The same, with a timeout in nanoseconds.
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if own_call::are_over() {
            // SAFETY: the program's own arguments.
            return unsafe { real::epoll_pwait2(set, events, count, timeout, mask) };
        }
        if let Err(number) = check_time(timeout) {
            return errno::fail(number) as c_int;
        }
        let real = |events: *mut epoll_event, count: c_int, timeout_ns: Option<u64>| {
            let time = timeout_ns.map(|timeout| timespec { tv_sec: (timeout / 1_000_000_000) as i64, tv_nsec: (timeout % 1_000_000_000) as i64 });
            let pointer = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
            // SAFETY: the program's own arguments.
            unsafe { real::epoll_pwait2(set, events, count, pointer, mask) }
        };
        // SAFETY: null, or the program's own.
        Wait { set_fd: set, events, count, timeout_ns: unsafe { polling::nanoseconds(timeout) }, real: &real }.run()
    }
}

/// Whether the timeout can be read, if there is one. The check for a sandbox that is installed meanwhile comes last.
fn is_time<T>(timeout: *const T) -> bool {
    timeout.is_null() || are_readable(timeout, 1) || own_call::are_over()
}

/// The error number if there is a timeout that cannot be read, or is none. The kernel checks it before all else.
fn check_time(timeout: *const timespec) -> Result<(), c_int> {
    match is_time(timeout) {
        false => Err(libc::EFAULT),
        true if timeout.is_null() || own_call::are_over() || is_valid_time(timeout) => Ok(()),
        true => Err(libc::EINVAL),
    }
}

/// The length of the kernel's masks.
const MASK_BYTES: usize = 8;

/// Whether a call by its number has no mask, or one of the kernel's length.
pub fn is_mask(mask: usize, length: usize) -> bool {
    mask == 0 || length == MASK_BYTES
}

/// The mask of a `pselect6` by its number, whose last argument points to the mask and its length. `None`: the kernel
/// has the error.
///
/// # Safety
/// `pack` must be the program's own argument.
pub unsafe fn packed_mask(pack: *const [usize; 2]) -> Option<*const sigset_t> {
    if pack.is_null() {
        return Some(core::ptr::null());
    }
    if own_call::are_over() || !are_readable(pack, 1) {
        return None;
    }
    // SAFETY: it can be read, as was just checked.
    let [mask, length] = unsafe { pack.read_unaligned() };
    is_mask(mask, length).then_some(mask as *const sigset_t)
}

/// Stores the time that is left after a wait by its number, as the kernel does. The C library's functions hide that.
///
/// # Safety
/// `timeout` must be the program's own argument.
pub unsafe fn storing_left(timeout: *mut timespec, wait: impl FnOnce() -> c_int) -> c_int {
    if own_call::are_over() || check_time(timeout).is_err() {
        return wait();
    }
    // SAFETY: null, or a time that can be read, as was just checked.
    let Some(given) = (unsafe { polling::nanoseconds(timeout) }).filter(|given| *given > 0) else {
        return wait();
    };
    let began = kernel::now_ns();
    let status = wait();
    errno::keep(|| {
        let Some(_own) = own_call::begin() else { return };
        let left = given.saturating_sub(kernel::now_ns().saturating_sub(began));
        let time = timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        // A time in memory that cannot be written stays as it is. The kernel, which writes another time there first,
        // finds out.
        // SAFETY: the kernel checks the address. If it can write there, so can this thread.
        unsafe {
            let clock = libc::CLOCK_MONOTONIC as usize;
            if real::syscall(libc::SYS_clock_gettime, clock, timeout as usize, 0, 0, 0, 0) == 0 {
                timeout.write_unaligned(time);
            }
        }
    });
    status
}

fn of_milliseconds(timeout_ms: c_int) -> Option<u64> {
    u64::try_from(timeout_ms).ok().map(|timeout| timeout * 1_000_000)
}

/// Rounds up, so that no wait is shorter than requested.
fn to_milliseconds(timeout_ns: Option<u64>) -> c_int {
    timeout_ns.map_or(-1, |timeout| timeout.div_ceil(1_000_000).min(c_int::MAX as u64) as c_int)
}

fn poll_for(files: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    polling::poll(files, count, of_milliseconds(timeout_ms), &|files, count, timeout| {
        // SAFETY: the program's own entries, or as many of ours.
        unsafe { real::poll(files, count, to_milliseconds(timeout)) }
    })
}

fn poll_with_mask(
    files: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    if own_call::are_over() {
        // SAFETY: the program's own arguments.
        return unsafe { real::ppoll(files, count, timeout, mask) };
    }
    if let Err(number) = check_time(timeout) {
        return errno::fail(number) as c_int;
    }
    // SAFETY: null, or the program's own.
    let timeout = unsafe { polling::nanoseconds(timeout) };
    polling::poll(files, count, timeout, &|files, count, timeout| polling::wait(files, count, timeout, mask))
}

fn wait_for_set(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    let real = |events: *mut epoll_event, count: c_int, timeout_ns: Option<u64>| {
        // SAFETY: the program's own arguments.
        unsafe { real::epoll_pwait(set, events, count, to_milliseconds(timeout_ns), mask) }
    };
    Wait { set_fd: set, events, count, timeout_ns, real: &real }.run()
}
