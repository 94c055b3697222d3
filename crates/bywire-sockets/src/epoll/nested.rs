//! Epoll sets within epoll sets.
//!
//! The kernel reports the inner set to the outer one while the inner set has something. Rings are not known to the
//! kernel, so the inner set contains the flag while its rings have something. A thread that is about to ask the kernel
//! about the outer set raises the flags of the sets within it, or lowers them. It raises a flag once for the same state
//! of an inner set, and the kernel reports that to the sets around it as they have asked.
//!
//! A thread that sleeps in the outer set is announced, and the doorbell in that set wakes it. The inner set has the
//! doorbell only for threads that sleep in that set itself: a ring would stay there, and be reported, until one of them
//! takes it.

use core::sync::atomic::Ordering;

use crate::epoll::events;
use crate::epoll::members::{self, SEVERAL, UNKNOWN};
use crate::epoll::{parked, quiet};
use crate::memory::arena::{self, EpollSet, SETS};
use crate::memory::descriptors;
use crate::os::{errno, kernel};
use crate::wakeup::doorbell;

/// The kernel's own limit plus one: sets may have gone, and others may be in their records.
const DEPTH_MAX: u32 = 6;

/// Notes that the set of `outer_fd` watches `inner`, if `real` succeeds. Returns the kernel's status.
pub fn add(outer_fd: i32, inner_fd: i32, inner: u32, real: &dyn Fn() -> i32) -> i32 {
    let (Some(family), Some(found)) = (arena::shared(), descriptors::set_named(inner)) else { return real() };
    // Another thread that adds or watches it comes before this or after it, so this call undoes only what it has done.
    let held = family.nesting.hold();
    // Relaxed, all of them: the kernel orders them before any wait on the outer set, because it adds the inner one
    // afterwards.
    let was_nested = found.nested.swap(1, Ordering::Relaxed);
    list_all(inner_fd, found);
    let Some((name, outer)) = descriptors::set(outer_fd) else {
        let status = real();
        match status {
            0 => {
                found.outer.store(UNKNOWN, Ordering::Relaxed);
                let _held = found.lock.hold();
                errno::keep(|| members::add_doorbell(inner_fd, found));
            }
            _ => found.nested.store(was_nested, Ordering::Relaxed),
        }
        return status;
    };
    let known = found.outer.load(Ordering::Relaxed);
    // A set that is twice in one set, by two descriptors, counts as being in several.
    let within = match known {
        0 => name,
        UNKNOWN => UNKNOWN,
        _ => SEVERAL,
    };
    found.outer.store(within, Ordering::Relaxed);
    family.nested_end.fetch_max(inner % SETS as u32 + 1, Ordering::Relaxed);
    let held_sets = outer.holds_sets.swap(1, Ordering::Relaxed);
    doorbell::make_page();
    doorbell::announce_sleepers(outer);
    // A ring that is over makes the inner set ready no more.
    tell_kernel_of(inner_fd, inner, found, outer.processes.load(Ordering::Relaxed) == 1);
    let status = real();
    if status != 0 {
        found.nested.store(was_nested, Ordering::Relaxed);
        found.outer.store(known, Ordering::Relaxed);
        outer.holds_sets.store(held_sets, Ordering::Relaxed);
    }
    drop(held);
    if status == 0 {
        // Threads that sleep in the outer set have already checked the sets within it, and hear no doorbell there.
        errno::keep(|| {
            if !leaves_doorbell(name, outer) {
                members::restore_doorbell(outer_fd, outer);
            }
            tell_kernel(name, outer);
        });
    }
    status
}

/// Notes that `poll` watches the set of `fd`.
pub fn watch(fd: i32, set: &EpollSet) {
    let Some(family) = arena::shared() else { return };
    // `add` may take back what is found without the lock.
    let held = family.nesting.hold();
    let was_nested = set.nested.swap(1, Ordering::Relaxed);
    drop(held);
    if was_nested == 0 || set.quiet_count.load(Ordering::Relaxed) != 0 {
        errno::keep(|| list_all(fd, set));
    }
}

/// Lists every registration: sets around this one, and `poll`, know only those that each look examines.
fn list_all(fd: i32, set: &EpollSet) {
    parked::remove_all(fd, set);
    if set.quiet_count.load(Ordering::Relaxed) != 0 {
        let _held = set.lock.hold();
        quiet::end_all(set);
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

/// Visits the sets within this one, at any depth.
fn each_below(name: u32, set: &EpollSet, depth: u32, visit: &dyn Fn(u32, &EpollSet)) {
    if set.holds_sets.load(Ordering::Relaxed) == 0 || depth == 0 {
        return;
    }
    let Some(family) = arena::shared() else { return };
    let end = family.nested_end.load(Ordering::Relaxed);
    for (index, inner) in (0..end).zip(&family.sets).skip(1) {
        let outer = inner.outer.load(Ordering::Relaxed);
        let own = inner.generation.load(Ordering::Relaxed) * SETS as u32 + index;
        let is_within = outer == name || matches!(outer, SEVERAL | UNKNOWN) && own != name;
        if is_within && inner.processes.load(Ordering::Relaxed) != 0 {
            visit(own, inner);
            each_below(own, inner, depth - 1, visit);
        }
    }
}

/// Before the kernel is asked about a set: makes it know what the sets within it have.
pub fn tell_kernel(name: u32, set: &EpollSet) {
    // Another process that sleeps in the set could not raise the flag of a set that it does not have.
    let is_alone = set.processes.load(Ordering::Relaxed) == 1;
    each_below(name, set, DEPTH_MAX, &|inner_name, inner| {
        // Relaxed, and in `has_idle_doorbell`: a change is made under the lock, after another check.
        let (state, has_flag) = (events::state(inner), inner.has_flag.load(Ordering::Relaxed) != 0);
        let is_known = state.is_ready == has_flag && !state.is_news;
        if (!is_known || is_alone && members::has_idle_doorbell(inner_name, inner))
            && let Some(fd) = descriptors::of_set(inner_name)
        {
            tell_kernel_of(fd, inner_name, inner, is_alone);
        }
    });
}

/// Raises the flag of a set, or lowers it. `withdraws`: nobody around it relies on the doorbells in it.
fn tell_kernel_of(fd: i32, name: u32, set: &EpollSet, withdraws: bool) {
    let _held = set.lock.hold();
    if withdraws {
        members::withdraw_doorbell(fd, name, set);
    }
    let (state, has_flag) = (events::state_of_held(set, true), set.has_flag.load(Ordering::Relaxed) != 0);
    if !state.is_ready && has_flag {
        members::lower_flag(fd, set);
    }
    let is_told = !state.is_ready || has_flag && !state.is_news || members::raise_flag(fd, set);
    if !is_told {
        // A process without descriptors has no flag.
        errno::keep(|| members::add_doorbell(fd, set));
        doorbell::ring_own();
    }
}

/// Lowers the flag of a set in which a look has found nothing.
pub fn lower_idle_flag(fd: i32, set: &EpollSet) {
    let _held = set.lock.hold();
    if !events::state_of_held(set, false).is_ready {
        members::lower_flag(fd, set);
    }
}

/// Returns whether a set does without doorbells, because it is within others, and nobody sleeps in the set itself. A
/// doorbell that is added makes the set ready.
pub fn leaves_doorbell(name: u32, set: &EpollSet) -> bool {
    let outer = set.outer.load(Ordering::Relaxed);
    // Another process that sleeps in a set around this one could not raise the flag of a set that it does not have.
    let is_alone = |outer: &EpollSet| outer.processes.load(Ordering::Relaxed) == 1;
    let are_alone = |family: &arena::SharedArena| {
        let mut outers = family.sets.iter().filter(|set| set.holds_sets.load(Ordering::Relaxed) != 0);
        outers.all(|outer| outer.processes.load(Ordering::Relaxed) <= 1)
    };
    let is_theirs_alone = match outer {
        SEVERAL => arena::shared().is_some_and(are_alone),
        _ => descriptors::set_named(outer).is_some_and(is_alone),
    };
    is_theirs_alone && members::needs_no_doorbell(name, set)
}

/// Returns whether the kernel has something for the set of `fd` apart from flags and rings that are over. A ring stays
/// in a set until somebody waits for that set. A thread that only polls it removes the doorbell, and the next thread that
/// sleeps in the set adds it again.
pub fn has_more_than_rings(fd: i32) -> bool {
    let Some((name, set)) = descriptors::set(fd) else { return true };
    tell_kernel(name, set);
    tell_kernel_of(fd, name, set, true);
    kernel::ready(fd, libc::POLLIN) & libc::POLLIN != 0
}

/// Returns whether a set that is watched itself has something for its watcher, not counting the sets within it. The kernel
/// knows what those have.
pub fn is_ready(name: u32) -> bool {
    descriptors::set_named(name).is_some_and(|set| {
        tell_kernel(name, set);
        events::has_ready(set)
    })
}
