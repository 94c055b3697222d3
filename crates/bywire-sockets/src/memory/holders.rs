//! Processes that hold something in memory that they share: by number, as far as there is room, and how many they are.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::os::pid;

/// This process is one of those that hold something: `holders` are their numbers, as far as there is room.
/// `false`: there was none.
pub fn note(holders: &[AtomicU32]) -> bool {
    let Some(me) = pid::number() else { return false };
    let note =
        // AcqRel: pairs with the exchange in `is_taken`, of another process.
        |place: &AtomicU32| place.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    holders.iter().any(note)
}

/// Is it known to be one of them?
pub fn is_noted(holders: &[AtomicU32]) -> bool {
    pid::number().is_some_and(|me| holders.iter().any(|place| place.load(Ordering::Relaxed) == me))
}

/// This process is none of them any more, of so many. `true`: it was the last one, those that were killed not counted.
pub fn let_go(processes: &AtomicU32, holders: &[AtomicU32]) -> bool {
    if let Some(me) = pid::number() {
        holders.iter().any(|place| is_taken(place, me));
    }
    // AcqRel: pairs with the same of other processes: the last one finds all that they have done.
    processes.fetch_sub(1, Ordering::AcqRel) == 1 || forget_dead(processes, holders) == 0
}

/// Takes out those that hold it no more as they were killed, or became another program and ended: how many are left.
pub fn forget_dead(processes: &AtomicU32, holders: &[AtomicU32]) -> u32 {
    // Acquire: pairs with the changes of the count in `sockets::count_fork` and `let_go`.
    let mut left = processes.load(Ordering::Acquire);
    let Some(me) = pid::number() else { return left.max(1) };
    for place in holders {
        // Acquire: pairs with the exchange in `note`.
        let holder = place.load(Ordering::Acquire);
        if holder != 0 && holder != me && !pid::runs(holder) && is_taken(place, holder) {
            // AcqRel: pairs with the same of other processes, as in `let_go`.
            left = processes.fetch_sub(1, Ordering::AcqRel) - 1;
            if left == 0 {
                return 0;
            }
        }
    }
    left.max(1)
}

/// Takes a number out; `false`: somebody else has done so.
fn is_taken(place: &AtomicU32, holder: u32) -> bool {
    // AcqRel: pairs with the exchange in `note`; of two that take it out, one does.
    place.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}
