//! What several threads use and whoever comes last clears away: a socket's mappings, in one process.
//!
//! A call counts itself among the `users`, and only then looks whether its descriptor still means the socket. Closing
//! takes the meaning away first, then a descriptor from the count, while it is a user itself. Whoever leaves last, with no
//! descriptor left, clears, and is counted until that is done: the place is not given to another socket meanwhile.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Among the users: one that clears, or that opens.
const ALONE: u32 = 1 << 31;

/// One user more. It looks at the descriptor's meaning after this.
#[inline(always)]
pub fn enter<W: Word>(users: &W) {
    // SeqCst: pairs with the exchanges in `leave`: a call that comes after the last one has left sees that the descriptor
    // means nothing any more, which was stored before.
    users.fetch_add(1, Ordering::SeqCst);
}

/// One user less. `true`: it is the last, and clears before it calls [`cleared`].
#[inline(always)]
pub fn leave<W: Word>(users: &W, descriptors: &W) -> bool {
    loop {
        // Acquire: pairs with the exchange of whoever has left before, below, and with the addition in `cleared` and `open`: if
        // one of them has changed the descriptors, it is seen in the next.
        let found = users.load(Ordering::Acquire);
        // Relaxed: ordered by that. Who closes is a user while it takes the last descriptor away; who opens is alone.
        let is_last = found == 1 && descriptors.load(Ordering::Relaxed) == 0;
        let next = if is_last { ALONE | 1 } else { found.wrapping_sub(1) };
        // SeqCst: pairs with the addition in `enter` and with the exchange in `open`. What this user has done comes before.
        if users.compare_exchange(found, next, Ordering::SeqCst).is_err() {
            continue;
        }
        // SeqCst: pairs with the addition in `close`. Somebody may have come, closed, and left this one behind as the last,
        // between the two looks at the users: then nobody else clears.
        if found != 1 || is_last || descriptors.load(Ordering::SeqCst) != 0 {
            return is_last;
        }
        enter(users);
    }
}

/// All is cleared.
pub fn cleared<W: Word>(users: &W) {
    // SeqCst: pairs with the exchange in `open`: the next use begins behind what was cleared.
    users.fetch_add((ALONE | 1).wrapping_neg(), Ordering::SeqCst);
}

/// The place is given to a new socket, with one descriptor; `false`: a call of the last one is still under way there.
pub fn open<W: Word>(users: &W, descriptors: &W) -> bool {
    // SeqCst: pairs with the exchange in `leave` and the addition in `cleared`: all that was done there comes before.
    if users.compare_exchange(0, ALONE, Ordering::SeqCst).is_err() {
        return false;
    }
    // Relaxed: ordered by the next.
    descriptors.store(1, Ordering::Relaxed);
    // SeqCst: pairs with the load in `leave`, which sees the descriptor.
    users.fetch_add(ALONE.wrapping_neg(), Ordering::SeqCst);
    true
}

/// One descriptor less, by a user. `true`: it was the last one.
pub fn close<W: Word>(descriptors: &W) -> bool {
    // SeqCst: pairs with the last load in `leave`.
    descriptors.fetch_add(1u32.wrapping_neg(), Ordering::SeqCst) == 1
}
