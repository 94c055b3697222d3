//! Who sleeps in an epoll set.

use core::sync::atomic::{Ordering, fence};

use bywire_ring::crowd;

use crate::arena::Set;
use crate::jumps::{self, GiveBack, Noted};
use crate::{bell, holding, table};

/// A thread that sleeps in a set, until dropped: it may be cancelled there, or leave by a jump.
pub struct Sleeping {
    _counted: Noted,
    /// Announced to peers; `None`: there is no page.
    bell: Option<bell::Asleep>,
}

impl Sleeping {
    /// The caller looks at everything once more. `place`: as of [`bell::asleep`].
    pub fn announce(name: u32, set: &Set, place: usize) -> Self {
        holding::hold_off();
        // Relaxed: whoever looks after this one, and leaves something, finds it by the set's lock.
        set.sleepers.fetch_add(1, Ordering::Relaxed);
        let counted = jumps::note(place, GiveBack { ends: wake, left: wake, argument: name as usize });
        holding::admit();
        Self { _counted: counted, bell: bell::asleep(place) }
    }

    /// Would a peer ring for it?
    pub fn is_announced(&self) -> bool {
        self.bell.is_some()
    }
}

/// One sleeper less in the set of this name.
fn wake(name: usize) {
    if let Some(set) = table::set_named(name as u32) {
        set.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that sleeps in a set of which peers need not know, until dropped: nothing in it is carried. Once something is, it
/// is announced by whoever puts that there.
pub struct Unannounced(#[expect(dead_code, reason = "held for its drop")] Noted);

/// In the number that stands for one: from this bit on the round in which it is counted. Below: the set's name.
const ROUND: u32 = 32;

impl Unannounced {
    /// `None`: peers have to know. `place`: as of [`bell::asleep`].
    pub fn enter(name: u32, set: &Set, place: usize) -> Option<Self> {
        if is_of_concern(set) {
            return None;
        }
        holding::hold_off();
        let entered = crowd::enter(&set.unannounced).map(|round| {
            set.sleepers.fetch_add(1, Ordering::Relaxed);
            let argument = (round as usize) << ROUND | name as usize;
            Self(jumps::note(place, GiveBack { ends: leave, left: leave, argument }))
        });
        holding::admit();
        // SeqCst: pairs with the fence in `bell::announce_sleepers`: either this thread is counted there, or it finds here what
        // is in the set.
        fence(Ordering::SeqCst);
        if is_of_concern(set) { None } else { entered }
    }
}

/// One of those less.
fn leave(number: usize) {
    wake(number % (1 << ROUND));
    let set = table::set_named((number % (1 << ROUND)) as u32);
    if set.is_some_and(|set| crowd::leave(&set.unannounced, (number >> ROUND) as u32)) {
        bell::rise();
    }
}

/// Has a wait for this set to do with rings?
fn is_of_concern(set: &Set) -> bool {
    // Acquire: pairs with the release exchange in `list::put`, by which a connection is listed.
    set.carried.load(Ordering::Acquire) != 0 || set.holds_sets.load(Ordering::Relaxed) != 0
}
