//! The end of a carried connection in this process: as TCP's, whatever lies in the rings.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::stream::{ASKS_BACK, LEAVING, Route};

use crate::connection::sockets::{Connection, STREAM};
use crate::memory::arena::SHUT_SENDING;
use crate::memory::holders;
use crate::os::kernel;

impl Connection {
    /// A handler has jumped out of a copy of this thread: what it held is free.
    pub fn let_go(&self) {
        if self.shared.receiving.is_own() {
            STREAM.end_taking(&self.own);
            self.shared.receiving.give();
        }
        if self.shared.sending.is_own() {
            self.shared.sending.give();
        }
    }

    /// Its end is about to come, in order: unread bytes make TCP's end a reset, wherever they lie.
    pub fn take_leave(&self) {
        self.serve();
        self.pay_at_the_end();
        self.end_before_the_kernels(true);
        if STREAM.flags(&self.own) & ASKS_BACK == 0 && self.in_ring() != Ok(0) {
            kernel::linger(self.fd, Some(0));
        } else {
            self.with_sending(|| {
                if !self.owes() {
                    self.unguard();
                }
            });
        }
        STREAM.raise(&self.own, LEAVING);
    }

    /// This process has it no more, and others count. Either one of them goes on with it, and the bytes that its peer has not
    /// read stay guarded; or none has it, as it was replaced by another program, or killed where nobody knew it: then this is
    /// the last one after all, and the kernel gets those bytes before it ends it. `counts`: does this process count as well yet?
    pub fn leave_to_others(&self, counts: bool) {
        let shared = self.shared;
        let known = shared.holders.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
        let known = known + usize::from(counts && !holders::is_noted(&shared.holders));
        let others_go_on = shared.is_replaced.load(Ordering::Relaxed) == 0
            && shared.processes.load(Ordering::Relaxed) as usize <= known;
        if !others_go_on {
            self.serve();
            self.end_before_the_kernels(false);
            self.begin_back(Reason::Passed);
        }
        // While others go on with an end that has shut down its sending, only the guard would tell the peer of their death.
        let is_half = shared.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0;
        self.settle_guard(|unread_by_peer| !others_go_on || (unread_by_peer == 0 && !is_half));
    }

    /// This process is the last one that has it, and is about to become another program, which has it not: unless that fails.
    pub fn leave_to_program(&self) {
        self.end_before_the_kernels(true);
        // The kernel does not tell every peer of the close: none whose own receiving is shut down, and nobody if this end has shut
        // down its sending. It answers what it is sent: so the peer is to give it to the kernel.
        self.begin_back(Reason::Passed);
        self.settle_guard(|_| true);
    }

    /// How the kernel is to end it when a descriptor closes: by a reset where bytes are unread, as TCP does; in order if nothing
    /// is owed, and `may_end` says so of the number of bytes that the peer has not read.
    pub fn settle_guard(&self, may_end: impl FnOnce(usize) -> bool) {
        self.with_sending(|| {
            if self.in_ring() != Ok(0) {
                self.guard();
            } else if !self.owes() && may_end(STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0)) {
                self.unguard();
            }
        });
    }

    /// Before the kernel is told the end of what we send: what the other end has not taken goes into the kernel before it, as
    /// far as there is room. The next holder of that end, which may not know this library, has it all.
    pub fn end_before_the_kernels(&self, is_last: bool) {
        let is_in_ring = || matches!(STREAM.route(&self.own), Ok(Route::Ring | Route::Ending));
        if !is_in_ring() {
            return;
        }
        let unread = STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0);
        // An end that has shut down both ways answers what comes by a reset: it reads what it has already where it is.
        if unread == 0 || STREAM.flags(&self.remote) & LEAVING != 0 {
            return;
        }
        if is_last && !kernel::has_room(self.fd, unread) {
            kernel::make_room(self.fd, unread);
        }
        let _held = self.shared.sending.hold();
        if kernel::has_room(self.fd, unread) && is_in_ring() {
            self.end_ring();
        }
    }
}
