//! How many connections were not carried, and why.

use core::sync::atomic::{AtomicU64, Ordering};

use bywire_pairing::reason::Reason;

use crate::arena::stage;
use crate::offer;
use crate::table::Socket;

/// By reason, since the last report.
static COUNTS: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];

/// A socket has come to its end.
pub fn ended(socket: &Socket) {
    let record = socket.record;
    let moved = record.sent.load(Ordering::Relaxed) + record.received.load(Ordering::Relaxed);
    let never = record.never.load(Ordering::Relaxed);
    let stage = record.stage.load(Ordering::Relaxed);
    // What never carried a byte, as listeners, is no connection; what was carried is no exception.
    if moved == 0 || stage == stage::CARRIED {
        return;
    }
    let reason = match (never.checked_sub(1).and_then(Reason::of), stage) {
        (Some(reason), _) => reason,
        (None, stage::WAITING) => Reason::Plain,
        (None, stage::PAIRED) => Reason::Waiting,
        (None, _) if record.calls.load(Ordering::Relaxed) == 0 => Reason::Shared,
        (None, _) => Reason::Short,
    };
    if let Some(count) = COUNTS.get(reason as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Tells the service what has come together.
pub fn report() {
    for (reason, count) in Reason::ALL.iter().zip(&COUNTS) {
        let found = count.swap(0, Ordering::Relaxed);
        if found > 0 {
            offer::note(*reason, found);
        }
    }
}
