//! Epoll sets of the program's that hold carried connections.
//!
//! The kernel's set stays what the program waits on. It holds the bell, and of a carried connection it is asked
//! only what the rings do not know. What it says of one is kept until the same look that asks the rings: so each
//! connection is reported once, with everything that it is ready for.

use core::cell::Cell;
use core::sync::atomic::{Ordering, fence};

use bywire_pairing::reason::Reason;
use bywire_ring::list;
use libc::epoll_event;

use crate::arena::{self, ITEMS, Item, Set};
use crate::bell::{self, BELL_DATA};
use crate::carry::{FINISHED, HUNG_UP, SHUT};
use crate::items::{arm, claim, free, item, name, of_socket, unlink_from_socket};
use crate::reach::are_readable;
use crate::ready::{ALWAYS, IN, OUT, RDHUP};
use crate::sleepers::{Sleeping, Unannounced};
use crate::table::{self, Connection, Meaning, STREAM, Socket};
use crate::{back, errno, items, kernel, nested, real, sandbox, spin};

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// While rings have news all the time, the kernel is asked at one look of so many.
const KERNEL_EVERY: u32 = 8;

/// `epoll_ctl`.
pub fn control(set_fd: i32, operation: i32, fd: i32, event: *mut epoll_event) -> i32 {
    // SAFETY: the program's own arguments.
    let real = || unsafe { real::epoll_ctl(set_fd, operation, fd, event) };
    match table::meaning(fd) {
        Meaning::Socket(_) => {}
        Meaning::Nothing => return real(),
        Meaning::Hidden => {
            errno::set(libc::EBADF);
            return -1;
        }
        Meaning::Set(inner) => {
            if operation == libc::EPOLL_CTL_ADD {
                nested::add(set_fd, inner);
            }
            return real();
        }
    }
    let Some(socket) = table::socket(fd) else { return real() };
    let wanted = if operation == libc::EPOLL_CTL_DEL {
        0
    } else if !are_readable(event, 1) {
        return real();
    } else {
        // SAFETY: the program's own event.
        unsafe { event.read_unaligned().events }
    };
    let Some((index, set)) = table::set(set_fd) else { return outside(socket, &real) };
    if wanted & EXCLUSIVE != 0 {
        return outside(socket, &real);
    }
    let _held = set.lock.hold();
    let place = Place::of(set_fd, index, set);
    match operation {
        libc::EPOLL_CTL_DEL => {
            let status = real();
            if status == 0
                && let Some((at, item)) = place.find(&socket)
            {
                place.remove(&socket, at, item);
            }
            status
        }
        _ if event.is_null() => real(),
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
            // SAFETY: the program's own event.
            place.register(socket, operation, unsafe { event.read_unaligned() }, &real)
        }
        _ => real(),
    }
}

/// A registration that is not followed: such a socket stays in the kernel, or goes back there.
fn outside(socket: Socket, real: &dyn Fn() -> i32) -> i32 {
    socket.stay(Reason::Epoll);
    if let Ok(connection) = socket.carried() {
        connection.bring_back(Reason::Epoll);
    }
    real()
}

/// A set, by the descriptor that it was called by.
struct Place {
    set_fd: i32,
    index: u32,
    set: &'static Set,
    /// The last look has left something that another thread would be told of.
    is_left: Cell<bool>,
    /// How many registrations the last look has looked at.
    looked_at: Cell<usize>,
}

impl Place {
    fn of(set_fd: i32, index: u32, set: &'static Set) -> Self {
        Self { set_fd, index, set, is_left: Cell::new(false), looked_at: Cell::new(0) }
    }

    fn find(&self, socket: &Socket) -> Option<(u32, &'static Item)> {
        of_socket(socket).find(|(_, item)| {
            item.set.load(Ordering::Relaxed) == self.index && item.fd.load(Ordering::Relaxed) == socket.fd
        })
    }

    fn register(&self, socket: Socket, operation: i32, event: epoll_event, real: &dyn Fn() -> i32) -> i32 {
        let known = self.find(&socket);
        let connection = match socket.carried() {
            Err(plain) => return self.register_plainly(&plain, operation, event, known),
            Ok(connection) => connection,
        };
        // Where no ring can be heard, the kernel tells everything.
        if !self.add_bell() {
            connection.bring_back(Reason::Memory);
        }
        // The kernel decides whether this is possible at all, with what it will be asked.
        let wanted = { event.events };
        let asked = asked(&connection, wanted);
        let (at, item) = match (known, operation) {
            (Some(known), libc::EPOLL_CTL_MOD) => known,
            (None, libc::EPOLL_CTL_ADD) => {
                let Some(new) = claim(&connection) else {
                    connection.bring_back(Reason::Memory);
                    return real();
                };
                new
            }
            // EEXIST or ENOENT, from the kernel itself.
            _ => return real(),
        };
        let mut own = epoll_event { events: asked, u64: name(at, item) };
        // Room is asked of the rings, so the kernel often has nothing else to hear; what is spent it must hear anyway.
        let is_known = operation == libc::EPOLL_CTL_MOD
            && wanted & (EDGE | ONCE) == 0
            && item.spent.load(Ordering::Relaxed) == 0
            && item.asked.load(Ordering::Relaxed) == asked;
        let status = match is_known {
            true => 0,
            // SAFETY: a live event.
            false => unsafe { real::epoll_ctl(self.set_fd, operation, connection.fd, &raw mut own) },
        };
        if status != 0 {
            if operation == libc::EPOLL_CTL_ADD {
                // Release: pairs with the exchange in `items::claim`.
                item.set.store(0, Ordering::Release);
            }
            return status;
        }
        if operation == libc::EPOLL_CTL_ADD {
            self.link(&connection, at, item);
        }
        item.asked.store(asked, Ordering::Relaxed);
        arm(item, &event, 1);
        self.list(&connection, at, item);
        // Whoever sleeps in this set has not looked at the rings for it.
        bell::ring_own();
        0
    }

    /// The kernel tells the program itself. Of what it tells once it names the item instead of what the program has
    /// given it, as [`Self::sort`] has to know what was told.
    fn register_plainly(
        &self,
        socket: &Socket,
        operation: i32,
        event: epoll_event,
        known: Option<(u32, &'static Item)>,
    ) -> i32 {
        let real = |mut event: epoll_event| {
            // SAFETY: a live event.
            unsafe { real::epoll_ctl(self.set_fd, operation, socket.fd, &raw mut event) }
        };
        let claimed = if known.is_none() && operation == libc::EPOLL_CTL_ADD { claim(socket) } else { None };
        let Some((at, item)) = known.or(claimed) else {
            let status = real(event);
            if status == 0 {
                // Registered before we knew the set, or the table is full.
                socket.stay(if operation == libc::EPOLL_CTL_ADD { Reason::Memory } else { Reason::Epoll });
            }
            return status;
        };
        let is_named = { event.events } & ONCE != 0
            && (item.named.load(Ordering::Relaxed) != 0 || socket.record.never.load(Ordering::Relaxed) == 0);
        let before = item.generation.load(Ordering::Relaxed);
        // What is under way to another thread was told of what is replaced here: the kernel looks anew.
        item.generation.store(before.wrapping_add(1), Ordering::Relaxed);
        let status = real(if is_named { epoll_event { u64: name(at, item), ..event } } else { event });
        if status != 0 {
            item.generation.store(before, Ordering::Relaxed);
            if known.is_none() {
                // Release: pairs with the exchange in `items::claim`.
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

    /// Does for a fresh registration what [`convert`] has done for all that it has found, if that was meanwhile.
    fn catch_up(&self, socket: &Socket, at: u32, item: &Item) {
        // Pairs with the fence in `offer::prepare`: either this is found in the socket's list, or the stage here.
        fence(Ordering::SeqCst);
        if !socket.is_carried() {
            return;
        }
        let Some(Ok(connection)) = table::by_index(socket.fd, socket.index).map(Socket::mapped) else {
            return;
        };
        if !self.add_bell() {
            connection.bring_back(Reason::Memory);
        }
        self.list(&connection, at, item);
        ask_again(self.set_fd, &connection, at, item);
        bell::ring_own();
    }

    fn link(&self, socket: &Socket, at: u32, item: &Item) {
        item.record.store(socket.index, Ordering::Relaxed);
        item.fd.store(socket.fd, Ordering::Relaxed);
        item.set.store(self.index, Ordering::Relaxed);
        socket.record.awaited.store(1, Ordering::Relaxed);
        list::put(&socket.record.items, at, &item.next_of_record);
    }

    /// Into the list that every look at the set goes through.
    fn list(&self, connection: &Connection, at: u32, item: &Item) {
        if item.listed.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        item.seen_tail.store(STREAM.tail(&connection.remote), Ordering::Relaxed);
        item.seen_full.store(connection.record.full.load(Ordering::Relaxed), Ordering::Relaxed);
        item.seen_ended.store(0, Ordering::Relaxed);
        list::put(&self.set.carried, at, &item.next_of_set);
    }

    fn add_bell(&self) -> bool {
        if self.set.belled.load(Ordering::Relaxed) == 0 && bell::add_to(self.set_fd) {
            self.set.belled.store(1, Ordering::Relaxed);
        }
        // Which of the other kind there are differs from process to process.
        self.set.belled.load(Ordering::Relaxed) != 0 && bell::add_foreign_to(self.set_fd)
    }

    fn remove(&self, socket: &Socket, at: u32, item: &Item) {
        unlink_from_socket(socket, at);
        free(self.set, at, item);
    }
}

/// What the kernel has to be asked for somebody who wants `wanted`. Where edges count, they count there too.
fn asked(connection: &Connection, wanted: u32) -> u32 {
    connection.ready(wanted & !(EDGE | ONCE)).ask & !(EDGE | ONCE) | wanted & EDGE
}

/// Before a socket is carried: every set that holds it hears the bell, and asks the kernel less.
pub fn make_ready(socket: &Socket) -> bool {
    let is_simple = of_socket(socket).all(|(_, item)| {
        let index = item.set.load(Ordering::Relaxed);
        arena::family()
            .and_then(|family| family.sets.get(index as usize))
            .is_some_and(|set| set.nested.load(Ordering::Relaxed) == 0)
    });
    if !is_simple {
        socket.stay(Reason::Epoll);
        return false;
    }
    // Whether the kernel has told of it is known by its name alone.
    let is_unknown = |item: &Item| {
        item.events.load(Ordering::Relaxed) & ONCE != 0 && item.named.load(Ordering::Relaxed) == 0
    };
    if of_socket(socket).any(|(_, item)| is_unknown(item)) {
        socket.stay(Reason::Epoll);
        return false;
    }
    for (_, item) in of_socket(socket) {
        let index = item.set.load(Ordering::Relaxed);
        let Some(set_fd) = descriptor_of(index) else { return false };
        let Some((_, set)) = table::set(set_fd) else { return false };
        let _held = set.lock.hold();
        if !Place::of(set_fd, index, set).add_bell() {
            return false;
        }
    }
    true
}

/// Once it is carried: its registrations are looked at with the rings.
pub fn convert(connection: &Connection) {
    for (at, item) in of_socket(connection) {
        let index = item.set.load(Ordering::Relaxed);
        let Some(set_fd) = descriptor_of(index) else { continue };
        let Some((_, set)) = table::set(set_fd) else { continue };
        let _held = set.lock.hold();
        let place = Place::of(set_fd, index, set);
        place.list(connection, at, item);
        ask_again(set_fd, connection, at, item);
    }
    bell::ring_own();
}

/// A descriptor of this process that means the set.
fn descriptor_of(index: u32) -> Option<i32> {
    let mut found = None;
    table::each(|fd, meaning| {
        if meaning == Meaning::Set(index) {
            found = Some(fd);
        }
    });
    found
}

/// Asks the kernel for what the rings do not know by now.
fn ask_again(set_fd: i32, connection: &Connection, at: u32, item: &Item) {
    let wanted = item.events.load(Ordering::Relaxed);
    let is_spent = item.spent.load(Ordering::Relaxed) != 0;
    // One that is spent must not be heard again: by its edges, what is there already is not.
    let asked = match is_spent {
        false => asked(connection, wanted),
        true if connection.owes() => EDGE | libc::EPOLLOUT as u32,
        true => EDGE,
    };
    if item.asked.load(Ordering::Relaxed) == asked {
        return;
    }
    let Some(fd) = items::number(item) else { return };
    let Some(_own) = sandbox::own_call() else { return };
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

/// The last descriptor of a set is being closed.
pub fn clear(index: u32, set: &Set) {
    let _held = set.lock.hold();
    // Registrations of sockets that are not carried are in no list of the set's: they are found through sockets.
    table::each_held(|socket, _| {
        while let Some((at, item)) =
            of_socket(socket).find(|(_, item)| item.set.load(Ordering::Relaxed) == index)
        {
            unlink_from_socket(socket, at);
            free(set, at, item);
        }
    });
}

/// A socket is gone for good, and the kernel has taken it out of its sets.
pub fn forget(socket: &Socket) {
    let Some(family) = arena::family() else { return };
    while let Some((at, item)) = of_socket(socket).next() {
        let index = item.set.load(Ordering::Relaxed);
        let Some(set) = family.sets.get(index as usize) else { return };
        let _held = set.lock.hold();
        unlink_from_socket(socket, at);
        free(set, at, item);
    }
}

/// The kernel's registrations of a socket in the sets of this process are the program's own again, and nobody follows them.
/// `closing` means the socket to the kernel still, and to the table no more.
pub fn leave(socket: &Socket, closing: Option<i32>) {
    let Some(family) = arena::family() else { return };
    let here = |item: &Item| descriptor_of(item.set.load(Ordering::Relaxed));
    while let Some((at, item)) = of_socket(socket).find(|(_, item)| here(item).is_some()) {
        let (Some(set_fd), index) = (here(item), item.set.load(Ordering::Relaxed)) else { return };
        let Some(set) = family.sets.get(index as usize) else { return };
        let _held = set.lock.hold();
        let is_changed = socket.is_carried() || item.named.load(Ordering::Relaxed) != 0;
        let closing = closing.filter(|fd| *fd == item.fd.load(Ordering::Relaxed));
        if is_changed && let Some(fd) = items::number(item).or(closing) {
            let is_spent = item.spent.load(Ordering::Relaxed) != 0;
            let events = if is_spent { ONCE } else { item.events.load(Ordering::Relaxed) };
            let mut event = epoll_event { events, u64: item.data.load(Ordering::Relaxed) };
            // SAFETY: a live event.
            unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_MOD, fd, &raw mut event) };
        }
        unlink_from_socket(socket, at);
        free(set, at, item);
    }
}

/// No ring is heard in this set any more.
pub fn silence(set_fd: i32) {
    let Some((_, set)) = table::set(set_fd) else { return };
    // Others of the family may sleep in it: with them it is left as it is.
    let mut own = 0;
    table::each(|_, meaning| own += u32::from(meaning == table::meaning(set_fd)));
    if set.references.load(Ordering::Relaxed) == own && set.belled.swap(0, Ordering::Relaxed) != 0 {
        bell::remove_from(set_fd);
    }
}

/// The wait of a call: `real` takes events, their number, and a time-out in milliseconds.
pub struct Wait<'a> {
    /// The set's descriptor.
    pub set_fd: i32,
    /// Where events go.
    pub events: *mut epoll_event,
    /// How many.
    pub count: i32,
    /// When it ends: 0 at once, `None` never.
    pub timeout_ns: Option<u64>,
    /// The kernel's wait, with a time-out in nanoseconds.
    pub real: &'a dyn Fn(*mut epoll_event, i32, Option<u64>) -> i32,
}

impl Wait<'_> {
    /// Waits.
    pub fn run(&self) -> i32 {
        let Some((index, set)) = table::set(self.set_fd) else {
            return (self.real)(self.events, self.count, self.timeout_ns);
        };
        if self.count <= 0 || self.events.is_null() {
            return (self.real)(self.events, self.count, self.timeout_ns);
        }
        let place = Place::of(self.set_fd, index, set);
        let end = self.timeout_ns.map(|timeout| kernel::now_ns().saturating_add(timeout));
        loop {
            let left = end.map(|end| end.saturating_sub(kernel::now_ns()));
            if sandbox::is_closed() {
                return (self.real)(self.events, self.count, left);
            }
            place.is_left.set(false);
            if let Some(result) = self.turn(&place, left) {
                if result > 0 {
                    place.pass_on();
                }
                return result;
            }
            if left == Some(0) {
                return 0;
            }
        }
    }

    /// One look, with a sleep if there is nothing; `None`: look again.
    fn turn(&self, place: &Place, left_ns: Option<u64>) -> Option<i32> {
        let Some(unannounced) = Unannounced::enter(place.set) else {
            return self.turn_of_carried(place, left_ns);
        };
        let heard = (self.real)(self.events, self.count, back::pay_before_wait(left_ns));
        errno::keep(|| drop(unannounced));
        self.result(place, heard)
    }

    fn turn_of_carried(&self, place: &Place, left_ns: Option<u64>) -> Option<i32> {
        // The kernel's come first then: a full array would leave no place for them.
        let mut found = 0;
        if place.set.turn.load(Ordering::Relaxed) >= KERNEL_EVERY {
            place.set.turn.store(0, Ordering::Relaxed);
            found = self.ask(place);
        }
        found += place.look(self.at(found), self.count - found);
        if found > 0 {
            return Some(place.without_kernel(found));
        }
        if left_ns != Some(0) {
            let deadline = left_ns.map(|left| kernel::now_ns().saturating_add(left));
            spin::until(
                place.looked_at.get(),
                || {
                    found = place.look(self.events, self.count);
                    found > 0
                },
                deadline,
            );
            if found > 0 {
                return Some(place.without_kernel(found));
            }
        }
        let sleeping = Sleeping::announce(place.set);
        nested::ring_for_inner(place.index, place.set);
        let found = place.look(self.events, self.count);
        if found > 0 {
            drop(sleeping);
            return Some(place.without_kernel(found));
        }
        // Without a page nobody would ring: then sleeps are short.
        let left_ns = match sleeping.is_announced() {
            true => left_ns,
            false => Some(left_ns.unwrap_or(u64::MAX).min(10_000_000)),
        };
        let heard = (self.real)(self.events, self.count, back::pay_before_wait(left_ns));
        errno::keep(|| drop(sleeping));
        self.result(place, heard)
    }

    /// The kernel's answer at once, without what is for [`Place::look`].
    fn ask(&self, place: &Place) -> i32 {
        loop {
            let heard = (self.real)(self.events, self.count, Some(0));
            let (kept, was_bell) = place.sort(self.events, heard);
            // The bell may have had the place of something else.
            if kept > 0 || !was_bell || heard < self.count {
                return kept;
            }
        }
    }

    /// What the kernel has said, and what the rings have by now.
    fn result(&self, place: &Place, heard: i32) -> Option<i32> {
        if heard < 0 {
            return Some(heard);
        }
        let (mut sorted, was_bell) = place.sort(self.events, heard);
        if sorted == 0 && was_bell && heard == self.count {
            sorted = self.ask(place);
        }
        let found = sorted + place.look(self.at(sorted), self.count - sorted);
        if found > 0 { Some(found) } else { None }
    }

    fn at(&self, index: i32) -> *mut epoll_event {
        self.events.wrapping_add(index.max(0) as usize)
    }
}

impl Place {
    /// Counts a turn in which the kernel was not asked for what it has beside the rings.
    fn without_kernel(&self, found: i32) -> i32 {
        self.set.turn.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps what the kernel says of carried connections for [`Self::look`], and leaves the rest to the program: how many, and
    /// whether the bell was among them.
    fn sort(&self, events: *mut epoll_event, count: i32) -> (i32, bool) {
        let (mut kept, mut was_bell, mut held) = (0, false, None);
        for index in 0..count.max(0) as usize {
            // SAFETY: the kernel has written `count` events there.
            let mut event = unsafe { events.add(index).read_unaligned() };
            let data = { event.u64 };
            if data == BELL_DATA {
                was_bell = true;
                continue;
            }
            if items::is_name(data) {
                held.get_or_insert_with(|| self.set.lock.hold());
                match items::named(data, self.index) {
                    Some(item) if item.listed.load(Ordering::Relaxed) == 0 => {
                        item.spent.store(1, Ordering::Relaxed);
                        event.u64 = item.data.load(Ordering::Relaxed);
                    }
                    Some(item) => {
                        item.heard.fetch_or(event.events, Ordering::Relaxed);
                        continue;
                    }
                    // It was told of a registration that has been replaced or removed since.
                    None => continue,
                }
            }
            // SAFETY: at most as far as was read.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
        }
        drop(held);
        if was_bell {
            bell::taken();
            // It was for those as well, of whom peers do not know; each of them passes it on to the next.
            if self.set.unannounced.load(Ordering::Relaxed) != 0 {
                bell::ring_own();
            }
        }
        (kept as i32, was_bell)
    }

    /// What is left wakes the next sleeper, as in the kernel's own sets, and whoever watches this set.
    fn pass_on(&self) {
        if self.is_left.get() && self.has_others() {
            bell::ring_own();
        }
    }

    /// Would anybody else hear of what is left?
    fn has_others(&self) -> bool {
        // Relaxed: who has looked before this thread is counted, by the set's lock; who looks after it finds what is left.
        self.set.sleepers.load(Ordering::Relaxed) != 0 || self.set.nested.load(Ordering::Relaxed) != 0
    }

    /// Reports carried connections that are ready.
    fn look(&self, events: *mut epoll_event, count: i32) -> i32 {
        // Acquire, here and below: pairs with the release exchange in `list::put` and the release store in `rotate`.
        if self.set.carried.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let _held = self.set.lock.hold();
        let (mut found, mut at, mut last) = (0, self.set.carried.load(Ordering::Acquire), 0);
        for looked_at in 0..ITEMS {
            self.looked_at.set(looked_at);
            let Some(item) = item(at) else { break };
            if found >= count {
                self.is_left.set(self.is_left.get() || self.has_others() && self.is_any_ready(at));
                self.rotate(at, last);
                break;
            }
            if let Some(event) = self.event_of(at, item) {
                // SAFETY: the program's array has room for `count` events.
                unsafe { events.add(found as usize).write_unaligned(event) };
                found += 1;
                // A level stays until somebody has read it.
                if item.events.load(Ordering::Relaxed) & (EDGE | ONCE) == 0 {
                    self.is_left.set(true);
                }
            }
            (last, at) = (at, list::step(&item.next_of_set));
        }
        found
    }

    /// Is one of these ready, from this one on?
    fn is_any_ready(&self, first: u32) -> bool {
        let mut at = first;
        for _ in 0..ITEMS {
            let Some(item) = item(at) else { return false };
            if is_item_ready(item) {
                return true;
            }
            at = list::step(&item.next_of_set);
        }
        false
    }

    /// Puts what was not looked at first, so that nobody starves behind a few busy ones.
    fn rotate(&self, first: u32, before: u32) {
        let (Some(split), head) = (item(before), self.set.carried.load(Ordering::Relaxed)) else { return };
        let mut end = first;
        for _ in 0..ITEMS {
            match item(end).map(|item| item.next_of_set.load(Ordering::Relaxed)) {
                Some(0) | None => break,
                Some(next) => end = next,
            }
        }
        if let Some(end) = item(end) {
            split.next_of_set.store(0, Ordering::Relaxed);
            end.next_of_set.store(head, Ordering::Relaxed);
            // Release: pairs with the acquire loads of the list's first; the links are changed before.
            self.set.carried.store(first, Ordering::Release);
        }
    }

    fn event_of(&self, at: u32, item: &Item) -> Option<epoll_event> {
        let connection = items::connection(item)?;
        let is_unheard = item.heard.load(Ordering::Relaxed) == 0;
        if is_unheard && item.settled.load(Ordering::Relaxed) != 0 && connection.is_at_rest() {
            return None;
        }
        let heard = if is_unheard { 0 } else { item.heard.swap(0, Ordering::Relaxed) };
        if heard != 0 {
            connection.heard(heard as i16);
        }
        if item.spent.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let wanted = item.events.load(Ordering::Relaxed);
        let tail = STREAM.tail(&connection.remote);
        let full = connection.record.full.load(Ordering::Relaxed);
        let ready = connection.ready(wanted & !(EDGE | ONCE));
        ask_again(self.set_fd, &connection, at, item);
        let mut bits = ready.bits & (wanted | ALWAYS);
        // One report says everything, wherever it is known. What was heard may have been taken since, as an error or as
        // bytes: the kernel, too, looks again before it reports.
        let elsewhere = ready.elsewhere(wanted);
        if elsewhere != 0 && ((bits | heard & elsewhere) != 0 || has_more(item, wanted, tail)) {
            let found = kernel::ready(connection.fd, elsewhere as i16 | libc::POLLRDHUP);
            // What is told now is no news at the next look.
            connection.heard(found);
            bits |= u32::from(found as u16) & (wanted | ALWAYS);
        }
        let ended = connection.record.ended.load(Ordering::Relaxed);
        let is_due = match wanted & EDGE {
            0 => bits != 0,
            _ => Look { wanted, bits, heard, tail, full, ended }.take_news(item),
        };
        if !is_due {
            // Most connections of a large set stand still most of the time. One that waits for room does not.
            let is_settled = wanted & OUT == 0
                && bits == 0
                && connection.is_at_rest()
                && item.asked.load(Ordering::Relaxed) == ready.ask & !(EDGE | ONCE) | wanted & EDGE;
            item.settled.store(is_settled.into(), Ordering::Relaxed);
            return None;
        }
        if wanted & ONCE != 0 {
            item.spent.store(1, Ordering::Relaxed);
            ask_again(self.set_fd, &connection, at, item);
        }
        Some(epoll_event { events: bits, u64: item.data.load(Ordering::Relaxed) })
    }
}

/// What the rings say of an item now, beside what was reported.
struct Look {
    wanted: u32,
    bits: u32,
    heard: u32,
    tail: u64,
    full: u32,
    ended: u8,
}

impl Look {
    /// Has anything happened since the last report that the kernel would report again?
    fn is_news(&self, item: &Item) -> bool {
        // The kernel, too, reports everything that is wanted when bytes come for whoever wants to hear of them, and when
        // something ends for everybody.
        let is_more = has_more(item, self.wanted, self.tail);
        let is_end = item.seen_ended.load(Ordering::Relaxed) != self.ended;
        let is_room = self.bits & OUT != 0 && item.seen_full.load(Ordering::Relaxed) != self.full;
        let is_fresh = item.fresh.load(Ordering::Relaxed) != 0;
        self.bits != 0 && (is_fresh || is_more || is_end || is_room || self.is_heard_anew(item))
    }

    /// Has the kernel told something new? It tells everything once more whenever it is asked for something else, and nothing new
    /// comes behind an end that was reported.
    fn is_heard_anew(&self, item: &Item) -> bool {
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
    fn take_news(&self, item: &Item) -> bool {
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
fn has_more(item: &Item, wanted: u32, tail: u64) -> bool {
    wanted & EDGE != 0 && wanted & IN != 0 && item.seen_tail.load(Ordering::Relaxed) != tail
}

/// What a set that is itself watched has for its watcher.
pub fn is_ready(index: u32) -> bool {
    let set = arena::family().and_then(|family| family.sets.get(index as usize));
    set.is_some_and(|set| has_ready(index, set) || nested::is_any_ready(index, set))
}

/// The same, without the sets within it.
pub fn has_ready(index: u32, set: &'static Set) -> bool {
    // Acquire, here and below: pairs with the release exchange in `list::put` and the release store in `Place::rotate`.
    if set.carried.load(Ordering::Acquire) == 0 {
        return false;
    }
    let _held = set.lock.hold();
    Place::of(-1, index, set).is_any_ready(set.carried.load(Ordering::Acquire))
}

/// Would [`Place::look`] report it?
fn is_item_ready(item: &Item) -> bool {
    let Some(connection) = items::connection(item) else { return false };
    if item.spent.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let wanted = item.events.load(Ordering::Relaxed);
    let heard = item.heard.load(Ordering::Relaxed) & (wanted | ALWAYS);
    let (tail, full) = (STREAM.tail(&connection.remote), connection.record.full.load(Ordering::Relaxed));
    let ready = connection.ready(wanted & !(EDGE | ONCE));
    let mut bits = ready.bits & (wanted | ALWAYS) | heard;
    if bits == 0 && has_more(item, wanted, tail) {
        bits = u32::from(kernel::ready(connection.fd, ready.elsewhere(wanted) as i16) as u16)
            & (wanted | ALWAYS);
    }
    let ended = connection.record.ended.load(Ordering::Relaxed);
    bits != 0 && (wanted & EDGE == 0 || Look { wanted, bits, heard, tail, full, ended }.is_news(item))
}
