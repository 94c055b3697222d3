//! What each descriptor of this process means, and which numbers are the library's own.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::arena::{self, DESCRIPTORS, EpollSet, PrivateArena, SETS};
use crate::memory::lock::{Held, Lock, rank};

const KIND: u32 = 3 << 30;
const SOCKET: u32 = 1 << 30;
const SET: u32 = 2 << 30;
const HIDDEN: u32 = 3 << 30;
/// Held while descriptors change their meaning, and across a fork.
static CHANGING: Lock<{ rank::CHANGING }> = Lock::new();

/// Counts forks, under [`CHANGING`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// `CHANGING`, from before a fork until all is in order behind it: until then handlers wait, which may want it, too.
struct Across(UnsafeCell<Option<Held<'static, { rank::CHANGING }>>>);

// SAFETY: looked at by the holder of `CHANGING` alone.
unsafe impl Sync for Across {}

static ACROSS: Across = Across(UnsafeCell::new(None));

/// What a descriptor means to this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorKind {
    /// Nothing: the kernel's.
    Untracked,
    /// A TCP socket.
    Socket(u32),
    /// An epoll set, by its name.
    EpollSet(u32),
    /// One of the library's own, which the program does not know of.
    Hidden,
}

/// What `fd` means.
#[inline(always)]
pub fn kind(fd: i32) -> DescriptorKind {
    let Some(own) = arena::private() else { return DescriptorKind::Untracked };
    let Some(entry) = usize::try_from(fd).ok().and_then(|fd| own.descriptors.get(fd)) else {
        return DescriptorKind::Untracked;
    };
    // Acquire: pairs with the release stores below; the record was made before.
    match entry.load(Ordering::Acquire) {
        0 => DescriptorKind::Untracked,
        entry if entry & KIND == SOCKET => DescriptorKind::Socket(entry & !KIND),
        entry if entry & KIND == SET => DescriptorKind::EpollSet(entry & !KIND),
        _ => DescriptorKind::Hidden,
    }
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
    Some((arena::private()?.named.get(fd / 64)?, 1 << (fd % 64)))
}

/// The epoll set behind `fd`.
pub fn set(fd: i32) -> Option<(u32, &'static EpollSet)> {
    let DescriptorKind::EpollSet(name) = kind(fd) else { return None };
    set_named(name).map(|set| (name, set))
}

/// The epoll set of this name; `None`: it is gone, and its place may be another one's.
pub fn set_named(name: u32) -> Option<&'static EpollSet> {
    set_place(name).filter(|set| set.generation.load(Ordering::Relaxed) == name / SETS as u32)
}

/// Where the epoll set of this name is, or was.
pub fn set_place(name: u32) -> Option<&'static EpollSet> {
    arena::shared()?.sets.get(name as usize % SETS)
}

/// A descriptor of this process that means the socket.
pub fn of_socket(index: u32) -> Option<i32> {
    let mut found = None;
    each(|fd, kind| found = if kind == DescriptorKind::Socket(index) { Some(fd) } else { found });
    found
}

/// `fd` is one of the library's own.
pub fn hide(fd: i32) {
    let _held = CHANGING.hold();
    enter(fd, DescriptorKind::Hidden);
}

/// `fd` is no longer one of the library's own.
pub fn unhide(fd: i32) {
    let _held = CHANGING.hold();
    enter(fd, DescriptorKind::Untracked);
}

/// Every socket and every set of this process, by its descriptors.
pub fn each(mut visit: impl FnMut(i32, DescriptorKind)) {
    let Some(own) = arena::private() else { return };
    for fd in 0..=own.highest.load(Ordering::Relaxed).min(DESCRIPTORS as u32 - 1) as i32 {
        match kind(fd) {
            DescriptorKind::Untracked | DescriptorKind::Hidden => {}
            other => visit(fd, other),
        }
    }
}

/// Every descriptor from `first` to `last` that means something, in their order: the library's own, too.
pub fn each_between(first: u32, last: u32, mut visit: impl FnMut(i32, DescriptorKind)) {
    let Some(own) = arena::private() else { return };
    let end = own.concealed_end.load(Ordering::Relaxed);
    let start = DESCRIPTORS as u32 - own.concealed_depth.load(Ordering::Relaxed);
    let highest = own.highest.load(Ordering::Relaxed);
    for fd in (0..=highest).chain(start.max(highest + 1)..end) {
        if (first..=last).contains(&fd)
            && let found @ (DescriptorKind::Hidden | DescriptorKind::EpollSet(_) | DescriptorKind::Socket(_)) =
                kind(fd as i32)
        {
            visit(fd as i32, found);
        }
    }
}

/// A fork begins: nothing changes its meaning until [`end_fork`]. The fork's number.
pub fn begin_fork() -> u32 {
    let held = CHANGING.hold();
    // SAFETY: `CHANGING` is held. What another thread left there, in a child that came from a raw system call, is no
    // lock of this thread's.
    unsafe { ACROSS.0.get().write(Some(held)) };
    // 0 is none.
    let fork = FORKS.load(Ordering::Relaxed).wrapping_add(1).max(1);
    FORKS.store(fork, Ordering::Relaxed);
    fork
}

/// There is no child by this fork, for which something was counted once more. `true`: nobody has it any more. One that another
/// fork has counted since stays so.
pub fn is_left(fork: u32, forked: &AtomicU32, processes: &AtomicU32) -> bool {
    let _held = CHANGING.hold();
    forked.compare_exchange(fork, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        // AcqRel: pairs with the same in `holders::let_go`.
        && processes.fetch_sub(1, Ordering::AcqRel) == 1
}

/// When all is in order after a fork.
pub fn end_fork() {
    // SAFETY: the thread that has forked holds `CHANGING`, or is alone.
    drop(unsafe { (*ACROSS.0.get()).take() });
}

/// The highest descriptor means nothing any more. One that is far above all others is not looked past at once.
fn lower(own: &PrivateArena, from: u32) {
    const LOOKS: u32 = 4096;
    let end = from.saturating_sub(LOOKS);
    let found = (end..from)
        .rev()
        .find(|fd| matches!(kind(*fd as i32), DescriptorKind::Socket(_) | DescriptorKind::EpollSet(_)));
    own.highest.store(found.unwrap_or(end), Ordering::Relaxed);
}

/// What `fd` means from here on. Called with the lock of [`change`] held.
pub fn enter(fd: i32, kind: DescriptorKind) {
    let entry = match kind {
        DescriptorKind::Untracked => 0,
        DescriptorKind::Socket(index) => SOCKET | index,
        DescriptorKind::EpollSet(name) => SET | name,
        DescriptorKind::Hidden => HIDDEN,
    };
    let Some(own) = arena::private() else { return };
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
        // Release: pairs with the acquire load in `kind`; the record was made before.
        place.store(entry, Ordering::Release);
        if entry == 0 && own.highest.load(Ordering::Relaxed) == fd as u32 {
            lower(own, fd as u32);
        }
    }
}

/// A descriptor of this process that means the set of this name.
pub fn of_set(name: u32) -> Option<i32> {
    let mut found = None;
    each(|fd, kind| {
        if kind == DescriptorKind::EpollSet(name) {
            found = Some(fd);
        }
    });
    found
}

/// Descriptors change their meaning while this is held.
pub fn change() -> Held<'static, { rank::CHANGING }> {
    CHANGING.hold()
}

/// The thread that was changing something is not in a forked child.
pub fn leave_threads_behind() {
    CHANGING.reset();
}
