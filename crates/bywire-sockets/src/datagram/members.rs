//! The program's UDP sockets in its epoll sets. The kernel's registrations stay the program's own. What is known of them here
//! is what memory may add to a wait.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use bywire_pairing::reason::Reason;
use libc::epoll_event;

use crate::connection::sockets::counted;
use crate::datagram::readiness::Asleep;
use crate::datagram::sockets::{self, Socket};
use crate::memory::arena::SETS;
use crate::memory::descriptors;
use crate::memory::lock::{Held, Lock, rank};
use crate::os::jumps::Noted;

/// Registrations at once. Sockets with further ones are left to the kernel.
const MEMBERS: usize = 256;
/// The events by which a datagram is reported.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Modes in which the kernel alone knows what was reported.
const KERNELS: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

#[derive(Clone, Copy)]
struct Member {
    /// The set's name, plus one. 0: the place is free.
    set: u32,
    fd: i32,
    index: u32,
    /// The use of the socket's record.
    generation: u32,
    events: u32,
    data: u64,
}

struct Table(UnsafeCell<[Member; MEMBERS]>);

// SAFETY: accessed under `LOCK`.
unsafe impl Sync for Table {}

static TABLE: Table =
    Table(UnsafeCell::new([Member { set: 0, fd: -1, index: 0, generation: 0, events: 0, data: 0 }; MEMBERS]));
static LOCK: Lock<{ rank::SET }> = Lock::new();
/// Places of the table that were ever used.
static END: AtomicU32 = AtomicU32::new(0);
/// Waits on the sets of each record.
static INSIDE: [AtomicU32; SETS] = [const { AtomicU32::new(0) }; SETS];

/// The table, locked.
struct Members {
    _held: Held<'static, { rank::SET }>,
}

impl Members {
    fn lock() -> Self {
        Self { _held: LOCK.hold() }
    }

    fn used(&mut self) -> &mut [Member] {
        // SAFETY: the lock is held, and `self` is borrowed for as long as the reference is.
        let table = unsafe { &mut *TABLE.0.get() };
        let end = END.load(Ordering::Relaxed) as usize;
        table.get_mut(..end).unwrap_or(&mut [])
    }

    fn of_set(&mut self, name: u32) -> impl Iterator<Item = &mut Member> {
        self.used().iter_mut().filter(move |member| member.set == name + 1)
    }

    fn add(&mut self, member: Member) -> bool {
        let is_free = |known: &Member| known.set == 0 || descriptors::set_named(known.set - 1).is_none();
        if let Some(place) = self.used().iter_mut().find(|known| is_free(known)) {
            *place = member;
            return true;
        }
        // SAFETY: as in `used`.
        let table = unsafe { &mut *TABLE.0.get() };
        let end = END.load(Ordering::Relaxed);
        let Some(place) = table.get_mut(end as usize) else { return false };
        *place = member;
        END.store(end + 1, Ordering::Relaxed);
        true
    }
}

impl Member {
    /// The socket, as long as the program has it. The kernel's registration outlives the descriptor that it was made by.
    fn socket(&self) -> Option<Socket> {
        sockets::by_index(-1, self.index).filter(|socket| socket.record.is_use(self.generation))
    }

    fn is_readable(&self) -> bool {
        self.events & READABLE != 0 && self.socket().is_some_and(|socket| socket.is_readable())
    }
}

/// Returns whether a wait has to look here at all.
#[inline(always)]
pub fn are_any() -> bool {
    sockets::are_any()
}

/// Notes what the program has done with a socket in a set, by a call that has succeeded.
pub fn note(set_fd: i32, fd: i32, operation: i32, event: Option<epoll_event>) {
    let Some(socket) = sockets::socket(fd) else { return };
    let Some((name, set)) = descriptors::set(set_fd) else { return socket.stay(Reason::Epoll) };
    let mut members = Members::lock();
    members
        .of_set(name)
        .filter(|member| member.fd == fd && member.index == socket.index)
        .for_each(|member| member.set = 0);
    let Some(event) = event.filter(|_| operation != libc::EPOLL_CTL_DEL) else { return };
    let (events, data) = ({ event.events }, { event.u64 });
    let is_added = events & KERNELS == 0
        && set.nested.load(Ordering::Relaxed) == 0
        && members.add(Member {
            set: name + 1,
            fd,
            index: socket.index,
            generation: socket.record.generation(),
            events,
            data,
        });
    drop(members);
    // SeqCst: pairs with the addition in `enter`. A thread that waits there already does not know of this socket.
    let is_waited_for =
        INSIDE.get(name as usize % SETS).is_none_or(|count| count.load(Ordering::SeqCst) != 0)
            || set.sleepers.load(Ordering::Relaxed) != 0;
    if !is_added || operation == libc::EPOLL_CTL_ADD && is_waited_for {
        socket.stay(Reason::Epoll);
    }
}

/// The set of this name is watched by another set or by `poll`, which do not see what is in memory.
pub fn leave_watched(name: u32) {
    if are_any() {
        Members::lock()
            .of_set(name)
            .filter_map(|member| member.socket())
            .for_each(|socket| socket.stay(Reason::Epoll));
    }
}

/// A thread waits on the set of this name, until the result is dropped. `None`: no UDP socket is in it.
pub fn enter(name: u32) -> Option<Noted> {
    // SeqCst in there: pairs with the load in `note`.
    let inside = counted(INSIDE.get(name as usize % SETS)?);
    Members::lock().of_set(name).next().is_some().then_some(inside)
}

/// Returns whether memory has something for a wait on the set.
pub fn is_any_readable(name: u32) -> bool {
    Members::lock().of_set(name).any(|member| member.is_readable())
}

/// Reports the sockets that are readable by what is in memory. Returns their number.
pub fn report(name: u32, events: &mut [epoll_event]) -> usize {
    let mut members = Members::lock();
    let mut ready = members.of_set(name).filter(|member| member.is_readable());
    let mut found = 0;
    for place in events {
        let Some(member) = ready.next() else { break };
        *place = epoll_event { events: member.events & READABLE, u64: member.data };
        found += 1;
    }
    found
}

/// The thread is about to sleep in the kernel with the sockets in the set.
pub fn sleep(name: u32, asleep: &mut Asleep) {
    Members::lock()
        .of_set(name)
        .filter_map(|member| member.socket())
        .for_each(|socket| asleep.enter(&socket));
}

/// In a forked child: it has no UDP sockets that are tracked.
pub fn after_fork_in_child() {
    LOCK.reset();
    END.store(0, Ordering::Relaxed);
    INSIDE.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}
