//! Children that run in this process's memory until they execute another program or exit, as those of `vfork` do.
//!
//! Such a child has descriptors and signal handlers of its own, and finds the library's records of its parent's. It
//! changes nothing there. What it closes or replaces is noted beside them: such a number means nothing to the library in
//! the child. Connections that it duplicates, or executes a program with, return to the kernel first.

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::memory::arena::DESCRIPTORS;
use crate::os::{pid, signal_deferral};

/// Threads that may wait for such a child at once. Further ones fork.
const PLACES: usize = 16;

/// The notes of one child.
struct Place {
    is_taken: AtomicBool,
    /// A bit for each descriptor: the child has closed or replaced it. Null: not mapped yet.
    changed: AtomicPtr<[AtomicU64; DESCRIPTORS / 64]>,
    /// Any of these bits is set.
    is_changed: AtomicBool,
    /// The child has installed a filter of system calls.
    is_restricted: AtomicBool,
}

static CHILDREN: [Place; PLACES] = [const {
    Place {
        is_taken: AtomicBool::new(false),
        changed: AtomicPtr::new(ptr::null_mut()),
        is_changed: AtomicBool::new(false),
        is_restricted: AtomicBool::new(false),
    }
}; PLACES];

/// Threads that wait for such a child, or are about to.
static WAITING: AtomicU32 = AtomicU32::new(0);
/// Those of them whose child has no thread-local variables.
static BARE: AtomicU32 = AtomicU32::new(0);

thread_local! {
    // Constant and without a destructor: the thread-local variables allocate and register nothing.
    /// The place of this thread's child, plus one; 0: it waits for none. The child finds it here as well.
    static PLACE: Cell<usize> = const { Cell::new(0) };
    /// The locks that this thread held when the child was made.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Before this thread makes such a child. `false`: it must fork instead.
pub fn begin() -> bool {
    // The number distinguishes the child from its parent.
    if !pid::is_noted() || !pid::is_marked() || pid::may_be_childs() {
        return false;
    }
    let Some(index) = CHILDREN.iter().position(Place::take) else { return false };
    PLACE.set(index + 1);
    HELD.set(signal_deferral::THREAD.with(|thread| thread.held.get()));
    // Relaxed: read by the child, which this thread makes afterwards. Other threads are not concerned.
    WAITING.fetch_add(1, Ordering::Relaxed);
    true
}

/// The child has executed another program, or has ended.
pub fn end() {
    let Some(place) = PLACE.replace(0).checked_sub(1).and_then(|index| CHILDREN.get(index)) else { return };
    // A child that was killed in a call may have left it raised.
    signal_deferral::THREAD.with(|thread| thread.held.set(HELD.get()));
    WAITING.fetch_sub(1, Ordering::Relaxed);
    place.clear();
}

/// [`begin`] for a child without thread-local variables. Its changes are not noted.
pub fn begin_bare() {
    BARE.fetch_add(1, Ordering::Relaxed);
    WAITING.fetch_add(1, Ordering::Relaxed);
}

/// The child that [`begin_bare`] has announced has executed another program, or has ended.
pub fn end_bare() {
    WAITING.fetch_sub(1, Ordering::Relaxed);
    BARE.fetch_sub(1, Ordering::Relaxed);
}

/// Whether this process is such a child. It accesses no thread-local variable.
#[inline(always)]
pub fn is_child() -> bool {
    // Relaxed: the thread that a child continues has changed the count itself.
    WAITING.load(Ordering::Relaxed) != 0 && is_elsewhere()
}

/// Whether this process has its memory from another one that waits for it. A fork has a copy, without the mark.
#[cold]
fn is_elsewhere() -> bool {
    !pid::is_noted() && pid::is_marked()
}

/// Notes in a child that `fd` no longer means what it means in the parent.
pub fn note_changed(fd: i32) {
    if let Some(place) = own()
        && let Some((word, bit)) = place.bit(fd)
    {
        place.is_changed.store(true, Ordering::Relaxed);
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Whether this process is such a child and has changed what `fd` means.
#[inline(always)]
pub fn has_changed(fd: i32) -> bool {
    is_child() && is_noted(fd)
}

/// Whether this thread, or its parent before a fork, has called [`note_changed`] for `fd`.
pub fn is_noted(fd: i32) -> bool {
    let place = own().filter(|place| place.is_dirty());
    place.and_then(|place| place.bit(fd)).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Whether anything was noted by [`note_changed`].
pub fn has_noted() -> bool {
    own().is_some_and(Place::is_dirty)
}

/// Notes in a child that it has installed a filter of system calls.
pub fn restrict() {
    if let Some(place) = own() {
        place.is_restricted.store(true, Ordering::Relaxed);
    }
}

/// Whether this process is such a child, and the library may make no calls of its own there.
pub fn is_restricted() -> bool {
    is_child() && own().is_some_and(|place| place.is_restricted.load(Ordering::Relaxed))
}

/// In a forked child, which waits for nobody.
pub fn after_fork_in_child() {
    PLACE.set(0);
    WAITING.store(0, Ordering::Relaxed);
    BARE.store(0, Ordering::Relaxed);
    CHILDREN.iter().for_each(Place::clear);
}

/// The notes of the child that this process is.
fn own() -> Option<&'static Place> {
    if BARE.load(Ordering::Relaxed) != 0 {
        return None;
    }
    CHILDREN.get(PLACE.get().checked_sub(1)?)
}

impl Place {
    fn take(&self) -> bool {
        // Acquire: pairs with the release store in `clear`. Its bits are cleared before.
        let is_free = !self.is_taken.swap(true, Ordering::Acquire);
        if is_free && self.changed.load(Ordering::Relaxed).is_null() && !self.map() {
            self.is_taken.store(false, Ordering::Relaxed);
            return false;
        }
        is_free
    }

    fn map(&self) -> bool {
        let sharing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new private mapping that is never removed.
        let bits = unsafe {
            libc::mmap(ptr::null_mut(), DESCRIPTORS / 8, libc::PROT_READ | libc::PROT_WRITE, sharing, -1, 0)
        };
        if bits == libc::MAP_FAILED {
            return false;
        }
        // Relaxed: used by the thread that has taken the place, and by its child.
        self.changed.store(bits.cast(), Ordering::Relaxed);
        true
    }

    fn clear(&self) {
        if self.is_changed.swap(false, Ordering::Relaxed) {
            let bits = self.changed.load(Ordering::Relaxed);
            // SAFETY: mapped with this length by `map`. The pages read as zeros afterwards.
            unsafe { libc::madvise(bits.cast(), DESCRIPTORS / 8, libc::MADV_DONTNEED) };
        }
        self.is_restricted.store(false, Ordering::Relaxed);
        // Release: pairs with the acquire swap in `take`.
        self.is_taken.store(false, Ordering::Release);
    }

    fn is_dirty(&self) -> bool {
        self.is_changed.load(Ordering::Relaxed)
    }

    fn bit(&self, fd: i32) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        // SAFETY: null, or mapped with this length by `map`; zeros are a valid value.
        let words = unsafe { self.changed.load(Ordering::Relaxed).as_ref() }?;
        Some((words.get(fd / 64)?, 1 << (fd % 64)))
    }
}
