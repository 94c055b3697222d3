//! What a look at an epoll set finds: of which registrations it would report something, and why.

use core::sync::atomic::Ordering;

use bywire_ring::list;

use crate::connection::readiness::{ALWAYS, IN, OUT, RDHUP, Ready};
use crate::connection::sockets::{Connection, STREAM};
use crate::epoll::registrations::{self, item};
use crate::memory::arena::{EpollItem, EpollSet, FINISHED, HUNG_UP, ITEMS, SHUT};
use crate::os::kernel;

/// Once for each change.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Once until it is asked for again.
pub const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// What a look at a connection finds for somebody who wants `wanted`.
pub fn ready(connection: &Connection, wanted: u32) -> Ready {
    connection.ready(wanted & !(EDGE | ONCE))
}

/// What the kernel has to be asked then. Where edges count, they count there too.
pub fn asked(ready: &Ready, wanted: u32) -> u32 {
    ready.ask & !(EDGE | ONCE) | wanted & EDGE
}

/// What the rings say of an item now, beside what was reported. All of it is of one look: what was loaded later may say more
/// than what is reported, and would count as reported.
pub struct Look {
    /// What the program asked for.
    pub wanted: u32,
    /// What is ready.
    pub bits: u32,
    /// What the kernel has said since the last look.
    pub heard: u32,
    /// The peer's tail.
    pub tail: u64,
    /// `SharedSocket::full`.
    pub full: u32,
    /// `SharedSocket::ended`.
    pub ended: u8,
}

impl Look {
    /// Has anything happened since the last report that the kernel would report again?
    fn is_news(&self, item: &EpollItem) -> bool {
        // The kernel, too, reports everything that is wanted when bytes come for a registration that wants to hear of them, and when
        // something ends for everybody.
        let is_more = has_more(item, self.wanted, self.tail);
        let is_end = item.seen_ended.load(Ordering::Relaxed) != self.ended;
        let is_room = self.bits & OUT != 0 && item.seen_full.load(Ordering::Relaxed) != self.full;
        let is_fresh = item.fresh.load(Ordering::Relaxed) != 0;
        self.bits != 0 && (is_fresh || is_more || is_end || is_room || self.is_heard_anew(item))
    }

    /// What is ready, and by what it has become so: bytes, room or an end, as far as it is ready for that.
    fn fingerprint(&self, at: u32) -> u32 {
        let since = |is_ready: bool, count: u32| if is_ready { count } else { 0 };
        let words = [
            at,
            self.bits,
            since(self.bits & IN != 0, self.tail as u32),
            since(self.bits & OUT != 0, self.full),
            self.ended.into(),
        ];
        // FNV-1a, by words, and the shuffle of MurmurHash3's end: sums of these for several registrations seldom agree.
        let hash = words.iter().fold(0x811C_9DC5u32, |hash, word| (hash ^ word).wrapping_mul(0x0100_0193));
        let hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
        hash ^ hash >> 13
    }

    /// Has the kernel told something new? It tells everything once more whenever it is asked for something else, and nothing new
    /// comes behind an end that was reported.
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

    /// The same, once: what is seen now is no news the next time.
    pub fn take_news(&self, item: &EpollItem) -> bool {
        let is_news = self.is_news(item);
        item.fresh.store(0, Ordering::Relaxed);
        item.seen_tail.store(self.tail, Ordering::Relaxed);
        item.seen_ended.store(self.ended, Ordering::Relaxed);
        if self.bits & OUT != 0 {
            item.seen_full.store(self.full, Ordering::Relaxed);
        }
        is_news
    }
}

/// Bytes have come into the ring since the last report, perhaps behind others that lie in the kernel.
pub fn has_more(item: &EpollItem, wanted: u32, tail: u64) -> bool {
    wanted & EDGE != 0 && wanted & IN != 0 && item.seen_tail.load(Ordering::Relaxed) != tail
}

/// The same, without the sets within it.
pub fn has_ready(set: &EpollSet) -> bool {
    // Acquire, here and below: pairs with the release exchange in `list::put` and the release store in `View::rotate` of `wait`.
    if set.carried.load(Ordering::Acquire) == 0 {
        return false;
    }
    let _held = set.lock.hold();
    is_any_ready(set.carried.load(Ordering::Acquire))
}

/// What a set has, the sets within it aside, and why: another number for something else, or for the same that has come anew;
/// 0 for nothing.
pub fn state(set: &EpollSet) -> u32 {
    // Acquire, here and below: pairs with the release exchange in `list::put` and the release store in `View::rotate` of
    // `wait`.
    if set.carried.load(Ordering::Acquire) == 0 {
        return 0;
    }
    let _held = set.lock.hold();
    let (mut sum, mut least, mut at) = (0u32, 0, set.carried.load(Ordering::Acquire));
    for _ in 0..ITEMS {
        let Some(item) = item(at) else { break };
        if let Some(look) = due(item) {
            // In any order, as looks change that.
            sum = sum.wrapping_add(look.fingerprint(at));
            least = 1;
        }
        at = list::step(&item.next_of_set);
    }
    sum.max(least)
}

/// Is one of these registrations of a set ready, from this one on? Called with the set's lock held.
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

/// What a look at the set would report of it, if anything.
fn due(item: &EpollItem) -> Option<Look> {
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
    let look = Look { wanted, bits, heard, tail, full, ended: found.ended };
    (bits != 0 && (wanted & EDGE == 0 || look.is_news(item))).then_some(look)
}
