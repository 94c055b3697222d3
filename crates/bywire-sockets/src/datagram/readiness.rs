//! Whether a UDP socket is readable by what is in memory, and threads that sleep in the kernel with it.

use bywire_pairing::reason::Reason;
use bywire_ring::datagrams::Next;

use crate::connection::sockets::counted;
use crate::datagram::flow::{RULES, Segments};
use crate::datagram::sockets::{ReceivingSide, Socket};
use crate::os::jumps::Noted;
use crate::os::{errno, kernel, own_call};
use crate::wakeup::spin;

/// UDP sockets that one call may sleep with. Further ones are left to the kernel.
pub const SLEEPS_MAX: usize = 6;

/// A look takes two locks: so few of them are made between two readings of the clock.
const SPIN_THINGS: usize = 4;

/// Spins before a sleep. A partner that was woken through the kernel may need longer than one spin lasts, and once both ends
/// are awake neither sleeps any more.
pub fn spins(is_ready: impl FnMut() -> bool, deadline_ns: Option<u64>) -> bool {
    spin::until_late(SPIN_THINGS, is_ready, deadline_ns)
}

impl Socket {
    /// Returns whether a datagram can be received out of memory.
    pub fn is_readable(&self) -> bool {
        if !self.has_flows() {
            return false;
        }
        let side = self.receiving();
        side.open_flows().any(|(_, flow)| {
            let Some(segments) = flow.segments() else { return false };
            // SAFETY: the lock is held.
            match unsafe { flow.receiving() }.reader.next(&RULES, &segments.remote) {
                Ok(Next::Due(_)) => true,
                Ok(_) => false,
                Err(_) => {
                    flow.end();
                    false
                }
            }
        })
    }
}

impl ReceivingSide {
    /// Before a look into the kernel's queue: keeps what the writers have given to it by now.
    pub fn note_ended(&self) {
        for (_, flow) in self.open_flows() {
            if let Some(segments) = flow.segments() {
                // SAFETY: the lock is held.
                let receiving = unsafe { flow.receiving() };
                receiving.ended = receiving.reader.before_look(&segments.remote);
            }
        }
    }

    /// That look has found nothing.
    pub fn found_empty(&self) {
        let now_ns = kernel::now_ns();
        for (_, flow) in self.open_flows() {
            if let Some(Segments { own, remote }) = flow.segments() {
                // SAFETY: the lock is held.
                let receiving = unsafe { flow.receiving() };
                receiving.reader.found_empty(&own, &remote, receiving.ended, now_ns);
            }
        }
    }
}

/// A call that sleeps in the kernel with UDP sockets, or is about to, until dropped. A handler may jump out of it.
#[derive(Default)]
pub struct Asleep {
    noted: [Option<Noted>; SLEEPS_MAX],
    count: usize,
}

impl Asleep {
    /// Adds a socket. From here on what is sent to it comes through the kernel. The caller looks at its memory once more.
    pub fn enter(&mut self, socket: &Socket) {
        let Some(place) = self.noted.get_mut(self.count) else {
            return socket.stay(Reason::Epoll);
        };
        self.count += 1;
        // SeqCst in there: pairs with the load in `ReceivingSide::open_gates`.
        *place = Some(counted(&socket.record.sleepers));
        if !socket.has_flows() {
            return;
        }
        /// How often a writer that is about to publish is looked at. It is so for a few instructions, unless it was stopped
        /// there, and offers the core to it from some point on.
        const LOOKS: u32 = 10_000;
        for look in 0..LOOKS {
            if socket.receiving().close_gates() {
                return;
            }
            if look > 100
                && let Some(_own) = own_call::begin()
            {
                // SAFETY: no arguments.
                unsafe { libc::sched_yield() };
            }
            core::hint::spin_loop();
        }
        // It was stopped or killed there. What it goes on to publish is lost.
        socket.stop();
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        // The last one first, as notes are released.
        errno::keep(|| self.noted.iter_mut().rev().for_each(|noted| drop(noted.take())));
    }
}
