//! What the library itself puts into the program's epoll sets: doorbells for threads that sleep there, and the flag for
//! sets around them.

use core::ptr;
use core::sync::atomic::Ordering;

use crate::memory::arena::{self, EpollSet, SETS};
use crate::memory::descriptors;
use crate::os::{errno, own_call, real};
use crate::wakeup::doorbell::{self, DOORBELL_DATA};
use crate::wakeup::flag;

/// In [`EpollSet::outer`]: the set is within more than one set.
pub const SEVERAL: u32 = u32::MAX;
/// As [`SEVERAL`], but one of the sets around it is not known: only a doorbell in this set wakes threads that sleep there.
pub const UNKNOWN: u32 = SEVERAL - 1;
/// The data of the events that the kernel reports for the flag in a set.
const FLAG_DATA: u64 = DOORBELL_DATA + 1;

/// The library's own events among those that the kernel has reported.
#[derive(Clone, Copy, Default)]
pub struct Reported {
    /// A doorbell was rung.
    pub doorbell: bool,
    /// The flag is up.
    pub flag: bool,
    /// A registration that is parked; see [`crate::epoll::parked`].
    pub parked: bool,
}

impl Reported {
    /// Notes an event by its data. Returns whether it is one of the library's own.
    pub fn note(&mut self, data: u64) -> bool {
        self.doorbell |= data == DOORBELL_DATA;
        self.flag |= data == FLAG_DATA;
        data == DOORBELL_DATA || data == FLAG_DATA
    }
}

/// Adds the doorbells to a set. The caller holds its lock. Returns whether they are there.
pub fn add_doorbell(set_fd: i32, set: &EpollSet) -> bool {
    if set.has_doorbell.load(Ordering::Relaxed) == 0 && doorbell::add_to(set_fd) {
        set.has_doorbell.store(1, Ordering::Relaxed);
    }
    // Timers differ between the processes that have the set.
    set.has_doorbell.load(Ordering::Relaxed) != 0 && doorbell::add_timers_to(set_fd)
}

/// Before a thread that is counted as a sleeper sleeps in a set: adds the doorbells if they are not there. Returns
/// whether they are.
pub fn restore_doorbell(set_fd: i32, set: &EpollSet) -> bool {
    let holds_sets = set.holds_sets.load(Ordering::Relaxed) != 0;
    // Relaxed, both: a removal before this thread's look, under the set's lock, is seen. After it, the sleeper's count
    // is.
    let is_there = set.has_doorbell.load(Ordering::Relaxed) != 0 || !set.has_carried();
    // A look takes no lock where nothing is carried, and connections in sets within this one may have new timers.
    if is_there && !holds_sets {
        return true;
    }
    let _held = set.lock.hold();
    errno::keep(|| add_doorbell(set_fd, set))
}

/// Returns whether nobody needs doorbells in a set. A sleeper adds them, and sets around this one have doorbells of their
/// own. A process does not decide that for others.
pub fn needs_no_doorbell(name: u32, set: &EpollSet) -> bool {
    set.sleepers.load(Ordering::Relaxed) == 0
        && set.outer.load(Ordering::Relaxed) != UNKNOWN
        && set.processes.load(Ordering::Relaxed) == 1
        && descriptors::set_named(name).is_some()
}

/// Returns whether a set has doorbells that nobody needs.
pub fn has_idle_doorbell(name: u32, set: &EpollSet) -> bool {
    set.has_doorbell.load(Ordering::Relaxed) != 0 && needs_no_doorbell(name, set)
}

/// Removes such doorbells. The caller holds the set's lock: a sleeper is counted before it looks under that lock, and
/// only then does it see to the doorbells.
pub fn withdraw_doorbell(set_fd: i32, name: u32, set: &EpollSet) {
    if has_idle_doorbell(name, set) {
        set.has_doorbell.store(0, Ordering::Relaxed);
        errno::keep(|| doorbell::remove_from(set_fd));
    }
}

/// Makes a set ready for what watches it, because it has something. What watches it edge-triggered is told again. The
/// caller holds the set's lock. Returns whether the flag is up.
pub fn raise_flag(set_fd: i32, set: &EpollSet) -> bool {
    let (Some(flag), Some(_own)) = (flag::own(), own_call::begin()) else { return false };
    // Other processes may have another flag, and could not take this one out of the set.
    let mode = if set.processes.load(Ordering::Relaxed) == 1 { 0 } else { libc::EPOLLET };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | mode) as u32, u64: FLAG_DATA };
    // SAFETY: a live event.
    let status = errno::keep(|| unsafe {
        real::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, flag, ptr::null_mut());
        real::epoll_ctl(set_fd, libc::EPOLL_CTL_ADD, flag, &raw mut event)
    });
    if status == 0 {
        set.has_flag.store(1, Ordering::Relaxed);
    }
    status == 0
}

/// Notes that a wait on this set has got the flag. In a set of several processes, sets around this one do not see it
/// then.
pub fn note_reported_flag(set: &EpollSet) {
    if set.processes.load(Ordering::Relaxed) != 1 {
        set.has_flag.store(0, Ordering::Relaxed);
    }
}

/// The set has nothing any more. The caller holds its lock.
pub fn lower_flag(set_fd: i32, set: &EpollSet) {
    set.has_flag.store(0, Ordering::Relaxed);
    if let (Some(flag), Some(_own)) = (flag::own(), own_call::begin()) {
        // SAFETY: no pointers.
        errno::keep(|| unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, flag, ptr::null_mut()) });
    }
}

/// Removes everything. The caller holds the set's lock, or nobody else uses the set.
pub fn remove_all(set_fd: i32, set: &EpollSet) {
    if set.has_doorbell.swap(0, Ordering::Relaxed) != 0 {
        doorbell::remove_from(set_fd);
    }
    if set.has_flag.load(Ordering::Relaxed) != 0 {
        lower_flag(set_fd, set);
    }
}

/// The library's own descriptor `old` now has the number `new`. `old` is about to be replaced.
pub fn renumber(old: i32, new: i32) {
    if !flag::is_replaced(old, new) {
        return doorbell::renumber(old, new);
    }
    // Where it was up, it is raised again. The kernel would keep it in a set while a forked process has a copy.
    let Some(_own) = own_call::begin() else { return };
    descriptors::each(|set_fd, kind| {
        if let descriptors::DescriptorKind::EpollSet(name) = kind
            && let Some(set) = arena::shared().and_then(|family| family.sets.get(name as usize % SETS))
            && set.has_flag.swap(0, Ordering::Relaxed) != 0
        {
            // SAFETY: no pointers.
            errno::keep(|| unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, old, ptr::null_mut()) });
        }
    });
}
