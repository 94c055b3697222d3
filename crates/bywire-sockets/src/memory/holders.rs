//! Processes that hold something in shared memory: their numbers, as far as there is room, and their count.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::os::pid;

/// Adds this process to the holders. `holders` are their numbers, as far as there is room. `false`: there was no room.
pub fn note(holders: &[AtomicU32]) -> bool {
    let Some(me) = pid::number() else { return false };
    let note =
        // AcqRel: pairs with the exchange in `is_taken` of another process.
        |place: &AtomicU32| place.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    holders.iter().any(note)
}

/// Whether this process is listed as a holder.
pub fn is_noted(holders: &[AtomicU32]) -> bool {
    pid::number().is_some_and(|me| holders.iter().any(|place| place.load(Ordering::Relaxed) == me))
}

/// Removes this process from the holders, and from their count. `true`: it was the last one; killed processes do not
/// count.
pub fn let_go(processes: &AtomicU32, holders: &[AtomicU32]) -> bool {
    if let Some(me) = pid::number() {
        holders.iter().any(|place| is_taken(place, me));
    }
    // AcqRel: pairs with the same operation of other processes. The last one sees all that they have done.
    processes.fetch_sub(1, Ordering::AcqRel) == 1 || forget_dead(processes, holders) == 0
}

/// Removes holders that were killed, or that executed another program and ended. Returns how many are left.
pub fn forget_dead(processes: &AtomicU32, holders: &[AtomicU32]) -> u32 {
    // Acquire: pairs with the changes of the count in `sockets::count_fork` and `let_go`.
    let mut left = processes.load(Ordering::Acquire);
    let Some(me) = pid::number() else { return left.max(1) };
    for place in holders {
        // Acquire: pairs with the exchange in `note`.
        let holder = place.load(Ordering::Acquire);
        if holder != 0 && holder != me && !pid::runs(holder) && is_taken(place, holder) {
            // AcqRel: pairs with the same operation of other processes, as in `let_go`.
            left = processes.fetch_sub(1, Ordering::AcqRel) - 1;
            if left == 0 {
                return 0;
            }
        }
    }
    left.max(1)
}

/// Removes a number. `false`: somebody else has removed it.
fn is_taken(place: &AtomicU32, holder: u32) -> bool {
    // AcqRel: pairs with the exchange in `note`. Only one of two callers that remove it succeeds.
    place.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
