//! The program's descriptors: how sockets are made, duplicated, shut down and closed.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::stream::{ASKS_BACK, DEAF, HALF, LEAVING, News};
use bywire_ring::waiters;

use crate::connection::domain::Domain;
use crate::connection::sockets::{self, Connection, Leaving, STREAM, Socket};
use crate::connection::{log, options, outcome, policy};
use crate::datagram::sockets as datagrams;
use crate::epoll::{handover, members, sets};
use crate::memory::arena::{self, SHUT, SHUT_SENDING};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::memory::vforked;
use crate::os::{errno, jumps, kernel, own_call, real, thread};
use crate::pairing::requirement::to_kernel;
use crate::pairing::{flows, offer};
use crate::process::{closing, exec, fork};
use crate::wakeup::doorbell;

/// A new socket. Stream sockets are tracked from here on.
pub fn after_socket(fd: i32, domain: i32, kind: i32, protocol: i32) {
    if fd >= 0
        && let Some(domain) = Domain::of_arguments(domain, kind, protocol)
        && offer::is_possible()
    {
        errno::keep(|| track(fd, domain));
    } else if fd >= 0 && datagrams::is_wanted(domain, kind, protocol) && offer::is_possible() {
        errno::keep(|| track_datagrams(fd));
    }
}

/// A connection that a listener has accepted.
pub fn after_accept(listener: i32, fd: i32) {
    if fd < 0 || !offer::is_possible() {
        return;
    }
    errno::keep(|| {
        let domain = sockets::socket(listener).map(|socket| socket.domain()).or_else(|| Domain::of(fd));
        if let Some(domain) = domain {
            track(fd, domain);
            options::inherit(listener, fd);
        }
    });
}

/// `close`, around the kernel's own.
pub fn close(fd: i32, real: impl FnOnce() -> i32) -> i32 {
    match descriptors::kind(fd) {
        DescriptorKind::Untracked => return real(),
        DescriptorKind::Hidden => {
            errno::set(libc::EBADF);
            return -1;
        }
        DescriptorKind::Datagram(_) => return close_datagrams(fd, real),
        DescriptorKind::Socket(_) | DescriptorKind::EpollSet(_) => {}
    }
    let leaving = before_close(fd);
    let status = real();
    errno::keep(|| after_close(leaving));
    status
}

/// The same for a UDP socket.
fn close_datagrams(fd: i32, real: impl FnOnce() -> i32) -> i32 {
    if vforked::is_child() {
        vforked::note_changed(fd);
        return real();
    }
    notice_fork();
    // A call that still uses it keeps its record.
    let leaving = errno::keep(|| datagrams::forget(fd, flows::end_flow));
    let status = real();
    errno::keep(|| drop(leaving));
    status
}

/// Keeps a duplicate for calls that sleep with a connection, if `fd` is its last descriptor. Over TCP such calls
/// continue, and the connection ends when they return.
fn keep_for_waiters(fd: i32) {
    jumps::forget();
    let Some(Ok(connection)) = sockets::socket(fd).map(Socket::carried) else { return };
    let local = connection.local;
    // SeqCst: pairs with the additions in `sockets::duplicate` and `hold::close`.
    if !waiters::are_there(&local.waiters) || local.descriptors.load(Ordering::SeqCst) != 1 {
        return;
    }
    errno::keep(|| {
        // SAFETY: no pointers.
        let kept = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, doorbell::first_high() as usize) };
        if kept >= 0 {
            duplicate(fd, kept);
            let left = waiters::keep(&local.waiters, &local.kept, kept as u32 + 1);
            connection.wake_own();
            close_kept(left);
        }
    });
}

/// Closes the duplicate that was kept for sleeping calls, if none is left.
pub fn close_kept(left: Option<u32>) {
    if let Some(kept) = left {
        let kept = kept as i32 - 1;
        // SAFETY: a descriptor that only calls of this library know.
        errno::keep(|| close(kept, || unsafe { real::close(kept) }));
    }
}

/// Removes `fd` from the table, and tells the kernel how to end the connection.
pub fn before_close(fd: i32) -> Option<Leaving> {
    if vforked::is_child() {
        // Its parent still has the socket, by the same number.
        vforked::note_changed(fd);
        return None;
    }
    notice_fork();
    keep_for_waiters(fd);
    let leaving = forget(fd)?;
    errno::keep(|| handover::leave_closing(&leaving, leaving.is_last));
    if leaving.is_carried()
        && let Some(Ok(connection)) = sockets::by_index(fd, leaving.index).map(Socket::mapped)
    {
        if leaving.is_last {
            connection.prepare_end();
        // SeqCst: pairs with the additions in `sockets::duplicate` and `hold::close`.
        } else if leaving.local.descriptors.load(Ordering::SeqCst) == 0 {
            connection.leave_to_others(false);
        }
    }
    // Bytes that were returned by now went through the kernel. The end is counted before the peer can see it, because
    // the program may exit while this thread is still in its close.
    if leaving.is_last {
        log::ending(&leaving);
        outcome::ended(&leaving);
    }
    Some(leaving)
}

/// After the kernel has closed the socket.
pub fn after_close(leaving: Option<Leaving>) {
    let Some(leaving) = leaving else { return };
    if leaving.is_last
        // Acquire: pairs with the release store in `offer::answered`.
        && !leaving.local.remote.load(Ordering::Acquire).is_null()
        && let Some(Ok(connection)) = sockets::by_index(-1, leaving.index).map(Socket::mapped)
    {
        connection.tell(News::Route);
    }
    closing::free(leaving);
}

/// `close_range`: the library's own descriptors stay open.
pub fn close_range(first: u32, last: u32, flags: i32, real: impl Fn(u32, u32) -> i32) -> i32 {
    if flags & libc::CLOSE_RANGE_CLOEXEC as i32 != 0 || first > last {
        return real(first, last);
    }
    let mut start = first;
    let mut status = 0;
    descriptors::each_between(first, last, |fd, kind| {
        let number = fd as u32;
        if kind == DescriptorKind::Hidden {
            if start < number {
                status |= real(start, number - 1);
            }
            start = number + 1;
        } else if let DescriptorKind::Datagram(_) = kind {
            status |= close_datagrams(fd, || real(number, number));
        } else {
            let leaving = before_close(fd);
            status |= real(number, number);
            after_close(leaving);
        }
    });
    if start <= last {
        status |= real(start, last);
    }
    status
}

/// After `dup` and similar calls: `new` is a duplicate of `old`.
pub fn after_dup(old: i32, new: i32) {
    if new >= 0
        && new != old
        && !matches!(descriptors::kind(old), DescriptorKind::Untracked | DescriptorKind::Hidden)
    {
        errno::keep(|| duplicate(old, new));
    }
}

/// `dup2` and `dup3`, around the kernel's own, which closes what `new` was.
pub fn duplicate_over(old: i32, new: i32, real: impl FnOnce() -> i32) -> i32 {
    if old == new || descriptors::kind(old) == DescriptorKind::Hidden {
        return if old == new { real() } else { errno::fail(libc::EBADF) as i32 };
    }
    match descriptors::kind(new) {
        DescriptorKind::Untracked => {}
        DescriptorKind::Hidden => make_way(new),
        // It stays what it is. That holds for the kernel too, whose registrations of it stay.
        same @ (DescriptorKind::Socket(_) | DescriptorKind::EpollSet(_) | DescriptorKind::Datagram(_))
            if same == descriptors::kind(old) =>
        {
            return real();
        }
        DescriptorKind::Socket(_) | DescriptorKind::EpollSet(_) | DescriptorKind::Datagram(_) => {
            // A call that fails leaves `new` as it is.
            // SAFETY: no pointers.
            if unsafe { real::fcntl(old, libc::F_GETFD, 0) } < 0 || !kernel::may_make(new) {
                return real();
            }
            let status = match descriptors::kind(new) {
                DescriptorKind::Datagram(_) => close_datagrams(new, real),
                _ => {
                    let leaving = before_close(new);
                    let status = real();
                    errno::keep(|| after_close(leaving));
                    status
                }
            };
            after_dup(old, status);
            return status;
        }
    }
    let status = real();
    after_dup(old, status);
    status
}

/// The program asks for this very number: the library's own descriptor moves to another one.
fn make_way(fd: i32) {
    if vforked::is_child() {
        return vforked::note_changed(fd);
    }
    // SAFETY: a descriptor of this library.
    let moved = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    descriptors::unhide(fd);
    if moved >= 0 {
        descriptors::hide(moved);
        members::renumber(fd, moved);
        offer::renumber(fd, moved);
    }
}

/// `shutdown`, around the kernel's own.
pub fn shutdown(fd: i32, how: i32, real: impl FnOnce() -> i32) -> i32 {
    let Some(socket) = sockets::socket(fd) else { return real() };
    let (ends_receiving, ends_sending) =
        (how == libc::SHUT_RD || how == libc::SHUT_RDWR, how == libc::SHUT_WR || how == libc::SHUT_RDWR);
    let connection = match socket.carried() {
        Ok(connection) => connection,
        Err(plain) => {
            let status = real();
            // The socket may be carried later. Then the end that the kernel reports is this end's own doing.
            if status == 0 {
                let bits =
                    if ends_receiving { SHUT } else { 0 } | if ends_sending { SHUT_SENDING } else { 0 };
                plain.shared.ended.fetch_or(bits, Ordering::Relaxed);
            }
            return status;
        }
    };
    if connection.is_dissolved() {
        return real();
    }
    connection.serve();
    connection.ask_kernel();
    // A connection that has ended both ways cannot be shut down for its peer, which was told something else.
    let is_over = connection.shared.ended.load(Ordering::Relaxed) & arena::HUNG_UP != 0;
    if ends_receiving {
        connection.shared.ended.fetch_or(SHUT, Ordering::Relaxed);
        if connection.is_unix() {
            // Before the kernel refuses what the peer would give it of its ring.
            connection.raise_end(DEAF);
        }
    }
    let is_engines = ends_sending && !is_over && connection.shut_by_engine();
    if ends_sending && !is_engines {
        connection.end_before_the_kernels(false);
        let _held = connection.shared.sending.hold();
        let before = connection.shared.ended.fetch_or(SHUT_SENDING, Ordering::Relaxed);
        // An end that still receives has half a connection. Its death must be a reset, because nothing else would tell
        // its peer, which goes on sending.
        if connection.is_unix() {
            connection.raise_end(HALF);
        } else if before & (SHUT | SHUT_SENDING) == 0 && how == libc::SHUT_WR && !is_over {
            connection.raise_end(HALF);
            // What the peer asked to have back comes through the kernel, which then answers for it.
            if STREAM.flags(&connection.own) & ASKS_BACK == 0 {
                connection.guard();
            }
        }
    }
    // Bytes that arrive from now on are answered by a reset, as a closed end answers them.
    let ended = connection.shared.ended.load(Ordering::Relaxed);
    if ended & (SHUT | SHUT_SENDING) == SHUT | SHUT_SENDING && !is_over && !connection.is_unix() {
        connection.raise_end(LEAVING);
    }
    let status = match ends_sending && (is_engines || is_shut_when_paid(&connection)) {
        // SAFETY: no pointers.
        true if ends_receiving => unsafe { real::shutdown(fd, libc::SHUT_RD) },
        true => 0,
        false => real(),
    };
    errno::keep(|| {
        connection.ask_kernel();
        connection.tell(News::Route);
        connection.wake_own();
    });
    status
}

/// Whether something is owed. If so, the kernel is told the end of this direction once it has all of that.
fn is_shut_when_paid(connection: &Connection) -> bool {
    // A payer holds the lock as well: either the last bytes are still to be paid, or nothing is owed.
    let _held = connection.shared.sending.hold();
    let is_owing = connection.owes();
    if is_owing {
        // Relaxed: ordered by the lock, as is the load in `Connection::paid`.
        connection.shared.shuts.store(1, Ordering::Relaxed);
    }
    is_owing
}

/// Tracks `fd`, a new stream socket.
fn track(fd: i32, domain: Domain) {
    if vforked::is_child() {
        return vforked::note_changed(fd);
    }
    forget_stale(fd);
    sockets::track(fd, domain == Domain::Unix);
    leave_to_streams(fd);
}

/// Where it is required to know all of them: tracks the TCP sockets that this program was started with.
pub fn track_inherited() {
    if policy::is_required() {
        (0..=kernel::highest_possible().min(i32::MAX as u32)).for_each(|fd| track_received(fd as i32));
    }
}

/// Where it is required to know all of them: tracks a TCP socket that another program has passed to this one.
pub fn track_received(fd: i32) {
    if policy::is_required() && fd >= 0 && errno::keep(|| Domain::of(fd)) == Some(Domain::Tcp) {
        errno::keep(|| track(fd, Domain::Tcp));
    }
}

/// Tracks `fd`, a new UDP socket.
fn track_datagrams(fd: i32) {
    if vforked::is_child() {
        return vforked::note_changed(fd);
    }
    forget_stale(fd);
    datagrams::track(fd);
    leave_to_streams(fd);
}

/// Tracks `fd`, a new epoll set.
pub fn track_set(fd: i32) {
    if vforked::is_child() {
        return vforked::note_changed(fd);
    }
    forget_stale(fd);
    sets::track(fd);
}

/// Tracks `new` as a duplicate of `old`.
fn duplicate(old: i32, new: i32) {
    if vforked::is_child() {
        vforked::note_changed(new);
        // The program that the child executes will use it.
        return exec::hand_over_each(|fd| fd == old);
    }
    forget_stale(new);
    match descriptors::kind(old) {
        DescriptorKind::Datagram(_) => datagrams::duplicate(old, new),
        _ => sockets::duplicate(old, new),
    }
    leave_to_streams(new);
}

/// Returns a connection with the number of standard input, output or error to the kernel. The C library's streams make
/// system calls on these numbers by themselves.
fn leave_to_streams(fd: i32) {
    if (libc::STDIN_FILENO..=libc::STDERR_FILENO).contains(&fd) {
        to_kernel(fd, Reason::Stdio);
    }
}

/// The kernel has reused a number that was closed without this library's notice.
fn forget_stale(fd: i32) {
    if vforked::is_child() {
        return vforked::note_changed(fd);
    }
    if let Some(leaving) = forget(fd) {
        closing::finish(leaving);
    }
}

/// The C library has replaced standard input, output and error by itself.
pub fn after_standard_replaced() {
    errno::keep(|| (libc::STDIN_FILENO..=libc::STDERR_FILENO).for_each(forget_stale));
}

/// Removes `fd` from the table, before the kernel closes it and reuses its number.
fn forget(fd: i32) -> Option<Leaving> {
    match descriptors::kind(fd) {
        DescriptorKind::Untracked => None,
        DescriptorKind::EpollSet(name) => {
            sets::forget(fd, name);
            None
        }
        DescriptorKind::Datagram(_) => {
            drop(datagrams::forget(fd, flows::end_flow));
            None
        }
        _ => sockets::forget(fd),
    }
}

/// This process no longer belongs to its family: it holds nothing, and none of its descriptors is tracked.
pub fn forget_all() {
    descriptors::each(|fd, kind| {
        let DescriptorKind::Socket(_) = kind else { return };
        let Some(leaving) = forget(fd) else { return };
        // A call of another thread may be using it. Then the record is not reused.
        // SeqCst: pairs with the change of the count by calls that enter and leave.
        if leaving.is_last && leaving.local.users.load(Ordering::SeqCst) == 1 {
            handover::forget(&leaving);
            let shared = leaving.shared;
            drop(leaving);
            // Release: pairs with the exchange in `track`. The mappings are gone before.
            shared.used.store(0, Ordering::Release);
        }
    });
    descriptors::each(|fd, kind| {
        if let DescriptorKind::EpollSet(_) | DescriptorKind::Datagram(_) = kind {
            let _no_socket = forget(fd);
        }
    });
}

/// In a forked child. It closes what calls of the parent's other threads kept open: those threads do not exist here.
pub extern "C" fn after_fork_in_child() {
    fork::after_fork_in_child();
    if !own_call::are_over() {
        sockets::each_held(|socket, _| close_kept(waiters::take(&socket.local.kept)));
    }
}

/// A process that was made by a raw system call counts as forked as soon as it closes something.
pub fn notice_fork() {
    if fork::is_missed() {
        thread::forget();
        sockets::leave_threads_behind();
        fork::before_fork();
        fork::after_fork_in_parent();
        after_fork_in_child();
    }
}
