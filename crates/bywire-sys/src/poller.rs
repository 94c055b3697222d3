//! One epoll instance: what a sleeping port waits on, and the descriptor that async runtimes watch.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// How many events one [`Poller::wait`] takes at most; the rest stay for the next.
const BATCH: usize = 64;

/// An epoll instance whose entries are told apart by a 64-bit tag.
pub struct Poller {
    file: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    /// # Errors
    /// What `epoll_create1` said (out of descriptors or memory).
    pub fn new() -> Result<Self, Errno> {
        let file = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { file, events: Vec::with_capacity(BATCH) })
    }

    /// Watches `file` for reading and for hang-up.
    ///
    /// # Errors
    /// What `epoll_ctl` said (out of memory, or watched already).
    pub fn add(&self, file: &impl AsFd, tag: u64) -> Result<(), Errno> {
        epoll::add(
            &self.file,
            file,
            epoll::EventData::new_u64(tag),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        )
    }

    /// Stops watching `file`.
    pub fn remove(&self, file: &impl AsFd) {
        // A descriptor that is gone from the set already is what we want.
        let _ = epoll::delete(&self.file, file);
    }

    /// Waits until something is ready or `timeout` has passed (`None`: for ever), and returns the tags.
    /// A signal ends the wait early with no tags.
    ///
    /// # Errors
    /// What `epoll_wait` said, which means a broken instance.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<impl Iterator<Item = u64> + '_, Errno> {
        let limit = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        self.events.clear();
        match epoll::wait(&self.file, spare_capacity(&mut self.events), limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(self.events.iter().map(|event| event.data.u64())),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Poller").field("file", &self.file).finish_non_exhaustive()
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
