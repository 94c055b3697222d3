//! Who sleeps in an epoll set.

use core::sync::atomic::{Ordering, fence};

use crate::arena::Set;
use crate::bell;

/// A thread that sleeps in a set, until dropped: it may be cancelled there.
pub struct Sleeping {
    set: &'static Set,
    /// Announced to peers; `None`: there is no page.
    bell: Option<bell::Asleep>,
}

impl Sleeping {
    /// The caller looks at everything once more.
    pub fn announce(set: &'static Set) -> Self {
        // Relaxed: whoever looks after this one, and leaves something, finds it by the set's lock.
        set.sleepers.fetch_add(1, Ordering::Relaxed);
        Self { set, bell: bell::asleep() }
    }

    /// Would a peer ring for it?
    pub fn is_announced(&self) -> bool {
        self.bell.is_some()
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.set.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that sleeps in a set of which peers need not know, until dropped: nothing in it is carried.
pub struct Unannounced(&'static Set);

impl Unannounced {
    /// `None`: peers have to know.
    pub fn enter(set: &'static Set) -> Option<Self> {
        if is_of_concern(set) {
            return None;
        }
        // Relaxed: ordered by the fence.
        set.unannounced.fetch_add(1, Ordering::Relaxed);
        set.sleepers.fetch_add(1, Ordering::Relaxed);
        let entered = Self(set);
        // Pairs with the fence of `bell::take`, behind which whoever has taken the ring of `epoll::convert` looks at this count:
        // either this thread is counted there, or it sees here what was converted.
        fence(Ordering::SeqCst);
        if is_of_concern(set) { None } else { Some(entered) }
    }
}

impl Drop for Unannounced {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::Relaxed);
        self.0.unannounced.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Has a wait for this set to do with rings?
pub fn is_of_concern(set: &Set) -> bool {
    // Acquire: pairs with the release exchange in `list::put`, by which `epoll::convert` lists a connection.
    set.carried.load(Ordering::Acquire) != 0 || set.holds_sets.load(Ordering::Relaxed) != 0
}
