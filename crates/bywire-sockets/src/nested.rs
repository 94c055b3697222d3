//! Epoll sets within epoll sets.
//!
//! The kernel tells the outer set of the inner one's bell, if it is rung: so whoever sleeps in the outer set announces it,
//! and what has come to an inner set before is looked for, and rung for, by the outer set's own wait.

use core::sync::atomic::Ordering;

use crate::arena::{self, Set};
use crate::{bell, epoll, table};

/// In [`Set::outer`]: within more than one set.
const SEVERAL: u32 = u32::MAX;
/// The kernel's own limit, and one more: sets may have gone, and others come in their places.
const DEPTH_MAX: u32 = 6;

/// The set of `outer_fd` watches `inner` from here on. What is taken out again counts as watched, which costs only time.
pub fn add(outer_fd: i32, inner: u32) {
    let Some(family) = arena::family() else { return };
    let Some(found) = family.sets.get(inner as usize) else { return };
    found.nested.store(1, Ordering::Relaxed);
    let Some((index, outer)) = table::set(outer_fd) else { return };
    // Relaxed, all of them: the kernel orders them before whatever the outer set is asked, as it adds the inner one after.
    let _ = found.outer.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| {
        Some(if known == 0 || known == index { index } else { SEVERAL })
    });
    family.nested_end.fetch_max(inner + 1, Ordering::Relaxed);
    outer.holds_sets.store(1, Ordering::Relaxed);
}

/// Does a set within this one have something?
pub fn is_any_ready(index: u32, set: &Set) -> bool {
    is_any_ready_below(index, set, DEPTH_MAX)
}

fn is_any_ready_below(index: u32, set: &Set, depth: u32) -> bool {
    if set.holds_sets.load(Ordering::Relaxed) == 0 || depth == 0 {
        return false;
    }
    let Some(family) = arena::family() else { return false };
    let end = family.nested_end.load(Ordering::Relaxed);
    family.sets.iter().enumerate().take(end as usize).skip(1).any(|(at, inner)| {
        let outer = inner.outer.load(Ordering::Relaxed);
        (outer == index || outer == SEVERAL && at as u32 != index)
            && inner.references.load(Ordering::Relaxed) != 0
            && (epoll::has_ready(inner) || is_any_ready_below(at as u32, inner, depth - 1))
    })
}

/// Before the kernel is asked for a set: it shall know of what the sets within it have.
pub fn ring_for_inner(index: u32, set: &Set) {
    if is_any_ready(index, set) {
        bell::ring_own();
    }
}
