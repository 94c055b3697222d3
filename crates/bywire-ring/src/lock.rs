//! A lock of one word, in memory that processes share, that survives the death of its holder.
//!
//! The word is 0, or the number of the thread that holds the lock. Its highest bit says that other threads may sleep.
//! A sleeper that is not woken for a while checks whether the holder still lives, and takes the lock over from a dead
//! holder.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Other threads may sleep until the lock is released.
const CONTENDED: u32 = 1 << 31;
/// Attempts before a sleep.
const SPINS: u32 = 100;

/// The system calls that the lock needs.
pub trait Sleeping<W> {
    /// Sleeps for a while if the word is `expected`. Returns `true` if that time has passed and no thread has woken
    /// this one.
    fn sleep(&self, word: &W, expected: u32) -> bool;
    /// Wakes all threads that sleep on the word.
    fn wake(&self, word: &W);
    /// Does the thread with this number live?
    fn lives(&self, thread: u32) -> bool;
    /// Pauses briefly between two attempts. `false`: another attempt at once is pointless.
    fn pause(&self) -> bool;
}

/// Waits for the lock, as the thread with the number `me`. Takes the lock over from a holder that was killed.
#[inline]
pub fn take<W: Word>(word: &W, me: u32, system: &impl Sleeping<W>) {
    let mut spins = 0;
    // Acquire: pairs with the release swap in `give`; everything that the last holder has done comes before.
    while let Err(found) = word.compare_exchange(0, me, Ordering::Acquire) {
        if spins < SPINS && system.pause() {
            spins += 1;
            continue;
        }
        if is_left(word, found, system)
            // Acquire: pairs with the release swap in `give` of the thread that held the lock before the dead one.
            // The first thread that changes the word gets the lock.
            && word.compare_exchange(found | CONTENDED, me, Ordering::Acquire).is_ok()
        {
            break;
        }
    }
}

/// Takes the lock if nobody holds it. Returns whether it was taken.
#[inline]
pub fn take_if_free<W: Word>(word: &W, me: u32) -> bool {
    // Acquire: pairs with the release swap in `give`, as in `take`.
    word.compare_exchange(0, me, Ordering::Acquire).is_ok()
}

/// Releases the lock.
#[inline]
pub fn give<W: Word>(word: &W, system: &impl Sleeping<W>) {
    // Release: pairs with the acquire exchanges in `take`.
    if word.swap(0, Ordering::Release) & CONTENDED != 0 {
        system.wake(word);
    }
}

/// The thread that holds the lock, by a value of the word; 0: none.
#[must_use]
pub fn holder(found: u32) -> u32 {
    found & !CONTENDED
}

/// Sleeps. Returns `true` if the thread that held the lock is dead.
fn is_left<W: Word>(word: &W, found: u32, system: &impl Sleeping<W>) -> bool {
    let contended = found | CONTENDED;
    // Relaxed: the bit says only that a thread sleeps. The thread that releases the lock sees it by the word's own
    // order.
    let is_said = found == contended || word.compare_exchange(found, contended, Ordering::Relaxed).is_ok();
    found != 0 && is_said && system.sleep(word, contended) && !system.lives(found & !CONTENDED)
}
