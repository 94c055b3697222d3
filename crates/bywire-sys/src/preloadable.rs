//! Socket calls through the C library, as ordinary programs make them, so that a preloaded library can replace them.
//! The calls of `rustix` go straight to the kernel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFlags, epoll};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{AddressFamily, RecvFlags, SendFlags};

/// A new stream socket of that domain: of TCP, or a Unix stream.
///
/// # Errors
/// The error of the kernel.
pub fn stream(domain: AddressFamily) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(domain.as_raw().into(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })
}

/// Connects.
///
/// # Errors
/// The error of the kernel.
pub fn connect(socket: impl AsFd, address: &impl SocketAddrArg) -> Result<(), Errno> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the pointer and the length describe an address, which lives until the call returns.
    let status = unsafe { address.with_sockaddr(|address, bytes| libc::connect(fd, address.cast(), bytes)) };
    if status == 0 { Ok(()) } else { Err(last()) }
}

/// Accepts a connection.
///
/// # Errors
/// The error of the kernel.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    let fd = listener.as_fd().as_raw_fd();
    // SAFETY: both pointers are null, so no address is written.
    owned(unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) })
}

/// Sends, and returns the number of bytes sent.
///
/// # Errors
/// The error of the kernel.
#[inline]
pub fn send(socket: impl AsFd, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the pointer and the length describe a live slice.
    count(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags.bits() as i32) })
}

/// Receives, and returns the number of bytes received: none at the end.
///
/// # Errors
/// The error of the kernel.
#[inline]
pub fn receive(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the pointer and the length describe a slice that is borrowed mutably.
    count(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags.bits() as i32) })
}

/// Waits with `poll` until a descriptor is ready or the timeout has passed.
///
/// # Errors
/// The error of the kernel.
pub fn poll(file: impl AsFd, events: PollFlags, timeout: Duration) -> Result<(), Errno> {
    let mut entry = libc::pollfd { fd: file.as_fd().as_raw_fd(), events: events.bits(), revents: 0 };
    // SAFETY: the pointer is to one live entry.
    count(unsafe { libc::poll(&raw mut entry, 1, milliseconds(timeout)) } as isize).map(drop)
}

/// An epoll set of descriptors to read from. A descriptor leaves the set when it is closed.
#[derive(Debug)]
pub struct Set {
    set: OwnedFd,
}

/// The most events that one wait returns.
const FOUND_MAX: usize = 256;

impl Set {
    /// An empty set.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: no pointers.
        Ok(Self { set: owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })? })
    }

    /// Watches `file` from now on; `tag` names it.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn add(&self, file: impl AsFd, tag: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: tag };
        let (set, fd) = (self.set.as_raw_fd(), file.as_fd().as_raw_fd());
        // SAFETY: the pointer is to one live event.
        count(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } as isize).map(drop)
    }

    /// Waits until something can be received or the timeout has passed, and replaces the contents of `found` by the
    /// tags.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn wait(&self, found: &mut Vec<u64>, timeout: Duration) -> Result<(), Errno> {
        found.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; FOUND_MAX];
        let (set, most) = (self.set.as_raw_fd(), FOUND_MAX as i32);
        // SAFETY: the array has room for `most` events.
        let status = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), most, milliseconds(timeout)) };
        found.extend(events.iter().take(count(status as isize)?).map(|event| event.u64));
        Ok(())
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// An epoll set of one descriptor.
#[derive(Debug)]
pub struct Watch {
    set: OwnedFd,
    fd: RawFd,
    events: epoll::EventFlags,
}

impl Watch {
    /// Watches `file` for reading. It must stay open for as long.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn new(file: impl AsFd) -> Result<Self, Errno> {
        // SAFETY: no pointers.
        let set = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let watch = Self { set, fd: file.as_fd().as_raw_fd(), events: epoll::EventFlags::IN };
        watch.control(libc::EPOLL_CTL_ADD)?;
        Ok(watch)
    }

    /// Waits for one of `events`, or until the timeout has passed.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn wait(&mut self, events: epoll::EventFlags, timeout: Duration) -> Result<(), Errno> {
        if events != self.events {
            self.events = events;
            self.control(libc::EPOLL_CTL_MOD)?;
        }
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the pointer is to one live event.
        let found =
            unsafe { libc::epoll_wait(self.set.as_raw_fd(), &raw mut event, 1, milliseconds(timeout)) };
        count(found as isize).map(drop)
    }

    fn control(&self, operation: i32) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events: self.events.bits(), u64: 0 };
        // SAFETY: the pointer is to one live event.
        let status = unsafe { libc::epoll_ctl(self.set.as_raw_fd(), operation, self.fd, &raw mut event) };
        count(status as isize).map(drop)
    }
}

fn milliseconds(timeout: Duration) -> i32 {
    timeout.as_millis().try_into().unwrap_or(i32::MAX)
}

fn count(status: isize) -> Result<usize, Errno> {
    usize::try_from(status).map_err(|_| last())
}

fn owned(fd: RawFd) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: the descriptor is new, and the caller passes it to no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
