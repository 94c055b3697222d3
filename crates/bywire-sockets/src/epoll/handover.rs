//! What becomes of registrations when sockets or sets are closed, or go to other programs.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use libc::epoll_event;

use crate::connection::sockets::{self, Socket};
use crate::epoll::look::ONCE;
use crate::epoll::registrations::{self, free, of_socket, unlink_from_socket};
use crate::memory::arena::{EpollItem, EpollSet, ITEMS};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::{pid, real};
use crate::wakeup::doorbell;

/// A socket is gone for good, and the kernel has taken it out of its sets.
pub fn forget(socket: &Socket) {
    for _ in 0..ITEMS {
        let Some((at, item)) = of_socket(socket).next() else { return };
        // In the list of a set that is gone, too: the next set in its place empties it.
        let Some(set) = descriptors::set_place(item.set.load(Ordering::Relaxed)) else { return };
        let _held = set.lock.hold();
        unlink_from_socket(socket.shared, at);
        free(set, at, item);
    }
}

/// The kernel's registrations of a socket in the sets of this process are the program's own again, and nobody follows them, as
/// far as they are meant. `closing` means the socket to the kernel still, and to the table no more.
pub fn leave(socket: &Socket, closing: Option<i32>, is_meant: impl Fn(&EpollItem) -> bool) {
    let here =
        |item: &EpollItem| descriptors::of_set(item.set.load(Ordering::Relaxed)).filter(|_| is_meant(item));
    while let Some((at, item)) = of_socket(socket).find(|(_, item)| here(item).is_some()) {
        let Some(set_fd) = here(item) else { return };
        let Some((_, set)) = descriptors::set(set_fd) else { return };
        let _held = set.lock.hold();
        let is_changed = socket.is_carried() || item.named.load(Ordering::Relaxed) != 0;
        let closing = closing.filter(|fd| *fd == item.fd.load(Ordering::Relaxed));
        if is_changed && let Some(fd) = registrations::number(item).or(closing) {
            let mut event = registered(set, at, item);
            // SAFETY: a live event.
            unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_MOD, fd, &raw mut event) };
        }
        unlink_from_socket(socket.shared, at);
        free(set, at, item);
    }
}

/// What the kernel is to follow of a registration that is the program's own again. It tells an end even of one that has told
/// already what it was to tell once: by the item's name, which nobody knows any more, programs of this family do not hear that.
fn registered(set: &EpollSet, at: u32, item: &EpollItem) -> epoll_event {
    let data = item.data.load(Ordering::Relaxed);
    let is_shared = set.is_shared.load(Ordering::Relaxed) != 0;
    match item.spent.load(Ordering::Relaxed) != 0 {
        true if is_shared => epoll_event { events: ONCE, u64: data },
        true => epoll_event { events: ONCE, u64: registrations::name(at, item) },
        false => epoll_event { events: item.events.load(Ordering::Relaxed), u64: data },
    }
}

/// A descriptor of a socket is being closed, and means it to the kernel still: what the kernel goes on telling of it it
/// tells as to a program without this library. It does so as long as anybody has the socket.
pub fn leave_closing(socket: &Socket, is_last: bool) {
    // SeqCst: pairs with the additions in `sockets::duplicate` and `hold::close`.
    let has_others_here = !is_last && socket.local.descriptors.load(Ordering::SeqCst) != 0;
    // Others here bear registrations of their own, which are followed.
    let is_meant = |item: &EpollItem| !has_others_here || item.fd.load(Ordering::Relaxed) == socket.fd;
    if !of_socket(socket).any(|(_, item)| is_meant(item)) {
        return;
    }
    let is_passed = socket.shared.never.load(Ordering::Relaxed) != 0;
    let connection = sockets::by_index(socket.fd, socket.index).map(Socket::carried);
    let is_kernels = matches!(&connection, Some(Ok(connection)) if connection.is_kernels());
    let is_followed = matches!(&connection, Some(Ok(_))) && !is_kernels;
    let is_over = match is_last {
        // Nobody else has it, but for whomever it was passed to.
        true => is_followed || !is_passed,
        // A child closes what its parent goes on with.
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

/// Is this process the one that is told of the socket, by one of its sets?
fn is_used_here(socket: &Socket) -> bool {
    let me = pid::number().unwrap_or(0);
    of_socket(socket).any(|(_, item)| {
        let set = descriptors::set_named(item.set.load(Ordering::Relaxed));
        set.is_some_and(|set| set.user.load(Ordering::Relaxed) == me)
    })
}

/// Another program is about to have those of this process's sets that are meant: nothing in them is carried from here on.
/// `false`: there are none.
pub fn share(is_meant: impl Fn(i32) -> bool) -> bool {
    let mut is_any = false;
    descriptors::each(|fd, kind| {
        if let DescriptorKind::EpollSet(_) = kind
            && is_meant(fd)
            && let Some((name, set)) = descriptors::set(fd)
            // Erlang starts a helper program with its sets, while they are empty, and that closes them.
            && (set.carried.load(Ordering::Relaxed) != 0 || has_registered(name))
        {
            is_any = true;
            set.is_shared.store(1, Ordering::Relaxed);
            // A thread that registers something now is done before this, or sees it.
            drop(set.lock.hold());
        }
    });
    is_any
}

/// Has a socket of this process a registration in the set of this name?
fn has_registered(name: u32) -> bool {
    let mut is_any = false;
    sockets::each_held(|socket, _| {
        is_any |= of_socket(socket).any(|(_, item)| item.set.load(Ordering::Relaxed) == name);
    });
    is_any
}

/// Is it in a set that another program may have?
pub fn is_shared(socket: &Socket) -> bool {
    of_socket(socket).any(|(_, item)| is_in_shared(item))
}

fn is_in_shared(item: &EpollItem) -> bool {
    let set = descriptors::set_named(item.set.load(Ordering::Relaxed));
    set.is_some_and(|set| set.is_shared.load(Ordering::Relaxed) != 0)
}

/// What was brought back of such sets is registered as the program has done it, and their bells are gone.
pub fn leave_shared() {
    sockets::each_held(|socket, _| leave(socket, None, is_in_shared));
    descriptors::each(|fd, kind| {
        if let DescriptorKind::EpollSet(_) = kind
            && let Some((_, set)) = descriptors::set(fd)
            && set.is_shared.load(Ordering::Relaxed) != 0
        {
            let _held = set.lock.hold();
            // What others of the family alone have they hear by the bell.
            if set.carried.load(Ordering::Relaxed) == 0 && set.belled.swap(0, Ordering::Relaxed) != 0 {
                doorbell::remove_from(fd);
            }
        }
    });
}

/// No ring is heard in this set any more.
pub fn silence(set_fd: i32) {
    let Some((_, set)) = descriptors::set(set_fd) else { return };
    // Others of the family may sleep in it: with them it is left as it is.
    if set.processes.load(Ordering::Relaxed) == 1 && set.belled.swap(0, Ordering::Relaxed) != 0 {
        doorbell::remove_from(set_fd);
    }
}
