//! The kind of each descriptor of this process, and the descriptors that are the library's own.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::arena::{self, DESCRIPTORS, EpollSet, PrivateArena, SETS};
use crate::memory::lock::{Held, Lock, rank};
use crate::memory::vforked;

const KIND: u32 = 3 << 30;
const SOCKET: u32 = 1 << 30;
/// In an entry of a [`SOCKET`]: it is a UDP socket.
const DATAGRAM: u32 = 1 << 29;
const SET: u32 = 2 << 30;
const HIDDEN: u32 = 3 << 30;
/// Held while descriptors change their kind, and across a fork.
static CHANGING: Lock<{ rank::CHANGING }> = Lock::new();

/// Counts forks, under [`CHANGING`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The guard of `CHANGING` during a fork, until the child is consistent. Handlers wait until then, because they may
/// need the lock.
struct Across(UnsafeCell<Option<Held<'static, { rank::CHANGING }>>>);

// SAFETY: only the holder of `CHANGING` accesses it.
unsafe impl Sync for Across {}

static ACROSS: Across = Across(UnsafeCell::new(None));

/// What a descriptor means to this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorKind {
    /// Nothing: it is left to the kernel.
    Untracked,
    /// A stream socket.
    Socket(u32),
    /// A UDP socket.
    Datagram(u32),
    /// An epoll set, by its name.
    EpollSet(u32),
    /// One of the library's own, which the program does not know.
    Hidden,
}

/// The kind of `fd`.
#[inline(always)]
pub fn kind(fd: i32) -> DescriptorKind {
    match recorded(fd) {
        DescriptorKind::Untracked => DescriptorKind::Untracked,
        _ if vforked::has_changed(fd) => DescriptorKind::Untracked,
        found => found,
    }
}

/// The kind of `fd` in the process whose memory this is. A child that `vfork` has made may have changed it for itself.
#[inline(always)]
pub fn recorded(fd: i32) -> DescriptorKind {
    let Some(own) = arena::private() else { return DescriptorKind::Untracked };
    let Some(entry) = usize::try_from(fd).ok().and_then(|fd| own.descriptors.get(fd)) else {
        return DescriptorKind::Untracked;
    };
    // SeqCst: pairs with the release stores below, before which the record was made; and with the fence in
    // `sockets::track`, for a call that has counted itself before.
    match entry.load(Ordering::SeqCst) {
        0 => DescriptorKind::Untracked,
        entry if entry & (KIND | DATAGRAM) == SOCKET => DescriptorKind::Socket(entry & !KIND),
        entry if entry & KIND == SET => DescriptorKind::EpollSet(entry & !KIND),
        entry if entry & KIND == SOCKET => DescriptorKind::Datagram(entry & !(KIND | DATAGRAM)),
        _ => DescriptorKind::Hidden,
    }
}

/// Marks `fd`: a program is to be started with a copy of it, whatever its kind is by then.
pub fn name(fd: i32) {
    if let Some((place, bit)) = naming(fd) {
        place.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Whether [`name`] was called for `fd`.
pub fn is_named(fd: i32) -> bool {
    naming(fd).is_some_and(|(place, bit)| place.load(Ordering::Relaxed) & bit != 0)
}

fn naming(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((arena::private()?.named.get(fd / 64)?, 1 << (fd % 64)))
}

/// The epoll set behind `fd`.
#[inline(always)]
pub fn set(fd: i32) -> Option<(u32, &'static EpollSet)> {
    let DescriptorKind::EpollSet(name) = kind(fd) else { return None };
    set_named(name).map(|set| (name, set))
}

/// The epoll set of this name. `None`: it is gone, and its record may belong to another set.
#[inline(always)]
pub fn set_named(name: u32) -> Option<&'static EpollSet> {
    set_place(name).filter(|set| set.generation.load(Ordering::Relaxed) == name / SETS as u32)
}

/// The record of the epoll set of this name, which may be gone.
pub fn set_place(name: u32) -> Option<&'static EpollSet> {
    arena::shared()?.sets.get(name as usize % SETS)
}

/// A descriptor of this process for the socket.
pub fn of_socket(index: u32) -> Option<i32> {
    let mut found = None;
    each(|fd, kind| found = if kind == DescriptorKind::Socket(index) { Some(fd) } else { found });
    found
}

/// Marks `fd` as one of the library's own.
pub fn hide(fd: i32) {
    let _held = CHANGING.hold();
    enter(fd, DescriptorKind::Hidden);
}

/// Marks `fd` as no longer one of the library's own.
pub fn unhide(fd: i32) {
    let _held = CHANGING.hold();
    enter(fd, DescriptorKind::Untracked);
}

/// Visits every socket and every set of this process with its descriptors.
pub fn each(mut visit: impl FnMut(i32, DescriptorKind)) {
    let Some(own) = arena::private() else { return };
    for fd in 0..=own.highest.load(Ordering::Relaxed).min(DESCRIPTORS as u32 - 1) as i32 {
        match kind(fd) {
            DescriptorKind::Untracked | DescriptorKind::Hidden => {}
            other => visit(fd, other),
        }
    }
}

/// Visits every descriptor from `first` to `last` that has a kind, in order, including the library's own.
pub fn each_between(first: u32, last: u32, mut visit: impl FnMut(i32, DescriptorKind)) {
    let Some(own) = arena::private() else { return };
    let end = own.concealed_end.load(Ordering::Relaxed);
    let start = DESCRIPTORS as u32 - own.concealed_depth.load(Ordering::Relaxed);
    let highest = own.highest.load(Ordering::Relaxed);
    for fd in (0..=highest).chain(start.max(highest + 1)..end) {
        if (first..=last).contains(&fd)
            && let found = kind(fd as i32)
            && found != DescriptorKind::Untracked
        {
            visit(fd as i32, found);
        }
    }
}

/// Begins a fork: no descriptor changes its kind until [`end_fork`]. Returns the fork's number.
pub fn begin_fork() -> u32 {
    let held = CHANGING.hold();
    // SAFETY: `CHANGING` is held. In a child that came from a raw system call, a guard of another thread of the parent
    // may be left there; it is no lock of this thread.
    unsafe { ACROSS.0.get().write(Some(held)) };
    // The number 0 means none.
    let fork = FORKS.load(Ordering::Relaxed).wrapping_add(1).max(1);
    FORKS.store(fork, Ordering::Relaxed);
    fork
}

/// Undoes the count of a holder for a fork that made no child. `true`: nobody holds it any more. A count that another
/// fork has made since stays.
pub fn is_left(fork: u32, forked: &AtomicU32, processes: &AtomicU32) -> bool {
    let _held = CHANGING.hold();
    forked.compare_exchange(fork, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        // AcqRel: pairs with the same in `holders::let_go`.
        && processes.fetch_sub(1, Ordering::AcqRel) == 1
}

/// Ends a fork, once everything is consistent.
pub fn end_fork() {
    // SAFETY: the thread that has forked holds `CHANGING`, or is the only thread.
    drop(unsafe { (*ACROSS.0.get()).take() });
}

/// Lowers the bound after the highest descriptor has lost its kind. A descriptor far above all others does not cause
/// one long search.
fn lower(own: &PrivateArena, from: u32) {
    const LOOKS: u32 = 4096;
    let end = from.saturating_sub(LOOKS);
    let found = (end..from)
        .rev()
        .find(|fd| !matches!(kind(*fd as i32), DescriptorKind::Untracked | DescriptorKind::Hidden));
    own.highest.store(found.unwrap_or(end), Ordering::Relaxed);
}

/// Sets the kind of `fd`. The caller holds the lock of [`change`].
pub fn enter(fd: i32, kind: DescriptorKind) {
    let entry = match kind {
        DescriptorKind::Untracked => 0,
        DescriptorKind::Socket(index) => SOCKET | index,
        DescriptorKind::Datagram(index) => SOCKET | DATAGRAM | index,
        DescriptorKind::EpollSet(name) => SET | name,
        DescriptorKind::Hidden => HIDDEN,
    };
    let Some(own) = arena::private() else { return };
    if let Some(place) = usize::try_from(fd).ok().and_then(|fd| own.descriptors.get(fd)) {
        // Only the holder of `CHANGING` changes it.
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
        // Release: pairs with the load in `recorded`. The record was made before.
        place.store(entry, Ordering::Release);
        if entry == 0 && own.highest.load(Ordering::Relaxed) == fd as u32 {
            lower(own, fd as u32);
        }
    }
}

/// A descriptor of this process for the set of this name.
pub fn of_set(name: u32) -> Option<i32> {
    let mut found = None;
    each(|fd, kind| {
        if kind == DescriptorKind::EpollSet(name) {
            found = Some(fd);
        }
    });
    found
}

/// Takes the lock under which descriptors change their kind.
pub fn change() -> Held<'static, { rank::CHANGING }> {
    CHANGING.hold()
}

/// Clears the lock in a forked child: the thread that held it does not exist there.
pub fn leave_threads_behind() {
    CHANGING.reset();
}
