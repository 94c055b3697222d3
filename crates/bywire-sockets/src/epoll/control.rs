//! What the program asks of its epoll sets that hold carried connections: `epoll_ctl`.
//!
//! The program still waits on the kernel's set. That set holds the doorbell. For a carried connection it watches only
//! the events that the rings do not know. What it reports for one is kept until the look that also examines the rings,
//! so each connection is reported once, with everything that it is ready for.

use core::sync::atomic::{Ordering, fence};

use bywire_pairing::reason::Reason;
use bywire_ring::list;
use libc::epoll_event;

use crate::connection::readiness::{ALWAYS, IN, OUT, Ready};
use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::datagram::members as datagrams;
use crate::epoll::events::{EDGE, ONCE, asked, ready};
use crate::epoll::registrations::{self, arm, claim, name, of_socket, unlink_from_socket};
use crate::epoll::{members, nested, order, parked, quiet, sets, sleepers};
use crate::memory::arena::{EpollItem, EpollSet, listed};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::user_access::are_readable;
use crate::os::{errno, own_call, real};
use crate::wakeup::doorbell;

const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// `epoll_ctl`.
pub fn control(set_fd: i32, operation: i32, fd: i32, event: *mut epoll_event) -> i32 {
    // SAFETY: the program's own arguments.
    let real = || unsafe { real::epoll_ctl(set_fd, operation, fd, event) };
    match descriptors::kind(fd) {
        DescriptorKind::Socket(_) => {}
        DescriptorKind::Untracked => return real(),
        DescriptorKind::Hidden => {
            errno::set(libc::EBADF);
            return -1;
        }
        DescriptorKind::Datagram(_) => return control_datagrams(set_fd, operation, fd, event, &real),
        DescriptorKind::EpollSet(inner) if operation == libc::EPOLL_CTL_ADD => {
            datagrams::leave_watched(inner);
            return nested::add(set_fd, fd, inner, &real);
        }
        DescriptorKind::EpollSet(inner) => {
            let status = real();
            if operation == libc::EPOLL_CTL_DEL && status == 0 {
                nested::remove(set_fd, inner);
            }
            return status;
        }
    }
    let Some(socket) = sockets::socket(fd) else { return real() };
    let wanted = if operation == libc::EPOLL_CTL_DEL {
        0
    } else if !are_readable(event, 1) {
        return real();
    } else {
        // SAFETY: the program's own event.
        unsafe { event.read_unaligned().events }
    };
    let Some((name, set)) = descriptors::set(set_fd) else { return outside(socket, &real) };
    sets::note_user(set);
    let held = set.lock.hold();
    let place = OpenSet::of(set_fd, name, set);
    let known = place.find(&socket);
    if let Some((at, item)) = known {
        quiet::end(set, at, item);
    }
    let is_outside = wanted & EXCLUSIVE != 0
        || set.is_shared.load(Ordering::Relaxed) != 0 && operation != libc::EPOLL_CTL_DEL;
    // To the program it is not there: only the addition of one that can be carried takes it back.
    let known = match known {
        Some((at, item))
            if registrations::is_parked(item)
                && (is_outside || operation != libc::EPOLL_CTL_ADD || !socket.is_carried()) =>
        {
            parked::discard(set_fd, set, at, item, None);
            None
        }
        known => known,
    };
    if is_outside {
        drop(held);
        return outside(socket, &real);
    }
    match operation {
        libc::EPOLL_CTL_DEL if known.is_some_and(|(_, item)| parked::park(set, item)) => 0,
        libc::EPOLL_CTL_DEL => {
            let status = real();
            if status == 0
                && let Some((at, item)) = known
            {
                place.remove(&socket, at, item);
            }
            status
        }
        _ if event.is_null() => real(),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            // SAFETY: the program's own event.
            place.register(socket, operation, unsafe { event.read_unaligned() }, known, &real)
        }
        _ => real(),
    }
}

/// A UDP socket: the kernel has the program's own registration.
fn control_datagrams(
    set_fd: i32,
    operation: i32,
    fd: i32,
    event: *mut epoll_event,
    real: &dyn Fn() -> i32,
) -> i32 {
    let given = if operation != libc::EPOLL_CTL_DEL && are_readable(event, 1) {
        // SAFETY: the program's own event, which can be read.
        Some(unsafe { event.read_unaligned() })
    } else {
        None
    };
    let status = real();
    if status == 0 {
        errno::keep(|| datagrams::note(set_fd, fd, operation, given));
    }
    status
}

/// A registration that is not tracked: its socket stays in the kernel, or returns there.
fn outside(socket: Socket, real: &dyn Fn() -> i32) -> i32 {
    socket.stay(Reason::Epoll);
    if let Ok(connection) = socket.carried() {
        connection.bring_back(Reason::Epoll);
    }
    real()
}

/// An epoll set with the descriptor of the call.
struct OpenSet {
    set_fd: i32,
    name: u32,
    set: &'static EpollSet,
}

impl OpenSet {
    fn of(set_fd: i32, name: u32, set: &'static EpollSet) -> Self {
        Self { set_fd, name, set }
    }

    fn find(&self, socket: &Socket) -> Option<(u32, &'static EpollItem)> {
        of_socket(socket).find(|(_, item)| {
            item.set.load(Ordering::Relaxed) == self.name && item.fd.load(Ordering::Relaxed) == socket.fd
        })
    }

    fn register(
        &self,
        socket: Socket,
        operation: i32,
        event: epoll_event,
        known: Option<(u32, &'static EpollItem)>,
        real: &dyn Fn() -> i32,
    ) -> i32 {
        let connection = match socket.carried() {
            Err(plain) => return self.register_plainly(&plain, operation, event, known),
            Ok(connection) => connection,
        };
        // If the set cannot hear the doorbell, the kernel reports everything.
        if !self.add_doorbell() {
            connection.bring_back(Reason::Memory);
        }
        // The kernel decides whether the operation is possible at all, with the events that it will watch.
        let wanted = { event.events };
        let found = ready(&connection, wanted);
        let asked = asked(&found, wanted);
        let parked = known.filter(|(_, item)| registrations::is_parked(item));
        let (at, item) = match (known, operation) {
            (Some(known), libc::EPOLL_CTL_MOD) => known,
            (Some(known), libc::EPOLL_CTL_ADD) if parked.is_some() => known,
            (None, libc::EPOLL_CTL_ADD) => {
                let Some(new) = claim(&connection) else {
                    connection.bring_back(Reason::Memory);
                    return real();
                };
                new
            }
            // `EEXIST` or `ENOENT`, from the kernel itself.
            _ => return real(),
        };
        // The rings know about room, so the kernel often watches nothing else. A one-shot registration that has fired
        // must be armed in the kernel anyway.
        let is_change = operation == libc::EPOLL_CTL_MOD || parked.is_some();
        let is_known = is_change
            && wanted & (EDGE | ONCE) == 0
            && item.spent.load(Ordering::Relaxed) == 0
            && item.asked.load(Ordering::Relaxed) == asked;
        if parked.is_some() && !is_known {
            // Events on their way to another thread belong to the registration that was removed.
            item.generation.fetch_add(1, Ordering::Relaxed);
        }
        let mut own = epoll_event { events: asked, u64: name(at, item) };
        let done = if is_change { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
        let status = match is_known {
            true => 0,
            // SAFETY: a live event.
            false => unsafe { real::epoll_ctl(self.set_fd, done, connection.fd, &raw mut own) },
        };
        if status != 0 {
            if !is_change {
                // Release: pairs with the exchange in `registrations::claim`.
                item.set.store(0, Ordering::Release);
            }
            return status;
        }
        if !is_change {
            self.link(&connection, at, item);
        }
        item.asked.store(asked, Ordering::Relaxed);
        if parked.is_some() {
            item.parked.store(0, Ordering::Relaxed);
            begin(item, &connection);
        }
        // A new one begins where it is listed.
        if is_change && (parked.is_some() || !order::keeps_place(item, found.bits, wanted)) {
            order::begin(item, &connection, found.bits & (wanted | ALWAYS) != 0);
        }
        arm(item, &event, 1);
        self.list(&connection, at, item);
        // A thread that sleeps in this set has not looked at the rings for this registration.
        self.wake_sleepers();
        0
    }

    /// The kernel reports to the program directly. For events that it reports once, it reports the registration's name
    /// instead of the program's data, because `wait` must know what was reported.
    fn register_plainly(
        &self,
        socket: &Socket,
        operation: i32,
        event: epoll_event,
        known: Option<(u32, &'static EpollItem)>,
    ) -> i32 {
        let real = |mut event: epoll_event| {
            // SAFETY: a live event.
            unsafe { real::epoll_ctl(self.set_fd, operation, socket.fd, &raw mut event) }
        };
        let claimed = if known.is_none() && operation == libc::EPOLL_CTL_ADD { claim(socket) } else { None };
        let Some((at, item)) = known.or(claimed) else {
            let status = real(event);
            if status == 0 {
                // Registered before the set was tracked, or the table is full.
                socket.stay(if operation == libc::EPOLL_CTL_ADD { Reason::Memory } else { Reason::Epoll });
            }
            return status;
        };
        let is_named = { event.events } & ONCE != 0
            && (item.named.load(Ordering::Relaxed) != 0 || socket.shared.never.load(Ordering::Relaxed) == 0);
        let before = item.generation.load(Ordering::Relaxed);
        // Events on their way to another thread belong to the registration that is replaced here: the kernel looks
        // again.
        item.generation.store(before.wrapping_add(1), Ordering::Relaxed);
        let status = real(if is_named { epoll_event { u64: name(at, item), ..event } } else { event });
        if status != 0 {
            item.generation.store(before, Ordering::Relaxed);
            if known.is_none() {
                // Release: pairs with the exchange in `registrations::claim`.
                item.set.store(0, Ordering::Release);
            }
            return status;
        }
        item.named.store(is_named.into(), Ordering::Relaxed);
        arm(item, &event, 0);
        if known.is_none() {
            self.link(socket, at, item);
            self.catch_up(socket, at, item);
        }
        0
    }

    /// Does for a new registration what [`convert`] does for those that it finds, if the connection became carried
    /// meanwhile.
    fn catch_up(&self, socket: &Socket, at: u32, item: &EpollItem) {
        // SeqCst: pairs with the fence in `offer::prepare`, which comes before the walk in `convert`. Either that walk
        // finds this registration in the socket's list, or this call sees the stage.
        fence(Ordering::SeqCst);
        if !socket.is_carried() {
            return;
        }
        let Some(Ok(connection)) = sockets::by_index(socket.fd, socket.index).map(Socket::mapped) else {
            return;
        };
        if !self.add_doorbell() {
            connection.bring_back(Reason::Memory);
        }
        self.list(&connection, at, item);
        ask_now(self.set_fd, &connection, at, item);
        self.wake_sleepers();
    }

    fn link(&self, socket: &Socket, at: u32, item: &EpollItem) {
        item.socket.store(socket.index, Ordering::Relaxed);
        item.fd.store(socket.fd, Ordering::Relaxed);
        item.set.store(self.name, Ordering::Relaxed);
        socket.shared.awaited.store(1, Ordering::Relaxed);
        list::put(&socket.shared.items, at, &item.next_of_socket);
    }

    /// Adds the registration to the list that every look at the set walks.
    fn list(&self, connection: &Connection, at: u32, item: &EpollItem) {
        let listed = &item.listed;
        if listed
            .compare_exchange(listed::NOT, listed::CARRIED, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        quiet::begin(self.set, item);
        begin(item, connection);
        order::join(self.set, item, connection);
        list::put(&self.set.carried, at, &item.next_of_set);
        doorbell::announce_sleepers(self.set);
    }

    fn add_doorbell(&self) -> bool {
        nested::leaves_doorbell(self.name, self.set) || members::add_doorbell(self.set_fd, self.set)
    }

    /// Lets threads that sleep look at what was registered: in this set, and in sets around it.
    fn wake_sleepers(&self) {
        // One may have begun to sleep here since, while nothing in the set was carried. It was counted before its
        // announcement, so it is seen here.
        self.add_doorbell();
        // SeqCst: pairs with the fences in `Unannounced::enter` and behind the announcements of `Sleeping` and of `poll`.
        // Either a sleeper is counted here, or it finds what was registered.
        fence(Ordering::SeqCst);
        // The set holds the doorbell, so a ring that nobody needs ends this program's own next wait.
        if sleepers::are_there(self.set) {
            doorbell::ring_own();
        }
    }

    fn remove(&self, socket: &Socket, at: u32, item: &EpollItem) {
        unlink_from_socket(socket.shared, at);
        quiet::free(self.set, at, item);
    }
}

/// A new registration has reported nothing yet.
fn begin(item: &EpollItem, connection: &Connection) {
    let (tail, full) = (STREAM.tail(&connection.remote), connection.shared.full.load(Ordering::Relaxed));
    item.seen_tail.store(tail, Ordering::Relaxed);
    item.seen_full.store(full, Ordering::Relaxed);
    item.seen_ended.store(0, Ordering::Relaxed);
    item.raised_tail.store(tail as u32, Ordering::Relaxed);
    item.raised_full.store(full, Ordering::Relaxed);
    item.raised_ended.store(0, Ordering::Relaxed);
    item.raised_fresh.store(1, Ordering::Relaxed);
}

/// Before a socket is carried: every set that holds it hears the doorbell, and the kernel watches fewer events.
pub fn make_ready(socket: &Socket) -> bool {
    let is_simple = of_socket(socket).all(|(_, item)| {
        // A set that is gone reports to nobody.
        descriptors::set_named(item.set.load(Ordering::Relaxed)).is_none_or(|set| {
            set.nested.load(Ordering::Relaxed) == 0 && set.is_shared.load(Ordering::Relaxed) == 0
        })
    });
    if !is_simple {
        socket.stay(Reason::Epoll);
        return false;
    }
    // Only the registration's name in the event shows whether the kernel has reported it.
    let is_unknown = |item: &EpollItem| {
        item.events.load(Ordering::Relaxed) & ONCE != 0 && item.named.load(Ordering::Relaxed) == 0
    };
    if of_socket(socket).any(|(_, item)| is_unknown(item)) {
        socket.stay(Reason::Epoll);
        return false;
    }
    for (_, item) in of_socket(socket) {
        let name = item.set.load(Ordering::Relaxed);
        if descriptors::set_named(name).is_none() {
            continue;
        }
        let Some(set_fd) = descriptors::of_set(name) else { return false };
        let Some((_, set)) = descriptors::set(set_fd) else { return false };
        let _held = set.lock.hold();
        if !OpenSet::of(set_fd, name, set).add_doorbell() {
            return false;
        }
    }
    true
}

/// Once the socket is carried: its registrations are examined with the rings.
pub fn convert(connection: &Connection) {
    for (at, item) in of_socket(connection) {
        let name = item.set.load(Ordering::Relaxed);
        let Some(set_fd) = descriptors::of_set(name) else { continue };
        let Some((_, set)) = descriptors::set(set_fd) else { continue };
        let _held = set.lock.hold();
        let place = OpenSet::of(set_fd, name, set);
        // A thread that polls the set may have removed it since `make_ready`.
        place.add_doorbell();
        place.list(connection, at, item);
        ask_now(set_fd, connection, at, item);
    }
    doorbell::ring_own();
}

/// Asks the kernel to watch what the rings do not know now.
fn ask_now(set_fd: i32, connection: &Connection, at: u32, item: &EpollItem) {
    let found = ready(connection, item.events.load(Ordering::Relaxed));
    ask_again(set_fd, connection, at, item, &found);
}

/// Asks the kernel to watch what the rings do not know according to this look. The kernel goes on watching what the
/// look did not find, so the look need not report it.
pub fn ask_again(set_fd: i32, connection: &Connection, at: u32, item: &EpollItem, found: &Ready) {
    let wanted = item.events.load(Ordering::Relaxed);
    let is_spent = item.spent.load(Ordering::Relaxed) != 0;
    // A one-shot registration that has fired must not fire again. Edge-triggered, it does not fire for what is already
    // there.
    let asked = match is_spent {
        false => asked(found, wanted),
        true if connection.owes() => EDGE | libc::EPOLLOUT as u32,
        true => EDGE,
    };
    if item.asked.load(Ordering::Relaxed) == asked {
        return;
    }
    let Some(fd) = registrations::number(item) else { return };
    let Some(_own) = own_call::begin() else { return };
    let mut event = epoll_event { events: asked, u64: name(at, item) };
    // SAFETY: a live event.
    if unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_MOD, fd, &raw mut event) } == 0 {
        let before = match item.asked.swap(asked, Ordering::Relaxed) {
            0 => wanted,
            before => before,
        };
        // An edge that the kernel had for it, and is not asked for any more, would be lost.
        if before & !asked & (IN | OUT) != 0 && wanted & EDGE != 0 && !is_spent {
            item.fresh.store(1, Ordering::Relaxed);
        }
    }
}
