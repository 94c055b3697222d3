//! Resources that several threads use and the last user clears away: a socket's mappings, in one process.
//!
//! A call first counts itself among the `users`, and then looks whether its descriptor still means the socket.
//! Closing first takes that meaning away, then takes one from `descriptors`, and is itself a user meanwhile. The last
//! user to leave when no descriptor is left clears. It stays counted until it has cleared, so the place is not given
//! to another socket meanwhile.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// In `users`: a thread clears or opens the place alone.
const ALONE: u32 = 1 << 31;

/// Counts one more user. The caller looks at the descriptor's meaning after this.
#[inline(always)]
pub fn enter<W: Word>(users: &W) {
    // SeqCst: pairs with the exchanges in `leave`. A call that comes after the last user has left sees that the
    // descriptor means nothing any more, which was stored before.
    users.fetch_add(1, Ordering::SeqCst);
}

/// Counts one user less. `true`: the caller is the last user, and clears before it calls [`cleared`].
#[inline(always)]
pub fn leave<W: Word>(users: &W, descriptors: &W) -> bool {
    loop {
        // Acquire: pairs with the exchange below of a user that left before, and with the additions in `cleared` and
        // `open`. If one of those threads has changed the descriptors, the next load sees it.
        let found = users.load(Ordering::Acquire);
        // Relaxed: ordered by the load above. A thread that closes is a user while it takes the last descriptor away.
        // A thread that opens is alone.
        let is_last = found == 1 && descriptors.load(Ordering::Relaxed) == 0;
        let next = if is_last { ALONE | 1 } else { found.wrapping_sub(1) };
        // SeqCst: pairs with the addition in `enter` and with the exchange in `open`. Everything that this user has
        // done comes before.
        if users.compare_exchange(found, next, Ordering::SeqCst).is_err() {
            continue;
        }
        // SeqCst: pairs with the addition in `close`. Between the load of `users` and the exchange, another user may
        // have come, closed the last descriptor, and left this one behind as the last. Then no other thread clears.
        if found != 1 || is_last || descriptors.load(Ordering::SeqCst) != 0 {
            return is_last;
        }
        enter(users);
    }
}

/// Notes that the last user has cleared.
pub fn cleared<W: Word>(users: &W) {
    // SeqCst: pairs with the exchange in `open`: the next use begins after the clearing.
    users.fetch_add((ALONE | 1).wrapping_neg(), Ordering::SeqCst);
}

/// Gives the place to a new socket with one descriptor. `false`: a call on the previous socket is still under way
/// there.
pub fn open<W: Word>(users: &W, descriptors: &W) -> bool {
    // SeqCst: pairs with the exchange in `leave` and the addition in `cleared`: everything that was done there comes
    // before.
    if users.compare_exchange(0, ALONE, Ordering::SeqCst).is_err() {
        return false;
    }
    // Relaxed: ordered by the addition below.
    descriptors.store(1, Ordering::Relaxed);
    // SeqCst: pairs with the load in `leave`, which sees the descriptor.
    users.fetch_add(ALONE.wrapping_neg(), Ordering::SeqCst);
    true
}

/// Counts one descriptor less; called by a user. `true`: it was the last one.
pub fn close<W: Word>(descriptors: &W) -> bool {
    // SeqCst: pairs with the last load in `leave`.
    descriptors.fetch_add(1u32.wrapping_neg(), Ordering::SeqCst) == 1
}
