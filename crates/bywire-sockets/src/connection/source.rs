//! Where the next byte of a carried connection is, and which of its directions have ended.

use core::sync::atomic::Ordering;

use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{ASKS_BACK, HALF, LEAVING, OWES, Route};

use crate::connection::sockets::{Connection, STREAM};
use crate::memory::arena::{FAILED, FINISHED, HUNG_UP, SHUT, TOLD_LOSS, passed};
use crate::os::{errno, kernel, pid, thread};
use crate::wakeup::doorbell;

/// The minimum interval between questions to the kernel about the other end.
const ASK_NS: u64 = 1_000_000;

/// Where the next byte to be received is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the kernel, with no known limit.
    Kernel,
    /// In the kernel, for this many bytes.
    KernelUntil(u64),
    /// In the ring, which has this many bytes.
    Ring(usize),
    /// Undecided for a moment; see [`Connection::current_source`].
    Moment,
    /// In the ring, but not to be taken any more: the other end was asked to send them through the kernel.
    Held,
}

impl Connection {
    /// The kernel's end of a Unix stream has come. Its writer may have ended before it had given the kernel all that it owed:
    /// then the rest is taken from its ring. Returns whether there is such a rest.
    pub fn begin_rest(&self) -> bool {
        if STREAM.flags(&self.remote) & OWES == 0
            || !self.is_unix()
            || self.takes_rest()
            // Another program may have received some of what the kernel was given.
            || self.shared.passed.load(Ordering::Relaxed) != passed::NOT
        {
            return false;
        }
        let _held = (!self.shared.receiving.is_own()).then(|| self.shared.receiving.hold());
        let Ok(Route::Back(until)) = STREAM.route(&self.remote) else { return false };
        // SeqCst: pairs with the addition in `receive::count`, of calls that have left.
        let received = self.shared.received.load(Ordering::SeqCst);
        let (Some(paid), Ok(written)) = (
            received.checked_sub(STREAM.cut_offset(&self.remote)),
            STREAM.available(&self.own, &self.remote),
        ) else {
            return false;
        };
        if self.shared.drained.load(Ordering::Relaxed) == 0
            || STREAM.head(&self.own) != until
            || paid >= written as u64
        {
            return false;
        }
        STREAM.consume(&self.own, paid as usize);
        self.shared.takes_rest.store(1, Ordering::Relaxed);
        true
    }

    fn takes_rest(&self) -> bool {
        self.shared.takes_rest.load(Ordering::Relaxed) != 0
    }

    /// Where the next byte to be received is. The caller holds the receiving lock, or needs only a hint.
    pub fn source(&self) -> Result<Source, Corrupt> {
        let route = STREAM.route(&self.remote)?;
        match route {
            Route::Kernel => return Ok(Source::Kernel),
            // A writer that was killed halfway leaves it so. Nothing comes behind the kernel's end.
            Route::Pending
                if self.shared.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) != 0 =>
            {
                return Ok(Source::KernelUntil(u64::MAX));
            }
            // Nobody ends the ring of a writer that was killed while it ended it. Its bytes are valid.
            Route::Ending
                if self.shared.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) == 0 =>
            {
                return Ok(Source::Moment);
            }
            Route::Pending => return Ok(Source::Moment),
            Route::Ring | Route::Ending | Route::Back(_) => {}
        }
        if self.shared.drained.load(Ordering::Relaxed) == 0 {
            // The last bytes in the kernel wake a call that sleeps there: nobody takes them from it.
            if self.kernel_readers() != 0 {
                return Ok(Source::Moment);
            }
            if self.is_unix() {
                return self.unix_source();
            }
            let cut = STREAM.cut_offset(&self.remote);
            // SeqCst: pairs with the addition in `receive::count`, of calls that have left. Nobody is in the kernel.
            let received = self.shared.received.load(Ordering::SeqCst);
            match cut.checked_sub(received) {
                Some(0) => self.shared.drained.store(1, Ordering::Relaxed),
                Some(left) => return Ok(Source::KernelUntil(left)),
                None => return Err(Corrupt),
            }
        }
        self.behind_the_cut(route)
    }

    fn behind_the_cut(&self, route: Route) -> Result<Source, Corrupt> {
        match route {
            Route::Back(_) if self.takes_rest() => self.in_ring().map(Source::Ring),
            // Bytes behind the end of the ring come through the kernel.
            Route::Back(until) if until == STREAM.head(&self.own) => Ok(Source::Kernel),
            Route::Ring if self.has_asked_back() => Ok(Source::Held),
            _ => self.in_ring().map(Source::Ring),
        }
    }

    /// A Unix connection has no such count, and the kernel may hold bytes from before the cut-over. It tells only how
    /// many bytes wait there. Nobody is inside it.
    fn unix_source(&self) -> Result<Source, Corrupt> {
        // The thread makes no system calls any more, or its descriptor was closed: only a later look can tell.
        let Some(left) = kernel::queued(self.fd) else { return Ok(Source::Moment) };
        let left = left.max(0) as u64;
        // A writer ends its ring before it gives the kernel more. If it has not ended it by now, all that was there a
        // moment ago comes before the ring. Otherwise only the counts tell how much of it does.
        let route = STREAM.route(&self.remote)?;
        let before = match route {
            Route::Back(_) => {
                // SeqCst: pairs with the addition in `receive::count`, as in `source`.
                let received = self.shared.received.load(Ordering::SeqCst);
                STREAM.cut_offset(&self.remote).saturating_sub(received).min(left)
            }
            _ => left,
        };
        if before > 0 {
            return Ok(Source::KernelUntil(before));
        }
        self.shared.drained.store(1, Ordering::Relaxed);
        self.behind_the_cut(route)
    }

    /// Like [`Self::source`]. It also checks, at intervals, whether the undecided moment lasts because somebody was
    /// killed.
    pub fn current_source(&self) -> Result<Source, Corrupt> {
        let source = self.source()?;
        if source != Source::Moment {
            return Ok(source);
        }
        let (now, looked) = (kernel::now_ns(), &self.shared.looked_ns);
        if now.wrapping_sub(looked.load(Ordering::Relaxed)) < ASK_NS {
            return Ok(source);
        }
        looked.store(now, Ordering::Relaxed);
        self.ask_kernel();
        errno::keep(|| {
            for sleeper in &self.shared.sleepers {
                let thread = sleeper.load(Ordering::Relaxed);
                if thread != 0 && !pid::lives(thread) {
                    self.leave_kernel(thread);
                }
            }
        });
        self.source()
    }

    /// Enters a sleep in the kernel, if that is allowed. Returns the route, as `STREAM.enter` does.
    /// [`Self::leave_kernel`] follows.
    pub fn enter_kernel(&self) -> Result<Route, Corrupt> {
        let route = STREAM.enter(&self.own, &self.remote);
        // A sleeper for whom there is no place is not noticed if it is killed.
        self.change_sleeper(0, thread::number());
        route
    }

    /// Removes one sleeper in the kernel: this thread, or one that was killed.
    pub fn leave_kernel(&self, thread: u32) {
        if self.change_sleeper(thread, 0) || thread == thread::number() {
            STREAM.leave(&self.own);
            // A thread that has come meanwhile waits until the last sleeper has left. In a `poll` only the doorbell
            // tells it.
            if STREAM.route(&self.remote) != Ok(Route::Kernel) {
                self.wake_own();
                doorbell::ring_own();
            }
        }
    }

    fn change_sleeper(&self, from: u32, to: u32) -> bool {
        self.shared
            .sleepers
            .iter()
            .any(|sleeper| sleeper.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok())
    }

    /// Whether all bytes that were taken out of the kernel are counted. A thread that was killed after a receive has
    /// not counted them. Then they are counted now, and the result is `false`. The caller holds the receiving lock, and
    /// nobody is in the kernel.
    pub fn is_counted(&self) -> bool {
        let Some(account) = self.byte_counts() else { return true };
        let received = &self.shared.received;
        // A program that has had the socket may have taken bytes that came behind the ring as well.
        let taken = account.taken.min(STREAM.cut_offset(&self.remote));
        let is_more = account.is_steady && taken > received.load(Ordering::Relaxed);
        if is_more {
            // SeqCst: pairs with the loads in `offer::accounts_agree` and `source`, as in `receive::count`.
            received.store(taken, Ordering::SeqCst);
        }
        !is_more
    }

    /// Whether another process may have been killed with it.
    pub fn is_shared(&self) -> bool {
        self.shared.processes.load(Ordering::Relaxed) != 1
    }

    /// Whether bytes in the kernel are before the cut-over while the writer changes over, so anybody may take them if
    /// nobody sleeps for them.
    pub fn is_early(&self) -> bool {
        STREAM.route(&self.remote) == Ok(Route::Pending) && self.kernel_readers() == 0
    }

    /// Whether the other end was asked to send what is in its ring through the kernel. An end that has shut down, or is
    /// gone, will not.
    fn has_asked_back(&self) -> bool {
        STREAM.flags(&self.own) & ASKS_BACK != 0
            && STREAM.flags(&self.remote) & HALF == 0
            && self.shared.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) == 0
    }

    /// Whether the stream may have ended. Every end is announced except that of a killed peer, which must be checked
    /// for.
    pub fn may_have_ended(&self) -> bool {
        if STREAM.flags(&self.remote) & (HALF | LEAVING) != 0
            || self.is_lost()
            || self.shared.ended.load(Ordering::Relaxed) != 0
        {
            return true;
        }
        self.is_due_to_ask()
    }

    /// Returns whether the kernel was not asked about the other end for a while. The caller asks it then.
    pub fn is_due_to_ask(&self) -> bool {
        let now = kernel::now_ns();
        let asked = self.shared.asked_ns.load(Ordering::Relaxed);
        if now.wrapping_sub(asked) < ASK_NS {
            return false;
        }
        self.shared.asked_ns.store(now, Ordering::Relaxed);
        true
    }

    /// Bytes to be read from the ring, before or after those in the kernel.
    pub fn in_ring(&self) -> Result<usize, Corrupt> {
        let available = STREAM.available(&self.own, &self.remote)?;
        Ok(match STREAM.route(&self.remote)? {
            Route::Kernel | Route::Pending => 0,
            Route::Ring | Route::Ending => available,
            Route::Back(_) if self.takes_rest() => available,
            Route::Back(until) => {
                available.min(until.checked_sub(STREAM.head(&self.own)).ok_or(Corrupt)? as usize)
            }
        })
    }

    fn kernel_readers(&self) -> u64 {
        // SeqCst: pairs with the addition and the subtraction in `sockets::KernelCall`.
        STREAM.readers(&self.own) + u64::from(self.shared.kernel_readers.load(Ordering::SeqCst))
    }

    /// Whether the other end has gone altogether, as far as the kernel was asked.
    pub fn peer_is_gone(&self) -> bool {
        let ended = self.shared.ended.load(Ordering::Relaxed);
        let told = STREAM.flags(&self.remote);
        ended & (HUNG_UP | FAILED) != 0
            // A peer beyond an engine may finish and go on receiving.
            || (ended & (FINISHED | SHUT) == FINISHED && told & HALF == 0 && !self.has_engine())
            // The kernel reports to nobody the close of an end that had shut down before, nor to an end that has shut
            // down its own receiving. It does answer what it is sent.
            || (ended & FINISHED != 0 && told & LEAVING != 0)
    }

    /// Asks the kernel what has ended.
    pub fn ask_kernel(&self) {
        let found = kernel::ready(self.fd, libc::POLLRDHUP);
        self.heard(found);
    }

    /// Keeps what the kernel has reported: these bits never change back.
    pub fn heard(&self, found: i16) {
        let pairs = [(libc::POLLERR, FAILED), (libc::POLLRDHUP, FINISHED), (libc::POLLHUP, HUNG_UP)];
        for (bit, kept) in pairs {
            if found & bit != 0
                && self.shared.ended.load(Ordering::Relaxed) & kept == 0
                // A socket that may connect again keeps nothing.
                && !self.is_dissolved()
            {
                self.shared.ended.fetch_or(kept, Ordering::Relaxed);
                self.count_own_news();
                if kept == FAILED && self.is_unix() {
                    // The kernel itself reports that bytes were left unread.
                    self.shared.ended.fetch_or(TOLD_LOSS, Ordering::Relaxed);
                }
            }
        }
    }
}
