//! `TCP_USER_TIMEOUT`: how long bytes may wait for a peer that reads nothing.
//!
//! The kernel counts that time while the peer's receive window is closed, and ends the connection. A full ring closes no
//! window. So the bytes of a ring that stays full for a part of that time are given back to the kernel, which does the
//! rest: its window closes, and its time passes.

use core::sync::atomic::Ordering;

use bywire_ring::stream::Route;

use crate::connection::owed;
use crate::connection::sockets::{Connection, STREAM};
use crate::memory::arena::SharedSocket;
use crate::os::{errno, kernel, own_call};

/// The part of the time after which the bytes of a full ring go back to the kernel.
const PART: u64 = 8;

/// Values of `SharedSocket::has_user_timeout`.
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
/// The kernel is asked.
const MAYBE: u8 = 2;

impl Connection {
    /// A send has found the ring full. From here on waits of this process check whether it stays so.
    #[inline]
    pub fn note_full(&self) {
        if self.shared.has_user_timeout.load(Ordering::Relaxed) != NONE {
            errno::keep(|| self.note_stall());
        }
    }

    #[cold]
    fn note_stall(&self) {
        if self.shared.stalled_ns.load(Ordering::Relaxed) == 0 {
            // The kernel's own window closes when an engine can give it no more.
            if self.has_engine() {
                return;
            }
            if self.user_timeout_ns().is_none() {
                // It must not overwrite what a call that sets the time has stored meanwhile.
                let known = &self.shared.has_user_timeout;
                let _ = known.compare_exchange(UNKNOWN, NONE, Ordering::Relaxed, Ordering::Relaxed);
                return;
            }
            self.begin_stall(kernel::now_ns());
        }
        self.check_stall();
        owed::must_look();
    }

    fn begin_stall(&self, now_ns: u64) {
        // Relaxed, both: a hint for looks, which compare the position again under the sending lock.
        self.shared.stalled_head.store(STREAM.head(&self.remote), Ordering::Relaxed);
        self.shared.stalled_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Gives the bytes of a ring back to the kernel if it has stayed full for too long. Returns after what time it must
    /// be looked at again; `None`: it is not full any more, or no time applies to it.
    #[inline]
    pub fn check_stall(&self) -> Option<u64> {
        match self.shared.stalled_ns.load(Ordering::Relaxed) {
            0 => None,
            since_ns => self.check_stall_since(since_ns),
        }
    }

    #[cold]
    fn check_stall_since(&self, since_ns: u64) -> Option<u64> {
        let is_full = STREAM.route(&self.own) == Ok(Route::Ring)
            && self.room_hint().is_ok_and(|room| room < self.window() / 3);
        let limit_ns = if is_full { self.user_timeout_ns() } else { None };
        let Some(limit_ns) = limit_ns.map(|limit| limit / PART) else {
            self.shared.stalled_ns.store(0, Ordering::Relaxed);
            return None;
        };
        let now_ns = kernel::now_ns();
        if self.has_progress() {
            self.begin_stall(now_ns);
            return Some(limit_ns);
        }
        let left_ns = limit_ns.saturating_sub(now_ns.saturating_sub(since_ns));
        if left_ns > 0 {
            return Some(left_ns);
        }
        self.end_stall();
        None
    }

    /// Returns whether the peer has read something since the stall began.
    fn has_progress(&self) -> bool {
        STREAM.head(&self.remote) != self.shared.stalled_head.load(Ordering::Relaxed)
    }

    fn end_stall(&self) {
        let Some(_own) = own_call::begin() else { return };
        self.with_sending(|| {
            if STREAM.route(&self.own) == Ok(Route::Ring) && !self.has_progress() {
                // No more than the kernel takes at once: this process may end at any moment.
                self.take_back(self.kernels_room());
            }
        });
        self.shared.stalled_ns.store(0, Ordering::Relaxed);
    }

    /// `TCP_USER_TIMEOUT`; `None`: it is not set.
    fn user_timeout_ns(&self) -> Option<u64> {
        let limit_ms = kernel::number(self.fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT)?;
        (limit_ms > 0).then_some(limit_ms as u64 * 1_000_000)
    }
}

/// The program may have set `TCP_USER_TIMEOUT`.
pub fn note_user_timeout(shared: &SharedSocket) {
    shared.has_user_timeout.store(MAYBE, Ordering::Relaxed);
}
