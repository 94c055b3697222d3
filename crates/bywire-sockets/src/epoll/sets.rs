//! The program's epoll sets: their creation, their end, and the processes that hold them.

use core::sync::atomic::Ordering;

use crate::connection::sockets;
use crate::epoll::quiet;
use crate::epoll::registrations::{of_socket, unlink_from_socket};
use crate::memory::arena::{self, EpollSet, SETS};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::memory::holders;
use crate::memory::robust::Counted;
use crate::memory::vforked;
use crate::os::pid;
use crate::wakeup::doorbell;

/// Tracks `fd`, a new epoll set.
pub fn track(fd: i32) {
    let Some(own) = arena::private() else { return };
    let Some((index, set)) = claim_set(false).or_else(|| claim_set(true)) else { return };
    let name = begin_set(index, set);
    let _held = descriptors::change();
    if let (Some(count), Some(forked)) = (own.sets.get(index as usize), own.sets_forked.get(index as usize)) {
        forked.store(0, Ordering::Relaxed);
        count.store(1, Ordering::Relaxed);
    }
    descriptors::enter(fd, DescriptorKind::EpollSet(name));
}

/// Claims a record for a new epoll set, held by this process. `looks`: records whose holders were killed are free, too.
fn claim_set(looks: bool) -> Option<(u32, &'static EpollSet)> {
    let family = arena::shared()?;
    if looks {
        doorbell::count_out_killed();
    }
    let sets = &family.sets;
    let mut places = (0u32..).zip(sets).skip(1);
    places.find(|(_, set)| {
        if looks {
            holders::forget_dead(&set.processes, &set.holders);
        }
        // Acquire: pairs with the subtraction in `holders::let_go`.
        set.processes.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })
}

/// Prepares a record for a new set that nobody else knows yet. Returns the set's name.
fn begin_set(index: u32, set: &EpollSet) -> u32 {
    /// The generations that fit beside a descriptor's kind and the index.
    const GENERATIONS: u32 = (1 << 30) / SETS as u32;
    let _held = set.lock.hold();
    quiet::empty(set);
    let generation = (set.generation.load(Ordering::Relaxed) + 1) % GENERATIONS;
    set.generation.store(generation, Ordering::Relaxed);
    for field in [
        &set.has_doorbell,
        &set.nested,
        &set.outer,
        &set.holds_sets,
        &set.sleepers,
        &set.unannounced,
        &set.has_flag,
        &set.is_shared,
        &set.user,
        &set.turn,
        &set.walks,
    ]
    .into_iter()
    .chain(&set.holders)
    {
        field.store(0, Ordering::Relaxed);
    }
    set.branch.store(arena::branch(), Ordering::Relaxed);
    let name = generation * SETS as u32 + index;
    note_holder(name, set);
    name
}

/// Notes this process as a holder, by its number if there is room. The caller has deferred handlers.
fn note_holder(name: u32, set: &EpollSet) {
    if !holders::note(&set.holders)
        && let Some(family) = arena::shared()
    {
        family.notes.note(family.notes.begin(pid::number()), Counted::Holder(name));
    }
}

/// This process stops holding it. `true`: it was the last holder.
fn let_go_of(name: u32, set: &EpollSet) -> bool {
    if !holders::is_noted(&set.holders)
        && let Some(family) = arena::shared()
    {
        family.notes.forget(pid::number(), Counted::Holder(name));
    }
    holders::let_go(&set.processes, &set.holders)
}

/// Visits each epoll set that this process holds, once.
fn each_set(visit: impl Fn(u32, &EpollSet)) {
    let (Some(family), Some(own)) = (arena::shared(), arena::private()) else { return };
    for ((index, set), count) in (0u32..).zip(&family.sets).zip(&own.sets) {
        if count.load(Ordering::Relaxed) != 0 {
            visit(set.generation.load(Ordering::Relaxed) * SETS as u32 + index, set);
        }
    }
}

/// This process is about to exit and holds no epoll set any more. The kinds of descriptors stay, because threads may
/// use them.
pub fn let_go_of_all() {
    let (Some(family), Some(own)) = (arena::shared(), arena::private()) else { return };
    for ((index, set), count) in (0u32..).zip(&family.sets).zip(&own.sets) {
        let held = descriptors::change();
        // A close subtracts only from a count that is not zero, under the same lock.
        let is_held = count.swap(0, Ordering::Relaxed) != 0;
        drop(held);
        let name = set.generation.load(Ordering::Relaxed) * SETS as u32 + index;
        if is_held && let_go_of(name, set) {
            let _held = set.lock.hold();
            // All at once, not one by one with the sockets. The record may belong to another set by now, which has
            // emptied it.
            if descriptors::set_named(name).is_some() {
                quiet::empty(set);
            }
        }
    }
}

/// Removes a set's descriptor from the table. `true`: no known process has another one.
fn is_last_of_set(fd: i32, name: u32) -> bool {
    let _held = descriptors::change();
    let (Some(own), Some(set)) = (arena::private(), descriptors::set_named(name)) else { return false };
    if descriptors::kind(fd) != DescriptorKind::EpollSet(name) {
        return false;
    }
    descriptors::enter(fd, DescriptorKind::Untracked);
    let count = own.sets.get(name as usize % SETS);
    // Relaxed: changed only under `descriptors::change`. 0: this process has released all of its sets, because it
    // exits.
    count.is_some_and(|count| count.fetch_sub(1, Ordering::Relaxed) == 1) && let_go_of(name, set)
}

/// Nobody has the set of this name any more.
pub fn clear(name: u32) {
    let Some(set) = descriptors::set_named(name) else { return };
    let _held = set.lock.hold();
    // The record may belong to another set by now, which has emptied it.
    if descriptors::set_named(name).is_some() {
        quiet::empty(set);
    }
    // Registrations of sockets that are not carried are in none of the set's lists: they are found through the sockets.
    // Those of sockets that other processes have carry a name that no set will have, and go with the sockets.
    sockets::each_held(|socket, _| {
        while let Some((at, item)) =
            of_socket(socket).find(|(_, item)| item.set.load(Ordering::Relaxed) == name)
        {
            unlink_from_socket(socket.shared, at);
            quiet::free(set, at, item);
        }
    });
}

/// Notes that this process uses the set: its events are reported here.
pub fn note_user(set: &EpollSet) {
    let me = pid::number().unwrap_or(0);
    if set.user.load(Ordering::Relaxed) != me {
        set.user.store(me, Ordering::Relaxed);
    }
}

/// Notes that `fd` no longer means this set.
pub fn forget(fd: i32, name: u32) {
    // Threads that change the table take its lock.
    if is_last_of_set(fd, name) {
        clear(name);
    }
}

/// In a child that a child of `vfork` has forked: forgets the numbers that its parent had closed or replaced.
pub fn forget_vforked() {
    descriptors::each(|fd, kind| {
        if let DescriptorKind::EpollSet(name) = kind
            && vforked::is_noted(fd)
        {
            forget(fd, name);
        }
    });
}

/// Before a fork: counts the child as a holder of what this process holds.
pub fn count_fork(fork: u32) {
    each_set(|name, set| {
        if let Some(forked) = arena::private().and_then(|own| own.sets_forked.get(name as usize % SETS)) {
            forked.store(fork, Ordering::Relaxed);
        }
        // AcqRel: pairs with the subtraction in `holders::let_go` by the child.
        set.processes.fetch_add(1, Ordering::AcqRel);
    });
}

/// The fork of this number made no child.
pub fn undo_fork(fork: u32) {
    let (Some(family), Some(own)) = (arena::shared(), arena::private()) else { return };
    for ((index, set), forked) in (0u32..).zip(&family.sets).zip(&own.sets_forked) {
        let name = set.generation.load(Ordering::Relaxed) * SETS as u32 + index;
        if forked.load(Ordering::Relaxed) == fork && descriptors::is_left(fork, forked, &set.processes) {
            clear(name);
        }
    }
}

/// After a fork, in the child.
pub fn after_fork_in_child() {
    each_set(note_holder);
}
