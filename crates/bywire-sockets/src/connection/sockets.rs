//! The program's sockets, and the connections behind them.

use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use bywire_pairing::reason::Reason;
use bywire_ring::hold as rule;
use bywire_ring::passage;
use bywire_ring::stream::{SEGMENT_BYTES, Stream, Window};

use crate::connection::policy;
use crate::memory::arena::{self, LocalSocket, SETS, SOCKETS, SharedSocket, linger, passed, stage};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::memory::free_list::FreeList;
use crate::memory::holders;
use crate::memory::segment;
use crate::memory::vforked;
use crate::os::jumps::{self, GiveBack, Noted};
use crate::os::own_call;
use crate::wakeup::peers;

/// The layout of the rings of all connections.
pub const STREAM: Stream = Stream::new(bywire_ring::stream::RING_BYTES);

/// Records that this process has freed.
static FREED: FreeList = FreeList::new();
/// This process is exiting and has released everything.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// A stream socket of the program while a call uses it.
pub struct Socket {
    /// The descriptor that the call was made with.
    pub fd: i32,
    /// Its index.
    pub index: u32,
    /// What the family of processes shares of it.
    pub shared: &'static SharedSocket,
    /// What this process has of it.
    pub local: &'static LocalSocket,
}

/// A carried connection while a call uses it.
pub struct Connection {
    socket: Socket,
    /// The segment that this side writes.
    pub own: Window,
    /// The segment that the other side writes.
    pub remote: Window,
}

/// The stream socket behind `fd`.
#[inline(always)]
pub fn socket(fd: i32) -> Option<Socket> {
    let DescriptorKind::Socket(index) = descriptors::kind(fd) else { return None };
    let socket = by_index(fd, index)?;
    // It may have been closed meanwhile. Then its mappings must not be used.
    if descriptors::recorded(fd) == DescriptorKind::Socket(index) { Some(socket) } else { None }
}

/// A call that moves data on a socket that is not worth an offer yet: it is counted as inside the kernel, and nothing
/// more. `None`: the socket must be examined.
#[inline(always)]
pub fn pass(
    fd: i32,
    index: u32,
    count: impl FnOnce(&'static SharedSocket) -> &'static AtomicU32,
) -> Option<(KernelCall, &'static SharedSocket)> {
    let shared = arena::shared()?.sockets.get(index as usize)?;
    if !policy::is_early(shared) {
        return None;
    }
    let inside = KernelCall::enter(count(shared), shared)?;
    // While the call is counted, its record is not given to another socket.
    if descriptors::recorded(fd) == DescriptorKind::Socket(index) { Some((inside, shared)) } else { None }
}

/// Whether no other end was found for it.
pub fn is_unpaired(fd: i32) -> bool {
    let DescriptorKind::Socket(index) = descriptors::kind(fd) else { return true };
    let shared = arena::shared().and_then(|family| family.sockets.get(index as usize));
    // Acquire: pairs with the release store of `PAIRED` in `offer::answered`.
    shared.is_none_or(|shared| {
        matches!(shared.stage.load(Ordering::Acquire), stage::PLAIN | stage::HELD | stage::WAITING)
    })
}

/// The socket with this index, in use until dropped.
pub fn by_index(fd: i32, index: u32) -> Option<Socket> {
    let (family, own) = (arena::shared()?, arena::private()?);
    let (shared, local) = (family.sockets.get(index as usize)?, own.sockets.get(index as usize)?);
    rule::enter(&local.users);
    Some(Socket { fd, index, shared, local })
}

impl Socket {
    /// Whether every call looks at the segments first.
    #[inline(always)]
    pub fn is_carried(&self) -> bool {
        // Acquire: pairs with the store of `CARRIED` in `offer::prepare`. What the connection needs comes before.
        self.shared.stage.load(Ordering::Acquire) == stage::CARRIED
    }

    /// The connection, if calls look at its segments.
    #[inline(always)]
    pub fn carried(self) -> Result<Connection, Self> {
        if !self.is_carried() {
            return Err(self);
        }
        self.mapped()
    }

    /// The connection, if this process has its segments.
    pub fn mapped(self) -> Result<Connection, Self> {
        // Acquire, both: pair with the swap in `offer` and the release store in `offer::answered`. The segments are
        // mapped before.
        let (own, remote) =
            (self.local.own.load(Ordering::Acquire), self.local.remote.load(Ordering::Acquire));
        if own.is_null() || remote.is_null() {
            return Err(self);
        }
        // SAFETY: both were mapped with this length, and are unmapped only while nobody uses the socket.
        let (own, remote) = unsafe { (Window::new(own, SEGMENT_BYTES), Window::new(remote, SEGMENT_BYTES)) };
        Ok(Connection { socket: self, own, remote })
    }

    /// Keeps it in the kernel for this reason, unless it is carried already.
    pub fn stay(&self, reason: Reason) {
        let _ = self.shared.never.compare_exchange(0, reason as u8 + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that a program that is not counted may have it from here on, unless that is known.
    pub fn note_passed(&self, how: u8) {
        let known = &self.shared.passed;
        let _ = known.compare_exchange(passed::NOT, how, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether `fd` still means this socket.
    pub fn is_current(&self) -> bool {
        descriptors::kind(self.fd) == DescriptorKind::Socket(self.index)
    }
}

impl Drop for Socket {
    #[inline(always)]
    fn drop(&mut self) {
        // In a sandbox the mappings stay: the thread that installed it has returned the other connections.
        if rule::leave(&self.local.users, &self.local.descriptors)
            && let Some(_own) = own_call::begin()
        {
            unmap(self.local);
            rule::cleared(&self.local.users);
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
    /// Whether there is still a descriptor of it. The kernel, too, releases a socket only when the last call on it is
    /// over.
    pub fn follow(&mut self) -> bool {
        // SeqCst: pairs with the store in `waiters::keep`, which comes before the descriptor is forgotten.
        if !self.is_current() {
            let kept = self.local.kept.load(Ordering::SeqCst) as i32 - 1;
            // Before the last descriptor, another one may have been closed of which there are duplicates.
            self.socket.fd = if kept >= 0 { kept } else { descriptors::of_socket(self.index).unwrap_or(-1) };
        }
        self.is_current()
    }
}

/// Tracks `fd`, a new stream socket.
pub fn track(fd: i32, is_unix: bool) {
    let (Some(family), Some(own)) = (arena::shared(), arena::private()) else { return };
    let _held = descriptors::change();
    // SeqCst: pairs with the addition and the look of `pass`. The descriptors of a free record have lost their meaning
    // before. So either a call is counted below, or it finds that its descriptor means something else.
    fence(Ordering::SeqCst);
    for index in core::iter::once(FREED.take()).chain(arena::next_places(&family.next_socket)) {
        let index = index % (SOCKETS as u32);
        let (Some(shared), Some(local)) =
            (family.sockets.get(index as usize), own.sockets.get(index as usize))
        else {
            return;
        };
        // A call that is still running from the last use of this record must return first.
        if index == 0 || local.users.load(Ordering::Relaxed) != 0 || is_inside(shared) {
            continue;
        }
        // Acquire: pairs with the release stores in `Leaving::free` and `exit::end`, and with the one below.
        if shared.used.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            if !rule::open(&local.users, &local.descriptors) {
                // Release: pairs with the exchange above.
                shared.used.store(0, Ordering::Release);
                continue;
            }
            shared.reset();
            if policy::is_required() && !is_unix {
                // No call counts as one of the first, which go to the kernel without a look.
                shared.calls.store(policy::calls_min(), Ordering::Relaxed);
                shared.stage.store(stage::HELD, Ordering::Relaxed);
            }
            if is_unix {
                shared.is_unix.store(1, Ordering::Relaxed);
                shared.lingers.store(linger::IDLE, Ordering::Relaxed);
            }
            holders::note(&shared.holders);
            local.offered.store(0, Ordering::Relaxed);
            local.forked.store(0, Ordering::Relaxed);
            descriptors::enter(fd, DescriptorKind::Socket(index));
            return;
        }
    }
}

/// Whether a call is inside the kernel with it.
fn is_inside(shared: &SharedSocket) -> bool {
    // SeqCst: pairs with the subtraction by the drop of `KernelCall`. A call of the last use of this record has left.
    [&shared.kernel_readers, &shared.kernel_writers].iter().any(|count| count.load(Ordering::SeqCst) != 0)
}

/// Tracks `new` as a duplicate of `old`.
pub fn duplicate(old: i32, new: i32) {
    let Some(own) = arena::private() else { return };
    let _held = descriptors::change();
    match descriptors::kind(old) {
        DescriptorKind::Socket(index) => {
            if let Some(local) = own.sockets.get(index as usize) {
                // SeqCst: pairs with the loads in `hold::leave`. The thread that duplicates is a user, or holds the
                // lock of `descriptors::change`.
                local.descriptors.fetch_add(1, Ordering::SeqCst);
                descriptors::enter(new, DescriptorKind::Socket(index));
            }
        }
        DescriptorKind::EpollSet(name) => {
            if let Some(count) = own.sets.get(name as usize % SETS) {
                count.fetch_add(1, Ordering::Relaxed);
                descriptors::enter(new, DescriptorKind::EpollSet(name));
            }
        }
        DescriptorKind::Untracked | DescriptorKind::Datagram(_) | DescriptorKind::Hidden => {}
    }
}

/// A socket that was removed from this process's table and is about to be closed.
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

/// Removes `fd` from the table, before the kernel closes it and reuses its number.
pub fn forget(fd: i32) -> Option<Leaving> {
    let _held = descriptors::change();
    let own = arena::private()?;
    match descriptors::kind(fd) {
        DescriptorKind::Untracked | DescriptorKind::Datagram(_) | DescriptorKind::EpollSet(_) => None,
        DescriptorKind::Hidden => {
            descriptors::enter(fd, DescriptorKind::Untracked);
            None
        }
        DescriptorKind::Socket(index) => {
            let socket = by_index(fd, index)?;
            descriptors::enter(fd, DescriptorKind::Untracked);
            let local = own.sockets.get(index as usize)?;
            let mut is_last = false;
            if rule::close(&local.descriptors) && !HAS_ENDED.load(Ordering::Relaxed) {
                is_last = let_go(socket.shared);
            }
            Some(Leaving { socket, is_last })
        }
    }
}

/// Unmaps this process's mappings.
#[inline]
fn unmap(local: &LocalSocket) {
    // A socket that was never paired has none.
    // Acquire, both: pair with the swap in `offer` and the release store of the peer in `offer::answered`.
    if !local.own.load(Ordering::Acquire).is_null() || local.peer.load(Ordering::Acquire) != 0 {
        unmap_now(local);
    }
}

#[inline(never)]
fn unmap_now(local: &LocalSocket) {
    // AcqRel, both: pair with the swap and the release store that have put them there. Of two threads that clear one, one
    // gets it.
    let [own, remote] =
        [&local.own, &local.remote].map(|place| place.swap(ptr::null_mut(), Ordering::AcqRel));
    if !own.is_null() {
        // SAFETY: made by `offer`. Only the thread that swapped it out unmaps it, and nobody uses the socket.
        unsafe { segment::remove(own) };
    }
    if !remote.is_null() {
        // SAFETY: mapped by `offer` with this length. Only the thread that swapped it out unmaps it, and nobody uses the
        // socket.
        unsafe { libc::munmap(remote.cast(), SEGMENT_BYTES) };
    }
    // AcqRel: pairs with the release store in `offer::answered`.
    peers::release(local.peer.swap(0, Ordering::AcqRel));
}

/// This process is about to exit: from here on it counts nowhere, whatever is closed until then.
pub fn end() {
    HAS_ENDED.store(true, Ordering::Relaxed);
}

/// This process stops holding it. `true`: it was the last holder; killed processes do not count.
pub fn let_go(shared: &SharedSocket) -> bool {
    holders::let_go(&shared.processes, &shared.holders)
}

/// Whether this process is the last holder.
pub fn is_last_holder(shared: &SharedSocket) -> bool {
    // Acquire: pairs with the changes of the count in `before_fork` and `let_go`.
    shared.processes.load(Ordering::Acquire) == 1
        || holders::forget_dead(&shared.processes, &shared.holders) == 1
}

/// Clears the counts of threads in a forked child: the parent's calls and lock holders do not exist there.
pub fn leave_threads_behind() {
    descriptors::leave_threads_behind();
    let Some(own) = arena::private() else { return };
    descriptors::each(|_, kind| {
        let DescriptorKind::Socket(index) = kind else { return };
        let Some(local) = own.sockets.get(index as usize) else { return };
        // SeqCst: pairs with nobody, because the child has one thread. Later calls come after it anyway.
        local.users.store(0, Ordering::SeqCst);
        local.waiters.store(0, Ordering::SeqCst);
    });
}

/// Visits each socket that this process holds, once.
pub fn each_held(mut visit: impl FnMut(&Socket, i32)) {
    let Some(own) = arena::private() else { return };
    descriptors::each(|fd, kind| {
        let DescriptorKind::Socket(index) = kind else { return };
        let Some(local) = own.sockets.get(index as usize) else { return };
        // The first of several descriptors stands for all.
        let first = local.descriptors.load(Ordering::Relaxed) == 1
            || (0..fd).all(|earlier| descriptors::kind(earlier) != DescriptorKind::Socket(index));
        if first && let Some(socket) = by_index(fd, index) {
            visit(&socket, fd);
        }
    });
}

/// Visits each socket that this process holds, once for a look of this number. However many descriptors a socket has,
/// this takes no longer than the table is. Where several threads look at the same time, a socket may be visited again.
pub fn each_held_in(look: u32, mut visit: impl FnMut(&Socket)) {
    let Some(own) = arena::private() else { return };
    descriptors::each(|fd, kind| {
        let DescriptorKind::Socket(index) = kind else { return };
        let Some(local) = own.sockets.get(index as usize) else { return };
        if local.looked.swap(look, Ordering::Relaxed) != look
            && let Some(socket) = by_index(fd, index)
        {
            visit(&socket);
        }
    });
}

/// Counts a call that is about to enter the kernel with this socket, until dropped.
pub struct KernelCall {
    _noted: Noted,
}

impl KernelCall {
    /// `None`: calls look at the segments by now, so the call must not sleep in the kernel.
    #[inline(always)]
    pub fn enter(count: &'static AtomicU32, shared: &SharedSocket) -> Option<Self> {
        let inside = Self { _noted: counted(count) };
        if passage::is_open(&shared.stage, stage::CARRIED) { Some(inside) } else { None }
    }
}

/// Counts a call of this thread until the returned value is dropped, or until a handler has jumped out of the call.
#[inline(always)]
pub fn counted(count: &'static AtomicU32) -> Noted {
    let argument = (&raw const *count) as usize;
    jumps::taking(GiveBack { ends: one_less, left: one_less, argument }, || passage::enter(count))
}

fn one_less(count: usize) {
    // SAFETY: `counted` was given a reference that is never invalid.
    let count = unsafe { &*(count as *const AtomicU32) };
    passage::leave(count);
}

/// Releases the socket of this index, which a call that was left has used.
pub fn used(index: usize) {
    if let (Some(family), Some(own)) = (arena::shared(), arena::private())
        && let (Some(shared), Some(local)) = (family.sockets.get(index), own.sockets.get(index))
    {
        // That call has counted it.
        drop(Socket { fd: -1, index: index as u32, shared, local });
    }
}

impl Leaving {
    /// Frees its record: nobody holds it, and the kernel has closed it.
    pub fn free(self) {
        let (shared, index) = (self.socket.shared, self.socket.index);
        // The mappings go first, with the last user, so the next use of this record finds none.
        drop(self.socket);
        shared.stage.store(stage::PLAIN, Ordering::Relaxed);
        // Release: pairs with the exchange in `track`. The next socket in this record finds it in its final state.
        shared.used.store(0, Ordering::Release);
        FREED.put(index);
    }
}

/// Before a fork: counts the child as a holder of what this process holds.
pub fn count_fork(fork: u32) {
    each_held(|socket, _| {
        socket.local.forked.store(fork, Ordering::Relaxed);
        // AcqRel: pairs with the acquire loads of the count, which decide whether the socket is offered.
        socket.shared.processes.fetch_add(1, Ordering::AcqRel);
        // An answer that is yet to come would reach only one of the two processes.
        let _ = socket.shared.stage.compare_exchange(
            stage::WAITING,
            stage::PLAIN,
            // AcqRel: pairs with the release store of `WAITING`, and with the acquire load in `offer::answered`.
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    });
}

/// The fork of this number made no child. `finish` gets the sockets that nobody holds then: those closed since may be
/// gone by that.
pub fn undo_fork(fork: u32, finish: impl Fn(Leaving)) {
    let (Some(family), Some(own)) = (arena::shared(), arena::private()) else { return };
    for ((index, shared), local) in (0u32..).zip(&family.sockets).zip(&own.sockets) {
        if local.forked.load(Ordering::Relaxed) == fork
            && descriptors::is_left(fork, &local.forked, &shared.processes)
            && let Some(socket) = by_index(-1, index)
        {
            finish(Leaving { socket, is_last: true });
        }
    }
}

/// In a child that a child of `vfork` has forked: forgets the numbers that its parent had closed or replaced. It was not
/// counted as a holder by those. The lock of [`descriptors::change`] is held.
pub fn forget_vforked() {
    let Some(own) = arena::private() else { return };
    descriptors::each_between(0, u32::MAX, |fd, kind| {
        if !vforked::is_noted(fd) {
            return;
        }
        if let DescriptorKind::Socket(index) = kind
            && let Some(local) = own.sockets.get(index as usize)
        {
            rule::close(&local.descriptors);
            descriptors::enter(fd, DescriptorKind::Untracked);
        } else if kind == DescriptorKind::Hidden {
            descriptors::enter(fd, DescriptorKind::Untracked);
        }
    });
}

/// After a fork, in the child.
pub fn after_fork_in_child() {
    leave_threads_behind();
    HAS_ENDED.store(false, Ordering::Relaxed);
    each_held(|socket, _| _ = holders::note(&socket.shared.holders));
}
