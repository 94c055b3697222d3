//! Whether threads of a process may owe something, which one that waits finds out by a look at everything.
//!
//! The lowest bit of the word says that something may be owed; the others count how often something was found to be. A look that
//! has found nothing takes the bit away only if nothing was counted since it began: not even if others have looked and counted
//! meanwhile, and the bit is as it was.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Something may be owed.
const MAY: u32 = 1;
/// One more was found.
const ONE: u32 = 2;

/// Something is owed, which was stored before.
pub fn owe<W: Word>(word: &W) {
    let mut found = word.load(Ordering::Relaxed);
    // Release: pairs with the acquire load in `begin_look`: whoever begins to look behind this sees what is owed.
    while let Err(other) = word.compare_exchange(found, found.wrapping_add(ONE) | MAY, Ordering::Release) {
        found = other;
    }
}

/// May something be owed? Whoever waits for other things looks, then.
#[inline(always)]
pub fn may<W: Word>(word: &W) -> bool {
    // Relaxed: a thread that owes something sees its own word, and one that does not begins to look behind `begin_look`.
    word.load(Ordering::Relaxed) & MAY != 0
}

/// Before a look at everything; [`found_nothing`] is for its end.
pub fn begin_look<W: Word>(word: &W) -> u32 {
    // Acquire: pairs with the release exchange in `owe`.
    word.load(Ordering::Acquire)
}

/// The look that began with `begun` has found nothing that is owed.
pub fn found_nothing<W: Word>(word: &W, begun: u32) {
    // Relaxed: it says nothing of what others have to see. If something was counted meanwhile, the word is another one.
    let _kept = word.compare_exchange(begun, begun & !MAY, Ordering::Relaxed);
}
