//! What becomes of registrations when sockets or sets are closed, or are passed to other programs.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use libc::epoll_event;

use crate::connection::sockets::{self, Socket};
use crate::epoll::events::ONCE;
use crate::epoll::registrations::{self, of_socket, unlink_from_socket};
use crate::epoll::{members, nested, parked, quiet};
use crate::memory::arena::{EpollItem, EpollSet, ITEMS};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::{pid, real};

/// Forgets a socket that is gone. The kernel has removed it from its sets.
pub fn forget(socket: &Socket) {
    for _ in 0..ITEMS {
        let Some((at, item)) = of_socket(socket).next() else { return };
        // It may be in the list of a set that is gone, too. The next set in that record empties the list.
        let name = item.set.load(Ordering::Relaxed);
        let Some(set) = descriptors::set_place(name) else { return };
        let _held = set.lock.hold();
        // A look may have freed it, and another socket or set may have it by now.
        let is_still = item.socket.load(Ordering::Relaxed) == socket.index;
        if !is_still || item.set.load(Ordering::Relaxed) != name {
            continue;
        }
        unlink_from_socket(socket.shared, at);
        quiet::free(set, at, item);
    }
}

/// Gives the kernel's registrations of a socket, in this process's sets, back to the program, as far as `is_meant`
/// selects them. They are no longer tracked. `closing` is a descriptor that still means the socket to the kernel, but
/// not to the table.
pub fn leave(socket: &Socket, closing: Option<i32>, is_meant: impl Fn(&EpollItem) -> bool) {
    let here =
        |item: &EpollItem| descriptors::of_set(item.set.load(Ordering::Relaxed)).filter(|_| is_meant(item));
    while let Some((at, item)) = of_socket(socket).find(|(_, item)| here(item).is_some()) {
        let Some(set_fd) = here(item) else { return };
        let Some((_, set)) = descriptors::set(set_fd) else { return };
        let _held = set.lock.hold();
        // A look may have freed it, and another socket or set may have it by now.
        if item.socket.load(Ordering::Relaxed) != socket.index || here(item) != Some(set_fd) {
            continue;
        }
        if registrations::is_parked(item) {
            parked::discard(set_fd, set, at, item, closing);
            continue;
        }
        let is_changed = socket.is_carried() || item.named.load(Ordering::Relaxed) != 0;
        let closing = closing.filter(|fd| *fd == item.fd.load(Ordering::Relaxed));
        if is_changed && let Some(fd) = registrations::number(item).or(closing) {
            let mut event = registered(set, at, item);
            // SAFETY: a live event.
            unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_MOD, fd, &raw mut event) };
        }
        unlink_from_socket(socket.shared, at);
        quiet::free(set, at, item);
    }
}

/// What the kernel watches for a registration that is given back to the program. The kernel reports hang-ups even for a
/// one-shot registration that has fired. It reports them under the registration's name, which nobody knows any more, so
/// programs of this family do not see them.
fn registered(set: &EpollSet, at: u32, item: &EpollItem) -> epoll_event {
    let data = item.data.load(Ordering::Relaxed);
    let is_shared = set.is_shared.load(Ordering::Relaxed) != 0;
    match item.spent.load(Ordering::Relaxed) != 0 {
        true if is_shared => epoll_event { events: ONCE, u64: data },
        true => epoll_event { events: ONCE, u64: registrations::name(at, item) },
        false => epoll_event { events: item.events.load(Ordering::Relaxed), u64: data },
    }
}

/// A descriptor of a socket is being closed, and still means the socket to the kernel. From now on the kernel reports
/// its events as to a program without this library, for as long as anybody has the socket.
pub fn leave_closing(socket: &Socket, is_last: bool) {
    parked::remove_closing(socket);
    // SeqCst: pairs with the additions in `sockets::duplicate` and `hold::close`.
    let has_others_here = !is_last && socket.local.descriptors.load(Ordering::SeqCst) != 0;
    // Other descriptors here have registrations of their own, which are tracked.
    let is_meant = |item: &EpollItem| !has_others_here || item.fd.load(Ordering::Relaxed) == socket.fd;
    if !of_socket(socket).any(|(_, item)| is_meant(item)) {
        return;
    }
    let is_passed = socket.shared.never.load(Ordering::Relaxed) != 0;
    let connection = sockets::by_index(socket.fd, socket.index).map(Socket::carried);
    let is_kernels = matches!(&connection, Some(Ok(connection)) if connection.is_kernels());
    let is_followed = matches!(&connection, Some(Ok(_))) && !is_kernels;
    let is_over = match is_last {
        // Nobody else has it, except programs to which it was passed.
        true => is_followed || !is_passed,
        // A child closes what its parent continues to use.
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

/// Whether this process waits for the socket through one of its sets.
fn is_used_here(socket: &Socket) -> bool {
    let me = pid::number().unwrap_or(0);
    of_socket(socket).any(|(_, item)| {
        let set = descriptors::set_named(item.set.load(Ordering::Relaxed));
        set.is_some_and(|set| set.user.load(Ordering::Relaxed) == me)
    })
}

/// A descriptor is about to be passed through a Unix socket. If it is a set, whoever receives it sees what the kernel has
/// there: nothing that the program has removed, and nothing of the library's, if no carried connection is in it.
pub fn before_passing(fd: i32) {
    let Some((_, set)) = descriptors::set(fd) else { return };
    nested::watch(fd, set);
    let _held = set.lock.hold();
    if !set.has_carried() && set.processes.load(Ordering::Relaxed) == 1 {
        members::remove_all(fd, set);
    }
}

/// Another program is about to have the sets that `is_meant` selects: nothing in them is carried from here on. `false`:
/// there are no such sets.
pub fn share(is_meant: impl Fn(i32) -> bool) -> bool {
    let mut is_any = false;
    descriptors::each(|fd, kind| {
        if let DescriptorKind::EpollSet(_) = kind
            && is_meant(fd)
            && let Some((name, set)) = descriptors::set(fd)
        {
            parked::remove_all(fd, set);
            // Erlang starts a helper program that inherits its sets while they are empty, and closes them.
            if set.has_carried() || has_registered(name) {
                is_any = true;
                set.is_shared.store(1, Ordering::Relaxed);
                // A thread that registers or removes something now is done before this, or sees it.
                parked::remove_all(fd, set);
            }
        }
    });
    is_any
}

/// Whether a socket of this process has a registration in the set of this name.
fn has_registered(name: u32) -> bool {
    let mut is_any = false;
    sockets::each_held(|socket, _| {
        is_any |= of_socket(socket).any(|(_, item)| item.set.load(Ordering::Relaxed) == name);
    });
    is_any
}

/// Whether the socket is in a set that another program may have.
pub fn is_shared(socket: &Socket) -> bool {
    of_socket(socket).any(|(_, item)| is_in_shared(item))
}

fn is_in_shared(item: &EpollItem) -> bool {
    let set = descriptors::set_named(item.set.load(Ordering::Relaxed));
    set.is_some_and(|set| set.is_shared.load(Ordering::Relaxed) != 0)
}

/// Registers what was returned to the kernel from such sets as the program has done, and removes their doorbells.
pub fn leave_shared() {
    sockets::each_held(|socket, _| leave(socket, None, is_in_shared));
    descriptors::each(|fd, kind| {
        if let DescriptorKind::EpollSet(_) = kind
            && let Some((_, set)) = descriptors::set(fd)
            && set.is_shared.load(Ordering::Relaxed) != 0
        {
            let _held = set.lock.hold();
            // For connections of other family members only, the doorbell is still heard.
            if !set.has_carried() {
                members::remove_all(fd, set);
            }
        }
    });
}

/// Stops hearing the doorbell in this set.
pub fn silence(set_fd: i32) {
    let Some((_, set)) = descriptors::set(set_fd) else { return };
    // Others of the family may sleep in it. Then it stays as it is.
    if set.processes.load(Ordering::Relaxed) == 1 {
        members::remove_all(set_fd, set);
    }
}
