//! Threads that sleep in an epoll set.

use core::sync::atomic::{Ordering, fence};

use bywire_ring::unannounced;

use crate::memory::arena::{self, EpollSet};
use crate::memory::robust::Counted;
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::{pid, signal_deferral};
use crate::wakeup::doorbell;

/// A thread that sleeps in a set, until dropped. It may be cancelled there, or left by a jump.
pub struct Sleeping {
    _counted: Noted,
    /// It is announced to peers; `None`: there is no page.
    doorbell: Option<doorbell::Asleep>,
}

/// The bit positions of the fields in a sleeper's number: the set's name in the lowest bits, then the place of its
/// note, then the round in which it is counted.
const PLACE: u32 = 48;
const ROUND: u32 = 32;

/// The set's name, the round, and the place.
fn parts(number: usize) -> (u32, u32, u32) {
    (number as u32, (number >> ROUND) as u32 % (1 << (PLACE - ROUND)), (number >> PLACE) as u32)
}

impl Sleeping {
    /// Announces this thread. The caller then checks everything once more. `place` is as for [`doorbell::asleep`].
    pub fn announce(name: u32, set: &EpollSet, place: usize) -> Option<Self> {
        let notes = &arena::shared()?.notes;
        signal_deferral::hold_off();
        let noted = notes.begin(pid::number());
        // Relaxed: a thread that looks after this one, and leaves something, finds the count by the set's lock.
        set.sleepers.fetch_add(1, Ordering::Relaxed);
        notes.note(noted, Counted::Asleep(name));
        let argument = (noted as usize) << PLACE | name as usize;
        let counted = jumps::note(place, GiveBack { ends: wake, left: wake, argument });
        signal_deferral::admit();
        Some(Self { _counted: counted, doorbell: doorbell::asleep(place) })
    }

    /// Whether a peer would ring for it.
    pub fn is_announced(&self) -> bool {
        self.doorbell.is_some()
    }
}

fn wake(number: usize) {
    let (name, _, noted) = parts(number);
    end(noted, Counted::Asleep(name));
}

/// Removes one sleeper.
fn end(noted: u32, counted: Counted) {
    if let Some(family) = arena::shared() {
        family.notes.end(noted, counted, || doorbell::count_out(counted));
    }
}

/// A thread that sleeps in a set that holds nothing carried, until dropped: peers need not know it. Once the set holds
/// something carried, the thread that has put it there announces the sleeper.
pub struct Unannounced(#[expect(dead_code, reason = "held for its drop")] Noted);

impl Unannounced {
    /// `None`: peers must know. `place` is as for [`doorbell::asleep`].
    pub fn enter(name: u32, set: &EpollSet, place: usize) -> Option<Self> {
        if is_of_concern(set) {
            return None;
        }
        if set.branch.load(Ordering::Relaxed) != arena::branch() {
            // Otherwise its announcement and its wake-up would be counted in different pages.
            doorbell::make_page();
            return None;
        }
        doorbell::reap_killed();
        let notes = &arena::shared()?.notes;
        signal_deferral::hold_off();
        let noted = notes.begin(pid::number());
        let entered = unannounced::enter(&set.unannounced).map(|round| {
            set.sleepers.fetch_add(1, Ordering::Relaxed);
            notes.note(noted, Counted::Unannounced(name, round));
            let argument = (noted as usize) << PLACE | (round as usize) << ROUND | name as usize;
            Self(jumps::note(place, GiveBack { ends: leave, left: leave, argument }))
        });
        if entered.is_none() {
            notes.cancel(noted);
        }
        signal_deferral::admit();
        // SeqCst: pairs with the fence in `doorbell::announce_sleepers`. Either this thread is counted there, or it
        // finds here what is in the set.
        fence(Ordering::SeqCst);
        if is_of_concern(set) { None } else { entered }
    }
}

/// Returns whether anybody would hear of news in a set by a ring of this family's doorbell: a thread that sleeps in it, or
/// one that watches it from another set or by `poll`.
pub fn are_there(set: &EpollSet) -> bool {
    // Relaxed: the callers say what orders this after the counts.
    set.sleepers.load(Ordering::Relaxed) != 0 || set.nested.load(Ordering::Relaxed) != 0
}

fn leave(number: usize) {
    let (name, round, noted) = parts(number);
    end(noted, Counted::Unannounced(name, round));
}

/// Whether rings matter for a wait on this set.
fn is_of_concern(set: &EpollSet) -> bool {
    set.has_carried() || set.holds_sets.load(Ordering::Relaxed) != 0
}
