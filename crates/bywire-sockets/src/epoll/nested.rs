//! Epoll sets within epoll sets.
//!
//! The kernel reports the inner set to the outer one when the inner set's doorbell is rung. So a thread that sleeps in
//! the outer set is announced, too. What has reached an inner set before is found by the outer set's own wait, which
//! rings for it. It rings once for the same state of an inner set: the ring stays in that set until somebody takes it
//! there, and the kernel reports it to the sets around it as they have asked.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use crate::epoll::events;
use crate::memory::arena::{self, EpollSet, SETS};
use crate::memory::descriptors;
use crate::os::{errno, kernel};
use crate::wakeup::doorbell;

/// In [`EpollSet::outer`]: the set is within more than one set.
const SEVERAL: u32 = u32::MAX;
/// The kernel's own limit plus one: sets may have gone, and others may be in their records.
const DEPTH_MAX: u32 = 6;

/// Notes that the set of `outer_fd` watches `inner`, if `real` succeeds. Returns the kernel's status.
pub fn add(outer_fd: i32, inner: u32, real: &dyn Fn() -> i32) -> i32 {
    let (Some(family), Some(found)) = (arena::shared(), descriptors::set_named(inner)) else { return real() };
    // Another thread that adds or watches it comes before this or after it, so this call undoes only what it has done.
    let held = family.nesting.hold();
    // Relaxed, all of them: the kernel orders them before any wait on the outer set, because it adds the inner one
    // afterwards.
    let was_nested = found.nested.swap(1, Ordering::Relaxed);
    let Some((name, outer)) = descriptors::set(outer_fd) else {
        let status = real();
        match status {
            // The set around it is not known: only a ring reaches threads that sleep there.
            0 => found.outer.store(SEVERAL, Ordering::Relaxed),
            _ => found.nested.store(was_nested, Ordering::Relaxed),
        }
        return status;
    };
    let known = found.outer.load(Ordering::Relaxed);
    // A set that is twice in one set, by two descriptors, counts as being in several.
    found.outer.store(if known == 0 { name } else { SEVERAL }, Ordering::Relaxed);
    family.nested_end.fetch_max(inner % SETS as u32 + 1, Ordering::Relaxed);
    let held_sets = outer.holds_sets.swap(1, Ordering::Relaxed);
    doorbell::make_page();
    doorbell::announce_sleepers(outer);
    let status = real();
    if status != 0 {
        found.nested.store(was_nested, Ordering::Relaxed);
        found.outer.store(known, Ordering::Relaxed);
        outer.holds_sets.store(held_sets, Ordering::Relaxed);
    }
    drop(held);
    if status == 0 {
        // Threads that sleep in the outer set have already checked the sets within it.
        errno::keep(|| ring_for_inner(name, outer));
    }
    status
}

/// Notes that `poll` watches a set.
pub fn watch(set: &EpollSet) {
    if let Some(family) = arena::shared() {
        // `add` may take back what is found without the lock.
        let _held = family.nesting.hold();
        set.nested.store(1, Ordering::Relaxed);
    }
}

/// Notes that the set of `outer_fd` no longer watches `inner`. A set that was in several counts as watched by each of
/// them.
pub fn remove(outer_fd: i32, inner: u32) {
    let (Some(found), Some((name, _))) = (descriptors::set_named(inner), descriptors::set(outer_fd)) else {
        return;
    };
    let Some(family) = arena::shared() else { return };
    let _held = family.nesting.hold();
    // Relaxed: a thread that still finds it only looks there without need.
    let _ = found.outer.compare_exchange(name, 0, Ordering::Relaxed, Ordering::Relaxed);
}

/// Whether a set within this one has something.
pub fn is_any_ready(name: u32, set: &EpollSet) -> bool {
    is_any_below(name, set, DEPTH_MAX, &|inner| events::has_ready(inner))
}

/// Whether `is_so` holds for a set within this one, at any depth.
fn is_any_below(name: u32, set: &EpollSet, depth: u32, is_so: &dyn Fn(&EpollSet) -> bool) -> bool {
    if set.holds_sets.load(Ordering::Relaxed) == 0 || depth == 0 {
        return false;
    }
    let Some(family) = arena::shared() else { return false };
    let end = family.nested_end.load(Ordering::Relaxed);
    (0..end).zip(&family.sets).skip(1).any(|(index, inner)| {
        let outer = inner.outer.load(Ordering::Relaxed);
        let own = inner.generation.load(Ordering::Relaxed) * SETS as u32 + index;
        (outer == name || outer == SEVERAL && own != name)
            && inner.processes.load(Ordering::Relaxed) != 0
            && (is_so(inner) || is_any_below(own, inner, depth - 1, is_so))
    })
}

/// Before the kernel is asked for a set: makes it know what the sets within it have.
pub fn ring_for_inner(name: u32, set: &EpollSet) {
    let is_new = Cell::new(false);
    // `false`, so that each of them is visited.
    is_any_below(name, set, DEPTH_MAX, &|inner| {
        let state = events::state(inner);
        // Relaxed: a thread that takes the ring clears this before it looks, and leaves what it does not take to the
        // next wait.
        if state != 0 && inner.rung_for.swap(state, Ordering::Relaxed) != state {
            is_new.set(true);
        }
        false
    });
    if is_new.get() {
        doorbell::ring_own();
    }
}

/// Notes that somebody has taken a ring out of this set: the next one is for whatever the set has then.
pub fn taken(set: &EpollSet) {
    set.rung_for.store(0, Ordering::Relaxed);
}

/// Returns whether the kernel has something for the set of `fd` apart from a ring that is over. A ring stays in a set
/// until somebody waits for that set. A thread that only polls it removes the doorbell, and the next thread that sleeps
/// in the set adds it again.
pub fn has_more_than_rings(fd: i32) -> bool {
    let Some((name, set)) = descriptors::set(fd) else { return true };
    let _held = set.lock.hold();
    // A sleeper takes the ring itself. It is counted before it looks under this lock, and only then does it see to the
    // doorbell. Sets around this one, and other processes, need the doorbell here.
    let is_needed = set.sleepers.load(Ordering::Relaxed) != 0
        || set.outer.load(Ordering::Relaxed) != 0
        || set.processes.load(Ordering::Relaxed) != 1
        || descriptors::set_named(name).is_none();
    if is_needed || set.has_doorbell.swap(0, Ordering::Relaxed) == 0 {
        return true;
    }
    errno::keep(|| doorbell::remove_from(fd));
    kernel::ready(fd, libc::POLLIN) & libc::POLLIN != 0
}

/// Whether a set that is watched itself has something for its watcher.
pub fn is_ready(name: u32) -> bool {
    descriptors::set_named(name).is_some_and(|set| events::has_ready(set) || is_any_ready(name, set))
}
