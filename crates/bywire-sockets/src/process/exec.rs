//! Other programs that get this one's descriptors: by exec, by a spawn, or in a message.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;

use crate::connection::sockets::{self, Socket};
use crate::connection::{fallback, policy};
use crate::datagram::sockets as datagrams;
use crate::epoll::handover;
use crate::memory::arena::passed;
use crate::memory::{descriptors, vforked};
use crate::os::{errno, own_call, real};
use crate::pairing::{account, offer, requirement};

/// Replaces this process by another program, by the program's call. Returns if that fails.
pub fn replace(real: impl FnOnce() -> i32) -> i32 {
    if own_call::are_over() || vforked::is_restricted() {
        return real();
    }
    before_replacement();
    let status = real();
    errno::keep(after_failed_replacement);
    status
}

fn before_replacement() {
    if !vforked::is_child() {
        datagrams::stay_all(Reason::Passed);
    }
    // What a child in its parent's memory has passed on is not known once it has succeeded.
    let how = if vforked::is_child() { passed::YES } else { passed::BY_EXEC };
    sockets::each_held(|socket, fd| {
        if is_inherited(fd) {
            socket.note_passed(how);
        }
    });
    if vforked::is_child() {
        // Its parent goes on, with everything that it has.
        return hand_over(false);
    }
    errno::keep(|| sockets::each_held(leave_to_kernel));
    hand_over(false);
    account::leave(account::tally());
}

/// No other program has got anything. What a child of this process has passed on is not known here.
fn after_failed_replacement() {
    sockets::each_held(|socket, _| {
        // Acquire: pairs with the changes of the count in `sockets::count_fork` and `sockets::let_go`.
        if socket.shared.processes.load(Ordering::Acquire) == 1 {
            let known = &socket.shared.passed;
            let _ =
                known.compare_exchange(passed::BY_EXEC, passed::NOT, Ordering::Relaxed, Ordering::Relaxed);
        }
    });
}

/// Another program will close this connection, in order, where this library does not see it.
fn leave_to_kernel(socket: &Socket, fd: i32) {
    if is_inherited(fd) {
        return;
    }
    if let Some(Ok(connection)) = sockets::by_index(fd, socket.index).map(Socket::carried) {
        // Acquire: pairs with the changes of the count in `sockets::count_fork` and `sockets::let_go`.
        if socket.shared.processes.load(Ordering::Acquire) == 1 {
            connection.leave_to_program();
        } else {
            connection.leave_to_others(true);
            // From here on this process is counted as a holder, and does not have it.
            socket.shared.is_replaced.store(1, Ordering::Relaxed);
        }
    }
}

/// Whether a program that is started gets this descriptor.
fn is_inherited(fd: i32) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Before another program is started. `has_actions`: steps before the start may copy descriptors.
pub fn hand_over(has_actions: bool) {
    hand_over_each(|fd| is_inherited(fd) || (has_actions && descriptors::is_named(fd)));
}

/// Before another program gets these descriptors.
pub fn hand_over_each(goes_on: impl Fn(i32) -> bool + Copy) {
    errno::keep(|| {
        datagrams::stay_each(goes_on, Reason::Passed);
        if policy::is_required() {
            sockets::each_held(|socket, fd| {
                if goes_on(fd) {
                    requirement::before_unseen(socket);
                }
            });
        }
        let has_sets = handover::share(goes_on);
        fallback::hand_back(goes_on, Reason::Passed);
        if has_sets {
            empty_shared_sets();
        }
    });
}

/// Returns connections in sets that another program may have to the kernel, and gives those sets back to the program.
fn empty_shared_sets() {
    let is_shared = |fd| sockets::socket(fd).is_some_and(|socket| handover::is_shared(&socket));
    fallback::hand_back(is_shared, Reason::Epoll);
    // A connection that another thread was preparing is carried by now, or never will be.
    offer::await_preparation();
    fallback::hand_back(is_shared, Reason::Epoll);
    handover::leave_shared();
}

/// Before the descriptors that `each` visits are passed to programs that may not have this library.
pub fn before_passing(each: impl Fn(&mut dyn FnMut(i32))) {
    errno::keep(|| {
        fallback::hand_back_each(
            |visit| {
                each(&mut |fd| {
                    handover::before_passing(fd);
                    datagrams::stay(fd, Reason::Passed);
                    if let Some(socket) = sockets::socket(fd) {
                        requirement::before_unseen(&socket);
                        visit(socket);
                    }
                });
            },
            Reason::Passed,
        );
    });
}
