//! One epoll instance: a sleeping port waits on it, and async runtimes watch its descriptor.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;

/// The most events that one [`Poller::wait`] takes; the rest stay for the next.
const BATCH: usize = 64;

/// The longest timeout that `epoll_pwait` takes in milliseconds. A longer one would need a call of Linux 5.11.
const TIMEOUT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// Readable, or hung up by the peer.
const READABLE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);

/// An epoll instance whose entries are told apart by a 64-bit tag.
#[derive(Debug)]
pub struct Poller {
    file: OwnedFd,
    ready: Vec<u64>,
}

impl Poller {
    /// # Errors
    /// The error of `epoll_create1` (out of descriptors or memory).
    pub fn new() -> Result<Self, Errno> {
        let file = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { file, ready: Vec::with_capacity(BATCH) })
    }

    /// A second handle of the same set, for a thread that adds descriptors while another one waits.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn share(&self) -> Result<Self, Errno> {
        let file = rustix::io::fcntl_dupfd_cloexec(&self.file, 0)?;
        Ok(Self { file, ready: Vec::new() })
    }

    /// Watches `file` for reading and for hang-up.
    ///
    /// # Errors
    /// The error of `epoll_ctl` (out of memory, or watched already).
    pub fn add(&self, file: &impl AsFd, tag: u64) -> Result<(), Errno> {
        epoll::add(&self.file, file, epoll::EventData::new_u64(tag), READABLE)
    }

    /// Watches `file` for errors and for hang-up alone.
    ///
    /// # Errors
    /// The error of `epoll_ctl` (out of memory, or watched already).
    pub fn add_paused(&self, file: &impl AsFd, tag: u64) -> Result<(), Errno> {
        epoll::add(&self.file, file, epoll::EventData::new_u64(tag), epoll::EventFlags::empty())
    }

    /// Watches `file` until it can be written, has an error or is hung up, and reports that once. [`Poller::pause`] or
    /// [`Poller::resume`] follows.
    ///
    /// # Errors
    /// The file was not added.
    pub fn await_writable(&self, file: &impl AsFd, tag: u64) -> Result<(), Errno> {
        let once = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
        epoll::modify(&self.file, file, epoll::EventData::new_u64(tag), once)
    }

    /// Stops watching `file` for reading. The file keeps its place in the set, so [`Poller::resume`] needs neither
    /// memory nor the user's epoll quota. Errors and hang-up are still reported.
    ///
    /// # Errors
    /// The file was not added.
    pub fn pause(&self, file: &impl AsFd, tag: u64) -> Result<(), Errno> {
        epoll::modify(&self.file, file, epoll::EventData::new_u64(tag), epoll::EventFlags::empty())
    }

    /// Watches `file` again as [`Poller::add`] does.
    ///
    /// # Errors
    /// The file was not added.
    pub fn resume(&self, file: &impl AsFd, tag: u64) -> Result<(), Errno> {
        epoll::modify(&self.file, file, epoll::EventData::new_u64(tag), READABLE)
    }

    /// Stops watching `file`.
    pub fn remove(&self, file: &impl AsFd) {
        // A descriptor that has left the set already is fine.
        let _ = epoll::delete(&self.file, file);
    }

    /// Waits until something is ready or `timeout`, in whole milliseconds, has passed (`None`: forever), and returns the tags. The wait ends
    /// early without tags at a signal, and after about 24 days.
    ///
    /// # Errors
    /// The error of `epoll_wait`, which means a broken instance.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<&[u64], Errno> {
        let limit = timeout.map(|timeout| timeout.min(TIMEOUT_MAX)).map(|timeout| Timespec {
            tv_sec: timeout.as_secs().cast_signed(),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::uninit(); BATCH];
        let ready = match epoll::wait(&self.file, &mut events, limit.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => &mut [],
            Err(error) => return Err(error),
        };
        self.ready.clear();
        self.ready.extend(ready.iter().map(|event| event.data.u64()));
        Ok(&self.ready)
    }

    /// Waits until something is ready or `timeout` has passed, which may be shorter than the millisecond that [`Poller::wait`]
    /// rounds up to, and returns the tags. The wait ends early without tags at a signal.
    ///
    /// # Errors
    /// The error of `epoll_wait`, which means a broken instance.
    pub fn wait_briefly(&mut self, timeout: Duration) -> Result<&[u64], Errno> {
        let limit =
            Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
        let mut asked = [PollFd::new(&self.file, PollFlags::IN)];
        match rustix::event::poll(&mut asked, Some(&limit)) {
            Ok(0) | Err(Errno::INTR) => {
                self.ready.clear();
                Ok(&self.ready)
            }
            Ok(_) => self.wait(Some(Duration::ZERO)),
            Err(error) => Err(error),
        }
    }

    /// The tags that the last wait returned.
    pub fn ready(&self) -> &[u64] {
        &self.ready
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
