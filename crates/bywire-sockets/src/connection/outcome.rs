//! Counts connections that were not carried, by reason.

use core::sync::atomic::{AtomicU64, Ordering};

use bywire_pairing::reason::Reason;

use crate::connection::policy;
use crate::connection::sockets::Socket;
use crate::memory::arena::{SharedSocket, broken, stage};
use crate::os::kernel;

/// A connection that moved data by fewer calls after it was paired ended too soon.
const TRIES_MIN: u32 = 16;
/// A connection that waited for the other end no longer than this may have ended before the other end was offered.
const WAIT_NS: u64 = 100_000_000;

/// The counts by reason, since the last report.
static COUNTS: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];

/// The outcome of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It left the kernel.
    Carried,
    /// It stayed in the kernel, for this reason.
    Kernel(Reason),
}

/// Counts a socket that has ended.
pub fn ended(socket: &Socket) {
    if let Some(Outcome::Kernel(reason)) = of(socket)
        && let Some(count) = COUNTS.get(reason as usize)
    {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The outcome of a socket; `None`: it was no connection.
pub fn of(socket: &Socket) -> Option<Outcome> {
    let shared = socket.shared;
    let moved = shared.sent.load(Ordering::Relaxed) + shared.received.load(Ordering::Relaxed);
    let never = shared.never.load(Ordering::Relaxed);
    let stage = shared.stage.load(Ordering::Relaxed);
    if stage == stage::CARRIED && shared.broken.load(Ordering::Relaxed) != broken::DISSOLVED {
        return Some(Outcome::Carried);
    }
    // A socket that never moved a byte, such as a listener, is no connection.
    if moved == 0 {
        return None;
    }
    let calls = shared.calls.load(Ordering::Relaxed);
    let reason = match (never.checked_sub(1).and_then(Reason::of), stage) {
        (Some(reason), _) => reason,
        (None, stage::PLAIN) if let Some(reason) = policy::given_up() => reason,
        (None, stage::WAITING) if has_waited(shared) => Reason::Plain,
        (None, stage::PAIRED) if calls >= TRIES_MIN => Reason::Waiting,
        (None, stage::PLAIN) => {
            let hindered = shared.hindered.load(Ordering::Relaxed);
            hindered.checked_sub(1).and_then(Reason::of).unwrap_or(Reason::Short)
        }
        (None, _) => Reason::Short,
    };
    Some(Outcome::Kernel(reason))
}

fn has_waited(shared: &SharedSocket) -> bool {
    kernel::now_ns().saturating_sub(shared.offered_ns.load(Ordering::Relaxed)) > WAIT_NS
}

/// Clears the counts in a forked child. The parent reports its own.
pub fn after_fork_in_child() {
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

/// Reports the counts: each reason, and the number of its connections.
pub fn report(tell: impl Fn(Reason, u64)) {
    for (reason, count) in Reason::ALL.iter().zip(&COUNTS) {
        let found = count.swap(0, Ordering::Relaxed);
        if found > 0 {
            tell(*reason, found);
        }
    }
}
