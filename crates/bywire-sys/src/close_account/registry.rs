//! The accounts of a process, its threads that close, and its places.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::held::Held;
use super::kind::{COMMON_MAX, COMMON_USERS_MAX, Kind, PLACES_MAX, POOLS, places_of};
use crate::limits;
use crate::share::{self, Places, Shares};

/// Threads of each pool, for all users but root and this process's own. Without a thread for a user, no descriptors
/// are taken from it, and its sockets wait.
pub(super) const THREADS: Places = Places { own: 0, common: 256 };
/// With more lanes than this, unused lanes are removed.
pub(super) const LANES_MAX: usize = 512;
/// How long a thread waits for the next file before it ends.
const IDLE: Duration = Duration::from_secs(1);

/// The files that one thread closes, one after the other.
#[derive(Debug)]
pub(super) struct Lane {
    /// The lane belongs to root or to this process's own user, as that was when the lane was made. It takes no
    /// places, and gets a thread however many threads there are. The value stays when the process changes its user,
    /// so everything that was taken is given back.
    pub is_reserved: bool,
    pub waiting: Mutex<Waiting>,
    pub news: Condvar,
    /// Files that wait, and files that are still looked at.
    pub held: AtomicUsize,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub files: VecDeque<Held>,
    /// A thread serves the lane.
    pub is_attended: bool,
}

/// All lanes of a process. A forked child makes its own: it has no threads, and a lock may have been held at the
/// fork.
#[derive(Debug)]
pub(super) struct Registry {
    pub owner: u32,
    /// See [`PLACES_MAX`]. It follows the size of the table of descriptors when the first descriptor came.
    pub places_max: usize,
    pub lanes: Mutex<BTreeMap<Kind, Arc<Lane>>>,
    /// One for each pool, in the order of [`Kind::pool`].
    pub threads: Mutex<[Shares; POOLS]>,
    /// Sockets of all users that wait.
    pub sockets: AtomicUsize,
    /// Taken places of each pool, in the order of [`Kind::pool`].
    pub places: [AtomicUsize; POOLS],
    /// Users with so many waiting sockets that their connections are refused.
    pub users_refused: AtomicUsize,
    /// Something waits in a lane without a thread.
    pub has_unattended: AtomicBool,
    pub is_forgone: AtomicBool,
}

static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(core::ptr::null_mut());

impl Lane {
    pub fn new(is_reserved: bool) -> Self {
        Self { is_reserved, waiting: Mutex::default(), news: Condvar::new(), held: AtomicUsize::new(0) }
    }

    /// The next file. `None`: no file has come for a while, and the thread ends.
    pub fn next(&self) -> Option<Held> {
        let waiting = lock(&self.waiting);
        let found = self.news.wait_timeout_while(waiting, IDLE, |waiting| waiting.files.is_empty());
        let (mut waiting, _) = found.unwrap_or_else(PoisonError::into_inner);
        let file = waiting.files.pop_front();
        waiting.is_attended = file.is_some();
        file
    }
}

impl Registry {
    /// Updates the counts after a change of an account. A count that reaches its share and falls below it again
    /// changes `users_refused` once in each direction.
    pub fn count(&self, lane: &Lane, kind: Kind, [before, after]: [usize; 2]) {
        let share = self.share(lane, kind);
        let (is_more, higher) = (after > before, before.max(after));
        let change = |count: &AtomicUsize| match is_more {
            true => count.fetch_add(1, Ordering::Relaxed),
            false => count.fetch_sub(1, Ordering::Relaxed),
        };
        if higher <= share && !lane.is_reserved {
            change(&self.places[kind.pool()]);
        }
        if matches!(kind, Kind::Sockets(_)) {
            change(&self.sockets);
            if higher == share {
                change(&self.users_refused);
            }
        }
    }

    /// The most files of a lane before its user gets no more.
    pub fn share(&self, lane: &Lane, kind: Kind) -> usize {
        // Root and the process's own user take none of the places.
        kind.share(if lane.is_reserved { PLACES_MAX } else { self.places_max })
    }

    /// Are all places taken?
    pub fn is_full(&self, kind: Kind) -> bool {
        self.places[kind.pool()].load(Ordering::Relaxed) >= self.places_max
    }

    /// May one more lane of this kind have a thread?
    pub fn may_start(&self, kind: Kind) -> bool {
        lock(&self.threads)[kind.pool()].may_take(kind.user())
    }

    pub fn may_have_common(&self, users: [u32; 2]) -> bool {
        let kind = Kind::common(users);
        let lanes = lock(&self.lanes);
        let held = |lane: &Arc<Lane>| lane.held.load(Ordering::Relaxed);
        // Only one of the two users is charged. Otherwise a person with many user numbers could use up everything
        // that the other user may have in common with anybody.
        let is_charged = |other: &Kind| {
            matches!(other, Kind::Common(_)) && share::block(other.user()) == share::block(kind.user())
        };
        let others = lanes.iter().filter(|(other, lane)| is_charged(other) && held(lane) > 0).count();
        let own = lanes.get(&kind).map_or(0, held);
        own < COMMON_MAX && others < COMMON_USERS_MAX && (own == 0 || !self.is_full(kind))
    }

    /// The registry of a process with a table of this many descriptors.
    pub fn new(descriptors: u64) -> Self {
        Self {
            owner: std::process::id(),
            places_max: places_of(descriptors),
            lanes: Mutex::default(),
            threads: Mutex::new([(); POOLS].map(|()| Shares::new(THREADS))),
            sockets: AtomicUsize::new(0),
            places: [const { AtomicUsize::new(0) }; POOLS],
            users_refused: AtomicUsize::new(0),
            has_unattended: AtomicBool::new(false),
            is_forgone: AtomicBool::new(false),
        }
    }

    /// This process's registry.
    pub fn own() -> &'static Self {
        let owner = std::process::id();
        loop {
            let found = REGISTRY.load(Ordering::Acquire);
            // SAFETY: the pointer is null, or points to a box that this function has leaked and nobody frees. The
            // acquire load pairs with the release of the exchange below, which published the box.
            if let Some(registry) = unsafe { found.as_ref() }
                && registry.owner == owner
            {
                return registry;
            }
            let own = Box::into_raw(Box::new(Self::new(limits::descriptor_limit())));
            // Release: pairs with the acquire load above. If another thread was first, its registry is as good.
            if REGISTRY.compare_exchange(found, own, Ordering::Release, Ordering::Relaxed).is_err() {
                // SAFETY: the pointer comes from `into_raw` just now, and the failed exchange has published it to no
                // other thread.
                drop(unsafe { Box::from_raw(own) });
            }
        }
    }
}

/// No code that runs under these locks can panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
