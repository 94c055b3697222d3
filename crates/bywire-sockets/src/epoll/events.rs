//! The events that an epoll set reports: for which registrations, and why.

use core::sync::atomic::Ordering;

use bywire_ring::list;

use crate::connection::readiness::{ALWAYS, IN, OUT, RDHUP, Ready};
use crate::connection::sockets::{Connection, STREAM};
use crate::epoll::registrations::{self, item};
use crate::memory::arena::{EpollItem, EpollSet, FINISHED, HUNG_UP, ITEMS, SHUT};
use crate::os::kernel;

/// Reported once for each change.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Reported once until it is armed again.
pub const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// What a look at a connection finds for a caller that waits for `wanted`.
pub fn ready(connection: &Connection, wanted: u32) -> Ready {
    connection.ready(wanted & !(EDGE | ONCE))
}

/// The events that the kernel must watch then, edge-triggered if the program asked for that.
pub fn asked(ready: &Ready, wanted: u32) -> u32 {
    ready.ask & !(EDGE | ONCE) | wanted & EDGE
}

/// The state of a registration according to the rings, compared with what was reported. All values are from one look: a
/// value that was loaded later might include more than is reported, and would count as reported.
pub struct Snapshot {
    /// The events that the program waits for.
    pub wanted: u32,
    /// What is ready.
    pub bits: u32,
    /// What the kernel has reported since the last look.
    pub heard: u32,
    /// The peer's tail.
    pub tail: u64,
    /// `SharedSocket::full`.
    pub full: u32,
    /// `SharedSocket::ended`.
    pub ended: u8,
}

impl Snapshot {
    /// Whether anything has happened since the last report that the kernel would report again.
    pub fn is_news(&self, item: &EpollItem) -> bool {
        // The kernel, too, reports all requested events when bytes arrive for a registration that waits for them, and
        // when something ends for every registration.
        let is_more = has_more(item, self.wanted, self.tail);
        let is_end = item.seen_ended.load(Ordering::Relaxed) != self.ended;
        let is_room = self.bits & OUT != 0 && item.seen_full.load(Ordering::Relaxed) != self.full;
        let is_fresh = item.fresh.load(Ordering::Relaxed) != 0;
        self.bits != 0 && (is_fresh || is_more || is_end || is_room || self.is_heard_anew(item))
    }

    /// Whether anything has happened since sets around this one were told, for which the kernel would tell them again.
    fn is_untold(&self, item: &EpollItem, is_due: bool) -> bool {
        self.wanted & IN != 0 && item.raised_tail.load(Ordering::Relaxed) != self.tail as u32
            || self.bits & OUT != 0 && item.raised_full.load(Ordering::Relaxed) != self.full
            || item.raised_ended.load(Ordering::Relaxed) != self.ended
            || is_due && item.raised_fresh.load(Ordering::Relaxed) != 0
    }

    /// Notes that sets around this one were told.
    fn note_told(&self, item: &EpollItem) {
        item.raised_tail.store(self.tail as u32, Ordering::Relaxed);
        item.raised_ended.store(self.ended, Ordering::Relaxed);
        if self.bits & OUT != 0 {
            item.raised_full.store(self.full, Ordering::Relaxed);
        }
        item.raised_fresh.store(0, Ordering::Relaxed);
    }

    /// Whether the kernel has reported something new. It repeats everything whenever the watched events change, and
    /// nothing new follows an end that was reported.
    fn is_heard_anew(&self, item: &EpollItem) -> bool {
        let ended = item.seen_ended.load(Ordering::Relaxed);
        let mut stale = ALWAYS | RDHUP;
        if ended & (FINISHED | SHUT) == FINISHED {
            stale |= IN;
        }
        if ended & HUNG_UP != 0 {
            stale |= OUT;
        }
        self.heard & self.bits & !stale != 0
    }

    /// Events that are seen now are not new the next time.
    pub fn take_news(&self, item: &EpollItem) {
        // A registration that begins while there is too little room waits for room, as in the kernel, although no send
        // has found too little since.
        if item.fresh.swap(0, Ordering::Relaxed) != 0 && self.bits & OUT == 0 {
            item.seen_full.store(self.full.wrapping_sub(1), Ordering::Relaxed);
        }
        item.seen_tail.store(self.tail, Ordering::Relaxed);
        item.seen_ended.store(self.ended, Ordering::Relaxed);
        if self.bits & OUT != 0 {
            item.seen_full.store(self.full, Ordering::Relaxed);
        }
    }
}

/// Whether bytes have come into the ring since the last report, perhaps behind others that are in the kernel.
pub fn has_more(item: &EpollItem, wanted: u32, tail: u64) -> bool {
    wanted & EDGE != 0 && wanted & IN != 0 && item.seen_tail.load(Ordering::Relaxed) != tail
}

/// Whether the set has something, not counting the sets within it.
pub fn has_ready(set: &EpollSet) -> bool {
    // Acquire, here and below: pairs with the release exchange in `list::put` and the release store in `View::rotate`
    // of `wait`.
    if set.carried.load(Ordering::Acquire) == 0 {
        return false;
    }
    let _held = set.lock.hold();
    is_any_ready(set.carried.load(Ordering::Acquire))
}

/// What a set has for the sets around it, not counting the sets within it.
#[derive(Clone, Copy, Default)]
pub struct State {
    /// It has something.
    pub is_ready: bool,
    /// Something has happened since they were told. The kernel tells them again then, although the bytes that have come
    /// may have been read since, if there are others.
    pub is_news: bool,
}

/// Looks at the state of a set.
pub fn state(set: &EpollSet) -> State {
    // Acquire: pairs with the release exchange in `list::put` and the release store in `View::rotate` of `wait`.
    if set.carried.load(Ordering::Acquire) == 0 {
        return State::default();
    }
    let _held = set.lock.hold();
    state_of_held(set, false)
}

/// Looks at the state of a set whose lock the caller holds. `tells`: the sets around it are told of it now.
pub fn state_of_held(set: &EpollSet, tells: bool) -> State {
    let mut state = State::default();
    each_look(set, |item, snapshot, is_due| {
        state.is_ready |= is_due;
        state.is_news |= snapshot.is_untold(item, is_due);
        if tells {
            snapshot.note_told(item);
        } else if !is_due {
            item.raised_fresh.store(0, Ordering::Relaxed);
        }
    });
    if state.is_news && !state.is_ready {
        // There is nothing to tell of it any more.
        each_look(set, |item, snapshot, is_due| {
            if !is_due {
                snapshot.note_told(item);
            }
        });
        state.is_news = false;
    }
    state
}

/// Looks at each registration of a set whose lock the caller holds, and at whether it is due.
fn each_look(set: &EpollSet, mut visit: impl FnMut(&EpollItem, &Snapshot, bool)) {
    // Acquire: pairs with the release exchange in `list::put` and the release store in `View::rotate` of `wait`.
    let mut at = set.carried.load(Ordering::Acquire);
    for _ in 0..ITEMS {
        let Some(item) = item(at) else { return };
        if let Some((snapshot, is_due)) = look(item) {
            visit(item, &snapshot, is_due);
        }
        at = list::step(&item.next_of_set);
    }
}

/// Whether one of a set's registrations, from this one on, is ready. The caller holds the set's lock.
pub fn is_any_ready(first: u32) -> bool {
    let mut at = first;
    for _ in 0..ITEMS {
        let Some(item) = item(at) else { return false };
        if due(item).is_some() {
            return true;
        }
        at = list::step(&item.next_of_set);
    }
    false
}

/// Returns whether a look at the set would report this registration.
pub fn is_due(item: &EpollItem) -> bool {
    due(item).is_some()
}

/// What a look at the set would report for this registration, if anything.
fn due(item: &EpollItem) -> Option<Snapshot> {
    look(item).filter(|(_, is_due)| *is_due).map(|(snapshot, _)| snapshot)
}

/// The state of a registration, and whether a look at the set would report it. `None`: it reports nothing any more.
fn look(item: &EpollItem) -> Option<(Snapshot, bool)> {
    if registrations::is_parked(item) {
        return None;
    }
    let connection = registrations::connection(item)?;
    if item.spent.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let wanted = item.events.load(Ordering::Relaxed);
    let heard = item.heard.load(Ordering::Relaxed) & (wanted | ALWAYS);
    let (tail, full) = (STREAM.tail(&connection.remote), connection.shared.full.load(Ordering::Relaxed));
    let found = ready(&connection, wanted);
    let mut bits = found.bits & (wanted | ALWAYS) | heard;
    if bits == 0 && has_more(item, wanted, tail) {
        bits = u32::from(kernel::ready(connection.fd, found.elsewhere(wanted) as i16) as u16)
            & (wanted | ALWAYS);
    }
    let snapshot = Snapshot { wanted, bits, heard, tail, full, ended: found.ended };
    let is_due = bits != 0 && (wanted & EDGE == 0 || snapshot.is_news(item));
    Some((snapshot, is_due))
}
