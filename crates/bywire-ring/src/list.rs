//! Lists of places by number, each of which knows the next one; 0 ends a list.
//!
//! Threads put places before the first one without a lock, and walk along without one. Whoever takes a place out holds a
//! lock that all hold who do. A walk may find a place that was taken out since, with what comes behind it.

use core::sync::atomic::Ordering;

use crate::word::Word;

/// Puts the place `at` before all others.
pub fn put<W: Word>(first: &W, at: u32, next_of_it: &W) {
    // Relaxed: the exchange tells whether it is right.
    let mut found = first.load(Ordering::Relaxed);
    loop {
        next_of_it.store(found, Ordering::Relaxed);
        // Release: pairs with the acquire load in `step`; what the place holds comes before.
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

/// Takes out the place `at`, if it is alone in its list; no lock is needed. `false`: it is not, and nothing was changed.
pub fn take_out_alone<W: Word>(first: &W, at: u32, next_of_it: &W) -> bool {
    // Others only put theirs before it: alone, and still the first, it has no neighbour.
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
    // Relaxed, this and the walk: only holders of the lock change links between places.
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
