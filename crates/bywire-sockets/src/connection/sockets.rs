//! Sockets of the program's, and the connections that calls find behind them.

use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bywire_pairing::reason::Reason;
use bywire_ring::hold as rule;
use bywire_ring::passage;
use bywire_ring::stream::{SEGMENT_BYTES, Stream, Window};

use crate::connection::policy;
use crate::memory::arena::{self, Hold, RECORDS, Record, SETS, stage};
use crate::memory::descriptors::{self, Meaning};
use crate::memory::free_list::Freed;
use crate::memory::holders;
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::own_call;
use crate::wakeup::doorbell;

/// The rings of all connections.
pub const STREAM: Stream = Stream::new(bywire_ring::stream::RING_BYTES);

/// Records that this process has given back.
static FREED: Freed = Freed::new();
/// This process has let go of everything, as it ends.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// A TCP socket of the program's, while a call uses it.
pub struct Socket {
    /// The descriptor by which the call came.
    pub fd: i32,
    /// Its index.
    pub index: u32,
    /// What the family shares of it.
    pub record: &'static Record,
    /// What this process holds of it.
    pub hold: &'static Hold,
}

/// A carried connection, while a call uses it.
pub struct Connection {
    socket: Socket,
    /// What this side writes.
    pub own: Window,
    /// What the other side writes.
    pub remote: Window,
}

/// The TCP socket behind `fd`.
#[inline(always)]
pub fn socket(fd: i32) -> Option<Socket> {
    let Meaning::Socket(index) = descriptors::meaning(fd) else { return None };
    let socket = by_index(fd, index)?;
    // It may have been closed meanwhile: then its mappings are not ours to use.
    if descriptors::meaning(fd) == Meaning::Socket(index) { Some(socket) } else { None }
}

/// A call that moves data on a socket that is not worth an offer yet: counted inside the kernel, and nothing more.
/// `None`: the socket has to be looked at.
#[inline(always)]
pub fn pass(
    fd: i32,
    index: u32,
    count: impl FnOnce(&'static Record) -> &'static AtomicU32,
) -> Option<(Inside, &'static Record)> {
    let record = arena::family()?.records.get(index as usize)?;
    if !policy::is_early(record) {
        return None;
    }
    let inside = Inside::enter(count(record), record)?;
    // While it is counted, its record is not given to another socket.
    if descriptors::meaning(fd) == Meaning::Socket(index) { Some((inside, record)) } else { None }
}

/// Has no other end been found for it?
pub fn is_unpaired(fd: i32) -> bool {
    let Meaning::Socket(index) = descriptors::meaning(fd) else { return true };
    let record = arena::family().and_then(|family| family.records.get(index as usize));
    // Acquire: pairs with the release store of `PAIRED` in `proposal::answered`.
    record.is_none_or(|record| matches!(record.stage.load(Ordering::Acquire), stage::PLAIN | stage::WAITING))
}

/// The socket with this index, in use until dropped.
pub fn by_index(fd: i32, index: u32) -> Option<Socket> {
    let (family, own) = (arena::family()?, arena::own()?);
    let (record, hold) = (family.records.get(index as usize)?, own.holds.get(index as usize)?);
    rule::enter(&hold.users);
    Some(Socket { fd, index, record, hold })
}

impl Socket {
    /// Does every call look at the segments first?
    #[inline(always)]
    pub fn is_carried(&self) -> bool {
        // Acquire: pairs with the store of `CARRIED` in `proposal::prepare`; what it needs comes before.
        self.record.stage.load(Ordering::Acquire) == stage::CARRIED
    }

    /// Its segments, if calls look at them.
    #[inline(always)]
    pub fn carried(self) -> Result<Connection, Self> {
        if !self.is_carried() {
            return Err(self);
        }
        self.mapped()
    }

    /// Its segments, if this process has them.
    pub fn mapped(self) -> Result<Connection, Self> {
        // Acquire, both: pair with the swap in `offer` and the release store in `proposal::answered`; the segments are
        // mapped before.
        let (own, remote) = (self.hold.own.load(Ordering::Acquire), self.hold.remote.load(Ordering::Acquire));
        if own.is_null() || remote.is_null() {
            return Err(self);
        }
        // SAFETY: both were mapped with this length, and are unmapped only while nobody uses the hold.
        let (own, remote) = unsafe { (Window::new(own, SEGMENT_BYTES), Window::new(remote, SEGMENT_BYTES)) };
        Ok(Connection { socket: self, own, remote })
    }

    /// It stays in the kernel for this reason, unless it has left it already.
    pub fn stay(&self, reason: Reason) {
        let _ = self.record.never.compare_exchange(0, reason as u8 + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Does `fd` still mean this socket?
    pub fn is_current(&self) -> bool {
        descriptors::meaning(self.fd) == Meaning::Socket(self.index)
    }
}

impl Drop for Socket {
    #[inline(always)]
    fn drop(&mut self) {
        // In a sandbox the mappings stay: whoever closes it has given back the others.
        if rule::leave(&self.hold.users, &self.hold.descriptors)
            && let Some(_own) = own_call::begin()
        {
            unmap(self.hold);
            rule::cleared(&self.hold.users);
        }
    }
}

impl Deref for Connection {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

impl Connection {
    /// Is there still a descriptor of it? The kernel, too, lets go of a socket when the last call on it is over.
    pub fn follow(&mut self) -> bool {
        // SeqCst: pairs with the store in `waiters::keep`, which comes before the descriptor is forgotten.
        if !self.is_current() {
            let kept = self.hold.kept.load(Ordering::SeqCst) as i32 - 1;
            // Before it was the last one another descriptor may have been closed, of which there are copies.
            self.socket.fd = if kept >= 0 { kept } else { descriptors::of_socket(self.index).unwrap_or(-1) };
        }
        self.is_current()
    }
}

/// `fd` is a new TCP socket.
pub fn track(fd: i32) {
    let (Some(family), Some(own)) = (arena::family(), arena::own()) else { return };
    let _held = descriptors::change();
    let start = family.next_record.load(Ordering::Relaxed);
    // A full table is found out after a look at some places: then sockets are the kernel's alone.
    for (step, index) in
        core::iter::once(FREED.take()).chain((0..256).map(|step| start.wrapping_add(step))).enumerate()
    {
        let index = index % (RECORDS as u32);
        let (Some(record), Some(hold)) = (family.records.get(index as usize), own.holds.get(index as usize))
        else {
            return;
        };
        // A call that is still under way in the last use of this place goes first.
        if index == 0 || hold.users.load(Ordering::Relaxed) != 0 || is_inside(record) {
            continue;
        }
        // Acquire: pairs with the release stores in `Leaving::free` and `exit::end`, and with the one below.
        if record.used.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            if !rule::open(&hold.users, &hold.descriptors) {
                // Release: pairs with the exchange above.
                record.used.store(0, Ordering::Release);
                continue;
            }
            record.reset();
            holders::note(&record.holders);
            if step > 0 {
                family.next_record.store(index + 1, Ordering::Relaxed);
            }
            hold.offered.store(0, Ordering::Relaxed);
            hold.forked.store(0, Ordering::Relaxed);
            descriptors::enter(fd, Meaning::Socket(index));
            return;
        }
    }
}

/// Is a call inside the kernel with it?
fn is_inside(record: &Record) -> bool {
    // SeqCst: pairs with the subtraction by the drop of `Inside`: a call of the last use of this place has left.
    [&record.kernel_readers, &record.kernel_writers].iter().any(|count| count.load(Ordering::SeqCst) != 0)
}

/// `new` means what `old` does.
pub fn duplicate(old: i32, new: i32) {
    let Some(own) = arena::own() else { return };
    let _held = descriptors::change();
    match descriptors::meaning(old) {
        Meaning::Socket(index) => {
            if let Some(hold) = own.holds.get(index as usize) {
                // SeqCst: pairs with the loads in `hold::leave`; whoever has copied it is a user, or holds
                // the lock of `descriptors::change`.
                hold.descriptors.fetch_add(1, Ordering::SeqCst);
                descriptors::enter(new, Meaning::Socket(index));
            }
        }
        Meaning::Set(name) => {
            if let Some(count) = own.sets.get(name as usize % SETS) {
                count.fetch_add(1, Ordering::Relaxed);
                descriptors::enter(new, Meaning::Set(name));
            }
        }
        Meaning::Nothing | Meaning::Hidden => {}
    }
}

/// A socket that has left the table of this process, on its way to being closed.
pub struct Leaving {
    socket: Socket,
    /// No descriptor of any known process means it any more.
    pub is_last: bool,
}

impl Deref for Leaving {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        &self.socket
    }
}

/// Takes `fd` out of the table, before the kernel closes it and gives its number to somebody else.
pub fn forget(fd: i32) -> Option<Leaving> {
    let _held = descriptors::change();
    let own = arena::own()?;
    match descriptors::meaning(fd) {
        Meaning::Nothing | Meaning::Set(_) => None,
        Meaning::Hidden => {
            descriptors::enter(fd, Meaning::Nothing);
            None
        }
        Meaning::Socket(index) => {
            let socket = by_index(fd, index)?;
            descriptors::enter(fd, Meaning::Nothing);
            let hold = own.holds.get(index as usize)?;
            let mut is_last = false;
            if rule::close(&hold.descriptors) && !HAS_ENDED.load(Ordering::Relaxed) {
                is_last = let_go(socket.record);
            }
            Some(Leaving { socket, is_last })
        }
    }
}

/// Gives this process's mappings back.
#[inline]
fn unmap(hold: &Hold) {
    // What was never paired holds nothing.
    // Acquire, both: pair with the swap in `offer` and the release store of the peer in `proposal::answered`.
    if !hold.own.load(Ordering::Acquire).is_null() || hold.peer.load(Ordering::Acquire) != 0 {
        unmap_now(hold);
    }
}

#[inline(never)]
fn unmap_now(hold: &Hold) {
    for pointer in [&hold.own, &hold.remote] {
        // AcqRel: pairs with the swap and the release store that have put it there; of two that clear, one gets it.
        let address = pointer.swap(ptr::null_mut(), Ordering::AcqRel);
        if !address.is_null() {
            // SAFETY: mapped by `offer` with this length; whoever swapped it out is the only one to unmap it, and
            // nobody uses the hold.
            unsafe { libc::munmap(address.cast(), SEGMENT_BYTES) };
        }
    }
    // AcqRel: pairs with the release store in `proposal::answered`.
    doorbell::release(hold.peer.swap(0, Ordering::AcqRel));
}

/// From here on this process, which is about to end, counts nowhere: whatever is closed by then.
pub fn end() {
    HAS_ENDED.store(true, Ordering::Relaxed);
}

/// This process holds it no more. `true`: it was the last one, those that were killed not counted.
pub fn let_go(record: &Record) -> bool {
    holders::let_go(&record.processes, &record.holders)
}

/// Is this process the last one that holds it?
pub fn is_last_holder(record: &Record) -> bool {
    // Acquire: pairs with the changes of the count in `before_fork` and `let_go`.
    record.processes.load(Ordering::Acquire) == 1
        || holders::forget_dead(&record.processes, &record.holders) == 1
}

/// Threads that were in calls, or held a lock, are not in a forked child.
pub fn leave_threads_behind() {
    descriptors::leave_threads_behind();
    let Some(own) = arena::own() else { return };
    descriptors::each(|_, meaning| {
        let Meaning::Socket(index) = meaning else { return };
        let Some(hold) = own.holds.get(index as usize) else { return };
        // SeqCst: pairs with nobody, as the child has one thread; later calls come after by themselves.
        hold.users.store(0, Ordering::SeqCst);
        hold.waiters.store(0, Ordering::SeqCst);
    });
}

/// Each socket that this process holds, once.
pub fn each_held(mut visit: impl FnMut(&Socket, i32)) {
    let Some(own) = arena::own() else { return };
    descriptors::each(|fd, meaning| {
        let Meaning::Socket(index) = meaning else { return };
        let Some(hold) = own.holds.get(index as usize) else { return };
        // The first of several descriptors speaks for all.
        let first = hold.descriptors.load(Ordering::Relaxed) == 1
            || (0..fd).all(|earlier| descriptors::meaning(earlier) != Meaning::Socket(index));
        if first && let Some(socket) = by_index(fd, index) {
            visit(&socket, fd);
        }
    });
}

/// Counts a call that is about to enter the kernel with this socket; on drop, that it is back.
pub struct Inside {
    _noted: Noted,
}

impl Inside {
    /// `None`: calls look at the segments by now, so the kernel is not the place to sleep.
    #[inline(always)]
    pub fn enter(count: &'static AtomicU32, record: &Record) -> Option<Self> {
        let inside = Self { _noted: counted(count) };
        if passage::is_open(&record.stage, stage::CARRIED) { Some(inside) } else { None }
    }
}

/// Counts a call of this thread until what is returned is dropped, or a handler has jumped out of it.
#[inline(always)]
pub fn counted(count: &'static AtomicU32) -> Noted {
    let argument = (&raw const *count) as usize;
    jumps::taking(GiveBack { ends: one_less, left: one_less, argument }, || passage::enter(count))
}

fn one_less(count: usize) {
    // SAFETY: `counted` was given it for good.
    let count = unsafe { &*(count as *const AtomicU32) };
    passage::leave(count);
}

/// A call that was left used the socket of this index.
pub fn used(index: usize) {
    if let (Some(family), Some(own)) = (arena::family(), arena::own())
        && let (Some(record), Some(hold)) = (family.records.get(index), own.holds.get(index))
    {
        // Counted by that call.
        drop(Socket { fd: -1, index: index as u32, record, hold });
    }
}

impl Leaving {
    /// Its record is free again: nobody holds it, and the kernel has closed it.
    pub fn free(self) {
        let (record, index) = (self.socket.record, self.socket.index);
        // The mappings go first, with the last user, so that the next user of this place finds none.
        drop(self.socket);
        record.stage.store(stage::PLAIN, Ordering::Relaxed);
        // Release: pairs with the exchange in `track`; whoever has the place next finds it as it was left.
        record.used.store(0, Ordering::Release);
        FREED.put(index);
    }
}

/// Before a fork: the child will hold what this process holds.
pub fn count_fork(fork: u32) {
    each_held(|socket, _| {
        socket.hold.forked.store(fork, Ordering::Relaxed);
        // AcqRel: pairs with the acquire loads of the count, which decide whether it is offered.
        socket.record.processes.fetch_add(1, Ordering::AcqRel);
        // An answer that is still to come would reach only one of the two.
        let _ = socket.record.stage.compare_exchange(
            stage::WAITING,
            stage::PLAIN,
            // AcqRel: pairs with the release store of `WAITING`, and with the acquire load in `proposal::answered`.
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    });
}

/// There is no child by the fork of this number: `finish` gets what nobody holds then. What was closed since may be gone by that.
pub fn undo_fork(fork: u32, finish: impl Fn(Leaving)) {
    let (Some(family), Some(own)) = (arena::family(), arena::own()) else { return };
    for ((index, record), hold) in (0u32..).zip(&family.records).zip(&own.holds) {
        if hold.forked.load(Ordering::Relaxed) == fork
            && descriptors::is_left(fork, &hold.forked, &record.processes)
            && let Some(socket) = by_index(-1, index)
        {
            finish(Leaving { socket, is_last: true });
        }
    }
}

/// After a fork, in the child.
pub fn after_fork_in_child() {
    leave_threads_behind();
    HAS_ENDED.store(false, Ordering::Relaxed);
    each_held(|socket, _| _ = holders::note(&socket.record.holders));
}
