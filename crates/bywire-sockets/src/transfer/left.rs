//! `TCP_INQ`: a message that is received says how many bytes are left behind it. The kernel knows of those in memory
//! only that it does not have them.

use core::ptr;
use core::sync::atomic::Ordering;

use bywire_ring::stream::{HALF, LEAVING, Route};
use libc::{c_int, cmsghdr, msghdr};

use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::memory::arena::{self, FAILED, SharedSocket};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::{errno, iovec, kernel, real};

/// The option, and the type of its control data. Its number is that of linux/tcp.h.
const TCP_INQ: c_int = 36;
/// The length of the control data, with its header.
// SAFETY: only a computation.
const LENGTH: usize = unsafe { libc::CMSG_LEN(size_of::<c_int>() as u32) } as usize;
/// The room that they take.
// SAFETY: only a computation.
const SPACE: usize = unsafe { libc::CMSG_SPACE(size_of::<c_int>() as u32) } as usize;

/// Values of `SharedSocket::reports_left`.
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;
/// The program has set the option, and may do so again: the kernel is asked each time.
const ASKED: u8 = 3;

/// The program has set an option of TCP on this socket.
pub fn note_option(fd: c_int, name: c_int) {
    if name == TCP_INQ
        && let Some(socket) = sockets::socket(fd)
    {
        socket.shared.reports_left.store(ASKED, Ordering::Relaxed);
    }
}

/// Returns whether messages that are received from a socket say what is left.
fn is_wanted(fd: c_int, shared: &SharedSocket) -> bool {
    match shared.reports_left.load(Ordering::Relaxed) {
        NO => false,
        YES => true,
        known => {
            // An accepted connection has it from its listener.
            let is_set = kernel::number(fd, libc::IPPROTO_TCP, TCP_INQ).is_some_and(|value| value != 0);
            if known == UNKNOWN {
                // It must not overwrite what a call that sets the option has stored.
                let found = if is_set { YES } else { NO };
                let _ = shared.reports_left.compare_exchange(
                    UNKNOWN,
                    found,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
            }
            is_set
        }
    }
}

/// The connection by which a message has come, if the message says what is left, and memory may have something.
pub fn reporting(fd: c_int) -> Option<Connection> {
    let DescriptorKind::Socket(index) = descriptors::kind(fd) else { return None };
    let shared = arena::shared()?.sockets.get(index as usize)?;
    if shared.reports_left.load(Ordering::Relaxed) == NO || !is_wanted(fd, shared) {
        return None;
    }
    sockets::socket(fd).map(Socket::carried)?.ok().filter(|connection| !connection.is_dissolved())
}

/// The number that the control data of a message begins with.
///
/// # Safety
/// The kernel must have written the control data.
unsafe fn number_in(message: &msghdr) -> Option<c_int> {
    if message.msg_control.is_null() || message.msg_controllen < LENGTH {
        return None;
    }
    let header = message.msg_control.cast::<cmsghdr>();
    // SAFETY: it holds at least one whole header with its data.
    unsafe {
        let found = header.read_unaligned();
        let is_number =
            (found.cmsg_level, found.cmsg_type, found.cmsg_len) == (libc::IPPROTO_TCP, TCP_INQ, LENGTH);
        is_number.then(|| header.add(1).cast::<c_int>().read_unaligned())
    }
}

impl Connection {
    /// The number of bytes that can be received. As in the kernel, the end of the stream counts as one.
    fn left(&self) -> usize {
        let in_ring = self.in_ring().unwrap_or(0);
        // While both ends are in memory, the kernel has nothing.
        if STREAM.route(&self.remote) == Ok(Route::Ring)
            && self.shared.drained.load(Ordering::Relaxed) != 0
            && STREAM.flags(&self.remote) & (HALF | LEAVING) == 0
            && self.shared.ended.load(Ordering::Relaxed) == 0
        {
            return in_ring;
        }
        let in_kernel = kernel::left(self.fd).or_else(|| self.left_behind_a_byte());
        in_ring + in_kernel.unwrap_or_else(|| self.left_by_state())
    }

    /// What the kernel itself says with a message, where it has bytes: then the call takes no error from the socket.
    fn left_behind_a_byte(&self) -> Option<usize> {
        kernel::queued(self.fd).filter(|queued| *queued > 0)?;
        let mut byte = 0u8;
        let mut part = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        // Aligned as its header is.
        let mut control = [0usize; SPACE.div_ceil(size_of::<usize>())];
        let mut message = iovec::message(&mut part, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: a live message with its buffers. A call by number cannot be cancelled.
        let received = errno::keep(|| unsafe {
            real::syscall(
                libc::SYS_recvmsg,
                self.fd as usize,
                (&raw mut message) as usize,
                flags as usize,
                0,
                0,
                0,
            )
        });
        // SAFETY: the kernel has written as much control data as the message says.
        (received == 1).then(|| unsafe { number_in(&message) }.map(|number| number as usize)).flatten()
    }

    /// The number of bytes in the kernel, and one for the end of the stream, as far as the connection's state tells.
    fn left_by_state(&self) -> usize {
        // A connection that was reset has an end of the stream only if that came before.
        let was_reset = self.shared.ended.load(Ordering::Relaxed) & FAILED != 0;
        let queued = kernel::queued(self.fd).unwrap_or(0).max(0) as usize;
        queued + usize::from(!was_reset && kernel::has_end(self.fd))
    }

    /// Writes what is left as the control data of a message, as the kernel does. Returns the length of the control data,
    /// and the flags for the message.
    ///
    /// # Safety
    /// `message` must be what the program has passed to a receive.
    pub unsafe fn write_left(&self, message: &msghdr) -> (usize, c_int) {
        let room = message.msg_controllen;
        if message.msg_control.is_null() || room < size_of::<cmsghdr>() {
            return (0, libc::MSG_CTRUNC);
        }
        // SAFETY: the program's own room, and no further than it states.
        unsafe {
            let header = message.msg_control.cast::<cmsghdr>();
            header.write_unaligned(cmsghdr {
                cmsg_len: LENGTH.min(room),
                cmsg_level: libc::IPPROTO_TCP,
                cmsg_type: TCP_INQ,
            });
            let number = (self.left().min(c_int::MAX as usize) as c_int).to_ne_bytes();
            let length = LENGTH.min(room) - size_of::<cmsghdr>();
            ptr::copy_nonoverlapping(number.as_ptr(), header.add(1).cast::<u8>(), length);
        }
        (SPACE.min(room), if room < LENGTH { libc::MSG_CTRUNC } else { 0 })
    }

    /// Adds what is in memory to what the kernel has written as left.
    ///
    /// # Safety
    /// `message` must be what the kernel has written to.
    pub unsafe fn add_left(&self, message: &msghdr) {
        let in_ring = self.in_ring().unwrap_or(0);
        if in_ring == 0 {
            return;
        }
        // SAFETY: the kernel has written this number.
        unsafe {
            if let Some(number) = number_in(message) {
                let place = message.msg_control.cast::<cmsghdr>().add(1).cast::<c_int>();
                place.write_unaligned(number.saturating_add(in_ring as c_int));
            }
        }
    }
}
