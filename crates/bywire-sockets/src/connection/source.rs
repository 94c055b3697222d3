//! Where the next byte of a carried connection is, and what of it has ended.

use core::sync::atomic::Ordering;

use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{ASKS_BACK, HALF, LEAVING, Route};

use crate::connection::sockets::{Connection, STREAM};
use crate::memory::arena::{FAILED, FINISHED, HUNG_UP, SHUT};
use crate::os::{errno, kernel, pid, thread};
use crate::wakeup::doorbell;

/// The kernel is asked about the end of an empty stream at most so often.
const ASK_NS: u64 = 1_000_000;

/// Where the next byte to be received is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the kernel, with no end in sight.
    Kernel,
    /// In the kernel, up to so many bytes.
    KernelUntil(u64),
    /// In the ring: so many bytes are there.
    Ring(usize),
    /// Undecided for a moment; see [`Connection::settle`].
    Moment,
    /// In the ring, and not to be taken out any more: the other end was asked to give it to the kernel.
    Held,
}

impl Connection {
    /// Where the next byte to be received is. Called with the receiving lock held, or for a hint.
    pub fn source(&self) -> Result<Source, Corrupt> {
        let route = STREAM.route(&self.remote)?;
        match route {
            Route::Kernel => return Ok(Source::Kernel),
            // A writer that was killed on its way leaves it so; nothing comes behind the kernel's end.
            Route::Pending
                if self.shared.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) != 0 =>
            {
                return Ok(Source::KernelUntil(u64::MAX));
            }
            // Nobody ends the ring of a writer that was killed while it did: what is there is there.
            Route::Ending
                if self.shared.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) == 0 =>
            {
                return Ok(Source::Moment);
            }
            Route::Pending => return Ok(Source::Moment),
            Route::Ring | Route::Ending | Route::Back(_) => {}
        }
        if self.shared.drained.load(Ordering::Relaxed) == 0 {
            // A call that sleeps in the kernel is woken by the last bytes there: nobody takes them from it.
            if self.kernel_readers() != 0 {
                return Ok(Source::Moment);
            }
            let cut = STREAM.cut_offset(&self.remote);
            // SeqCst: pairs with the addition in `receive::count`, of calls that have left: nobody is in the kernel.
            let received = self.shared.received.load(Ordering::SeqCst);
            match cut.checked_sub(received) {
                Some(0) => self.shared.drained.store(1, Ordering::Relaxed),
                Some(left) => return Ok(Source::KernelUntil(left)),
                None => return Err(Corrupt),
            }
        }
        match route {
            // Bytes behind the end of the ring come through the kernel.
            Route::Back(until) if until == STREAM.head(&self.own) => Ok(Source::Kernel),
            Route::Ring if self.has_asked_back() => Ok(Source::Held),
            _ => self.in_ring().map(Source::Ring),
        }
    }

    /// As [`Self::source`], with a look, now and then, at whether a moment goes on because somebody was killed.
    pub fn settle(&self) -> Result<Source, Corrupt> {
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

    /// Goes to sleep in the kernel, if it may: the route, as by `STREAM.enter`. [`Self::leave_kernel`] follows.
    pub fn enter_kernel(&self) -> Result<Route, Corrupt> {
        let route = STREAM.enter(&self.own, &self.remote);
        // One more than there are places for is not known if it is killed.
        self.change_sleeper(0, thread::number());
        route
    }

    /// One sleeper in the kernel less: this thread, or one that was killed.
    pub fn leave_kernel(&self, thread: u32) {
        if self.change_sleeper(thread, 0) || thread == thread::number() {
            STREAM.leave(&self.own);
            // A thread that has come meanwhile waits until the last sleeper has left, and in a `poll` hears of it by the bell alone.
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

    /// Is all of it counted that was taken out of the kernel? Who was killed behind a receive has counted nothing: then it is
    /// counted now, and the answer is no. Called with the receiving lock held, and nobody in the kernel.
    pub fn is_counted(&self) -> bool {
        let Some(account) = kernel::byte_counts(self.fd) else { return true };
        let received = &self.shared.received;
        // A program that has had the socket may have taken what came behind the ring as well.
        let taken = account.taken.min(STREAM.cut_offset(&self.remote));
        let is_more = account.is_steady && taken > received.load(Ordering::Relaxed);
        if is_more {
            // SeqCst: pairs with the loads in `offer::accounts_agree` and `source`, as in `receive::count`.
            received.store(taken, Ordering::SeqCst);
        }
        !is_more
    }

    /// May somebody have been killed with it?
    pub fn is_shared(&self) -> bool {
        self.shared.processes.load(Ordering::Relaxed) != 1
    }

    /// What the kernel has while the writer changes over lies before the cut, and is anybody's if nobody sleeps for it.
    pub fn is_early(&self) -> bool {
        STREAM.route(&self.remote) == Ok(Route::Pending) && self.kernel_readers() == 0
    }

    /// Was the other end asked to give the kernel what is in its ring? One that has shut down, or is no more, will not.
    fn has_asked_back(&self) -> bool {
        STREAM.flags(&self.own) & ASKS_BACK != 0
            && STREAM.flags(&self.remote) & HALF == 0
            && self.shared.ended.load(Ordering::Relaxed) & (FINISHED | HUNG_UP | FAILED) == 0
    }

    /// May the stream have ended? Its end is told, but for that of a killed peer, which has to be looked for.
    pub fn may_have_ended(&self) -> bool {
        if STREAM.flags(&self.remote) & (HALF | LEAVING) != 0
            || self.shared.ended.load(Ordering::Relaxed) != 0
        {
            return true;
        }
        let now = kernel::now_ns();
        let asked = self.shared.asked_ns.load(Ordering::Relaxed);
        if now.wrapping_sub(asked) < ASK_NS {
            return false;
        }
        self.shared.asked_ns.store(now, Ordering::Relaxed);
        true
    }

    /// Bytes that are to be read from the ring, before or after what the kernel has.
    pub fn in_ring(&self) -> Result<usize, Corrupt> {
        let available = STREAM.available(&self.own, &self.remote)?;
        Ok(match STREAM.route(&self.remote)? {
            Route::Kernel | Route::Pending => 0,
            Route::Ring | Route::Ending => available,
            Route::Back(until) => {
                available.min(until.checked_sub(STREAM.head(&self.own)).ok_or(Corrupt)? as usize)
            }
        })
    }

    fn kernel_readers(&self) -> u64 {
        // SeqCst: pairs with the addition and the subtraction in `sockets::KernelCall`.
        STREAM.readers(&self.own) + u64::from(self.shared.kernel_readers.load(Ordering::SeqCst))
    }

    /// Has the other end gone altogether, as far as the kernel was heard?
    pub fn peer_is_gone(&self) -> bool {
        let ended = self.shared.ended.load(Ordering::Relaxed);
        let told = STREAM.flags(&self.remote);
        ended & (HUNG_UP | FAILED) != 0
            || (ended & (FINISHED | SHUT) == FINISHED && told & HALF == 0)
            // The kernel tells nobody of the close of an end that had shut down before, nor one that has shut down its own
            // receiving; what it is sent it answers.
            || (ended & FINISHED != 0 && told & LEAVING != 0)
    }

    /// Asks the kernel what has come to an end.
    pub fn ask_kernel(&self) {
        let found = kernel::ready(self.fd, libc::POLLRDHUP);
        self.heard(found);
    }

    /// Keeps what the kernel has said: such things do not change again.
    pub fn heard(&self, found: i16) {
        let pairs = [(libc::POLLRDHUP, FINISHED), (libc::POLLHUP, HUNG_UP), (libc::POLLERR, FAILED)];
        for (bit, kept) in pairs {
            if found & bit != 0 && self.shared.ended.load(Ordering::Relaxed) & kept == 0 {
                self.shared.ended.fetch_or(kept, Ordering::Relaxed);
            }
        }
    }
}
