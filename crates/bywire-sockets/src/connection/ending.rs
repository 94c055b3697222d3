//! The end of a carried connection in this process. It is the same as TCP's, whatever is in the rings.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::distance;
use bywire_ring::stream::{LEAVING, Route};

use crate::connection::sockets::{Connection, STREAM};
use crate::memory::arena::{SHUT_SENDING, linger, passed};
use crate::memory::holders;
use crate::os::kernel;

impl Connection {
    /// Releases what this thread's copy held, after a handler has jumped out of it.
    pub fn let_go(&self) {
        if self.shared.receiving.is_own() {
            STREAM.end_taking(&self.own);
            self.shared.receiving.give();
        }
        if self.shared.sending.is_own() {
            self.shared.sending.give();
        }
    }

    /// Raises flags that tell the peer of an end, with its time.
    pub fn raise_end(&self, flags: u64) {
        // Another thread may send, or ask for what the peer has sent: both change the same words.
        self.with_sending(|| {
            if STREAM.is_ordered(&self.remote) {
                STREAM.mark(&self.own, distance::moment());
            }
            STREAM.raise(&self.own, flags);
        });
        self.count_own_news();
    }

    /// Before an orderly end: unread bytes make TCP's end a reset, wherever they are.
    pub fn prepare_end(&self) {
        if self.is_dissolved() {
            return;
        }
        self.serve();
        if self.leave_to_engine() {
            return;
        }
        self.pay_at_the_end();
        self.end_sending(true);
        // A program that it was passed to goes on with what the peer gives back. After a failed exec nobody does.
        let is_passed = self.shared.passed.load(Ordering::Relaxed) != passed::NOT;
        // The other end of a Unix connection sees by itself what this end has left unread.
        if !is_passed && !self.is_unix() && self.in_ring() != Ok(0) {
            kernel::linger(self.fd, Some(0));
        } else {
            self.with_sending(|| {
                if !self.owes() {
                    self.unguard();
                }
            });
        }
        self.raise_end(LEAVING);
    }

    /// This process stops holding the connection while others are counted as holders. If one of them still has it, the
    /// bytes that its peer has not read stay guarded. If none has it, because it executed another program or was killed
    /// unnoticed, this process is the last holder after all: the kernel gets those bytes before it ends the connection.
    /// `counts`: this process is still counted.
    pub fn leave_to_others(&self, counts: bool) {
        if self.is_dissolved() {
            return;
        }
        let shared = self.shared;
        let known = shared.holders.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
        let known = known + usize::from(counts && !holders::is_noted(&shared.holders));
        // A child that has just been forked may not be noted yet. What must not go through the kernel stays with the engine.
        let others_go_on = self.is_required()
            || shared.is_replaced.load(Ordering::Relaxed) == 0
                && shared.processes.load(Ordering::Relaxed) as usize <= known;
        if !others_go_on {
            self.serve();
            self.end_sending(false);
            self.begin_back(Reason::Passed);
        }
        // After this end has shut down its sending, only the guard would tell the peer of the other holders' death.
        let is_half = shared.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0;
        self.update_guard(|unread_by_peer| !others_go_on || (unread_by_peer == 0 && !is_half));
    }

    /// This process is the last holder, and is about to execute another program, which will not have the connection.
    /// The exec may fail.
    pub fn leave_to_program(&self) {
        if self.is_dissolved() {
            return;
        }
        self.end_sending(true);
        // The kernel does not report the close to every peer: not to one that has shut down its own receiving, and to
        // nobody if this end has shut down its sending. It does answer what it is sent, so the peer is asked to send
        // through the kernel.
        self.begin_back(Reason::Passed);
        self.update_guard(|_| true);
    }

    /// Sets how the kernel ends the connection when a descriptor closes. Unread bytes make it a reset, as with TCP. The
    /// end is orderly if nothing is owed and `may_end` accepts the number of bytes that the peer has not read.
    pub fn update_guard(&self, may_end: impl FnOnce(usize) -> bool) {
        self.with_sending(|| {
            if self.in_ring() != Ok(0) {
                self.guard();
            } else if !self.owes() && may_end(STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0)) {
                self.unguard();
            }
        });
    }

    /// Before the last holder closes the connection: no byte that it has sent is lost. A reset discards what the kernel
    /// has not sent yet. So bytes in the ring that the kernel would not send at once stay there then, and the peer reads
    /// them before it sees the reset.
    fn end_sending(&self, is_last: bool) {
        if !self.ends_by_reset() {
            return self.end_before_the_kernels(is_last);
        }
        // The kernel may hold back bytes from before the ring, or from behind it: the peer's answers in the ring
        // acknowledge none of them.
        self.with_sending(|| self.push());
        let unread = STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0);
        if kernel::sends_at_once(self.fd, unread) {
            return self.end_before_the_kernels(is_last);
        }
        self.with_sending(|| {
            if self.is_in_ring() {
                STREAM.back(&self.own, STREAM.tail(&self.own));
            }
        });
    }

    /// Returns whether the kernel will end the connection by a reset, which discards what is on the way: there are unread
    /// bytes, or the program has asked for it.
    fn ends_by_reset(&self) -> bool {
        if self.is_unix() {
            return false;
        }
        self.in_ring() != Ok(0)
            || kernel::queued(self.fd).is_some_and(|queued| queued > 0)
            || self.shared.lingers.load(Ordering::Relaxed) == linger::PROGRAMS
                && kernel::linger_seconds(self.fd) == Some(0)
    }

    /// Returns whether what this end sends goes through its ring, or did when its writer was killed.
    fn is_in_ring(&self) -> bool {
        matches!(STREAM.route(&self.own), Ok(Route::Ring | Route::Ending))
    }

    /// Before the kernel sends the end of this direction: the bytes that the peer has not taken go into the kernel
    /// first, as far as there is room. The next holder of that end, which may not have this library, gets all of them.
    pub fn end_before_the_kernels(&self, is_last: bool) {
        if !self.is_in_ring() {
            return;
        }
        let unread = STREAM.unread_by_peer(&self.own, &self.remote).unwrap_or(0);
        // An end that has shut down both ways answers new bytes by a reset. It reads the bytes that it already has
        // where they are.
        if unread == 0 || STREAM.flags(&self.remote) & LEAVING != 0 {
            return;
        }
        if is_last && !self.kernel_has_room(unread) {
            kernel::make_room(self.fd, unread);
        }
        let _held = self.shared.sending.hold();
        if self.kernel_has_room(unread) && self.is_in_ring() {
            self.end_ring();
        }
    }
}
