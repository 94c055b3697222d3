//! What each descriptor means, and who holds what.

use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bywire_pairing::reason::Reason;
use bywire_ring::hold as rule;
use bywire_ring::passage;
use bywire_ring::stream::{SEGMENT_BYTES, Stream, Window};

use crate::connection::outcome;
use crate::epoll::{control, registrations};
use crate::memory::arena::{self, DESCRIPTORS, Hold, Own, RECORDS, Record, SETS, Set, stage};
use crate::memory::free_list::Freed;
use crate::memory::holders;
use crate::memory::lock::{Held, Lock, rank};
use crate::memory::robust::Counted;
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::{own_call, pid};
use crate::pairing::proposal;
use crate::wakeup::doorbell;

/// The rings of all connections.
pub const STREAM: Stream = Stream::new(bywire_ring::stream::RING_BYTES);

const KIND: u32 = 3 << 30;
const SOCKET: u32 = 1 << 30;
const SET: u32 = 2 << 30;
const HIDDEN: u32 = 3 << 30;

/// Records that this process has given back.
static FREED: Freed = Freed::new();
/// Held while descriptors change their meaning, and across a fork.
static CHANGING: Lock<{ rank::CHANGING }> = Lock::new();

/// Counts forks, under [`CHANGING`].
static FORKS: AtomicU32 = AtomicU32::new(0);
/// This process has let go of everything, as it ends.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// `CHANGING`, from before a fork until all is in order behind it: until then handlers wait, which may want it, too.
struct Across(UnsafeCell<Option<Held<'static, { rank::CHANGING }>>>);

// SAFETY: looked at by the holder of `CHANGING` alone.
unsafe impl Sync for Across {}

static ACROSS: Across = Across(UnsafeCell::new(None));

/// What a descriptor means to this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing: the kernel's.
    Nothing,
    /// A TCP socket.
    Socket(u32),
    /// An epoll set, by its name.
    Set(u32),
    /// One of the library's own, which the program does not know of.
    Hidden,
}

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

/// What `fd` means.
#[inline(always)]
pub fn meaning(fd: i32) -> Meaning {
    let Some(own) = arena::own() else { return Meaning::Nothing };
    let Some(entry) = usize::try_from(fd).ok().and_then(|fd| own.descriptors.get(fd)) else {
        return Meaning::Nothing;
    };
    // Acquire: pairs with the release stores below; the record was made before.
    match entry.load(Ordering::Acquire) {
        0 => Meaning::Nothing,
        entry if entry & KIND == SOCKET => Meaning::Socket(entry & !KIND),
        entry if entry & KIND == SET => Meaning::Set(entry & !KIND),
        _ => Meaning::Hidden,
    }
}

/// The TCP socket behind `fd`.
#[inline(always)]
pub fn socket(fd: i32) -> Option<Socket> {
    let Meaning::Socket(index) = meaning(fd) else { return None };
    let socket = by_index(fd, index)?;
    // It may have been closed meanwhile: then its mappings are not ours to use.
    if meaning(fd) == Meaning::Socket(index) { Some(socket) } else { None }
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
    if !proposal::is_early(record) {
        return None;
    }
    let inside = Inside::enter(count(record), record)?;
    // While it is counted, its record is not given to another socket.
    if meaning(fd) == Meaning::Socket(index) { Some((inside, record)) } else { None }
}

/// Has no other end been found for it?
pub fn is_unpaired(fd: i32) -> bool {
    let Meaning::Socket(index) = meaning(fd) else { return true };
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

/// A program is to be started with a copy of this descriptor, whatever it means by then.
pub fn name(fd: i32) {
    if let Some((place, bit)) = naming(fd) {
        place.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Was it ever named so?
pub fn is_named(fd: i32) -> bool {
    naming(fd).is_some_and(|(place, bit)| place.load(Ordering::Relaxed) & bit != 0)
}

fn naming(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((arena::own()?.named.get(fd / 64)?, 1 << (fd % 64)))
}

/// The epoll set behind `fd`.
pub fn set(fd: i32) -> Option<(u32, &'static Set)> {
    let Meaning::Set(name) = meaning(fd) else { return None };
    set_named(name).map(|set| (name, set))
}

/// The epoll set of this name; `None`: it is gone, and its place may be another one's.
pub fn set_named(name: u32) -> Option<&'static Set> {
    set_place(name).filter(|set| set.generation.load(Ordering::Relaxed) == name / SETS as u32)
}

/// Where the epoll set of this name is, or was.
pub fn set_place(name: u32) -> Option<&'static Set> {
    arena::family()?.sets.get(name as usize % SETS)
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
        meaning(self.fd) == Meaning::Socket(self.index)
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
            self.socket.fd = if kept >= 0 { kept } else { descriptor_of(self.index).unwrap_or(-1) };
        }
        self.is_current()
    }
}

/// A descriptor of this process that means the socket.
pub fn descriptor_of(index: u32) -> Option<i32> {
    let mut found = None;
    each(|fd, meaning| found = if meaning == Meaning::Socket(index) { Some(fd) } else { found });
    found
}

/// `fd` is a new TCP socket.
pub fn track(fd: i32) {
    let (Some(family), Some(own)) = (arena::family(), arena::own()) else { return };
    forget_stale(fd);
    let _held = CHANGING.hold();
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
        // Acquire: pairs with the release stores in `Leaving::finish` and `lifecycle::end`, and with the one below.
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
            enter(fd, SOCKET | index);
            return;
        }
    }
}

/// Is a call inside the kernel with it?
fn is_inside(record: &Record) -> bool {
    // SeqCst: pairs with the subtraction by the drop of `Inside`: a call of the last use of this place has left.
    [&record.kernel_readers, &record.kernel_writers].iter().any(|count| count.load(Ordering::SeqCst) != 0)
}

/// `fd` is a new epoll set.
pub fn track_set(fd: i32) {
    let Some(own) = arena::own() else { return };
    forget_stale(fd);
    let Some((index, set)) = claim_set(false).or_else(|| claim_set(true)) else { return };
    let name = begin_set(index, set);
    let _held = CHANGING.hold();
    if let (Some(count), Some(forked)) = (own.sets.get(index as usize), own.sets_forked.get(index as usize)) {
        forked.store(0, Ordering::Relaxed);
        count.store(1, Ordering::Relaxed);
    }
    enter(fd, SET | name);
}

/// A place for a new epoll set, held by this process; `looks`: those are free, too, whose holders were killed.
fn claim_set(looks: bool) -> Option<(u32, &'static Set)> {
    let family = arena::family()?;
    if looks {
        doorbell::count_out_killed();
    }
    let sets = &family.sets;
    let mut places = (0u32..).zip(sets).skip(1);
    places.find(|(_, set)| {
        if looks {
            holders::forget_dead(&set.processes, &set.holders);
        }
        // Acquire: pairs with the subtraction in `holders::let_go`.
        set.processes.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })
}

/// A place is a new set's, which nobody else knows yet: the name of that.
fn begin_set(index: u32, set: &Set) -> u32 {
    /// What fits beside the kind of a meaning and the index.
    const GENERATIONS: u32 = (1 << 30) / SETS as u32;
    let _held = set.lock.hold();
    registrations::empty(set);
    let generation = (set.generation.load(Ordering::Relaxed) + 1) % GENERATIONS;
    set.generation.store(generation, Ordering::Relaxed);
    for field in [
        &set.belled,
        &set.nested,
        &set.outer,
        &set.holds_sets,
        &set.sleepers,
        &set.unannounced,
        &set.rung_for,
        &set.is_shared,
        &set.user,
        &set.turn,
    ]
    .into_iter()
    .chain(&set.holders)
    {
        field.store(0, Ordering::Relaxed);
    }
    set.branch.store(doorbell::branch(), Ordering::Relaxed);
    let name = generation * SETS as u32 + index;
    note_holder(name, set);
    name
}

/// This process holds it: by its number, wherever there is room for that. Called with handlers held off.
fn note_holder(name: u32, set: &Set) {
    if !holders::note(&set.holders)
        && let Some(family) = arena::family()
    {
        family.notes.note(family.notes.begin(pid::number()), Counted::Holder(name));
    }
}

/// This process holds it no more. `true`: it was the last one.
fn let_go_of(name: u32, set: &Set) -> bool {
    if !holders::is_noted(&set.holders)
        && let Some(family) = arena::family()
    {
        family.notes.forget(pid::number(), Counted::Holder(name));
    }
    holders::let_go(&set.processes, &set.holders)
}

/// Each epoll set that this process holds, once.
fn each_set(visit: impl Fn(u32, &Set)) {
    let (Some(family), Some(own)) = (arena::family(), arena::own()) else { return };
    for ((index, set), count) in (0u32..).zip(&family.sets).zip(&own.sets) {
        if count.load(Ordering::Relaxed) != 0 {
            visit(set.generation.load(Ordering::Relaxed) * SETS as u32 + index, set);
        }
    }
}

/// This process is about to end, and holds no epoll set any more. What descriptors mean stays, as threads may use them.
pub fn let_go_of_sets() {
    let (Some(family), Some(own)) = (arena::family(), arena::own()) else { return };
    for ((index, set), count) in (0u32..).zip(&family.sets).zip(&own.sets) {
        let held = CHANGING.hold();
        // Closing takes from a count that is not nought, under the same lock.
        let is_held = count.swap(0, Ordering::Relaxed) != 0;
        drop(held);
        let name = set.generation.load(Ordering::Relaxed) * SETS as u32 + index;
        if is_held && let_go_of(name, set) {
            let _held = set.lock.hold();
            // In one go, not one by one with the sockets. Its place may be another one's by now, which has emptied it.
            if set_named(name).is_some() {
                registrations::empty(set);
            }
        }
    }
}

/// Takes a descriptor of a set out of the table. `true`: no known process has another one.
fn is_last_of_set(fd: i32, name: u32) -> bool {
    let _held = CHANGING.hold();
    let (Some(own), Some(set)) = (arena::own(), set_named(name)) else { return false };
    if meaning(fd) != Meaning::Set(name) {
        return false;
    }
    enter(fd, 0);
    let count = own.sets.get(name as usize % SETS);
    // Relaxed: changed under `CHANGING` alone. 0: this process has let go of all of its sets, as it ends.
    count.is_some_and(|count| count.fetch_sub(1, Ordering::Relaxed) == 1) && let_go_of(name, set)
}
/// `fd` is one of the library's own.
pub fn hide(fd: i32) {
    let _held = CHANGING.hold();
    enter(fd, HIDDEN);
}

/// `fd` is no longer one of the library's own.
pub fn unhide(fd: i32) {
    let _held = CHANGING.hold();
    enter(fd, 0);
}

/// `new` means what `old` does.
pub fn duplicate(old: i32, new: i32) {
    let Some(own) = arena::own() else { return };
    forget_stale(new);
    let _held = CHANGING.hold();
    match meaning(old) {
        Meaning::Socket(index) => {
            if let Some(hold) = own.holds.get(index as usize) {
                // SeqCst: pairs with the loads in `hold::leave`; whoever has copied it is a user, or holds
                // `CHANGING`.
                hold.descriptors.fetch_add(1, Ordering::SeqCst);
                enter(new, SOCKET | index);
            }
        }
        Meaning::Set(name) => {
            if let Some(count) = own.sets.get(name as usize % SETS) {
                count.fetch_add(1, Ordering::Relaxed);
                enter(new, SET | name);
            }
        }
        Meaning::Nothing | Meaning::Hidden => {}
    }
}

/// A number that the kernel has given anew was closed behind our back.
fn forget_stale(fd: i32) {
    if let Some(leaving) = forget(fd) {
        leaving.finish();
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
    match meaning(fd) {
        Meaning::Nothing => None,
        Meaning::Set(name) => {
            // Its lock is taken by threads that change the table.
            if is_last_of_set(fd, name) {
                control::clear(name);
            }
            None
        }
        _ => forget_other(fd),
    }
}

fn forget_other(fd: i32) -> Option<Leaving> {
    let _held = CHANGING.hold();
    let own = arena::own()?;
    match meaning(fd) {
        Meaning::Nothing | Meaning::Set(_) => None,
        Meaning::Hidden => {
            enter(fd, 0);
            None
        }
        Meaning::Socket(index) => {
            let socket = by_index(fd, index)?;
            enter(fd, 0);
            let hold = own.holds.get(index as usize)?;
            let mut is_last = false;
            if rule::close(&hold.descriptors) && !HAS_ENDED.load(Ordering::Relaxed) {
                is_last = let_go(socket.record);
            }
            Some(Leaving { socket, is_last })
        }
    }
}

impl Leaving {
    /// The kernel has closed it. A record that nobody holds is free again.
    pub fn finish(self) {
        if !self.is_last {
            return;
        }
        outcome::ended(&self.socket);
        control::forget(&self.socket);
        proposal::end(&self.socket);
        let (record, index) = (self.socket.record, self.socket.index);
        // The mappings go first, with the last user, so that the next user of this place finds none.
        drop(self.socket);
        record.stage.store(stage::PLAIN, Ordering::Relaxed);
        // Release: pairs with the exchange in `table::track`; whoever has the place next finds it as it was left.
        record.used.store(0, Ordering::Release);
        FREED.put(index);
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

/// Every socket and every set of this process, by its descriptors.
pub fn each(mut visit: impl FnMut(i32, Meaning)) {
    let Some(own) = arena::own() else { return };
    for fd in 0..=own.highest.load(Ordering::Relaxed).min(DESCRIPTORS as u32 - 1) as i32 {
        match meaning(fd) {
            Meaning::Nothing | Meaning::Hidden => {}
            other => visit(fd, other),
        }
    }
}

/// Every descriptor from `first` to `last` that means something, in their order: the library's own, too.
pub fn each_between(first: u32, last: u32, mut visit: impl FnMut(i32, Meaning)) {
    let Some(own) = arena::own() else { return };
    let end = own.concealed_end.load(Ordering::Relaxed);
    let start = DESCRIPTORS as u32 - own.concealed_depth.load(Ordering::Relaxed);
    let highest = own.highest.load(Ordering::Relaxed);
    for fd in (0..=highest).chain(start.max(highest + 1)..end) {
        if (first..=last).contains(&fd)
            && let found @ (Meaning::Hidden | Meaning::Set(_) | Meaning::Socket(_)) = meaning(fd as i32)
        {
            visit(fd as i32, found);
        }
    }
}

/// Before a fork: the child will hold what this process holds. The fork's number.
pub fn before_fork() -> u32 {
    let held = CHANGING.hold();
    // SAFETY: `CHANGING` is held. What another thread left there, in a child that came from a raw system call, is no
    // lock of this thread's.
    unsafe { ACROSS.0.get().write(Some(held)) };
    // 0 is none.
    let fork = FORKS.load(Ordering::Relaxed).wrapping_add(1).max(1);
    FORKS.store(fork, Ordering::Relaxed);
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
    each_set(|name, set| {
        if let Some(forked) = arena::own().and_then(|own| own.sets_forked.get(name as usize % SETS)) {
            forked.store(fork, Ordering::Relaxed);
        }
        // AcqRel: pairs with the subtraction in `holders::let_go`, by the child.
        set.processes.fetch_add(1, Ordering::AcqRel);
    });
    fork
}

/// There is no child by the fork of this number: what it would hold nobody holds. What was closed since may be gone by that.
pub fn undo_fork(fork: u32) {
    let (Some(family), Some(own)) = (arena::family(), arena::own()) else { return };
    // Has nobody anything any more? One that another fork has counted since stays so.
    let is_left = |forked: &AtomicU32, processes: &AtomicU32| {
        let _held = CHANGING.hold();
        forked.compare_exchange(fork, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            // AcqRel: pairs with the same in `holders::let_go`.
            && processes.fetch_sub(1, Ordering::AcqRel) == 1
    };
    for ((index, record), hold) in (0u32..).zip(&family.records).zip(&own.holds) {
        if hold.forked.load(Ordering::Relaxed) == fork
            && is_left(&hold.forked, &record.processes)
            && let Some(socket) = by_index(-1, index)
        {
            Leaving { socket, is_last: true }.finish();
        }
    }
    for ((index, set), forked) in (0u32..).zip(&family.sets).zip(&own.sets_forked) {
        let name = set.generation.load(Ordering::Relaxed) * SETS as u32 + index;
        if forked.load(Ordering::Relaxed) == fork && is_left(forked, &set.processes) {
            control::clear(name);
        }
    }
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
    record.processes.load(Ordering::Acquire) == 1 || holders::forget_dead(&record.processes, &record.holders) == 1
}

/// This process is no part of its family any more: it holds nothing, and no descriptor means anything.
pub fn forget_all() {
    each(|fd, meaning| {
        let Meaning::Socket(_) = meaning else { return };
        let Some(leaving) = forget(fd) else { return };
        // A call of another thread may be in the middle of it: then its place is not used again.
        // SeqCst: pairs with the change of the count by whoever enters and leaves.
        if leaving.is_last && leaving.hold.users.load(Ordering::SeqCst) == 1 {
            control::forget(&leaving);
            let record = leaving.record;
            drop(leaving);
            // Release: pairs with the exchange in `track`; the mappings are gone before.
            record.used.store(0, Ordering::Release);
        }
    });
    each(|fd, meaning| {
        if let Meaning::Set(_) = meaning {
            let _no_socket = forget(fd);
        }
    });
}

/// When all is in order after it.
pub fn end_fork() {
    // SAFETY: whoever has forked holds `CHANGING`, or is alone.
    drop(unsafe { (*ACROSS.0.get()).take() });
}

/// After it, in the child.
pub fn after_fork_in_child() {
    leave_threads_behind();
    HAS_ENDED.store(false, Ordering::Relaxed);
    each_held(|socket, _| _ = holders::note(&socket.record.holders));
    each_set(note_holder);
}

/// Threads that were in calls, or held a lock, are not in a forked child.
pub fn leave_threads_behind() {
    CHANGING.reset();
    let Some(own) = arena::own() else { return };
    each(|_, meaning| {
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
    each(|fd, meaning| {
        let Meaning::Socket(index) = meaning else { return };
        let Some(hold) = own.holds.get(index as usize) else { return };
        // The first of several descriptors speaks for all.
        let first = hold.descriptors.load(Ordering::Relaxed) == 1
            || (0..fd).all(|earlier| self::meaning(earlier) != Meaning::Socket(index));
        if first && let Some(socket) = by_index(fd, index) {
            visit(&socket, fd);
        }
    });
}

/// The highest descriptor means nothing any more. One that is far above all others is not looked past at once.
fn lower(own: &Own, from: u32) {
    const LOOKS: u32 = 4096;
    let end = from.saturating_sub(LOOKS);
    let found =
        (end..from).rev().find(|fd| matches!(meaning(*fd as i32), Meaning::Socket(_) | Meaning::Set(_)));
    own.highest.store(found.unwrap_or(end), Ordering::Relaxed);
}

fn enter(fd: i32, entry: u32) {
    let Some(own) = arena::own() else { return };
    if let Some(place) = usize::try_from(fd).ok().and_then(|fd| own.descriptors.get(fd)) {
        // Changed under `CHANGING` alone.
        let raise = |limit: &AtomicU32, to: u32| {
            if limit.load(Ordering::Relaxed) < to {
                limit.store(to, Ordering::Relaxed);
            }
        };
        match entry {
            0 => {}
            HIDDEN => {
                raise(&own.concealed_end, fd as u32 + 1);
                raise(&own.concealed_depth, DESCRIPTORS as u32 - fd as u32);
            }
            _ => raise(&own.highest, fd as u32),
        }
        // Release: pairs with the acquire load in `meaning`; the record was made before.
        place.store(entry, Ordering::Release);
        if entry == 0 && own.highest.load(Ordering::Relaxed) == fd as u32 {
            lower(own, fd as u32);
        }
    }
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
