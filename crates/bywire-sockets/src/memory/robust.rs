//! Counts of killed processes in memory that others share are taken back.
//!
//! A thread that counts itself before it sleeps notes that in a place of the family's, with the number of its process, as does
//! a process that holds a set of which no more holders can be known. Once a second somebody who is about to sleep looks whether
//! processes with notes were killed, and counts out what those have noted, as the kernel does for robust futexes.
//!
//! ```text
//! place taken → counted → noted        note gone → counted out → place free
//! ```
//!
//! A process that is killed between two of these steps stays counted, so peers ring now and then in vain. The same holds for
//! one that finds no place, or has no number that its family knows. None is ever counted out that was not counted.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Notes of a family's at once.
const PLACES: usize = 1 << 12;
/// In the place of a process: it was killed, and only some processes can count out what it has noted.
const ORPHAN: u32 = u32::MAX;
/// No place: what is counted is not noted.
const NOWHERE: u32 = 0;
/// Places of each kind that a thread looks at for one: with so many taken it notes nothing.
const SEARCH: usize = 64;
const EVERY_NS: u64 = 1_000_000_000;
/// Processes that one look asks the kernel about.
const LOOKS_MAX: u32 = 64;

/// What the processes of a family have noted.
#[repr(C)]
pub struct Notes {
    /// Index 0 is never used.
    places: [NoteSlot; PLACES],
    /// Places from here on were never used.
    end: AtomicU32,
    /// Where the next look begins.
    from: AtomicU32,
    /// When the last one was.
    looked_ns: AtomicU64,
}

/// Where a process has noted something.
#[repr(C, align(64))]
struct NoteSlot {
    /// The number of the process; 0: free.
    process: AtomicU32,
    /// What it has counted; 0: nothing.
    noted: AtomicU64,
}

/// What can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A sleeper that peers know of, in the page of this branch of the family.
    Announced(u32),
    /// A sleeper in the set of this name.
    Asleep(u32),
    /// A sleeper in the set of this name that peers do not know of, in this round.
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

/// What a look asks and does.
pub struct Look<'a> {
    /// The number of the process that looks.
    pub me: u32,
    /// Does the process with this number run?
    pub runs: &'a dyn Fn(u32) -> bool,
    /// Can this process count that out?
    pub is_within_reach: &'a dyn Fn(Counted) -> bool,
    /// Counts it out.
    pub count_out: &'a dyn Fn(Counted),
}

thread_local! {
    // Constant and without a destructor: nothing is allocated or registered for it.
    /// The places that this thread had last: who sleeps in a set takes two.
    static LAST: [Cell<u32>; 2] = const { [const { Cell::new(NOWHERE) }; 2] };
}

impl Notes {
    fn place(&self, index: u32) -> Option<&NoteSlot> {
        if index == NOWHERE { None } else { self.places.get(index as usize) }
    }

    fn used(&self) -> &[NoteSlot] {
        let end = self.end.load(Ordering::Relaxed) as usize;
        self.places.get(..end).unwrap_or(&self.places)
    }

    /// A place for a note of the process `me`, which is to be made once it is counted; 0: there is none. No handler may come
    /// meanwhile.
    pub fn begin(&self, me: Option<u32>) -> u32 {
        let Some(me) = me else { return NOWHERE };
        let take = |index: u32, from: u32| {
            let place = self.place(index)?;
            // A look first: an exchange takes the line from the thread that sleeps there, to no avail.
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
            // Of two threads either the process differs, or where this lies.
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

    /// Some places of others', from one on that this number decides, and some that nobody had yet.
    fn others(&self, number: u32) -> impl Iterator<Item = u32> + Clone {
        let end = self.end.load(Ordering::Relaxed).max(1);
        let start = (number.wrapping_mul(0x9E37_79B9) >> 16) % end;
        (start..end).chain(0..start).take(SEARCH).chain((end..PLACES as u32).take(SEARCH))
    }

    /// It is counted.
    pub fn note(&self, index: u32, counted: Counted) {
        if let Some(place) = self.place(index) {
            // Release: pairs with the acquire load in `reap`: who finds the note finds it counted.
            place.noted.store(counted.encode(), Ordering::Release);
        }
    }

    /// Counts it out, unless somebody else has done so, who has taken this process for a killed one.
    pub fn end(&self, index: u32, counted: Counted, count_out: impl FnOnce()) {
        let Some(place) = self.place(index) else { return count_out() };
        // AcqRel: pairs with the acquire load in `reap`: while it is counted out there is no note of it.
        if place.noted.compare_exchange(counted.encode(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            count_out();
            self.cancel(index);
        }
    }

    /// Nothing is counted there.
    pub fn cancel(&self, index: u32) {
        if let Some(place) = self.place(index) {
            // Release: pairs with the acquire exchanges in `begin` and `reap`.
            place.process.store(0, Ordering::Release);
        }
    }

    /// The process `me` has counted this out by itself, wherever it was noted, if it was.
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

    /// Has nobody looked for a while? Then the caller does.
    pub fn is_due(&self, now_ns: u64) -> bool {
        let last = self.looked_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(last) >= EVERY_NS
            && self.looked_ns.compare_exchange(last, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Looks for killed processes among those with notes, from where the last look has ended.
    pub fn look(&self, look: &Look) {
        let places = self.used();
        let start = self.from.load(Ordering::Relaxed) as usize % places.len().max(1);
        let (mut known, mut looks) = ((look.me, true), 0);
        for (index, place) in places.iter().enumerate().cycle().skip(start).take(places.len()) {
            // Relaxed: taken by an exchange in `reap`.
            let owner = place.process.load(Ordering::Relaxed);
            if owner != 0 && owner != ORPHAN && owner != known.0 {
                looks += 1;
                if looks > LOOKS_MAX {
                    self.from.store(index as u32, Ordering::Relaxed);
                    return;
                }
                known = (owner, owner == look.me || (look.runs)(owner));
            }
            if owner == ORPHAN || owner == known.0 && !known.1 {
                reap(place, owner, look);
            }
        }
    }

    /// A new process has the number of one that was killed: what that has noted is not its own.
    pub fn after_fork_in_child(&self, look: &Look) {
        self.used().iter().for_each(|place| reap(place, look.me, look));
    }
}

/// Counts out what a killed process has noted in a place.
fn reap(place: &NoteSlot, owner: u32, look: &Look) {
    if place.process.load(Ordering::Relaxed) != owner {
        return;
    }
    // Acquire: pairs with the release stores in `cancel`, and with those below by another one that looks.
    if place.process.compare_exchange(owner, look.me, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    // Acquire: pairs with the release store in `note`.
    let counted = Counted::decode(place.noted.load(Ordering::Acquire));
    if counted.is_some_and(|counted| !(look.is_within_reach)(counted)) {
        // Release: pairs with the acquire exchanges here and in `begin`.
        place.process.store(ORPHAN, Ordering::Release);
        return;
    }
    // AcqRel: pairs with the acquire load above, by the next look if this process is killed meanwhile.
    place.noted.swap(0, Ordering::AcqRel);
    if let Some(counted) = counted {
        (look.count_out)(counted);
    }
    // Release: pairs with the acquire exchange in `begin`.
    place.process.store(0, Ordering::Release);
}
