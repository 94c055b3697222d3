//! Waits in the kernel during which this process pays what it owes, on all connections.

use crate::connection::owed;
use crate::connection::sleep::Woken;
use crate::connection::sockets::Connection;
use crate::os::{errno, kernel, own_call, signal_deferral};
use crate::polling::poll;

/// Flags of a receive that does not concern the stream. The kernel answers it.
pub const ASIDE: i32 = libc::MSG_OOB | libc::MSG_ERRQUEUE;

/// Receives by a call of the kernel. A process that owes the kernel bytes does not sleep in it.
#[inline(always)]
pub fn paying(fd: i32, flags: i32, receive: impl Fn() -> isize) -> isize {
    match if owed::may_owe() { pay_until_input(fd, flags) } else { None } {
        Some(number) => errno::fail(number),
        None => receive(),
    }
}

/// Waits for input, and pays meanwhile. `Some` error number ends the call. `None`: it does not wait, or nothing is
/// owed.
#[cold]
fn pay_until_input(fd: i32, flags: i32) -> Option<i32> {
    if own_call::are_over() || flags & (ASIDE | libc::MSG_DONTWAIT) != 0 || kernel::is_nonblocking(fd) {
        return None;
    }
    // A fault handler of the program may receive while this thread holds locks that paying needs.
    if signal_deferral::is_holding() || kernel::ready(fd, libc::POLLIN) != 0 {
        return None;
    }
    signal_deferral::begin_call();
    errno::keep(|| {
        let deadline =
            kernel::timeout_ns(fd, libc::SO_RCVTIMEO).map(|left| kernel::now_ns().saturating_add(left));
        loop {
            let now = kernel::now_ns();
            let left = owed::pay_before_wait(deadline.map(|deadline| deadline.saturating_sub(now)));
            if !owed::may_owe() {
                return None;
            }
            // A handler may also have run between two sleeps.
            let is_over = |number| match number {
                libc::EAGAIN => deadline.is_some_and(|deadline| deadline <= kernel::now_ns()),
                _ => {
                    deadline.is_some() || signal_deferral::is_interrupted() || signal_deferral::is_bypassed()
                }
            };
            if signal_deferral::is_interrupted() {
                return Some(libc::EINTR);
            }
            match kernel::wait_until(fd, libc::POLLIN, left.map(|left| now.saturating_add(left))) {
                Err(number @ (libc::EAGAIN | libc::EINTR)) if is_over(number) => return Some(number),
                Err(libc::EAGAIN | libc::EINTR) => {}
                _ => return None,
            }
        }
    })
}

/// Sleeps in the kernel until there are events of a connection.
///
/// The sleeps are short: `poll` checks what the number means when it wakes, and continues to sleep if it means another
/// file by then.
pub fn wait_in_kernel(connection: &Connection, events: i16, look_ns: u64, deadline_ns: Option<u64>) -> Woken {
    wait_by(look_ns, deadline_ns, |until_ns| {
        connection.wait_in_kernel(events, until_ns, deadline_ns.is_some())
    })
}

/// Waits for bytes in the kernel, or for the engine.
pub fn wait_beside_engine(connection: &Connection, look_ns: u64, deadline_ns: Option<u64>) -> Woken {
    wait_by(look_ns, deadline_ns, |until_ns| {
        let wait = || poll::wait_for_one(connection.fd, libc::POLLIN, until_ns);
        connection.wait_by(wait, deadline_ns.is_some())
    })
}

fn wait_by(
    look_ns: u64,
    deadline_ns: Option<u64>,
    wait: impl FnOnce(Option<u64>) -> Result<i16, i32>,
) -> Woken {
    let now = kernel::now_ns();
    let left_ns = Some(deadline_ns.map_or(look_ns, |deadline| deadline.saturating_sub(now).min(look_ns)));
    let until_ns = owed::pay_before_wait(left_ns).map(|left| now.saturating_add(left));
    match wait(until_ns) {
        Err(libc::EAGAIN) if deadline_ns.is_some_and(|deadline| deadline <= kernel::now_ns()) => {
            Woken::TimeOut
        }
        Ok(_) | Err(libc::EAGAIN) => Woken::Recheck,
        Err(_) => Woken::Signal,
    }
}
