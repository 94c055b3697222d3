//! Threads that sleep in an epoll set.

use core::sync::atomic::{Ordering, fence};

use bywire_ring::crowd;

use crate::memory::arena::{self, EpollSet};
use crate::memory::robust::Counted;
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::{pid, signal_deferral};
use crate::wakeup::doorbell;

/// A thread that sleeps in a set, until dropped: it may be cancelled there, or leave by a jump.
pub struct Sleeping {
    _counted: Noted,
    /// Announced to peers; `None`: there is no page.
    bell: Option<doorbell::Asleep>,
}

/// In the number that stands for a sleeper: from this bit on the place where it is noted, and from the second on the round in
/// which it is counted. Below: the set's name.
const PLACE: u32 = 48;
const ROUND: u32 = 32;

/// The set's name, the round, and the place.
fn parts(number: usize) -> (u32, u32, u32) {
    (number as u32, (number >> ROUND) as u32 % (1 << (PLACE - ROUND)), (number >> PLACE) as u32)
}

impl Sleeping {
    /// The caller looks at everything once more. `place`: as of [`doorbell::asleep`].
    pub fn announce(name: u32, set: &EpollSet, place: usize) -> Option<Self> {
        let notes = &arena::shared()?.notes;
        signal_deferral::hold_off();
        let noted = notes.begin(pid::number());
        // Relaxed: a thread that looks after this one, and leaves something, finds it by the set's lock.
        set.sleepers.fetch_add(1, Ordering::Relaxed);
        notes.note(noted, Counted::Asleep(name));
        let argument = (noted as usize) << PLACE | name as usize;
        let counted = jumps::note(place, GiveBack { ends: wake, left: wake, argument });
        signal_deferral::admit();
        Some(Self { _counted: counted, bell: doorbell::asleep(place) })
    }

    /// Would a peer ring for it?
    pub fn is_announced(&self) -> bool {
        self.bell.is_some()
    }
}

fn wake(number: usize) {
    let (name, _, noted) = parts(number);
    end(noted, Counted::Asleep(name));
}

/// One sleeper less.
fn end(noted: u32, counted: Counted) {
    if let Some(family) = arena::shared() {
        family.notes.end(noted, counted, || doorbell::count_out(counted));
    }
}

/// A thread that sleeps in a set of which peers need not know, until dropped: nothing in it is carried. Once something is, it
/// is announced by the thread that puts that there.
pub struct Unannounced(#[expect(dead_code, reason = "held for its drop")] Noted);

impl Unannounced {
    /// `None`: peers have to know. `place`: as of [`doorbell::asleep`].
    pub fn enter(name: u32, set: &EpollSet, place: usize) -> Option<Self> {
        if is_of_concern(set) {
            return None;
        }
        if set.branch.load(Ordering::Relaxed) != arena::branch() {
            // It would be announced in another page than the one where it rises.
            doorbell::make_page();
            return None;
        }
        doorbell::look_for_killed();
        let notes = &arena::shared()?.notes;
        signal_deferral::hold_off();
        let noted = notes.begin(pid::number());
        let entered = crowd::enter(&set.unannounced).map(|round| {
            set.sleepers.fetch_add(1, Ordering::Relaxed);
            notes.note(noted, Counted::Unannounced(name, round));
            let argument = (noted as usize) << PLACE | (round as usize) << ROUND | name as usize;
            Self(jumps::note(place, GiveBack { ends: leave, left: leave, argument }))
        });
        if entered.is_none() {
            notes.cancel(noted);
        }
        signal_deferral::admit();
        // SeqCst: pairs with the fence in `doorbell::announce_sleepers`: either this thread is counted there, or it finds here what
        // is in the set.
        fence(Ordering::SeqCst);
        if is_of_concern(set) { None } else { entered }
    }
}

fn leave(number: usize) {
    let (name, round, noted) = parts(number);
    end(noted, Counted::Unannounced(name, round));
}

/// Has a wait for this set to do with rings?
fn is_of_concern(set: &EpollSet) -> bool {
    // Acquire: pairs with the release exchange in `list::put`, by which a connection is listed.
    set.carried.load(Ordering::Acquire) != 0 || set.holds_sets.load(Ordering::Relaxed) != 0
}
