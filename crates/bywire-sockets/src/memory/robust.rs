//! Takes the counts of killed processes in shared memory back.
//!
//! Before a thread sleeps, it increases a count and notes that in a place of the family's table, with its process
//! number. A process that holds a set with a full list of holders does the same. Once a second, a thread that is about
//! to sleep checks whether processes with notes were killed, and takes back what those have counted, as the kernel does
//! for robust futexes.
//!
//! ```text
//! place taken → counted → noted        note removed → count taken back → place free
//! ```
//!
//! A process that is killed between two of these steps stays counted, so peers sometimes ring without need. The same
//! holds for a process that finds no place, or that has no number known to its family. No count is ever taken back that
//! was not made.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::os::per_thread::per_thread;

/// Notes that a family may have at once.
const PLACES: usize = 1 << 12;
/// The entry of a killed process whose counts only some processes can take back.
const ORPHAN: u32 = u32::MAX;
/// No place: the count is not noted.
const NOWHERE: u32 = 0;
/// Places of each kind that a thread tries. If all are taken, it notes nothing.
const SEARCH: usize = 64;
const EVERY_NS: u64 = 1_000_000_000;
/// Processes that one check asks the kernel about.
const LOOKS_MAX: u32 = 64;

/// The notes of a family's processes.
#[repr(C)]
pub struct Notes {
    /// Index 0 is never used.
    places: [NoteSlot; PLACES],
    /// Places from this index on were never used.
    end: AtomicU32,
    /// Where the next check begins.
    from: AtomicU32,
    /// Time of the last check.
    looked_ns: AtomicU64,
}

/// The place of one note.
#[repr(C, align(64))]
struct NoteSlot {
    /// The process number; 0: free.
    process: AtomicU32,
    /// What the process has counted; 0: nothing.
    noted: AtomicU64,
}

/// What can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A sleeper that peers know, in the page of this branch of the family.
    Announced(u32),
    /// A sleeper in the set of this name.
    Asleep(u32),
    /// A sleeper in the set of this name that peers do not know, in this round.
    Unannounced(u32, u32),
    /// A process that holds the set of this name.
    Holder(u32),
}

impl Counted {
    const KIND: u32 = 60;
    const ROUND: u32 = 32;

    fn encode(self) -> u64 {
        let (kind, round, name) = match self {
            Self::Announced(branch) => (1, 0, branch),
            Self::Asleep(name) => (2, 0, name),
            Self::Unannounced(name, round) => (3, round, name),
            Self::Holder(name) => (4, 0, name),
        };
        kind << Self::KIND | u64::from(round) << Self::ROUND | u64::from(name)
    }

    fn decode(noted: u64) -> Option<Self> {
        let (name, round) = (noted as u32, (noted >> Self::ROUND) as u32 % (1 << (Self::KIND - Self::ROUND)));
        match noted >> Self::KIND {
            1 => Some(Self::Announced(name)),
            2 => Some(Self::Asleep(name)),
            3 => Some(Self::Unannounced(name, round)),
            4 => Some(Self::Holder(name)),
            _ => None,
        }
    }
}

/// The functions by which notes of killed processes are found and taken back.
pub struct Reaper<'a> {
    /// The number of the process that checks.
    pub me: u32,
    /// Whether the process with this number runs.
    pub runs: &'a dyn Fn(u32) -> bool,
    /// Whether this process can take that count back.
    pub is_within_reach: &'a dyn Fn(Counted) -> bool,
    /// Takes the count back.
    pub count_out: &'a dyn Fn(Counted),
}

per_thread! {
    /// The places that this thread used last. A thread that sleeps in a set needs two. It begins with [`NOWHERE`].
    static LAST: [Cell<u32>; 2], "bywire_thread_places"
}

impl Notes {
    fn place(&self, index: u32) -> Option<&NoteSlot> {
        if index == NOWHERE { None } else { self.places.get(index as usize) }
    }

    fn used(&self) -> &[NoteSlot] {
        let end = self.end.load(Ordering::Relaxed) as usize;
        self.places.get(..end).unwrap_or(&self.places)
    }

    /// Takes a place for a note of the process `me`, which is written once the count is made; 0: no place is free. The
    /// caller has deferred signal handlers.
    pub fn begin(&self, me: Option<u32>) -> u32 {
        let Some(me) = me else { return NOWHERE };
        let take = |index: u32, from: u32| {
            let place = self.place(index)?;
            // A load first: a failing exchange would take the cache line from the thread that sleeps there.
            if place.process.load(Ordering::Relaxed) != from {
                return None;
            }
            // Acquire: pairs with the release stores of 0 and `ORPHAN` in `cancel` and `reap`.
            place.process.compare_exchange(from, me, Ordering::Acquire, Ordering::Relaxed).ok()?;
            place.noted.store(0, Ordering::Relaxed);
            Some(index)
        };
        LAST.with(|last| {
            let [newer, older] = last;
            if let Some(found) = last.iter().find_map(|had| take(had.get(), 0)) {
                return found;
            }
            // Spreads threads over the table: either their process or the address of this variable differs.
            let others = self.others(me ^ ((&raw const *last).addr() >> 6) as u32);
            let found = others.clone().find_map(|index| take(index, 0));
            let Some(found) = found.or_else(|| others.clone().find_map(|index| take(index, ORPHAN))) else {
                return NOWHERE;
            };
            self.end.fetch_max(found + 1, Ordering::Relaxed);
            older.set(newer.replace(found));
            found
        })
    }

    /// Some used places, from one that this number selects, and then some that were never used.
    fn others(&self, number: u32) -> impl Iterator<Item = u32> + Clone {
        let end = self.end.load(Ordering::Relaxed).max(1);
        let start = (number.wrapping_mul(0x9E37_79B9) >> 16) % end;
        (start..end).chain(0..start).take(SEARCH).chain((end..PLACES as u32).take(SEARCH))
    }

    /// Notes that the count was made.
    pub fn note(&self, index: u32, counted: Counted) {
        if let Some(place) = self.place(index) {
            // Release: pairs with the acquire load in `reap`. Whoever finds the note also finds the count.
            place.noted.store(counted.encode(), Ordering::Release);
        }
    }

    /// Removes the note before the count is taken back. `false`: another process took this one for a killed one and has
    /// taken the count back.
    pub fn end(&self, index: u32, counted: Counted, count_out: impl FnOnce()) {
        let Some(place) = self.place(index) else { return count_out() };
        // AcqRel: pairs with the acquire load in `reap`. There is no note while the count is taken back.
        if place.noted.compare_exchange(counted.encode(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            count_out();
            self.cancel(index);
        }
    }

    /// Frees the place; nothing is counted.
    pub fn cancel(&self, index: u32) {
        if let Some(place) = self.place(index) {
            // Release: pairs with the acquire exchanges in `begin` and `reap`.
            place.process.store(0, Ordering::Release);
        }
    }

    /// Removes the note of a count that the process `me` has taken back itself, wherever that was noted.
    pub fn forget(&self, me: Option<u32>, counted: Counted) {
        let Some(me) = me else { return };
        let is_it = |place: &&NoteSlot| {
            place.process.load(Ordering::Relaxed) == me
                && place.noted.load(Ordering::Relaxed) == counted.encode()
        };
        if let Some(place) = self.used().iter().find(is_it) {
            place.noted.store(0, Ordering::Relaxed);
            // Release: pairs with the acquire exchanges in `begin` and `reap`.
            place.process.store(0, Ordering::Release);
        }
    }

    /// Whether the last check is long enough ago. If so, the caller makes the next one.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let last = self.looked_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(last) >= EVERY_NS
            && self.looked_ns.compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Checks the processes with notes, from where the last check ended.
    pub fn reap(&self, reaper: &Reaper) {
        let places = self.used();
        let start = self.from.load(Ordering::Relaxed) as usize % places.len().max(1);
        let (mut known, mut looks) = ((reaper.me, true), 0);
        for (index, place) in places.iter().enumerate().cycle().skip(start).take(places.len()) {
            // Relaxed: an exchange in `reap` takes it.
            let owner = place.process.load(Ordering::Relaxed);
            if owner != 0 && owner != ORPHAN && owner != known.0 {
                looks += 1;
                if looks > LOOKS_MAX {
                    self.from.store(index as u32, Ordering::Relaxed);
                    return;
                }
                known = (owner, owner == reaper.me || (reaper.runs)(owner));
            }
            if owner == ORPHAN || owner == known.0 && !known.1 {
                reap(place, owner, reaper);
            }
        }
    }

    /// Removes the notes of a killed process whose number this new process has got.
    pub fn after_fork_in_child(&self, reaper: &Reaper) {
        self.used().iter().for_each(|place| reap(place, reaper.me, reaper));
    }
}

/// Takes back what a killed process has noted in a place.
fn reap(place: &NoteSlot, owner: u32, reaper: &Reaper) {
    if place.process.load(Ordering::Relaxed) != owner {
        return;
    }
    // Acquire: pairs with the release stores in `cancel`, and with those below of another process that checks.
    if place.process.compare_exchange(owner, reaper.me, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    // Acquire: pairs with the release store in `note`.
    let counted = Counted::decode(place.noted.load(Ordering::Acquire));
    if counted.is_some_and(|counted| !(reaper.is_within_reach)(counted)) {
        // Release: pairs with the acquire exchanges here and in `begin`.
        place.process.store(ORPHAN, Ordering::Release);
        return;
    }
    // AcqRel: pairs with the acquire load above in the next check, if this process is killed meanwhile.
    place.noted.swap(0, Ordering::AcqRel);
    if let Some(counted) = counted {
        (reaper.count_out)(counted);
    }
    // Release: pairs with the acquire exchange in `begin`.
    place.process.store(0, Ordering::Release);
}
