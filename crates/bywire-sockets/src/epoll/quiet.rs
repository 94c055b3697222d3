//! Quiet registrations: in a set with many, those at which looks find nothing.
//!
//! A look walks the list of the set's carried registrations. One for which many walks in a row have found nothing, while they
//! found something for others, leaves that list. From then on its peer counts its news ([`hints`]), and a look at the set costs
//! nothing for it. It is listed again when there are news of its number, when the kernel has an event for it, or when the program
//! changes it. The lists change under the set's lock.
//!
//! A hint may be lost with a thread that has published something and is killed, or leaves its call by a jump, before it counts. So
//! all quiet registrations are looked at once in a second.

use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use bywire_ring::hints::{self, NUMBERS};
use bywire_ring::list;

use crate::connection::readiness::OUT;
use crate::connection::sockets::{Connection, STREAM};
use crate::epoll::events::EDGE;
use crate::epoll::registrations::{self, item};
use crate::memory::arena::{self, Counts, EpollItem, EpollSet, ITEMS, Quiet, listed};
use crate::wakeup::{hints as news, peers};

/// A registration for which this many walks in a row find nothing is quiet. They cost more than to list it again.
const WALKS: u8 = 64;
/// From one look at all quiet registrations to the next.
const SWEEP_NS: u64 = 1_000_000_000;
/// A walk over fewer registrations costs less than a quiet one's next news.
const WALKED_MIN: usize = 8;

/// Counts them, for tests and debuggers: that nobody looks at a registration changes nothing that a program sees.
#[unsafe(export_name = "bywire_quiet_registrations")]
static EVER: AtomicU32 = AtomicU32::new(0);

/// Returns whether a registration should be quiet: many walks have found nothing for it, and this one is long.
#[inline]
pub fn is_due(set: &EpollSet, item: &EpollItem, walked: usize) -> bool {
    let walks = set.walks.load(Ordering::Relaxed) as u8;
    walked >= WALKED_MIN
        // A set that is watched itself tells its watchers of nothing that only the peers know.
        && set.nested.load(Ordering::Relaxed) == 0
        && walks.wrapping_sub(item.found_at.load(Ordering::Relaxed)) >= WALKS
        && item.listed.load(Ordering::Relaxed) == listed::CARRIED
}

/// A registration is listed.
pub fn begin(set: &EpollSet, item: &EpollItem) {
    let socket = item.socket.load(Ordering::Relaxed);
    item.number.store(hints::warm(socket.into()) as u8, Ordering::Relaxed);
    note_found(set, item);
}

/// Something was found for a registration.
#[inline]
pub fn note_found(set: &EpollSet, item: &EpollItem) {
    let walks = set.walks.load(Ordering::Relaxed) as u8;
    // A store without need would take the line from the cores of other threads that look.
    if item.found_at.load(Ordering::Relaxed) != walks {
        item.found_at.store(walks, Ordering::Relaxed);
    }
}

/// Returns whether a registration may be quiet, which a look has just found without events.
pub fn is_possible(at: u32, item: &EpollItem, connection: &Connection) -> bool {
    let wanted = item.events.load(Ordering::Relaxed);
    (wanted & OUT == 0 || wanted & EDGE != 0)
        && item.spent.load(Ordering::Relaxed) == 0
        && item.heard.load(Ordering::Relaxed) == 0
        && registrations::number(item).is_some()
        // Its number is the socket's, so only one of its registrations can be quiet.
        && connection.shared.items.load(Ordering::Relaxed) == at
        && item.next_of_socket.load(Ordering::Relaxed) == 0
        // Acquire: pairs with the release store in `offer::answered`. The peer's page is mapped before.
        && peers::has_page(connection.local.peer.load(Ordering::Acquire))
        && connection.is_at_rest()
}

/// Has the peer count its news. The caller looks once more, and then calls [`leave`] or [`end_counting`].
pub fn begin_counting(item: &EpollItem, connection: &Connection) {
    STREAM.begin_quiet(&connection.own, item.number.load(Ordering::Relaxed).into());
}

/// The peer need not count its news any more.
pub fn end_counting(connection: &Connection) {
    STREAM.end_quiet(&connection.own);
}

/// A registration leaves the list that looks walk, in which `before` is the one before it, or 0.
pub fn leave(set: &EpollSet, at: u32, item: &EpollItem, before: u32) {
    let Some(first) = first_of(set, item) else { return };
    // A process that is killed on the way leaves the registration in a list of which `end` takes it out.
    EVER.fetch_add(1, Ordering::Relaxed);
    set.quiet_count.fetch_add(1, Ordering::Relaxed);
    item.listed.store(listed::CHANGING, Ordering::Relaxed);
    list::put(first, at, &item.next_quiet);
    let (next, before) = (item.next_of_set.load(Ordering::Relaxed), registrations::item(before));
    // Release: pairs with the acquire loads of the list.
    before.map_or(&set.carried, |before| &before.next_of_set).store(next, Ordering::Release);
    item.listed.store(listed::QUIET, Ordering::Relaxed);
}

/// Lists a registration again, if it is quiet.
pub fn end(set: &EpollSet, at: u32, item: &EpollItem) {
    match item.listed.load(Ordering::Relaxed) {
        listed::QUIET => {}
        listed::CHANGING => list::take_out(&set.carried, at, ITEMS, next_of_set),
        _ => return,
    }
    item.listed.store(listed::CHANGING, Ordering::Relaxed);
    item.settled.store(0, Ordering::Relaxed);
    list::put(&set.carried, at, &item.next_of_set);
    unlink(set, at, item);
    begin(set, item);
    item.listed.store(listed::CARRIED, Ordering::Relaxed);
    // The last step: a process that is killed on the way leaves the count too high. Release: pairs with the acquire load in
    // `has_carried`, behind which the list's head is read.
    set.quiet_count.fetch_sub(1, Ordering::Release);
    if let Some(connection) = registrations::connection(item) {
        end_counting(&connection);
    }
}

/// Takes a quiet registration out of the list of its number.
fn unlink(set: &EpollSet, at: u32, item: &EpollItem) {
    if let Some(first) = first_of(set, item) {
        list::take_out(first, at, ITEMS, |at| registrations::item(at).map(|item| &item.next_quiet));
    }
}

/// Lists all quiet registrations of a set again.
pub fn end_all(set: &EpollSet) {
    if set.quiet_count.load(Ordering::Relaxed) != 0 {
        for number in 0..NUMBERS {
            each_of(set, number, |at, item| end(set, at, item));
        }
        set.quiet_count.store(0, Ordering::Relaxed);
    }
}

/// Lists the quiet registrations again that have news, whether they were counted or not, if that was not done for a while. The caller
/// does not hold the set's lock.
pub fn sweep(set: &EpollSet, now_ns: u64) {
    if set.quiet_count.load(Ordering::Relaxed) == 0
        || now_ns < set.swept_ns.load(Ordering::Relaxed).saturating_add(SWEEP_NS)
    {
        return;
    }
    let _held = set.lock.hold();
    set.swept_ns.store(now_ns, Ordering::Relaxed);
    for number in 0..NUMBERS {
        each_of(set, number, |at, item| {
            if registrations::connection(item).is_none_or(|connection| has_news(item, &connection)) {
                end(set, at, item);
            }
        });
    }
}

/// Lists the quiet registrations again of which there are news.
#[inline]
pub fn follow(set: &EpollSet) {
    if set.quiet_count.load(Ordering::Relaxed) != 0
        && let Some(family) = arena::shared()
    {
        news::find(family);
        // Acquire: pairs with the release addition in `hints::note`.
        let sum = family.news_sum.load(Ordering::Acquire);
        if set.seen_sum.load(Ordering::Relaxed) != sum {
            follow_counts(set, &family.news);
            set.seen_sum.store(sum, Ordering::Relaxed);
        }
    }
}

fn follow_counts(set: &EpollSet, news: &Counts) {
    let Some(quiet) = quiet_of(set) else { return };
    for (number, (count, seen)) in news.iter().zip(&quiet.seen).enumerate() {
        // Acquire: pairs with the release addition in `hints::note`. The look at the connections comes next.
        let count = count.load(Ordering::Acquire);
        if seen.load(Ordering::Relaxed) != count {
            follow_number(set, number);
            // Behind that, as the process may be killed on the way.
            seen.store(count, Ordering::Relaxed);
        }
    }
}

/// There are news of some of the quiet registrations with this number. The others get a number for those that have none: they are
/// listed until the walk that follows, which finds nothing for them.
fn follow_number(set: &EpollSet, number: usize) {
    each_of(set, number, |at, item| {
        let connection = registrations::connection(item);
        let is_still = item.listed.load(Ordering::Relaxed) == listed::QUIET
            // The news of a connection that this process does not have are for another one's look.
            && connection.as_ref().is_some_and(|connection| !has_news(item, connection));
        if !is_still {
            end(set, at, item);
        } else if !hints::is_cold(number) {
            end(set, at, item);
            let walks = set.walks.load(Ordering::Relaxed) as u8;
            item.found_at.store(walks.wrapping_sub(WALKS), Ordering::Relaxed);
            let socket = item.socket.load(Ordering::Relaxed);
            item.number.store(hints::cold(socket.into()) as u8, Ordering::Relaxed);
        }
    });
}

/// Returns whether there may be news of a quiet registration.
fn has_news(item: &EpollItem, connection: &Connection) -> bool {
    let wanted = item.events.load(Ordering::Relaxed);
    !connection.is_at_rest()
        // Others may have taken the bytes already, and this end may have filled its ring.
        || wanted & EDGE != 0 && item.seen_tail.load(Ordering::Relaxed) != STREAM.tail(&connection.remote)
        || wanted & OUT != 0
            && item.seen_full.load(Ordering::Relaxed) != connection.shared.full.load(Ordering::Relaxed)
}

fn each_of(set: &EpollSet, number: usize, mut visit: impl FnMut(u32, &EpollItem)) {
    let Some(first) = quiet_of(set).and_then(|quiet| quiet.first.get(number)) else { return };
    let mut at = list::step(first);
    for _ in 0..ITEMS {
        let Some(found) = item(at) else { return };
        let next = list::step(&found.next_quiet);
        visit(at, found);
        at = next;
    }
}

/// Removes a registration from its set's list and frees it. The caller removes it from the socket's list.
pub fn free(set: &EpollSet, at: u32, item: &EpollItem) {
    let listed = item.listed.swap(listed::NOT, Ordering::Relaxed);
    if matches!(listed, listed::CARRIED | listed::CHANGING) {
        list::take_out(&set.carried, at, ITEMS, next_of_set);
    }
    if matches!(listed, listed::QUIET | listed::CHANGING) {
        unlink(set, at, item);
        set.quiet_count.fetch_sub(1, Ordering::Relaxed);
    }
    item.parked.store(0, Ordering::Relaxed);
    // Release: pairs with the exchange in `claim`.
    item.set.store(0, Ordering::Release);
}

/// Removes all registrations from a set's list, and from the lists of their sockets. The caller holds the set's lock.
pub fn empty(set: &EpollSet) {
    let Some(family) = arena::shared() else { return };
    end_all(set);
    for _ in 0..ITEMS {
        let at = set.carried.load(Ordering::Relaxed);
        let Some(gone) = item(at) else { break };
        if let Some(shared) = family.sockets.get(gone.socket.load(Ordering::Relaxed) as usize) {
            registrations::unlink_from_socket(shared, at);
        }
        // Release: pairs with the acquire loads of the list's head in `wait::View::look` and `events::has_ready`.
        set.carried.store(gone.next_of_set.load(Ordering::Relaxed), Ordering::Release);
        gone.listed.store(listed::NOT, Ordering::Relaxed);
        // Release: pairs with the exchange in `claim`.
        gone.set.store(0, Ordering::Release);
    }
    // Relaxed: the list is empty.
    set.carried.store(0, Ordering::Relaxed);
}

fn next_of_set(at: u32) -> Option<&'static AtomicU32> {
    item(at).map(|item| &item.next_of_set)
}

fn first_of(set: &EpollSet, item: &EpollItem) -> Option<&'static AtomicU32> {
    quiet_of(set)?.first.get(usize::from(item.number.load(Ordering::Relaxed)))
}

fn quiet_of(set: &EpollSet) -> Option<&'static Quiet> {
    let family = arena::shared()?;
    // Every set is one of the table's.
    let from_first = ptr::from_ref(set) as usize - family.sets.as_ptr() as usize;
    family.quiet.get(from_first / size_of::<EpollSet>())
}

impl EpollSet {
    /// Returns whether it has a registration of a carried connection.
    #[inline]
    pub fn has_carried(&self) -> bool {
        // Acquire, both: pair with the release exchange in `list::put` and the release stores of the list's head, and with the
        // release subtraction in `end`. One that was quiet at the first load is on the list by the second.
        self.quiet_count.load(Ordering::Acquire) != 0 || self.carried.load(Ordering::Acquire) != 0
    }
}
