//! Programs that restrict their own system calls (`seccomp`), or were started with such a restriction; and programs whose
//! threads have tables of descriptors of their own.
//!
//! The author of a filter did not consider this library: one unexpected system call may end the program. So all
//! connections return to the kernel before a filter is installed. From then on the library does nothing: each call goes
//! to the C library as the program has made it. The same holds for children, and for programs that are started behind
//! such a filter. A filter around `bywire run` itself, such as that of a container or systemd, is different: it must
//! allow the calls that docs/sockets.md lists.

use core::ffi::c_int;

use bywire_pairing::filters;
use bywire_pairing::reason::Reason;

use crate::connection::sockets::{self, Socket};
use crate::connection::{fallback, log, outcome, policy};
use crate::datagram::sockets as datagrams;
use crate::epoll::handover;
use crate::memory::arena;
use crate::memory::descriptors::{self, DescriptorKind};
use crate::memory::vforked;
use crate::os::{errno, jumps, kernel, own_call, pid, real};
use crate::pairing::{account, offer, requirement};
use crate::process::{exec, lifecycle, signals};
use crate::wakeup::{doorbell, flag};

/// How long to wait for other threads. A thread that is stopped, for instance in a debugger, may never come.
const AWAIT_NS: u64 = 2_000_000_000;

/// Whether the program has more filters than `bywire run` had, when the library is loaded.
///
/// It makes only system calls that the dynamic loader has just made. In case of doubt the result is `true`.
pub fn find(known: u32) -> bool {
    const STATUS_BYTES: usize = 16 << 10;
    let mut text = [0u8; STATUS_BYTES];
    let mut length = 0;
    // SAFETY: a terminated path, and a live buffer of the length given.
    unsafe {
        let fd = libc::open(c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        while fd >= 0 && length < text.len() {
            let read = real::read(fd, text.as_mut_ptr().add(length).cast(), text.len() - length);
            if read <= 0 {
                break;
            }
            length += read as usize;
        }
        real::close(fd);
    }
    let count = text.get(..length).and_then(filters::count_in);
    let is_unknown = count.is_none_or(|count| count > known);
    own_call::forbid(is_unknown);
    is_unknown
}

/// Before `prctl`.
pub fn before_prctl(option: c_int, mode: usize, program: usize) {
    let is_strict = mode == libc::SECCOMP_MODE_STRICT as usize;
    // Without a program the call only asks whether there are filters.
    if option == libc::PR_SET_SECCOMP && (is_strict || program != 0) {
        errno::keep(|| withdraw(Reason::Sandbox));
    }
}

/// Before `seccomp`.
pub fn before_seccomp(operation: usize, program: usize) {
    let is_strict = operation == libc::SECCOMP_SET_MODE_STRICT as usize;
    if is_strict || (operation == libc::SECCOMP_SET_MODE_FILTER as usize && program != 0) {
        errno::keep(|| withdraw(Reason::Sandbox));
    }
}

/// Before a thread gets a table of descriptors of its own, whose numbers mean other files from then on than those of the
/// other threads. It closes a connection that others go on to use.
pub fn before_unshare() {
    // A process with one thread has no other table.
    if !own_call::are_over() && !vforked::is_child() && !pid::is_alone() {
        errno::keep(|| withdraw(Reason::Unshared));
    }
}

/// Before a child in this process's memory is made that has descriptors of its own, and runs beside its parent.
pub fn before_child_in_memory() {
    errno::keep(|| withdraw(Reason::Unshared));
}

/// Returns all connections to the kernel, reports what there is to report, and does nothing from here on.
pub fn withdraw(reason: Reason) {
    withdraw_because_of(reason, "");
}

/// Withdraws, with the path of the object that is the cause.
pub fn withdraw_because_of(reason: Reason, object: &str) {
    if own_call::are_over() {
        return;
    }
    if vforked::is_child() {
        // Its parent goes on. The child makes no calls of the library's own any more, not even before an exec.
        exec::hand_over(false);
        return vforked::restrict();
    }
    lifecycle::notice_fork();
    jumps::forget();
    if offer::is_possible() {
        leave(reason, object);
    }
    signals::give_back();
    own_call::end();
    if offer::is_possible() {
        await_threads();
        lifecycle::forget_all();
        offer::unconfigure();
        doorbell::close_all();
        flag::close();
        arena::retire();
    }
    own_call::end_for_all();
}

/// Returns all connections of this program to the kernel. No connection is carried from here on.
pub fn all_to_kernel(reason: Reason) {
    if policy::is_required() {
        requirement::end_program(reason);
    }
    datagrams::stay_all(reason);
    fallback::all_to_kernel(reason);
}

fn leave(reason: Reason, object: &str) {
    all_to_kernel(reason);
    // A connection that another thread was preparing is carried by now, or never will be.
    offer::await_preparation();
    all_to_kernel(reason);
    let tally = account::tally();
    sockets::each_held(|socket, _| {
        handover::leave(socket, None, |_| true);
        if sockets::is_last_holder(socket.shared) {
            log::ending(socket);
            outcome::ended(socket);
        }
    });
    descriptors::each(|fd, kind| {
        if let DescriptorKind::EpollSet(_) = kind {
            handover::silence(fd);
        }
    });
    log::program(reason, object);
    outcome::report(account::note);
    account::note(reason, 1);
    account::leave(tally);
}

/// Threads that sleep where only a futex word or a doorbell would wake them check again, and make the program's own
/// calls. Afterwards none is in a call of the library any more.
fn await_threads() {
    let end_ns = kernel::now_ns() + AWAIT_NS;
    loop {
        wake_threads();
        if !own_call::is_any() || kernel::now_ns() > end_ns {
            return;
        }
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }
}

fn wake_threads() {
    sockets::each_held(|socket, fd| {
        if let Some(Ok(connection)) = sockets::by_index(fd, socket.index).map(Socket::mapped) {
            connection.wake_own();
        }
    });
    doorbell::ring_own();
}
