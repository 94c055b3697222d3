//! Connections whose other end is a program on another machine. An engine stands in for it, and moves both directions.
//!
//! | | a program at the other end | an engine with link `fabric` |
//! | --- | --- | --- |
//! | a receive before the cut-over | sleeps in the kernel, and the writer's last piece there wakes it | sleeps by the doorbell, which the engine rings |
//! | the cut-over | behind one more piece through the kernel | at once: nobody sleeps in the kernel |
//! | the end of the stream | the kernel's, once the ring is empty | counts once the engine has said that all bytes have come |
//! | `close`, and `shutdown` of the sending direction | at once | by the engine, once the far program has taken the last byte |
//! | bytes that are in the ring when a program ends it | may go to the kernel | reach the far program through the engine |
//! | the other process dies | the kernel ends the connection | bytes may be lost with the engine: the connection is reset |

use core::sync::atomic::Ordering;

use bywire_pairing::protocol::link;
use bywire_pairing::reason::Reason;
use bywire_ring::stream::{ASKS_BACK, HALF, Route};

use crate::connection::owed;
use crate::connection::sockets::{Connection, STREAM, Socket};
use crate::memory::arena::FAILED;
use crate::os::kernel;

/// The time from one check of the engine to the next, while nothing waits for it.
const IDLE_LOOK_NS: u64 = 500_000_000;

impl Socket {
    /// Returns whether an engine stands in for a program on another machine.
    #[inline(always)]
    pub fn is_far(&self) -> bool {
        self.shared.link.load(Ordering::Relaxed) == link::FABRIC
    }

    /// Returns whether an engine of any kind is at the other end.
    #[inline(always)]
    pub fn has_engine(&self) -> bool {
        self.shared.link.load(Ordering::Relaxed) != 0
    }
}

impl Connection {
    /// Returns whether no byte of it may go through the kernel.
    #[inline(always)]
    pub fn is_required(&self) -> bool {
        self.shared.is_required.load(Ordering::Relaxed) != 0
    }

    /// Ends a connection that can only go on through the kernel, and must not. Returns whether it is such a one.
    pub fn refuse_kernel(&self) -> bool {
        if !self.is_required() {
            return false;
        }
        if !self.is_broken() {
            self.stay(Reason::Required);
            self.reset();
        }
        true
    }

    /// Returns whether an engine moves what this end sends, or its program's peer sends through the engine.
    pub fn is_in_engine(&self) -> bool {
        self.sends_by_engine()
            || self.is_far() && !matches!(STREAM.route(&self.remote), Ok(Route::Kernel | Route::Pending))
    }

    /// Returns whether there is a ring that an engine empties.
    pub fn sends_by_engine(&self) -> bool {
        self.has_engine() && matches!(STREAM.route(&self.own), Ok(Route::Ring | Route::Ending))
    }

    /// Returns whether bytes may be on their way from the engine, although the kernel reports the end of the stream.
    pub fn awaits_engine(&self) -> bool {
        if !self.is_far() {
            return false;
        }
        // The flag comes first: it is raised behind the last byte.
        let is_half = STREAM.flags(&self.remote) & HALF != 0;
        match STREAM.route(&self.remote) {
            Ok(Route::Ring | Route::Ending) => !is_half,
            Ok(Route::Back(until)) => STREAM.head(&self.own) != until,
            _ => false,
        }
    }

    /// Returns whether the kernel, which reports these events, has reset the connection. One that both ends have finished is closed
    /// as well, and the engine's word of the other end may still be on its way.
    pub fn is_reset(&self, found: i16) -> bool {
        let received = || self.shared.received.load(Ordering::Relaxed);
        found & libc::POLLERR != 0
            || self.shared.ended.load(Ordering::Relaxed) & FAILED != 0
            || found & libc::POLLHUP != 0
                && kernel::is_closed(self.fd)
                && !kernel::has_finished_behind(self.fd, received())
    }

    /// Returns whether the engine has given up the connection.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.is_far() && STREAM.failure(&self.remote) != 0
    }

    /// Returns whether bytes that this end has sent or will receive may be lost with the engine.
    fn needs_engine(&self) -> bool {
        let is_sent = STREAM.unread_by_peer(&self.own, &self.remote) == Ok(0);
        let sends = match STREAM.route(&self.own) {
            Ok(Route::Kernel) => false,
            Ok(Route::Back(until)) => STREAM.head(&self.remote) != until,
            Ok(Route::Ring) => !is_sent || STREAM.flags(&self.own) & HALF == 0,
            _ => true,
        };
        let is_asked_back = STREAM.flags(&self.remote) & ASKS_BACK != 0;
        sends || self.awaits_engine() || is_asked_back && self.owes()
    }

    /// Resets the connection if its engine has died with bytes of it. Returns after what time that has to be checked again,
    /// in every wait of this process.
    pub fn check_far_engine(&self) -> Option<u64> {
        if self.is_broken() || self.is_dissolved() {
            return None;
        }
        if self.has_no_engine() {
            if self.needs_engine() || self.is_required() {
                self.reset();
            }
            return None;
        }
        let is_waiting = STREAM.unread_by_peer(&self.own, &self.remote) != Ok(0);
        Some(if is_waiting { owed::LOOK_NS } else { IDLE_LOOK_NS })
    }

    /// Leaves the kernel behind everything that it was given. `false`: not now, as the counts do not agree.
    pub fn cut_at_once(&self) -> bool {
        // SeqCst: pairs with the additions of calls that have left. The next steps check that all have left, and that the
        // kernel's count agrees.
        let sent = self.shared.sent.load(Ordering::SeqCst);
        // A peer may have finished before it has sent anything.
        let agrees = || {
            self.byte_counts().is_some_and(|account| {
                (account.is_established || self.is_required()) && account.given == sent
            })
        };
        if self.shared.kernel_writers.load(Ordering::SeqCst) != 0 || !agrees() {
            return false;
        }
        STREAM.cut(&self.own, sent);
        // Nagle's algorithm would hold back what the kernel has.
        if !kernel::is_corked(self.fd) {
            self.push();
        }
        true
    }
}
