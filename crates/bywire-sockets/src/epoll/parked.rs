//! Registrations that the program has removed, and that the kernel still has.
//!
//! Some programs remove a registration and make it anew for each request. So `EPOLL_CTL_DEL` only parks a registration of a
//! carried connection, and `EPOLL_CTL_ADD` takes it back. Neither needs a system call then.
//!
//! A parked registration reports nothing. It stays on its set's list until a look at the set, which removes it from the
//! kernel: every wait begins with a look. What would see it in the kernel in another way removes it before: a fork, a set
//! that another program or a set around it gets, and a descriptor that is closed. A process that has no descriptor of the
//! socket leaves it to the next one.

use core::ptr;
use core::sync::atomic::Ordering;

use bywire_ring::list;

use crate::connection::sockets::Socket;
use crate::epoll::events::{EDGE, ONCE};
use crate::epoll::quiet;
use crate::epoll::registrations::{self, is_parked, item, of_socket, unlink_from_socket};
use crate::memory::arena::{self, EpollItem, EpollSet, ITEMS};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::{errno, own_call, real};

/// The program removes a registration of a carried connection from a set, whose lock the caller holds. Returns whether it
/// is parked. If not, the kernel has to remove it, as from every set that has been polled, or was ever within another one.
pub fn park(set: &EpollSet, item: &EpollItem) -> bool {
    // Edge-triggered and one-shot ones begin anew in the kernel, too. A set that others see in the kernel must not report
    // what the program has removed.
    let is_simple = item.events.load(Ordering::Relaxed) & (EDGE | ONCE) == 0
        && item.spent.load(Ordering::Relaxed) == 0
        && item.listed.load(Ordering::Relaxed) != 0
        && set.processes.load(Ordering::Relaxed) == 1
        && set.nested.load(Ordering::Relaxed) == 0
        && set.is_shared.load(Ordering::Relaxed) == 0
        && registrations::number(item).is_some()
        && !own_call::are_over();
    if is_simple {
        item.parked.store(1, Ordering::Relaxed);
    }
    is_simple
}

/// Removes a parked registration from the kernel, and frees it. Returns whether that was possible: it stays parked if this
/// process has no descriptor by which the kernel knows it. `closing` is a descriptor that still means the socket to the
/// kernel, but not to the table. The caller holds the set's lock.
pub fn remove(set_fd: i32, set: &EpollSet, at: u32, item: &EpollItem, closing: Option<i32>) -> bool {
    let name = item.set.load(Ordering::Relaxed);
    // The number of a wait may mean another file by now.
    let is_current = descriptors::kind(set_fd) == DescriptorKind::EpollSet(name);
    let set_fd = if is_current { Some(set_fd) } else { descriptors::of_set(name) };
    let closing = closing.filter(|fd| *fd == item.fd.load(Ordering::Relaxed));
    let is_removed = match (set_fd, registrations::number(item).or(closing), own_call::begin()) {
        // SAFETY: the kernel reads no event.
        (Some(set_fd), Some(fd), Some(_own)) => errno::keep(|| unsafe {
            real::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) == 0
                || errno::last() == libc::ENOENT
        }),
        _ => false,
    };
    if is_removed {
        forget(set, at, item);
    }
    is_removed
}

/// Removes a parked registration from the kernel, as [`remove`], and frees it also if that is not possible.
pub fn discard(set_fd: i32, set: &EpollSet, at: u32, item: &EpollItem, closing: Option<i32>) {
    if !remove(set_fd, set, at, item, closing) {
        forget(set, at, item);
    }
}

/// Frees a parked registration. The caller holds the set's lock.
fn forget(set: &EpollSet, at: u32, item: &EpollItem) {
    let sockets = arena::shared().map(|family| &family.sockets);
    if let Some(shared) = sockets.and_then(|all| all.get(item.socket.load(Ordering::Relaxed) as usize)) {
        unlink_from_socket(shared, at);
    }
    quiet::free(set, at, item);
}

/// Removes all that are parked in a set.
pub fn remove_all(set_fd: i32, set: &EpollSet) {
    if set.carried.load(Ordering::Relaxed) == 0 {
        return;
    }
    let _held = set.lock.hold();
    let mut at = list::step(&set.carried);
    for _ in 0..ITEMS {
        let Some(found) = item(at) else { return };
        let next = list::step(&found.next_of_set);
        if is_parked(found) {
            // If not, the next look tries it again.
            let _is_removed = remove(set_fd, set, at, found, None);
        }
        at = next;
    }
}

/// Removes all that are parked, before a fork and again after it: the child may close the descriptors by which the kernel
/// knows them. A set that two processes have gets no more of them.
pub fn remove_everywhere() {
    descriptors::each(|set_fd, kind| {
        if let DescriptorKind::EpollSet(_) = kind
            && let Some((_, set)) = descriptors::set(set_fd)
        {
            remove_all(set_fd, set);
        }
    });
}

/// Removes those of a socket whose descriptor is being closed, as [`discard`].
pub fn remove_closing(socket: &Socket) {
    let here = |item: &EpollItem| descriptors::of_set(item.set.load(Ordering::Relaxed));
    let is_meant = |item: &EpollItem| is_parked(item) && item.fd.load(Ordering::Relaxed) == socket.fd;
    while let Some((at, item)) = of_socket(socket).find(|(_, item)| is_meant(item) && here(item).is_some()) {
        let Some((set_fd, (name, set))) = here(item).and_then(|fd| Some((fd, descriptors::set(fd)?))) else {
            return;
        };
        let _held = set.lock.hold();
        // Another thread may have looked at the set meanwhile.
        if is_meant(item) && item.set.load(Ordering::Relaxed) == name {
            // The kernel removes the rest with the socket.
            discard(set_fd, set, at, item, Some(socket.fd));
        }
    }
}
