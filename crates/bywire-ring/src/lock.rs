//! A lock of one word, in memory that processes share, that survives the death of its holder.
//!
//! The word is 0, or the number of the thread that holds it; its highest bit says that others may sleep. A sleeper that
//! hears nothing for a while asks whether the holder still lives, and takes over from one that does not.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Others may sleep until it is given back.
const CONTENDED: u32 = 1 << 31;
/// Looks before a sleep.
const SPINS: u32 = 100;

/// What the lock needs of the system.
pub trait Sleeping<W> {
    /// Sleeps for a while, if the word is `expected`; `true`: that while is over, and nobody has woken it.
    fn sleep(&self, word: &W, expected: u32) -> bool;
    /// Wakes all that sleep on the word.
    fn wake(&self, word: &W);
    /// Does the thread with this number live?
    fn lives(&self, thread: u32) -> bool;
    /// A moment between two looks; `false`: there is no point in looking again.
    fn pause(&self) -> bool;
}

/// Waits for the lock, as the thread with the number `me`. A holder that was killed is taken over from.
#[inline]
pub fn take<W: Word>(word: &W, me: u32, system: &impl Sleeping<W>) {
    let mut spins = 0;
    // Acquire: pairs with the release swap in `give`; what the last holder has done comes before.
    while let Err(found) = word.compare_exchange(0, me, Ordering::Acquire) {
        if spins < SPINS && system.pause() {
            spins += 1;
            continue;
        }
        if is_left(word, found, system)
            // Acquire: pairs with the release swap in `give` of whoever held it before the one that is gone. Whoever changes
            // the word first has it.
            && word.compare_exchange(found | CONTENDED, me, Ordering::Acquire).is_ok()
        {
            break;
        }
    }
}

/// Lets go of it.
#[inline]
pub fn give<W: Word>(word: &W, system: &impl Sleeping<W>) {
    // Release: pairs with the acquire exchanges in `take`.
    if word.swap(0, Ordering::Release) & CONTENDED != 0 {
        system.wake(word);
    }
}

/// Who holds it, by what the word was; 0: nobody.
#[must_use]
pub fn holder(found: u32) -> u32 {
    found & !CONTENDED
}

/// Sleeps. `true`: the thread that held it is no more.
fn is_left<W: Word>(word: &W, found: u32, system: &impl Sleeping<W>) -> bool {
    let contended = found | CONTENDED;
    // Relaxed: it says only that somebody sleeps; whoever gives the lock back sees it by the word's own order.
    let is_said = found == contended || word.compare_exchange(found, contended, Ordering::Relaxed).is_ok();
    found != 0 && is_said && system.sleep(word, contended) && !system.lives(found & !CONTENDED)
}
