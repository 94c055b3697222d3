//! A doorbell that many processes may ring and only its owner may drain, and descriptors that wake this process alone.
//!
//! The doorbell is a pipe, not an eventfd: a holder of the writing end of a pipe cannot drain it, unless it runs as the same
//! user and reopens it through `/proc`.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::io::{Errno, ReadWriteFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::deferred::ReceivedFd;

/// The owner's end.
#[derive(Debug)]
pub struct Doorbell {
    reader: OwnedFd,
    writer: OwnedFd,
}

/// A ringer's end.
#[derive(Debug)]
pub struct Ringer {
    writer: OwnedFd,
}

impl Doorbell {
    /// # Errors
    /// The error of `pipe2` (out of descriptors).
    pub fn new() -> Result<Self, Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { reader, writer })
    }

    /// Can a doorbell be rung here without a signal after its owner's death, and without waiting if its owner has
    /// filled it? Requires Linux 6.18; the kernel is asked once per process.
    pub fn is_safe() -> bool {
        static SAFE: OnceLock<bool> = OnceLock::new();
        *SAFE.get_or_init(|| Self::new().is_ok_and(|doorbell| ring(&doorbell.writer).is_ok()))
    }

    /// The end to hand to the ringers.
    pub fn ringing_end(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }

    /// Takes the rings so far.
    pub fn drain(&self) {
        let mut rung = [0u8; 4096];
        // After a full buffer there may be more, and level-triggered polling comes back for it.
        let _ = rustix::io::read(&self.reader, &mut rung);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

impl Ringer {
    /// Takes over a descriptor that a peer sent.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if it is not the end of a pipe.
    pub fn accept(writer: ReceivedFd) -> Result<Self, Errno> {
        // No file system of the peer can delay fcntl. The close of a pipe does not wait.
        match rustix::pipe::fcntl_getpipe_size(&writer) {
            Ok(_) => Ok(Self { writer: writer.into_inner() }),
            Err(_) => Err(Errno::INVAL),
        }
    }

    /// Rings once, if [`Doorbell::is_safe`]. A full pipe has been rung already; a closed one has no listener.
    pub fn ring(&self) {
        let _ = ring(&self.writer);
    }
}

/// Is it an eventfd? `false` without `/proc`.
pub fn is_eventfd(file: &impl AsFd) -> bool {
    // Device and inode do not tell, as epoll sets, timers and watches have the same ones. The kernel gives the name
    // without asking a file system. The name of every file with a path begins with a slash.
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let name = rustix::fs::readlink(link, Vec::new());
    name.is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]")
}

/// An eventfd that wakes threads of this process. Another process that has it can keep it from waking anybody, so it is
/// handed only to processes of the same user.
#[derive(Debug)]
pub struct Eventfd {
    file: OwnedFd,
}

impl Eventfd {
    /// # Errors
    /// The error of `eventfd` (out of descriptors).
    pub fn new() -> Result<Self, Errno> {
        let file = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { file })
    }

    /// Marks its open file, by the signal that it would send if `O_ASYNC` were set on it.
    ///
    /// # Errors
    /// The error of `fcntl`.
    pub fn mark(&self, signal: i32) -> Result<(), Errno> {
        /// `F_SETSIG` of asm-generic/fcntl.h.
        const SET_SIGNAL: i32 = 10;
        // SAFETY: no pointers.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), SET_SIGNAL, signal) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    /// Makes it readable, which wakes the threads that wait for it.
    pub fn signal(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.file, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable again.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.file, &mut [0; 8]);
    }
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Becomes readable after a given time.
#[derive(Debug)]
pub struct Timer {
    file: OwnedFd,
}

impl Timer {
    /// # Errors
    /// The error of `timerfd_create` (out of descriptors).
    pub fn new() -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let file = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { file })
    }

    /// Makes it readable once `after`, which is not zero, has passed.
    ///
    /// # Errors
    /// The error of `timerfd_settime`, which means a broken timer.
    pub fn set(&self, after: Duration) -> Result<(), Errno> {
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec { tv_sec: after.as_secs().cast_signed(), tv_nsec: after.subsec_nanos().into() };
        let setting = Itimerspec { it_interval: never, it_value: at };
        rustix::time::timerfd_settime(&self.file, TimerfdTimerFlags::empty(), &setting).map(drop)
    }

    /// Makes it unreadable again.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.file, &mut [0; 8]);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// `RWF_NOSIGNAL` of linux/fs.h: no SIGPIPE.
const NO_SIGNAL: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x100);

/// Writes one byte without waiting, whatever the pipe's own flags are: the peer can change them.
fn ring(writer: &OwnedFd) -> Result<(), Errno> {
    let byte = [IoSlice::new(b"!")];
    // An offset of -1 means "no position", which pipes require.
    rustix::io::pwritev2(writer, &byte, u64::MAX, ReadWriteFlags::NOWAIT | NO_SIGNAL).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(file: OwnedFd) -> ReceivedFd {
        ReceivedFd::new(file, &crate::close_account::Account::of(0))
    }

    #[test]
    fn a_doorbell_ring_is_heard_and_a_full_doorbell_does_not_block() {
        if !Doorbell::is_safe() {
            eprintln!("not run: this kernel has no RWF_NOSIGNAL (Linux 6.18)");
            return;
        }
        let doorbell = Doorbell::new().expect("pipe");
        let ringer = Ringer::accept(sent(doorbell.ringing_end().try_clone_to_owned().expect("dup")));
        let ringer = ringer.expect("pipe end");
        // The owner turns blocking on, as a hostile owner would.
        rustix::fs::fcntl_setfl(doorbell.ringing_end(), rustix::fs::OFlags::empty()).expect("fcntl");
        for _ in 0..200_000 {
            ringer.ring();
        }
        let mut poller = crate::poller::Poller::new().expect("epoll");
        poller.add(&doorbell, 7).expect("add");
        assert_eq!(poller.wait(None).expect("wait"), [7]);
    }

    #[test]
    fn only_pipes_can_be_rung() {
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        assert_eq!(Ringer::accept(sent(file)).err(), Some(Errno::INVAL));
    }

    #[test]
    fn only_eventfds_are_accepted_as_eventfds() {
        use rustix::event::epoll;
        use rustix::fs::inotify;
        assert!(is_eventfd(&Eventfd::new().expect("eventfd")));
        let others = [
            inotify::init(inotify::CreateFlags::CLOEXEC).expect("inotify"),
            epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll"),
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).expect("timerfd"),
            rustix::pipe::pipe().expect("pipe").0,
        ];
        for (place, other) in others.iter().enumerate() {
            assert!(!is_eventfd(other), "{place}");
        }
    }
}
