//! What a carried connection is ready for, in the terms of `poll` and `epoll`.

use core::sync::atomic::Ordering;

use bywire_ring::stream::{DEAF, HALF, LEAVING, Route};

use crate::connection::sockets::{Connection, STREAM};
use crate::connection::source::Source;
use crate::memory::arena::{FAILED, FINISHED, HUNG_UP, SHUT, SHUT_SENDING};
use crate::os::kernel;

/// `EPOLLIN` and its equivalent for ordinary data.
pub const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// `EPOLLOUT` and its equivalents, for ordinary data and for others.
pub const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32 | OUT_OF_BAND;
/// Room for other data, which only a Unix socket reports.
const OUT_OF_BAND: u32 = libc::EPOLLWRBAND as u32;
/// The peer has finished.
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Reported whether requested or not.
pub const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// The result of one look at a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// What it is ready for now, according to the rings.
    pub bits: u32,
    /// Events that the kernel must be asked for, in addition to those that it always reports.
    pub ask: u32,
    /// Events of the kernel that are not reported to the program: they mean room for what is owed.
    pub withheld: u32,
    /// `SharedSocket::ended` when the look was made. It may have more bits since.
    pub ended: u8,
}

impl Ready {
    /// The events of `wanted` that the kernel knows and the rings do not.
    pub fn elsewhere(&self, wanted: u32) -> u32 {
        self.ask & wanted & (IN | OUT | libc::EPOLLPRI as u32) & !self.withheld
    }
}

impl Connection {
    /// Looks at the connection for a caller that waits for `wanted`.
    pub fn ready(&self, wanted: u32) -> Ready {
        self.serve();
        let ended = self.ended();
        if self.is_broken() && self.is_dissolved() {
            let bits = u32::from(kernel::ready(self.fd, wanted as i16) as u16);
            return Ready { bits, ask: wanted, ..Ready::default() };
        }
        if self.is_broken() {
            return Ready { bits: IN | self.room_bits() | RDHUP | ALWAYS, ended, ..Ready::default() };
        }
        let mut ready = Ready { ask: wanted & !(IN | OUT | RDHUP), ended, ..Ready::default() };
        let source = match self.current_source() {
            // It is empty for a moment, or for good if the process that took the last byte was killed.
            Ok(Source::KernelUntil(_)) if self.is_shared() && kernel::queued(self.fd) == Some(0) => {
                let _held = self.shared.receiving.hold();
                match self.source() {
                    Ok(Source::KernelUntil(_)) if !self.is_counted() => self.source(),
                    source => source,
                }
            }
            source => source,
        };
        match source {
            // Bytes in the kernel are not taken before the other end has ended its ring, which it announces. A peer that
            // never does must not keep the program busy with them.
            Ok(Source::Moment) if STREAM.route(&self.remote) == Ok(Route::Ending) => {}
            Ok(Source::Kernel | Source::KernelUntil(_) | Source::Moment) => ready.ask |= wanted & IN,
            // Held bytes come through the kernel, and only after the other end has acted.
            Ok(Source::Ring(0) | Source::Held) => {}
            Ok(Source::Ring(_)) => ready.bits |= IN,
            // The next call handles the error.
            Err(_) => ready.bits |= IN | self.room_bits(),
        }
        match STREAM.route(&self.own) {
            Ok(Route::Ring | Route::Ending) => {
                if wanted & OUT != 0 && (self.peer_is_gone() || self.is_refused() || self.is_writable()) {
                    ready.bits |= self.room_bits();
                }
            }
            // It goes into the ring, or fails.
            _ if self.is_required() => ready.bits |= if wanted & OUT != 0 { self.room_bits() } else { 0 },
            _ if self.owes() => (ready.ask, ready.withheld) = (ready.ask | libc::EPOLLOUT as u32, OUT),
            _ => ready.ask |= wanted & OUT,
        }
        if ended & FINISHED != 0 && !self.awaits_engine() {
            ready.bits |= IN | RDHUP;
        } else {
            // It must be reported in any case: it is the end of the readable bytes.
            ready.ask |= RDHUP;
        }
        if ended & HUNG_UP != 0 {
            ready.bits |= IN | self.room_bits() | RDHUP | libc::EPOLLHUP as u32;
        }
        if ended & FAILED != 0 {
            ready.bits |= IN | self.room_bits();
        }
        if ended & (HUNG_UP | FAILED) != 0 {
            // An error is reported until somebody has taken it, which only the kernel knows.
            ready.bits |= u32::from(kernel::ready(self.fd, 0) as u16) & ALWAYS;
            if self.has_error() {
                ready.bits |= libc::EPOLLERR as u32;
            }
        }
        ready
    }

    /// The bits by which a socket of this domain reports its room.
    fn room_bits(&self) -> u32 {
        if self.is_unix() { OUT } else { OUT & !OUT_OF_BAND }
    }

    /// Both directions are in the rings, nothing can be read, and neither end asks for anything or ends. While that
    /// holds, a look finds nothing for a thread that waits for bytes, and always asks the kernel for the same events.
    pub fn is_at_rest(&self) -> bool {
        STREAM.is_at_rest(&self.own, &self.remote)
            && self.shared.ended.load(Ordering::Relaxed) == 0
            && self.shared.drained.load(Ordering::Relaxed) != 0
            && !self.is_broken()
    }

    /// What has ended. The kernel is asked if either side has shut down or closed.
    fn ended(&self) -> u8 {
        let ended = self.shared.ended.load(Ordering::Relaxed);
        let flags = STREAM.flags(&self.remote);
        if ended == 0 && flags & (HALF | LEAVING | DEAF) == 0 {
            return 0;
        }
        let is_told = flags & HALF != 0 && ended & FINISHED == 0;
        // Bytes sent to a closed end result in an error, later.
        let is_left = flags & LEAVING != 0 && ended & HUNG_UP == 0;
        let is_both = ended & (SHUT_SENDING | FINISHED) == SHUT_SENDING | FINISHED && ended & HUNG_UP == 0;
        // Such an end sends no more, and a Unix socket has hung up then if it receives no more either.
        let is_refused = flags & DEAF != 0 && ended & (FINISHED | SHUT) != 0 && ended & HUNG_UP == 0;
        // A killed end announces nothing, and an end of the stream may keep the caller from asking.
        let may_be_killed = || ended & (FINISHED | HUNG_UP) == FINISHED && self.is_due_to_ask();
        if !is_told && !is_left && !is_both && !is_refused && !may_be_killed() {
            return ended;
        }
        self.ask_kernel();
        self.shared.ended.load(Ordering::Relaxed)
    }

    /// Returns whether a third of what may be unread is free, as in the kernel.
    fn is_writable(&self) -> bool {
        let is_full = |window: usize| {
            // The next call handles an error.
            STREAM.room_hint(&self.own, &self.remote, window).is_ok_and(|room| room < window / 3)
        };
        if !is_full(self.window()) {
            return true;
        }
        self.check_stall();
        let _held = self.shared.sending.hold();
        STREAM.bound(&self.own, self.window());
        STREAM.want_room(&self.own);
        !is_full(self.window())
    }
}
