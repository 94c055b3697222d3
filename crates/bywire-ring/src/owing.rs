//! Whether threads of a process may owe something. A thread that waits finds out by looking at everything.
//!
//! The lowest bit of the word says that something may be owed. The other bits count how often something was found to
//! be owed. A look that has found nothing clears the bit only if nothing was counted since the look began. So the bit
//! stays where other threads have looked and counted meanwhile and the bit has its old value again.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Something may be owed.
const MAY: u32 = 1;
/// One more thing was found to be owed.
const ONE: u32 = 2;

/// Notes that something is owed. The caller has stored it before.
pub fn owe<W: Word>(word: &W) {
    let mut found = word.load(Ordering::Relaxed);
    // Release: pairs with the acquire load in `begin_look`: a look that begins after this sees what is owed.
    while let Err(other) = word.compare_exchange(found, found.wrapping_add(ONE) | MAY, Ordering::Release) {
        found = other;
    }
}

/// Returns whether one thing was counted between two values of the word, while something may have been owed.
pub fn is_next(before: u32, after: u32) -> bool {
    before & MAY != 0 && after == before.wrapping_add(ONE)
}

/// May something be owed? If so, a thread that waits for other things looks.
#[inline(always)]
pub fn may<W: Word>(word: &W) -> bool {
    // Relaxed: a thread that owes something sees its own store. Any other thread begins its look with `begin_look`.
    word.load(Ordering::Relaxed) & MAY != 0
}

/// Begins a look at everything; [`found_nothing`] is for its end.
pub fn begin_look<W: Word>(word: &W) -> u32 {
    // Acquire: pairs with the release exchange in `owe`.
    word.load(Ordering::Acquire)
}

/// Ends the look that began with `begun` and found nothing that is owed.
pub fn found_nothing<W: Word>(word: &W, begun: u32) {
    // Relaxed: it publishes nothing that other threads have to see. If something was counted meanwhile, the word has
    // changed and the exchange fails.
    let _kept = word.compare_exchange(begun, begun & !MAY, Ordering::Relaxed);
}
