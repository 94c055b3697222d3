//! Differences between the two domains whose connections are carried: TCP and Unix streams.
//!
//! | | TCP | Unix |
//! | --- | --- | --- |
//! | bytes that went through the kernel | it counts them for each end | it counts none, and tells how many wait to be read |
//! | a closed end | its peer is told that it has finished, and later of a reset | its peer is told that it has hung up, at once |
//! | an end that is shut down for receiving | its peer is not told | its peer can no longer send |
//! | an end that is closed with unread bytes | a reset, which discards what is on the way | `ECONNRESET` for its peer, behind the last byte |
//! | a program that must not end in order | `SO_LINGER` makes its end a reset | nothing does |
//! | unread bytes | bounded by both ends' buffers | bounded by the sender's buffer |

use core::sync::atomic::Ordering;

use bywire_ring::stream::{BROKEN_OFF, DEAF, HALF, LEAVING, OWES, Route};

use crate::connection::sockets::{Connection, STREAM, Socket};
use crate::memory::arena::{FAILED, HUNG_UP, SHUT, SHUT_SENDING, TOLD_LOSS};
use crate::os::errno;
use crate::os::kernel::{self, ByteCounts, Room};

/// The ends that the kernel tells of by `poll`.
const ENDS: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;

/// A domain of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// TCP over IPv4 or IPv6.
    Tcp,
    /// Unix streams.
    Unix,
}

impl Domain {
    /// The domain of a socket that the program makes with these arguments; `None`: it is not one that is carried.
    pub fn of_arguments(domain: i32, kind: i32, protocol: i32) -> Option<Self> {
        let is_stream = kind & 0xF == libc::SOCK_STREAM;
        match domain {
            libc::AF_INET | libc::AF_INET6 if is_stream && matches!(protocol, 0 | libc::IPPROTO_TCP) => {
                Some(Self::Tcp)
            }
            libc::AF_UNIX if is_stream => Some(Self::Unix),
            _ => None,
        }
    }

    /// The domain of a socket, by the kernel.
    pub fn of(fd: i32) -> Option<Self> {
        let found = |name: i32| kernel::number(fd, libc::SOL_SOCKET, name);
        if found(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP) {
            return Some(Self::Tcp);
        }
        let is_unix =
            found(libc::SO_DOMAIN) == Some(libc::AF_UNIX) && found(libc::SO_TYPE) == Some(libc::SOCK_STREAM);
        is_unix.then_some(Self::Unix)
    }
}

impl Socket {
    /// Its domain.
    #[inline(always)]
    pub fn domain(&self) -> Domain {
        if self.shared.is_unix.load(Ordering::Relaxed) != 0 { Domain::Unix } else { Domain::Tcp }
    }

    /// Returns whether it is a Unix socket.
    #[inline(always)]
    pub fn is_unix(&self) -> bool {
        self.domain() == Domain::Unix
    }

    /// The bytes that have gone through the kernel. `None`: it does not tell. For a Unix socket they are those that hooked
    /// calls have moved.
    pub fn byte_counts(&self) -> Option<ByteCounts> {
        match self.domain() {
            Domain::Tcp => kernel::byte_counts(self.fd),
            Domain::Unix => {
                let is_shut = self.shared.ended.load(Ordering::Relaxed) & (SHUT | SHUT_SENDING) != 0;
                Some(ByteCounts {
                    is_established: !is_shut && kernel::ready(self.fd, libc::POLLRDHUP) & ENDS == 0,
                    given: self.shared.sent.load(Ordering::Relaxed),
                    taken: self.shared.received.load(Ordering::Relaxed),
                    is_steady: true,
                })
            }
        }
    }
}

impl Connection {
    /// The number of bytes that the kernel takes at once, in addition to what it holds.
    pub fn kernels_room(&self) -> usize {
        kernel::room(self.fd, if self.is_unix() { Room::Allocated } else { Room::Queued })
    }

    /// Whether the kernel takes this many bytes at once, in addition to what it holds.
    pub fn kernel_has_room(&self, bytes: usize) -> bool {
        self.kernels_room() >= bytes
    }

    /// Sends what the kernel holds back. A Unix socket holds nothing back.
    pub fn push(&self) {
        if !self.is_unix() {
            kernel::push(self.fd);
        }
    }

    /// Returns whether the other end refuses what it is sent. A Unix socket tells the sender that its peer receives no
    /// more.
    #[inline(always)]
    pub fn is_refused(&self) -> bool {
        STREAM.flags(&self.remote) & DEAF != 0 && self.is_unix()
    }

    /// Keeps the error of a Unix connection whose other end is closed and has left bytes of this end unread: the kernel knows
    /// only of those that it holds itself.
    pub fn keep_loss(&self) {
        let ended = self.shared.ended.load(Ordering::Relaxed);
        if ended & (HUNG_UP | TOLD_LOSS) == HUNG_UP
            && self.is_unix()
            && self.has_loss()
            && self.shared.ended.fetch_or(TOLD_LOSS | FAILED, Ordering::Relaxed) & TOLD_LOSS == 0
        {
            self.shared.kept_error.store(libc::ECONNRESET as u32, Ordering::Relaxed);
        }
    }

    /// The stream has ended. Keeps an error if the writer had not given the kernel all that it owed, and what it had given may
    /// have gone to another program: then nobody knows where the rest begins.
    pub fn keep_loss_of_owed(&self) {
        if STREAM.flags(&self.remote) & OWES != 0
            && self.shared.takes_rest.load(Ordering::Relaxed) == 0
            && self.shared.ended.load(Ordering::Relaxed) & HUNG_UP != 0
            && self.shared.ended.fetch_or(TOLD_LOSS | FAILED, Ordering::Relaxed) & TOLD_LOSS == 0
        {
            self.shared.kept_error.store(libc::ECONNRESET as u32, Ordering::Relaxed);
        }
    }

    /// A call has reported this error of the kernel's.
    pub fn note_told(&self, number: i32) {
        if number == libc::ECONNRESET && (self.is_unix() || self.has_engine()) {
            self.shared.ended.fetch_or(TOLD_LOSS, Ordering::Relaxed);
        }
    }

    /// Returns whether the next byte in the kernel is urgent. A receive of a Unix stream that has others ends before it.
    pub fn is_before_urgent(&self) -> bool {
        self.is_unix() && kernel::is_at_mark(self.fd)
    }

    /// Takes the error that a Unix receive takes in the kernel, and does not report, if it waits for all of its bytes and has
    /// some of them.
    #[cold]
    pub fn forgo_error(&self) {
        if self.is_unix() {
            let _taken = errno::keep(|| self.take_any_error());
        }
    }

    fn has_loss(&self) -> bool {
        let told = STREAM.flags(&self.remote);
        if told & BROKEN_OFF != 0 {
            return true;
        }
        // Two shutdowns look the same to the kernel, but their ends are open, and read what they have.
        let own = self.shared.ended.load(Ordering::Relaxed);
        let is_shut_here = told & HALF != 0 || own & SHUT != 0;
        let is_shut_there = told & DEAF != 0 || own & SHUT_SENDING != 0;
        let is_closed = told & LEAVING != 0 || !(is_shut_here && is_shut_there);
        // Behind the end of a ring the kernel reports what was left.
        let left = match STREAM.route(&self.own) {
            Ok(Route::Ring | Route::Ending) => {
                STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0) as u64
            }
            Ok(Route::Back(until)) => until.saturating_sub(STREAM.head(&self.remote)),
            _ => 0,
        };
        is_closed && left > 0
    }
}
