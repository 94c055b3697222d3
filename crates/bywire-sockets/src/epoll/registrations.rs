//! Registrations of sockets in epoll sets: their lists, and the names by which the kernel reports them.

use core::sync::atomic::Ordering;

use bywire_ring::list;
use libc::epoll_event;

use crate::connection::sockets::{self, Connection, Socket};
use crate::memory::arena::{self, EpollItem, ITEMS, SOCKETS, SharedSocket, listed};
use crate::memory::descriptors::{self, DescriptorKind};

/// The kernel reports the name of a registration: this value, its generation, its index.
const ITEM_DATA: u64 = 0xB7E2_0000_0000_0000;
const INDEX_BITS: u32 = ITEMS.ilog2();
const GENERATION_BITS: u32 = 20;
const TAG: u64 = u64::MAX << (INDEX_BITS + GENERATION_BITS);

/// The registration with this index.
pub fn item(index: u32) -> Option<&'static EpollItem> {
    if index == 0 { None } else { arena::shared()?.items.get(index as usize) }
}

/// Every registration of a socket.
pub fn of_socket(socket: &Socket) -> impl Iterator<Item = (u32, &'static EpollItem)> {
    let mut next = list::step(&socket.shared.items);
    core::iter::from_fn(move || {
        let (index, found) = (next, item(next)?);
        next = list::step(&found.next_of_socket);
        Some((index, found))
    })
    .take(ITEMS)
}

/// The descriptor by which the kernel knows a registration. `None`: it was closed since, and may mean another file.
pub fn number(item: &EpollItem) -> Option<i32> {
    let fd = item.fd.load(Ordering::Relaxed);
    (descriptors::kind(fd) == DescriptorKind::Socket(item.socket.load(Ordering::Relaxed))).then_some(fd)
}

/// The connection of a registration, by a descriptor that means it. The descriptor of the registration may have been
/// closed since, and may mean another file.
pub fn connection(item: &EpollItem) -> Option<Connection> {
    let index = item.socket.load(Ordering::Relaxed);
    let connection = sockets::by_index(item.fd.load(Ordering::Relaxed), index)?.mapped().ok()?;
    if connection.is_current() {
        return Some(connection);
    }
    sockets::by_index(descriptors::of_socket(index)?, index)?.mapped().ok()
}

/// Removes a registration from its socket's list.
pub fn unlink_from_socket(shared: &SharedSocket, at: u32) {
    let (Some(family), Some(gone)) = (arena::shared(), item(at)) else { return };
    let first = &shared.items;
    if !list::take_out_alone(first, at, &gone.next_of_socket) {
        let _held = family.registering.hold();
        list::take_out(first, at, ITEMS, |at| item(at).map(|item| &item.next_of_socket));
    }
}

/// Returns whether a registration is parked: the program has removed it, and the kernel still has it. The caller holds its
/// set's lock, or looks again under it.
#[inline]
pub fn is_parked(item: &EpollItem) -> bool {
    // Relaxed: changed only under the set's lock.
    item.parked.load(Ordering::Relaxed) != 0
}

/// Takes a free registration; storing a set in it marks it as taken. Each socket has one of its own, for its first set.
pub fn claim(socket: &Socket) -> Option<(u32, &'static EpollItem)> {
    const SPARE: u32 = (ITEMS - SOCKETS) as u32;
    let family = arena::shared()?;
    let spare = arena::next_places(&family.next_item).map(|place| SOCKETS as u32 + place % SPARE);
    for at in core::iter::once(socket.index).chain(spare) {
        let Some(found) = item(at) else { continue };
        // AcqRel: pairs with the release stores of 0, and with the acquire load in `named`, which matches no
        // registration that is being prepared.
        if found.set.compare_exchange(0, u32::MAX, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            for field in [&found.heard, &found.asked, &found.next_of_set, &found.next_of_socket] {
                field.store(0, Ordering::Relaxed);
            }
            found.listed.store(listed::NOT, Ordering::Relaxed);
            found.named.store(0, Ordering::Relaxed);
            found.parked.store(0, Ordering::Relaxed);
            found.raised_fresh.store(1, Ordering::Relaxed);
            // What another thread was told of its last use does not match this use.
            found.generation.fetch_add(1, Ordering::Relaxed);
            return Some((at, found));
        }
    }
    None
}

/// Notes that the program waits for `event` from here on. `fresh`: the next look reports what is there.
pub fn arm(item: &EpollItem, event: &epoll_event, fresh: u8) {
    // The kernel, too, reports to the sets around it what has been reported here once and is reported again.
    if item.spent.load(Ordering::Relaxed) != 0 || { event.events } & libc::EPOLLET as u32 != 0 {
        item.raised_fresh.store(1, Ordering::Relaxed);
    }
    item.events.store(event.events, Ordering::Relaxed);
    item.data.store(event.u64, Ordering::Relaxed);
    item.spent.store(0, Ordering::Relaxed);
    item.heard.store(0, Ordering::Relaxed);
    item.settled.store(0, Ordering::Relaxed);
    item.fresh.store(fresh, Ordering::Relaxed);
}

/// What the kernel reports for a registration, in this use of it.
pub fn name(at: u32, item: &EpollItem) -> u64 {
    let generation = u64::from(item.generation.load(Ordering::Relaxed)) % (1 << GENERATION_BITS);
    ITEM_DATA | generation << INDEX_BITS | u64::from(at)
}

/// The registration of this name in a set, if the name is still valid. The caller holds the set's lock.
pub fn named(data: u64, set: u32) -> Option<&'static EpollItem> {
    let at = index(data);
    // Acquire: pairs with the exchange in `claim`, for a record that belongs to another set by now. The set's lock
    // orders the registration's fields.
    item(at).filter(|item| item.set.load(Ordering::Acquire) == set && name(at, item) == data)
}

/// The index of the registration that has this name, or had it.
pub fn index(data: u64) -> u32 {
    (data % (1 << INDEX_BITS)) as u32
}

/// Whether it is, or was, the name of a registration.
pub fn is_name(data: u64) -> bool {
    data & TAG == ITEM_DATA
}
