//! Forks: what the child gets, and what parent and child both keep.

use core::cell::Cell;

use bywire_pairing::reason::Reason;

use crate::connection::{idle_memory, outcome, relayed, sockets};
use crate::datagram::{members, sockets as datagrams};
use crate::epoll::{parked, sets};
use crate::memory::{descriptors, vforked};
use crate::os::{errno, own_call, pid, real, thread};
use crate::pairing::{offer, requirement};
use crate::process::{closing, examination, signals};
use crate::wakeup::doorbell;

thread_local! {
    // Constant and without a destructor: the thread-local variables allocate and register nothing.
    /// This thread waits for the child of its next fork, by a pipe.
    static AWAITS: Cell<bool> = const { Cell::new(false) };
    /// The ends of that pipe for reading and for writing.
    static PIPE: Cell<[i32; 2]> = const { Cell::new([-1; 2]) };
    /// The number of this thread's last fork, which may have failed; 0: none.
    static FORK: Cell<u32> = const { Cell::new(0) };
}

/// The next fork of this thread is a `vfork`. [`awaited_child`] is called after it.
pub fn await_next_child() {
    AWAITS.set(true);
}

/// In the parent: a pipe that ends when the child has executed another program, or has ended.
pub fn awaited_child() -> Option<i32> {
    let [end, _] = PIPE.replace([-1; 2]);
    (end >= 0).then_some(end)
}

pub extern "C" fn before_fork() {
    if own_call::are_over() {
        return;
    }
    parked::remove_everywhere();
    datagrams::stay_all(Reason::Shared);
    sockets::each_held(|socket, _| relayed::note_fork(socket));
    let fork = descriptors::begin_fork();
    sockets::count_fork(fork);
    sets::count_fork(fork);
    FORK.set(fork);
    examination::before_fork();
    // From here to the end of the fork no other thread forks: its child would have the pipe as well.
    if AWAITS.replace(false) {
        let mut ends = [-1; 2];
        // SAFETY: room for two descriptors.
        let is_made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
        PIPE.set(if is_made { ends } else { [-1; 2] });
    }
}

/// Closes one end of the pipe of a `vfork`.
fn close_end(index: usize) {
    if let Some(end) = PIPE.get().get(index)
        && *end >= 0
    {
        // SAFETY: this library's own descriptor. The call is made by number, because a thread cannot be cancelled in
        // `fork`.
        errno::keep(|| unsafe { real::syscall(libc::SYS_close, *end as usize, 0, 0, 0, 0, 0) });
    }
}

pub extern "C" fn after_fork_in_parent() {
    // Another thread may have ended all own calls during the fork.
    examination::after_fork_in_parent();
    if own_call::are_over() {
        return;
    }
    close_end(1);
    descriptors::end_fork();
    // Another thread may have parked one meanwhile.
    parked::remove_everywhere();
}

/// Forks by `real`. The fork handlers are not told whether the fork has failed; the caller of `real` is.
pub fn fork(real: impl FnOnce() -> i32) -> i32 {
    FORK.set(0);
    let child = real();
    let fork = FORK.replace(0);
    if child < 0 && fork != 0 && !own_call::are_over() {
        errno::keep(|| {
            sockets::undo_fork(fork, closing::finish);
            sets::undo_fork(fork);
        });
    }
    child
}

pub fn after_fork_in_child() {
    FORK.set(0);
    examination::after_fork_in_child();
    if own_call::are_over() {
        return;
    }
    let is_vforkeds = vforked::has_noted();
    if is_vforkeds {
        sockets::forget_vforked();
    }
    pid::note();
    pid::set_mark();
    thread::forget();
    signals::after_fork_in_child();
    own_call::after_fork_in_child();
    sockets::after_fork_in_child();
    datagrams::after_fork_in_child();
    members::after_fork_in_child();
    sets::after_fork_in_child();
    doorbell::after_fork_in_child();
    outcome::after_fork_in_child();
    requirement::after_fork_in_child();
    offer::after_fork_in_child();
    idle_memory::after_fork_in_child();
    // The other end closes with the child's exec, or its exit.
    close_end(0);
    PIPE.set([-1; 2]);
    descriptors::end_fork();
    if is_vforkeds {
        sets::forget_vforked();
    }
    vforked::after_fork_in_child();
}

/// Whether this process was made by a raw system call, for which no handler has run.
pub fn is_missed() -> bool {
    !pid::is_marked() && !pid::is_noted() && offer::is_possible()
}
