//! The order of events: a set reports its registrations in the order in which they became ready, as the kernel does.
//!
//! The kernel appends a registration to a list at the first event for it, and a wait takes it from there. A
//! level-triggered one is appended again as soon as it is reported, and leaves the list when a wait finds it without
//! events. Here a place in that list is a time. An event's time is the peer's, from the header of its segment: any
//! value of it changes nothing but the place of the peer's own connection until it is reported. A registration that is
//! alone in its set has no place: its peer need not note times, and a look neither reads nor takes one.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering;

use bywire_ring::distance;

use crate::connection::readiness::OUT;
use crate::connection::sockets::{Connection, STREAM};
use crate::epoll::events::{self, EDGE, ONCE, Snapshot};
use crate::epoll::registrations;
use crate::memory::arena::{EpollItem, EpollSet};

/// A registration is about to be listed in its set, whose lock the caller holds.
pub fn join(set: &EpollSet, item: &EpollItem, connection: &Connection) {
    let has_quiet = set.quiet_count.load(Ordering::Relaxed) != 0;
    if has_quiet {
        STREAM.want_order(&connection.own);
    }
    if let Some(first) = registrations::item(set.carried.load(Ordering::Relaxed)) {
        STREAM.want_order(&connection.own);
        if is_alone(first)
            && !has_quiet
            && let Some(connection) = registrations::connection(first)
        {
            STREAM.want_order(&connection.own);
            // The kernel has it on its list if it was reported, or has something to report.
            begin(first, &connection, first.queued.load(Ordering::Relaxed) != 0 || events::is_due(first));
        }
    }
    begin(item, connection, events::is_due(item));
}

/// Returns whether the first registration of a set is its only one, so that there is no order to keep. The caller holds
/// the set's lock.
#[inline]
pub fn is_alone(first: &EpollItem) -> bool {
    first.next_of_set.load(Ordering::Relaxed) == 0
}

/// A registration begins, or the program has armed it: what is there counts as new. If it is ready, it keeps this place
/// whatever comes later.
pub fn begin(item: &EpollItem, connection: &Connection, is_ready: bool) {
    item.place.store(distance::moment(), Ordering::Relaxed);
    item.queued.store(is_ready.into(), Ordering::Relaxed);
    item.seen_mark.store(STREAM.last_mark(&connection.remote), Ordering::Relaxed);
}

/// A look has found the registration without events. One that is alone has no marks.
#[inline]
pub fn pass(item: &EpollItem, connection: &Connection, is_alone: bool) {
    // A store without need would take the line from the cores of other threads that look.
    if item.queued.load(Ordering::Relaxed) != 0 {
        item.queued.store(0, Ordering::Relaxed);
    }
    if is_alone {
        return;
    }
    let last = STREAM.last_mark(&connection.remote);
    if item.seen_mark.load(Ordering::Relaxed) != last {
        item.seen_mark.store(last, Ordering::Relaxed);
    }
}

/// The registration was reported at `now`. `mark` is the peer's last one, loaded before its readiness.
pub fn report(item: &EpollItem, mark: u64, now: u64) {
    item.place.store(now, Ordering::Relaxed);
    report_alone(item);
    item.seen_mark.store(mark, Ordering::Relaxed);
}

/// The only registration of its set was reported. It stays on the list as in [`report`], at no particular place.
pub fn report_alone(item: &EpollItem) {
    let wanted = item.events.load(Ordering::Relaxed);
    item.queued.store((wanted & (EDGE | ONCE) == 0).into(), Ordering::Relaxed);
}

/// The kernel has an event for the registration. It is later than those of the rings that nobody has noticed yet.
pub fn note_kernels(item: &EpollItem, connection: &Connection) {
    if item.queued.load(Ordering::Relaxed) == 0
        && item.seen_mark.load(Ordering::Relaxed) == STREAM.last_mark(&connection.remote)
    {
        item.place.store(distance::moment(), Ordering::Relaxed);
    }
}

/// Returns whether a change of the events that the program waits for leaves the registration at its place: it has
/// events to report already. `bits` is what is ready now.
pub fn keeps_place(item: &EpollItem, bits: u32, wanted: u32) -> bool {
    let before = item.events.load(Ordering::Relaxed);
    (before | wanted) & (EDGE | ONCE) == 0 && (item.queued.load(Ordering::Relaxed) != 0 || bits & before != 0)
}

/// The place of a registration that is ready: the lower, the earlier.
pub fn place(item: &EpollItem, connection: &Connection, found: &Snapshot) -> u64 {
    let place = item.place.load(Ordering::Relaxed);
    if item.queued.load(Ordering::Relaxed) != 0 {
        return place;
    }
    let seen = item.seen_mark.load(Ordering::Relaxed);
    let marks = STREAM.marks(&connection.remote);
    // The first one that was not seen. If it was too long ago, the earliest that is known.
    let publication = marks.into_iter().take_while(|mark| *mark != seen && *mark != 0).last();
    let is_room = found.bits & OUT != 0
        && (found.wanted & EDGE == 0 || item.seen_full.load(Ordering::Relaxed) != found.full);
    let room = is_room.then(|| STREAM.relieved(&connection.remote));
    publication.into_iter().chain(room).filter(|time| *time > place).min().unwrap_or(place)
}

/// Ready registrations that one call reports at most. They are collected on the stack, which may be small.
pub const REPORTED_MAX: usize = 64;

/// A registration that is ready, as one look has found it.
#[derive(Clone, Copy)]
pub struct Due {
    /// Its index.
    pub at: u32,
    /// The reported events.
    pub bits: u32,
    /// Its place in the order.
    pub place: u64,
    /// As in [`Snapshot`].
    pub tail: u64,
    /// The peer's last mark.
    pub mark: u64,
    /// As in [`Snapshot`].
    pub full: u32,
    /// As in [`Snapshot`].
    pub ended: u8,
}

impl Due {
    /// The state that [`Snapshot::take_news`] notes as reported.
    pub fn snapshot(&self, wanted: u32) -> Snapshot {
        let Self { bits, tail, full, ended, .. } = *self;
        Snapshot { wanted, bits, heard: 0, tail, full, ended }
    }
}

/// The first of the registrations that are ready, as many as a call reports.
pub struct First {
    room: usize,
    kept: usize,
    /// Those that were found, whether they are kept or not.
    found: usize,
    /// The index of the last in the order, once there is no more room.
    last: usize,
    places: [MaybeUninit<Due>; REPORTED_MAX],
}

impl First {
    /// `room` is the number that the call has room for.
    #[inline(always)]
    pub fn new(room: usize) -> Self {
        let places = [MaybeUninit::uninit(); REPORTED_MAX];
        Self { room: room.min(REPORTED_MAX), kept: 0, found: 0, last: 0, places }
    }

    /// Returns whether none is ready.
    pub fn is_empty(&self) -> bool {
        self.found == 0
    }

    /// Returns whether so many more are ready than there is room for that the walk ends. The rest has its turn next.
    pub fn is_enough(&self) -> bool {
        self.room == 0 || self.found >= (4 * self.room).max(REPORTED_MAX)
    }

    /// Returns whether more are ready than there is room for, as far as the walk went.
    pub fn leaves_any(&self) -> bool {
        self.found > self.room
    }

    /// Keeps one, if it is among the first.
    pub fn put(&mut self, due: Due) {
        self.found += 1;
        if self.kept < self.room {
            if let Some(free) = self.places.get_mut(self.kept) {
                free.write(due);
                self.kept += 1;
            }
            if self.kept == self.room {
                self.find_last();
            }
            return;
        }
        let last = self.last;
        if let Some(latest) = self.kept().get_mut(last).filter(|latest| due.place < latest.place) {
            *latest = due;
            self.find_last();
        }
    }

    /// Those that are kept, in order.
    pub fn in_order(&mut self) -> &[Due] {
        let kept = self.kept();
        kept.sort_unstable_by_key(|due| due.place);
        kept
    }

    fn find_last(&mut self) {
        let latest = self.kept().iter().enumerate().max_by_key(|(_, due)| due.place);
        self.last = latest.map_or(0, |(index, _)| index);
    }

    fn kept(&mut self) -> &mut [Due] {
        let kept = self.places.get_mut(..self.kept).unwrap_or_default();
        // SAFETY: `put` has written the first `kept` of them.
        unsafe { &mut *(ptr::from_mut(kept) as *mut [Due]) }
    }
}
