//! Epoll sets of the program's that hold carried connections.
//!
//! The kernel's set stays what the program waits on. It holds the bell, and of a carried connection it is asked
//! only what the rings do not know. What it says of one is kept until the same look that asks the rings: so each
//! connection is reported once, with everything that it is ready for.

use core::sync::atomic::{Ordering, fence};

use bywire_pairing::reason::Reason;
use bywire_ring::list;
use libc::epoll_event;

use crate::connection::carried::{FINISHED, HUNG_UP, SHUT};
use crate::connection::readiness::{ALWAYS, IN, OUT, RDHUP, Ready};
use crate::connection::table::{self, Connection, Meaning, STREAM, Socket};
use crate::epoll::nested;
use crate::epoll::registrations::{self, arm, claim, free, item, name, of_socket, unlink_from_socket};
use crate::memory::arena::{ITEMS, Item, Set};
use crate::os::user_access::are_readable;
use crate::os::{errno, kernel, own_call, pid, real};
use crate::wakeup::doorbell;

/// Once for each change.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Once until it is asked for again.
pub const ONCE: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

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
        Meaning::Set(inner) if operation == libc::EPOLL_CTL_ADD => return nested::add(set_fd, inner, &real),
        Meaning::Set(inner) => {
            let status = real();
            if operation == libc::EPOLL_CTL_DEL && status == 0 {
                nested::remove(set_fd, inner);
            }
            return status;
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
    let Some((name, set)) = table::set(set_fd) else { return outside(socket, &real) };
    if wanted & EXCLUSIVE != 0 {
        return outside(socket, &real);
    }
    note_user(set);
    let held = set.lock.hold();
    if set.is_shared.load(Ordering::Relaxed) != 0 && operation != libc::EPOLL_CTL_DEL {
        drop(held);
        return outside(socket, &real);
    }
    let place = Place::of(set_fd, name, set);
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

/// This process uses the set: what is to be told of in it is told here.
pub fn note_user(set: &Set) {
    let me = pid::number().unwrap_or(0);
    if set.user.load(Ordering::Relaxed) != me {
        set.user.store(me, Ordering::Relaxed);
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
    name: u32,
    set: &'static Set,
}

impl Place {
    fn of(set_fd: i32, name: u32, set: &'static Set) -> Self {
        Self { set_fd, name, set }
    }

    fn find(&self, socket: &Socket) -> Option<(u32, &'static Item)> {
        of_socket(socket).find(|(_, item)| {
            item.set.load(Ordering::Relaxed) == self.name && item.fd.load(Ordering::Relaxed) == socket.fd
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
        let asked = asked(&ready(&connection, wanted), wanted);
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
                // Release: pairs with the exchange in `registrations::claim`.
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
        doorbell::ring_own();
        0
    }

    /// The kernel tells the program itself. Of what it tells once it names the item instead of what the program has
    /// given it, as `wait` has to know what was told.
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

    /// Does for a fresh registration what [`convert`] has done for all that it has found, if that was meanwhile.
    fn catch_up(&self, socket: &Socket, at: u32, item: &Item) {
        // SeqCst: pairs with the fence in `proposal::prepare`, which is before the walk in `convert`: either this is found in the socket's list, or the stage here.
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
        ask_now(self.set_fd, &connection, at, item);
        doorbell::ring_own();
    }

    fn link(&self, socket: &Socket, at: u32, item: &Item) {
        item.record.store(socket.index, Ordering::Relaxed);
        item.fd.store(socket.fd, Ordering::Relaxed);
        item.set.store(self.name, Ordering::Relaxed);
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
        doorbell::announce_sleepers(self.set);
    }

    fn add_bell(&self) -> bool {
        if self.set.belled.load(Ordering::Relaxed) == 0 && doorbell::add_to(self.set_fd) {
            self.set.belled.store(1, Ordering::Relaxed);
        }
        // Which of the other kind there are differs from process to process.
        self.set.belled.load(Ordering::Relaxed) != 0 && doorbell::add_foreign_to(self.set_fd)
    }

    fn remove(&self, socket: &Socket, at: u32, item: &Item) {
        unlink_from_socket(socket.record, at);
        free(self.set, at, item);
    }
}

/// What a look at a connection finds for somebody who wants `wanted`.
pub fn ready(connection: &Connection, wanted: u32) -> Ready {
    connection.ready(wanted & !(EDGE | ONCE))
}

/// What the kernel has to be asked then. Where edges count, they count there too.
pub fn asked(ready: &Ready, wanted: u32) -> u32 {
    ready.ask & !(EDGE | ONCE) | wanted & EDGE
}

/// Before a socket is carried: every set that holds it hears the bell, and asks the kernel less.
pub fn make_ready(socket: &Socket) -> bool {
    let is_simple = of_socket(socket).all(|(_, item)| {
        // One that is gone tells nobody.
        table::set_named(item.set.load(Ordering::Relaxed)).is_none_or(|set| {
            set.nested.load(Ordering::Relaxed) == 0 && set.is_shared.load(Ordering::Relaxed) == 0
        })
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
        let name = item.set.load(Ordering::Relaxed);
        if table::set_named(name).is_none() {
            continue;
        }
        let Some(set_fd) = descriptor_of(name) else { return false };
        let Some((_, set)) = table::set(set_fd) else { return false };
        let _held = set.lock.hold();
        if !Place::of(set_fd, name, set).add_bell() {
            return false;
        }
    }
    true
}

/// Once it is carried: its registrations are looked at with the rings.
pub fn convert(connection: &Connection) {
    for (at, item) in of_socket(connection) {
        let name = item.set.load(Ordering::Relaxed);
        let Some(set_fd) = descriptor_of(name) else { continue };
        let Some((_, set)) = table::set(set_fd) else { continue };
        let _held = set.lock.hold();
        let place = Place::of(set_fd, name, set);
        place.list(connection, at, item);
        ask_now(set_fd, connection, at, item);
    }
    doorbell::ring_own();
}

/// A descriptor of this process that means the set of this name.
fn descriptor_of(name: u32) -> Option<i32> {
    let mut found = None;
    table::each(|fd, meaning| {
        if meaning == Meaning::Set(name) {
            found = Some(fd);
        }
    });
    found
}

/// Asks the kernel for what the rings do not know by now.
fn ask_now(set_fd: i32, connection: &Connection, at: u32, item: &Item) {
    let found = ready(connection, item.events.load(Ordering::Relaxed));
    ask_again(set_fd, connection, at, item, &found);
}

/// Asks the kernel for what the rings do not know by what this look has found: what it did not find the kernel goes on being
/// asked for, so that the same look need not tell of it.
pub fn ask_again(set_fd: i32, connection: &Connection, at: u32, item: &Item, found: &Ready) {
    let wanted = item.events.load(Ordering::Relaxed);
    let is_spent = item.spent.load(Ordering::Relaxed) != 0;
    // One that is spent must not be heard again: by its edges, what is there already is not.
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

/// Nobody has the set of this name any more.
pub fn clear(name: u32) {
    let Some(set) = table::set_named(name) else { return };
    let _held = set.lock.hold();
    // Its place may be another one's by now, which has emptied it.
    if table::set_named(name).is_some() {
        registrations::empty(set);
    }
    // Registrations of sockets that are not carried are in no list of the set's: they are found through sockets. Those of
    // sockets that others have bear a name that no set will have, and go with the sockets.
    table::each_held(|socket, _| {
        while let Some((at, item)) =
            of_socket(socket).find(|(_, item)| item.set.load(Ordering::Relaxed) == name)
        {
            unlink_from_socket(socket.record, at);
            free(set, at, item);
        }
    });
}

/// A socket is gone for good, and the kernel has taken it out of its sets.
pub fn forget(socket: &Socket) {
    for _ in 0..ITEMS {
        let Some((at, item)) = of_socket(socket).next() else { return };
        // In the list of a set that is gone, too: whoever has its place next empties it.
        let Some(set) = table::set_place(item.set.load(Ordering::Relaxed)) else { return };
        let _held = set.lock.hold();
        unlink_from_socket(socket.record, at);
        free(set, at, item);
    }
}

/// The kernel's registrations of a socket in the sets of this process are the program's own again, and nobody follows them, as
/// far as they are meant. `closing` means the socket to the kernel still, and to the table no more.
pub fn leave(socket: &Socket, closing: Option<i32>, is_meant: impl Fn(&Item) -> bool) {
    let here = |item: &Item| descriptor_of(item.set.load(Ordering::Relaxed)).filter(|_| is_meant(item));
    while let Some((at, item)) = of_socket(socket).find(|(_, item)| here(item).is_some()) {
        let Some(set_fd) = here(item) else { return };
        let Some((_, set)) = table::set(set_fd) else { return };
        let _held = set.lock.hold();
        let is_changed = socket.is_carried() || item.named.load(Ordering::Relaxed) != 0;
        let closing = closing.filter(|fd| *fd == item.fd.load(Ordering::Relaxed));
        if is_changed && let Some(fd) = registrations::number(item).or(closing) {
            let is_spent = item.spent.load(Ordering::Relaxed) != 0;
            let events = if is_spent { ONCE } else { item.events.load(Ordering::Relaxed) };
            let mut event = epoll_event { events, u64: item.data.load(Ordering::Relaxed) };
            // SAFETY: a live event.
            unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_MOD, fd, &raw mut event) };
        }
        unlink_from_socket(socket.record, at);
        free(set, at, item);
    }
}

/// A descriptor of a socket is being closed, and means it to the kernel still: what the kernel goes on telling of it it
/// tells as to a program without this library. It does so as long as anybody has the socket.
pub fn leave_closing(socket: &Socket, is_last: bool) {
    // SeqCst: pairs with the additions in `table::duplicate` and `hold::close`.
    let has_others_here = !is_last && socket.hold.descriptors.load(Ordering::SeqCst) != 0;
    // Others here bear registrations of their own, which are followed.
    let is_meant = |item: &Item| !has_others_here || item.fd.load(Ordering::Relaxed) == socket.fd;
    if !of_socket(socket).any(|(_, item)| is_meant(item)) {
        return;
    }
    let is_passed = socket.record.never.load(Ordering::Relaxed) != 0;
    let connection = table::by_index(socket.fd, socket.index).map(Socket::carried);
    let is_kernels = matches!(&connection, Some(Ok(connection)) if connection.is_kernels());
    let is_followed = matches!(&connection, Some(Ok(_))) && !is_kernels;
    let is_over = match is_last {
        // Nobody else has it, but for whomever it was passed to.
        true => is_followed || !is_passed,
        // A child closes what its parent goes on with.
        false => !is_kernels && !is_used_here(socket),
    };
    if is_over {
        return;
    }
    match connection {
        Some(Ok(connection)) if is_followed => connection.begin_back(Reason::Epoll),
        Some(Err(plain)) => plain.stay(Reason::Epoll),
        _ => {}
    }
    leave(socket, Some(socket.fd), is_meant);
}

/// Is this process the one that is told of the socket, by one of its sets?
fn is_used_here(socket: &Socket) -> bool {
    let me = pid::number().unwrap_or(0);
    of_socket(socket).any(|(_, item)| {
        let set = table::set_named(item.set.load(Ordering::Relaxed));
        set.is_some_and(|set| set.user.load(Ordering::Relaxed) == me)
    })
}

/// Another program is about to have those of this process's sets that are meant: nothing in them is carried from here on.
/// `false`: there are none.
pub fn share(is_meant: impl Fn(i32) -> bool) -> bool {
    let mut is_any = false;
    table::each(|fd, meaning| {
        if let Meaning::Set(_) = meaning
            && is_meant(fd)
            && let Some((name, set)) = table::set(fd)
            // Erlang starts a helper program with its sets, while they are empty, and that closes them.
            && (set.carried.load(Ordering::Relaxed) != 0 || has_registered(name))
        {
            is_any = true;
            set.is_shared.store(1, Ordering::Relaxed);
            // Whoever registers something now is done before this, or sees it.
            drop(set.lock.hold());
        }
    });
    is_any
}

/// Has a socket of this process a registration in the set of this name?
fn has_registered(name: u32) -> bool {
    let mut is_any = false;
    table::each_held(|socket, _| {
        is_any |= of_socket(socket).any(|(_, item)| item.set.load(Ordering::Relaxed) == name);
    });
    is_any
}

/// Is it in a set that another program may have?
pub fn is_shared(socket: &Socket) -> bool {
    of_socket(socket).any(|(_, item)| is_in_shared(item))
}

fn is_in_shared(item: &Item) -> bool {
    let set = table::set_named(item.set.load(Ordering::Relaxed));
    set.is_some_and(|set| set.is_shared.load(Ordering::Relaxed) != 0)
}

/// What was brought back of such sets is registered as the program has done it, and their bells are gone.
pub fn leave_shared() {
    table::each_held(|socket, _| leave(socket, None, is_in_shared));
    table::each(|fd, meaning| {
        if let Meaning::Set(_) = meaning
            && let Some((_, set)) = table::set(fd)
            && set.is_shared.load(Ordering::Relaxed) != 0
        {
            let _held = set.lock.hold();
            // What others of the family alone have they hear by the bell.
            if set.carried.load(Ordering::Relaxed) == 0 && set.belled.swap(0, Ordering::Relaxed) != 0 {
                doorbell::remove_from(fd);
            }
        }
    });
}

/// No ring is heard in this set any more.
pub fn silence(set_fd: i32) {
    let Some((_, set)) = table::set(set_fd) else { return };
    // Others of the family may sleep in it: with them it is left as it is.
    if set.processes.load(Ordering::Relaxed) == 1 && set.belled.swap(0, Ordering::Relaxed) != 0 {
        doorbell::remove_from(set_fd);
    }
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
    /// `Record::full`.
    pub full: u32,
    /// `Record::ended`.
    pub ended: u8,
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
    pub fn take_news(&self, item: &Item) -> bool {
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
pub fn has_more(item: &Item, wanted: u32, tail: u64) -> bool {
    wanted & EDGE != 0 && wanted & IN != 0 && item.seen_tail.load(Ordering::Relaxed) != tail
}

/// What a set that is itself watched has for its watcher.
pub fn is_ready(name: u32) -> bool {
    table::set_named(name).is_some_and(|set| has_ready(set) || nested::is_any_ready(name, set))
}

/// The same, without the sets within it.
pub fn has_ready(set: &Set) -> bool {
    // Acquire, here and below: pairs with the release exchange in `list::put` and the release store in `View::rotate` of `wait`.
    if set.carried.load(Ordering::Acquire) == 0 {
        return false;
    }
    let _held = set.lock.hold();
    is_any_ready(set.carried.load(Ordering::Acquire))
}

/// What a set has, the sets within it aside, and why: another number for something else, or for the same that has come anew;
/// 0 for nothing.
pub fn state(set: &Set) -> u32 {
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
fn due(item: &Item) -> Option<Look> {
    let connection = registrations::connection(item)?;
    if item.spent.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let wanted = item.events.load(Ordering::Relaxed);
    let heard = item.heard.load(Ordering::Relaxed) & (wanted | ALWAYS);
    let (tail, full) = (STREAM.tail(&connection.remote), connection.record.full.load(Ordering::Relaxed));
    let found = ready(&connection, wanted);
    let mut bits = found.bits & (wanted | ALWAYS) | heard;
    if bits == 0 && has_more(item, wanted, tail) {
        bits = u32::from(kernel::ready(connection.fd, found.elsewhere(wanted) as i16) as u16)
            & (wanted | ALWAYS);
    }
    let look = Look { wanted, bits, heard, tail, full, ended: found.ended };
    (bits != 0 && (wanted & EDGE == 0 || look.is_news(item))).then_some(look)
}
