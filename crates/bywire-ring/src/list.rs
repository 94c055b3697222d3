//! Lists of places by number. Each place knows the next one; 0 ends a list.
//!
//! Threads insert places before the first one, and walk the list, without a lock. A thread that takes a place out
//! holds a lock, which is common to all threads that do. A walk may find a place that was taken out since, and the
//! places behind it.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Inserts the place `at` before all others.
pub fn put<W: Word>(first: &W, at: u32, next_of_it: &W) {
    // Relaxed: the exchange tells whether the value is still current.
    let mut found = first.load(Ordering::Relaxed);
    loop {
        next_of_it.store(found, Ordering::Relaxed);
        // Release: pairs with the acquire load in `step`; the contents of the place come before.
        match first.compare_exchange(found, at, Ordering::Release) {
            Ok(_) => return,
            Err(other) => found = other,
        }
    }
}

/// The place that `link`, of the list or of a place, leads to.
#[inline(always)]
pub fn step<W: Word>(link: &W) -> u32 {
    // Acquire: pairs with the release exchange in `put` and the release store in `take_out`.
    link.load(Ordering::Acquire)
}

/// Takes out the place `at`, if it is alone in its list; no lock is needed. `false`: it is not alone, and nothing was
/// changed.
pub fn take_out_alone<W: Word>(first: &W, at: u32, next_of_it: &W) -> bool {
    // Other threads only insert before it: a place that is last and still the first has no neighbour.
    next_of_it.load(Ordering::Relaxed) == 0
        // Release: pairs with the acquire load in `step`.
        && first.compare_exchange(at, 0, Ordering::Release).is_ok()
}

/// Takes out the place `at`, with the lock held; `next` finds the link of a place, and `length_max` bounds the walk.
pub fn take_out<'a, W: Word + 'a>(
    first: &W,
    at: u32,
    length_max: usize,
    next: impl Fn(u32) -> Option<&'a W>,
) {
    let Some(own) = next(at) else { return };
    // Relaxed, here and in the walk: only holders of the lock change links between places.
    let after = own.load(Ordering::Relaxed);
    // Release: pairs with the acquire load in `step`.
    if first.compare_exchange(at, after, Ordering::Release).is_ok() {
        return;
    }
    let mut place = step(first);
    for _ in 0..length_max {
        let Some(link) = next(place) else { return };
        place = link.load(Ordering::Relaxed);
        if place == at {
            // Release: pairs with the acquire load in `step`.
            return link.store(after, Ordering::Release);
        }
    }
}
