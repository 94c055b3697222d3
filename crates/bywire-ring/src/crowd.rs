//! Sleepers of whom peers need not know, until something comes that peers ring for.
//!
//! Announcing a sleeper makes its peers ring for it, so one that waits for other things is not announced: it is counted in
//! a word of its own. Whoever makes a thing wait-worthy for peers takes all of them over, and announces them in their place
//! ([`announce`]). Each of them finds that out as it wakes, by the round in which it was counted.
//!
//! ```text
//! sleeper: count + 1 → fence → is there something that peers ring for?        other: put it there → fence → announce so many
//!          yes: leave, and be announced; no: sleep                                   → take so many over
//! ```
//!
//! Whichever fence comes second sees the other side. They are announced before they are taken over, as each of them takes its
//! announcement back once it finds itself taken over: whoever is killed between the two leaves some announced too many, for
//! whom peers ring in vain, and none too few.

use core::sync::atomic::Ordering;

use crate::bell;
use crate::stream::Segment;
use crate::word::Word;

/// Below: how many there are. From here on: the round, which changes when they are taken over.
const ROUND_BITS: u32 = 16;
const COUNT: u32 = (1 << ROUND_BITS) - 1;

/// One sleeper more: the round in which it is counted. `None`: there is no room, it has to be announced. A fence and a look
/// at what peers ring for follow.
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

/// It sleeps no more. `true`: it was announced meanwhile, and rises ([`crate::bell::rise`]).
pub fn leave<W: Word>(word: &W, round: u32) -> bool {
    loop {
        // Acquire: pairs with the release exchange in `announce`. The exchange is relaxed: of it and that one, either sees the
        // other.
        let found = word.load(Ordering::Acquire);
        if found >> ROUND_BITS != round {
            return true;
        }
        // Nought was left by nobody.
        if found & COUNT == 0 || word.compare_exchange(found, found - 1, Ordering::Relaxed).is_ok() {
            return false;
        }
    }
}

/// Announces all of them to peers and takes them over, behind a fence.
pub fn announce<W: Word, S: Segment>(word: &W, page: &S) {
    loop {
        // Relaxed: ordered by the caller's fence, which pairs with the one behind `enter`.
        let found = word.load(Ordering::Relaxed);
        let count = found & COUNT;
        if count == 0 {
            return;
        }
        bell::announce_others(page, count);
        let next = (found | COUNT).wrapping_add(1);
        // Release: pairs with the acquire load in `leave`: who finds itself taken over was announced before.
        if word.compare_exchange(found, next, Ordering::Release).is_ok() {
            return;
        }
        // Somebody has come, or left, or was quicker.
        bell::take_back(page, count);
    }
}
