//! Sleepers of whom peers need not know, until something comes that peers ring for.
//!
//! Announcing a sleeper makes its peers ring for it, so one that waits for other things is not announced: it is counted in
//! a word of its own. Whoever makes a thing wait-worthy for peers takes all of them over, and announces them in their place
//! ([`crate::bell::announce_others`]). Each of them finds that out as it wakes, by the round in which it was counted.
//!
//! ```text
//! sleeper: count + 1 → fence → is there something that peers ring for?        other: put it there → fence → take all over
//!          yes: leave, and be announced; no: sleep                                   → announce so many
//! ```
//!
//! Whichever fence comes second sees the other side. One that was killed asleep is counted, and then announced, for good:
//! peers ring now and then for nobody.

use core::sync::atomic::Ordering;

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
        // Relaxed, both: of this and a taking over, the exchanges tell which came first.
        let found = word.load(Ordering::Relaxed);
        if found >> ROUND_BITS != round {
            return true;
        }
        // Nought was left by nobody.
        if found & COUNT == 0 || word.compare_exchange(found, found - 1, Ordering::Relaxed).is_ok() {
            return false;
        }
    }
}

/// Takes all of them over, behind a fence: so many are to be announced.
pub fn take_over<W: Word>(word: &W) -> u32 {
    loop {
        // Relaxed, both: ordered by the caller's fence.
        let found = word.load(Ordering::Relaxed);
        let next = (found | COUNT).wrapping_add(1);
        if found & COUNT == 0 || word.compare_exchange(found, next, Ordering::Relaxed).is_ok() {
            return found & COUNT;
        }
    }
}
