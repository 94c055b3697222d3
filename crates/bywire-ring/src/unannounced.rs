//! Sleepers that peers need not know of until something appears that peers ring for.
//!
//! Peers ring for announced sleepers. A sleeper that waits for other things is therefore not announced, but counted
//! in a separate word. A thread that adds something that peers ring for takes all these sleepers over, and announces
//! them in their place ([`announce`]). Each sleeper learns this as it wakes, by the round in which it was counted.
//!
//! ```text
//! sleeper: count + 1 → fence → is there something that peers ring for?    other: add it → fence → announce the count
//!          yes: leave, and be announced; no: sleep                               → take the count over
//! ```
//!
//! Whichever fence comes second sees the other side. The sleepers are announced before they are taken over, because
//! each of them withdraws its announcement once it finds itself taken over. A thread that is killed between the two
//! steps leaves too many sleepers announced, for which peers ring in vain, but never too few.

use core::sync::atomic::Ordering;

use crate::program_doorbell;
use crate::stream::Segment;
use crate::word::Word;

/// The bits below hold the number of sleepers. The bits from here on hold the round, which changes at each take-over.
const ROUND_BITS: u32 = 16;
const COUNT: u32 = (1 << ROUND_BITS) - 1;

/// Counts one more sleeper. Returns the round in which it is counted. `None`: there is no room, and the sleeper has
/// to be announced. A fence and a look for things that peers ring for follow.
pub fn enter<W: Word>(word: &W) -> Option<u32> {
    loop {
        // Relaxed, both: ordered by the caller's fence.
        let found = word.load(Ordering::Relaxed);
        if found & COUNT == COUNT {
            return None;
        }
        if word.compare_exchange(found, found + 1, Ordering::Relaxed).is_ok() {
            return Some(found >> ROUND_BITS);
        }
    }
}

/// Counts one sleeper less. `true`: it was announced meanwhile, and rises ([`crate::program_doorbell::rise`]).
pub fn leave<W: Word>(word: &W, round: u32) -> bool {
    loop {
        // Acquire: pairs with the release exchange in `announce`. The exchange below is relaxed: of it and the
        // exchange in `announce`, one sees the other.
        let found = word.load(Ordering::Acquire);
        if found >> ROUND_BITS != round {
            return true;
        }
        // A count of 0 stays 0.
        if found & COUNT == 0 || word.compare_exchange(found, found - 1, Ordering::Relaxed).is_ok() {
            return false;
        }
    }
}

/// Announces all of them to peers and takes them over. The caller has fenced before.
pub fn announce<W: Word, S: Segment>(word: &W, page: &S) {
    loop {
        // Relaxed: ordered by the caller's fence, which pairs with the one behind `enter`.
        let found = word.load(Ordering::Relaxed);
        let count = found & COUNT;
        if count == 0 {
            return;
        }
        program_doorbell::announce_others(page, count);
        let next = (found | COUNT).wrapping_add(1);
        // Release: pairs with the acquire load in `leave`: a sleeper that finds itself taken over was announced
        // before.
        if word.compare_exchange(found, next, Ordering::Release).is_ok() {
            return;
        }
        // A sleeper has come or left, or another thread was quicker.
        program_doorbell::take_back(page, count);
    }
}
