//! Connections whose sending direction an engine relays: the other end of the ring is not the peer, but a process that
//! gives the kernel's own socket what is in the ring.
//!
//! | | a program at the other end | an engine |
//! | --- | --- | --- |
//! | receiving | out of the other end's ring | from the kernel, always |
//! | the bytes in the ring when this end closes | the kernel gets them first, if it has room | the engine gives them to the kernel, and lets the connection go behind them |
//! | `shutdown` of the sending direction | at once | by the engine, behind the last byte |
//! | bytes that are taken back | may stay in the ring for their reader | all go to the kernel, before any other byte |
//! | the other process dies | the kernel ends the connection | the connection goes on: the kernel's count says how much the engine has given it |
//! | an error of the kernel's | is this end's | may be taken by the engine, which publishes it |

use core::sync::atomic::Ordering;

use bywire_pairing::protocol::link;
use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{FORKED, HALF, LEAVING, News, Route};

use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::connection::{kept_error, owed};
use crate::memory::arena::{FAILED, FINISHED, HUNG_UP, SHUT_SENDING, TOLD_LOSS};
use crate::os::{errno, kernel};
use crate::pairing::seek;
use crate::wakeup::{doorbell, peers};

/// Prepares this socket for a fork: the engine learns that the end of this process need not be the end of the connection.
pub fn note_fork(socket: &Socket) {
    if socket.has_engine()
        && let Some(Ok(connection)) = sockets::by_index(socket.fd, socket.index).map(Socket::mapped)
    {
        connection.raise_end(FORKED);
    }
}

/// Takes the sending direction of this socket back from an engine, if one relays it.
pub fn leave(fd: i32) {
    if let Some(Ok(connection)) = sockets::socket(fd).map(Socket::carried) {
        connection.leave_relay();
    }
}

/// The bytes that may wait for an engine, beside those that the kernel holds. All of them must go to the kernel when the
/// program takes its direction back.
pub const WINDOW_BYTES: usize = 512 << 10;
/// An engine that has taken an error publishes it within this time.
const PUBLISHED_NS: u64 = 20_000_000;
/// The time from one check of the engine to the next, while it has nothing of this end.
const IDLE_LOOK_NS: u64 = 500_000_000;

impl Socket {
    /// Returns whether an engine relays what this end sends, or did.
    #[inline(always)]
    pub fn is_relayed(&self) -> bool {
        self.shared.link.load(Ordering::Relaxed) == link::RELAY
    }
}

impl Connection {
    /// Returns whether there is a ring that an engine empties.
    fn is_in_relay(&self) -> bool {
        self.is_relayed() && matches!(STREAM.route(&self.own), Ok(Route::Ring | Route::Ending))
    }

    /// Takes the direction back from an engine that has died. Returns after what time that has to be checked again, in
    /// every wait of this process; `None`: no engine has the direction.
    pub fn check_engine(&self) -> Option<u64> {
        if self.is_far() {
            return self.check_far_engine();
        }
        if !self.is_in_relay() {
            return None;
        }
        if self.has_no_engine() {
            self.leave_relay();
            return None;
        }
        let is_shut = self.shared.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0;
        let is_waiting = is_shut || STREAM.unread_by_peer(&self.own, &self.remote) != Ok(0);
        Some(if is_waiting { owed::LOOK_NS } else { IDLE_LOOK_NS })
    }

    /// Takes the direction back for good.
    fn leave_relay(&self) {
        if !self.is_in_relay() {
            return;
        }
        self.with_sending(|| {
            if self.is_in_relay() {
                self.take_back(usize::MAX);
            }
        });
        self.tell(News::Route);
    }

    /// A receive has taken bytes. A program that sends requests and waits for responses is better off without an engine.
    #[inline]
    pub fn note_received(&self) {
        if self.is_in_relay() && seek::has_turned(self, STREAM.tail(&self.own)) {
            errno::keep(|| self.leave_relay());
        }
    }

    /// Returns whether the engine has died, or has ended.
    pub fn has_no_engine(&self) -> bool {
        // Acquire: pairs with the release store in `offer::answered`. The engine's page is mapped before.
        peers::has_gone(self.local.peer.load(Ordering::Acquire))
    }

    /// An engine is about to relay: the kernel has everything that this end has sent so far. `false`: it does not count.
    pub fn begin_relay(&self, sent: u64) -> bool {
        let Some(written) = kernel::written(self.fd) else { return false };
        self.shared.relayed_from.store(written.wrapping_sub(sent), Ordering::Relaxed);
        // From here on waits of this process check whether the engine lives, also those that have begun.
        owed::must_check_engine();
        doorbell::ring_own();
        true
    }

    /// Returns the number of bytes that the kernel has taken from the program or the engine.
    ///
    /// # Errors
    /// [`Corrupt`] if the kernel does not tell.
    pub fn given(&self) -> Result<u64, Corrupt> {
        let written = kernel::written(self.fd).ok_or(Corrupt)?;
        Ok(written.wrapping_sub(self.shared.relayed_from.load(Ordering::Relaxed)))
    }

    /// The position at which a dead engine has stopped, by the kernel's count. It lies between the position that the engine
    /// has stored and the last byte of this end.
    ///
    /// # Errors
    /// [`Corrupt`] if the count is neither.
    pub fn given_by_engine(&self) -> Result<u64, Corrupt> {
        // SeqCst: pairs with the additions of calls that have left. Nobody is in the kernel with this direction.
        let taken = self.given()?.checked_sub(self.shared.sent.load(Ordering::SeqCst)).ok_or(Corrupt)?;
        let tail = STREAM.tail(&self.own);
        let stored = tail.wrapping_sub(STREAM.unread_by_peer(&self.own, &self.remote)? as u64);
        if (stored..=tail).contains(&taken) { Ok(taken) } else { Err(Corrupt) }
    }

    /// This end is about to be closed, or its process ends. Returns whether the engine does the rest.
    pub fn leave_to_engine(&self) -> bool {
        self.check_engine();
        let is_left = self.is_in_engine();
        if is_left {
            self.raise_end(LEAVING);
        }
        is_left
    }

    /// The program shuts down its sending. Returns whether the engine tells that to the kernel, behind the last byte.
    pub fn shut_by_engine(&self) -> bool {
        self.check_engine();
        let mut is_shut = false;
        self.with_sending(|| {
            // Nothing was sent yet, and the other engine may not know of the connection: the kernel's end would come first.
            if self.is_required() && STREAM.route(&self.own) == Ok(Route::Kernel) {
                STREAM.cut(&self.own, 0);
            }
            is_shut = self.sends_by_engine();
            if is_shut {
                self.shared.ended.fetch_or(SHUT_SENDING, Ordering::Relaxed);
                STREAM.raise(&self.own, HALF);
            }
        });
        is_shut
    }

    /// Keeps an error of the kernel's that the engine has taken, for a call that reports it. A broken pipe is only a
    /// sender's error, and the kernel reports it again.
    pub fn keep_failure(&self) {
        if !self.has_engine() {
            return;
        }
        let number = i32::try_from(STREAM.failure(&self.remote)).unwrap_or(0);
        if kept_error::ENDS.contains(&number)
            && self.shared.ended.fetch_or(TOLD_LOSS, Ordering::Relaxed) & TOLD_LOSS == 0
        {
            self.shared.ended.fetch_or(FAILED | HUNG_UP, Ordering::Relaxed);
            self.shared.kept_error.store(number as u32, Ordering::Relaxed);
        }
    }

    /// A receive has found the end of the stream. If the kernel has reset the connection, an engine may have taken its
    /// error and not published it yet.
    pub fn keep_failure_at_end(&self) {
        let known = FINISHED | HUNG_UP | FAILED | TOLD_LOSS | SHUT_SENDING;
        if !self.is_in_engine()
            || self.shared.ended.load(Ordering::Relaxed) & known != 0
            || !kernel::is_closed(self.fd)
        {
            return;
        }
        let end_ns = kernel::now_ns() + PUBLISHED_NS;
        while STREAM.failure(&self.remote) == 0 && kernel::now_ns() < end_ns && !self.has_no_engine() {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        }
        self.keep_failure();
    }
}
