//! Sending on the program's sockets.

use core::sync::atomic::{Ordering, fence};

use bywire_pairing::reason::Reason;
use bywire_ring::distance::{self, StoreKind};
use bywire_ring::stream::{DEAF, LEAVING, News, Route, Sleep};

use crate::connection::domain::Domain;
use crate::connection::sleep::{self, Woken};
use crate::connection::sockets::{self, Connection, KernelCall, STREAM, Socket, counted};
use crate::memory::arena::{FAILED, HUNG_UP, SHUT_SENDING, SharedSocket};
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::iovec::{self, Buffers, CALL_MAX};
use crate::os::jumps::{self, Noted};
use crate::os::{errno, kernel, own_call, real, sanitizer, signal_deferral};
use crate::pairing::{offer, requirement};
use crate::process::inline;
use crate::transfer::datagrams;
use crate::transfer::waiting::Waiting;

/// A send by any call. `real` is that call as the program has made it.
#[inline(always)]
pub fn send<'a>(
    fd: i32,
    parts: impl FnOnce() -> Buffers<'a>,
    flags: i32,
    is_special: bool,
    real: impl Fn() -> isize,
) -> isize {
    let index = match descriptors::kind(fd) {
        DescriptorKind::Socket(index) => index,
        DescriptorKind::Datagram(_) => {
            return datagrams::send(fd, &parts(), flags, None, is_special, &real);
        }
        _ => return real(),
    };
    if never_by(flags, is_special).is_none()
        && let Some((_inside, shared)) = sockets::pass(fd, index, |shared| &shared.kernel_writers)
    {
        let sent = real();
        count(shared, sent);
        return sent;
    }
    match sockets::socket(fd) {
        None => real(),
        Some(socket) => send_tracked(socket, &parts(), flags, is_special, &real),
    }
}

fn send_tracked(
    socket: Socket,
    parts: &Buffers,
    flags: i32,
    is_special: bool,
    real: &dyn Fn() -> isize,
) -> isize {
    if let Err(number) = requirement::admit_send(&socket, flags) {
        return if number == libc::EPIPE { broken_pipe(0, flags) } else { errno::fail(number) };
    }
    if let Some(reason) = never_by(flags, is_special) {
        let is_with = is_special && socket.is_unix();
        return send_specially(socket, if is_with { Reason::Ancillary } else { reason }, flags, real);
    }
    let mut socket = socket;
    if !socket.is_carried() {
        offer::consider(&socket, inline::examine_once);
    }
    loop {
        match socket.carried() {
            Err(plain) => {
                let sent = send_plainly(&plain, real);
                match sent {
                    Some(sent) => return sent,
                    None => socket = plain,
                }
            }
            Ok(mut connection) => {
                let sent = send_carried(&mut connection, parts, flags, real);
                if sent < 0 && connection.has_engine() {
                    connection.note_told(errno::last());
                }
                return sent;
            }
        }
    }
}

/// Whether the call does something that rings cannot do.
#[inline(always)]
fn never_by(flags: i32, is_special: bool) -> Option<Reason> {
    if flags & libc::MSG_OOB != 0 {
        Some(Reason::Urgent)
    } else if flags & libc::MSG_FASTOPEN != 0 {
        Some(Reason::FastOpen)
    } else if flags & libc::MSG_ZEROCOPY != 0 || is_special {
        Some(Reason::Option)
    } else {
        None
    }
}

fn send_specially(socket: Socket, reason: Reason, flags: i32, real: &dyn Fn() -> isize) -> isize {
    socket.stay(reason);
    match socket.carried() {
        Ok(mut connection) if reason == Reason::Ancillary => send_beside(&mut connection, flags, real),
        Ok(connection) => {
            connection.bring_back(reason);
            let _inside = counted(&connection.shared.kernel_writers);
            real()
        }
        Err(plain) => send_plainly(&plain, real).unwrap_or_else(real),
    }
}

/// Sends a message with descriptors or credentials, which only the kernel can pass on. This direction goes on through the
/// kernel for good, behind what is in the ring. The other direction stays where it is.
fn send_beside(connection: &mut Connection, flags: i32, real: &dyn Fn() -> isize) -> isize {
    let mut deadline = None;
    signal_deferral::begin_call();
    loop {
        connection.serve();
        {
            let _held = connection.shared.sending.hold();
            if matches!(STREAM.route(&connection.own), Ok(Route::Ring | Route::Ending)) {
                connection.end_ring();
            }
        }
        connection.tell(News::Route);
        if !connection.owes() || own_call::are_over() {
            break;
        }
        // It comes behind the bytes that the kernel has no room for yet.
        let _waiting = Waiting::begin(connection);
        match wait_to_pay(connection, flags, &mut deadline) {
            None => {}
            Some(libc::EPIPE) => return broken_pipe(0, flags),
            Some(number) => return errno::fail(number),
        }
    }
    let _inside = counted(&connection.shared.kernel_writers);
    let sent = connection.away(real);
    count(connection.shared, sent);
    sent
}

/// Sends through the kernel, counted; `None`: the connection is carried by now.
fn send_plainly(socket: &Socket, real: &dyn Fn() -> isize) -> Option<isize> {
    let _inside = KernelCall::enter(&socket.shared.kernel_writers, socket.shared)?;
    let sent = socket.away(real);
    count(socket.shared, sent);
    Some(sent)
}

#[inline(always)]
fn count(shared: &SharedSocket, sent: isize) {
    if sent > 0 {
        // SeqCst: pairs with the loads in `offer::accounts_agree` and `send::give_the_last`, which found nobody inside
        // the kernel.
        shared.sent.fetch_add(sent as u64, Ordering::SeqCst);
    }
}

fn send_carried(connection: &mut Connection, parts: &Buffers, flags: i32, real: &dyn Fn() -> isize) -> isize {
    let total = parts.total();
    if total == CALL_MAX || parts.has_null() {
        return send_checked(connection, parts, flags, real);
    }
    send_within(connection, parts, total, flags, real)
}

/// A send of more bytes than one call moves, or of bytes at the null address. A program that states such a length may
/// have fewer: as in the kernel, the call ends before the first one that cannot be read.
#[cold]
fn send_checked(connection: &mut Connection, parts: &Buffers, flags: i32, real: &dyn Fn() -> isize) -> isize {
    let (list, count) = parts.as_list();
    if kernel::refuses(connection.fd, list, count) {
        return real();
    }
    let readable = parts.readable();
    let total = readable.total();
    if total == 0 { real() } else { send_within(connection, &readable, total, flags, real) }
}

#[inline(always)]
fn send_within(
    connection: &mut Connection,
    parts: &Buffers,
    total: usize,
    flags: i32,
    real: &dyn Fn() -> isize,
) -> isize {
    let (given_fd, mut waiting) = (connection.fd, None);
    // The program's call, unless its descriptor was closed meanwhile.
    let real = |connection: &Connection| match connection.fd == given_fd {
        true => real(),
        false => send_otherwise(connection, parts, flags),
    };
    let (mut done, mut fruitless, mut deadline) = (0, 0, None);
    sanitizer::sends();
    jumps::forget();
    signal_deferral::begin_call();
    loop {
        // Another thread has returned all connections meanwhile. Only the program's own call is right now.
        if own_call::are_over() {
            return if done > 0 { done as isize } else { real(connection) };
        }
        connection.serve();
        if connection.is_broken() {
            // A call that waits already belongs to the old connection.
            if connection.is_dissolved() && waiting.is_none() && done == 0 {
                let sent = connection.away(|| real(connection));
                count(connection.shared, sent);
                return sent;
            }
            return broken_pipe(done, flags);
        }
        let step = match STREAM.route(&connection.own) {
            Ok(Route::Kernel) => change_over(connection, parts, done, flags),
            Ok(Route::Ring) if total > 0 => send_in_ring(connection, parts, done),
            // It waits behind the bytes that the kernel has no room for yet.
            Ok(Route::Back(_)) if connection.owes() => {
                waiting.get_or_insert_with(|| Waiting::begin(connection));
                match wait_to_pay(connection, flags, &mut deadline) {
                    None => Step::Sent(0),
                    Some(_) if done > 0 => return done as isize,
                    Some(libc::EPIPE) => return broken_pipe(0, flags),
                    Some(number) => return errno::fail(number),
                }
            }
            // A call that has sent part of its bytes in the ring continues in the kernel.
            Ok(Route::Back(_)) if done > 0 => {
                waiting.get_or_insert_with(|| Waiting::begin(connection));
                through_kernel(connection, parts, done, flags)
            }
            // It sends nothing.
            Ok(Route::Ring) if connection.is_required() => return 0,
            Ok(Route::Back(_)) if connection.refuse_kernel() => Step::Sent(0),
            Ok(Route::Back(_) | Route::Ring) => {
                if !connection.is_unix()
                    && let Some(number) = connection.take_error()
                {
                    return errno::fail(number);
                }
                let sent = connection.away(|| real(connection));
                count(connection.shared, sent);
                return sent;
            }
            Ok(Route::Pending | Route::Ending) | Err(_) => {
                wait_for_route(connection);
                Step::Sent(0)
            }
        };
        match step {
            Step::Sent(sent) => {
                done += sent;
                if done >= total && total > 0 {
                    return done as isize;
                }
                fruitless = if sent > 0 { 0 } else { fruitless };
            }
            // Its engine was ready from the beginning.
            Step::Kernel if connection.is_required() => {
                if total == 0 {
                    return 0;
                }
                connection.refuse_kernel();
            }
            Step::Kernel => {
                // As the program asked, sleeping where the call would sleep without this library.
                let Some(_inside) = enter(connection) else { continue };
                let sent = connection.away(|| real(connection));
                count(connection.shared, sent);
                return sent;
            }
            Step::Refused if connection.is_required() => return broken_pipe(done, flags),
            Step::Refused => {
                return refused(connection, done, flags, waiting.is_some())
                    .unwrap_or_else(|| real(connection));
            }
            Step::Full => {
                connection.note_full();
                connection.check_engine();
                if flags & libc::MSG_DONTWAIT != 0 || connection.is_nonblocking() {
                    connection.shared.full.fetch_add(1, Ordering::Relaxed);
                    // SeqCst: pairs with the fence of `tell` at the other end. A thread that is told of later room finds the count.
                    // Earlier room may have been told to a thread that did not find it, so this one looks for it.
                    fence(Ordering::SeqCst);
                    if !matches!(connection.room_hint(), Ok(0)) {
                        continue;
                    }
                    connection.ask_kernel();
                    if done == 0 && connection.peer_is_gone() {
                        continue;
                    }
                    return if done > 0 { done as isize } else { errno::fail(libc::EAGAIN) };
                }
                let deadline = *deadline.get_or_insert_with(|| connection.deadline(libc::SO_SNDTIMEO));
                waiting.get_or_insert_with(|| Waiting::begin(connection));
                let woken = connection.sleep(Sleep::Room, fruitless, deadline, || {
                    // Another thread may be sending, and only that one may move the ring's start.
                    !matches!(connection.room_hint(), Ok(0))
                        || STREAM.route(&connection.own) != Ok(Route::Ring)
                });
                fruitless += 1;
                match woken {
                    Woken::Recheck => {}
                    _ if done > 0 => return done as isize,
                    Woken::Signal => return errno::fail(libc::EINTR),
                    Woken::TimeOut => return errno::fail(libc::EAGAIN),
                }
                if !own_call::are_over() && !connection.follow() {
                    return errno::fail(libc::EBADF);
                }
                connection.ask_kernel();
            }
        }
    }
}

/// The result of a call whose rest is refused. `None`: the kernel has the right error.
#[cold]
#[inline(never)]
fn refused(connection: &Connection, done: usize, flags: i32, has_slept: bool) -> Option<isize> {
    // As in the kernel: a call that has slept takes the error of bytes that were left unread, even if it reports what it
    // has sent.
    if has_slept && connection.is_unix() {
        return Some(match errno::keep(|| connection.take_any_error()) {
            Some(number) if done == 0 => errno::fail(number),
            _ => broken_pipe(done, flags),
        });
    }
    if done > 0 {
        return Some(done as isize);
    }
    if connection.is_refused() {
        return Some(broken_pipe(0, flags));
    }
    // A Unix socket keeps its error for a receive.
    if connection.is_unix() { None } else { connection.take_error().map(errno::fail) }
}

/// Bytes of a long send that are published at once.
const PIECE_BYTES: usize = 16 << 10;
/// The kernel is asked about the other end at one send of this many.
const ASK_EVERY: u32 = 64;

/// The result of one look at the connection.
enum Step {
    /// This many bytes were sent.
    Sent(usize),
    /// The bytes go through the kernel for now.
    Kernel,
    /// The ring is full.
    Full,
    /// The kernel has the right error.
    Refused,
}

/// Counts a call in the kernel of a connection whose route may change, until dropped; `None`: the route has changed.
fn enter(connection: &Connection) -> Option<Noted> {
    let writing = counted(&connection.shared.kernel_writers);
    // SeqCst: pairs with the fence of `STREAM.begin` in `change_over`, after which the count is read. Either this call
    // is counted there, or it sees the new route here.
    core::sync::atomic::fence(Ordering::SeqCst);
    (STREAM.route(&connection.own) == Ok(Route::Kernel)).then_some(writing)
}

/// Another thread changes the route and holds the lock. If it was killed halfway, the lock is taken over: the route
/// stays as it was, or ends.
fn wait_for_route(connection: &Connection) {
    let held = connection.shared.sending.hold();
    match STREAM.route(&connection.own) {
        Ok(Route::Pending) => STREAM.abandon(&connection.own),
        Ok(Route::Ending) => connection.end_ring(),
        _ => return,
    }
    drop(held);
    connection.tell(News::Route);
}

/// Waits until nothing is owed to the kernel, if this call may wait; the error number if it may not.
fn wait_to_pay(connection: &mut Connection, flags: i32, deadline: &mut Option<Option<u64>>) -> Option<i32> {
    if connection.shared.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0 {
        return Some(libc::EPIPE);
    }
    if flags & libc::MSG_DONTWAIT != 0 || connection.is_nonblocking() {
        return Some(libc::EAGAIN);
    }
    let deadline = *deadline.get_or_insert_with(|| connection.deadline(libc::SO_SNDTIMEO));
    match connection.pay_while_waiting(0, deadline) {
        // The bytes must not go to another file that has the number by now.
        None | Some(Woken::Recheck) if own_call::are_over() || connection.follow() => None,
        None | Some(Woken::Recheck) => Some(libc::EBADF),
        Some(Woken::Signal) => Some(libc::EINTR),
        Some(Woken::TimeOut) => Some(libc::EAGAIN),
    }
}

/// Leaves the kernel, if the other end is ready. One more piece goes through the kernel, to wake threads that sleep
/// there.
fn change_over(connection: &Connection, parts: &Buffers, done: usize, flags: i32) -> Step {
    let left = parts.total().saturating_sub(done);
    if left == 0
        || !STREAM.peer_is_prepared(&connection.remote)
        || connection.shared.never.load(Ordering::Relaxed) != 0
        || connection.is_far() && connection.has_no_engine()
    {
        return Step::Kernel;
    }
    let _held = connection.shared.sending.hold();
    // Another thread may have told it to stay meanwhile, and has found nothing to end.
    if connection.shared.never.load(Ordering::Relaxed) != 0 {
        return Step::Kernel;
    }
    if STREAM.route(&connection.own) != Ok(Route::Kernel)
        || connection.shared.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0
        || !STREAM.begin(&connection.own, &connection.remote)
    {
        return if STREAM.route(&connection.own) == Ok(Route::Kernel) { Step::Kernel } else { Step::Sent(0) };
    }
    let step = if connection.is_far() {
        leave_at_once(connection)
    } else {
        give_the_last(connection, parts, done, flags)
    };
    connection.tell(News::Route);
    step
}

/// Leaves the kernel without one more piece: nobody sleeps there for bytes of a program on another machine.
fn leave_at_once(connection: &Connection) -> Step {
    if connection.cut_at_once() {
        return Step::Sent(0);
    }
    STREAM.abandon(&connection.own);
    Step::Kernel
}

/// Sends the last piece through the kernel, while the route is pending.
fn give_the_last(connection: &Connection, parts: &Buffers, done: usize, flags: i32) -> Step {
    let shared = connection.shared;
    // SeqCst: pairs with the additions of calls that have left. The next steps check that all have left, and that the
    // kernel's count agrees.
    let sent = shared.sent.load(Ordering::SeqCst);
    let agrees =
        || connection.byte_counts().is_some_and(|account| account.is_established && account.given == sent);
    if shared.kernel_writers.load(Ordering::SeqCst) != 0 || !agrees() {
        STREAM.abandon(&connection.own);
        return Step::Kernel;
    }
    let (mut space, count) = parts.rest(done);
    let given = send_now(connection.fd, &mut space, count, flags);
    if given > 0 && connection.is_relayed() && !connection.begin_relay(sent + given as u64) {
        connection.stay(Reason::Refused);
        STREAM.abandon(&connection.own);
        // SeqCst: pairs with the loads of the next comparison of the counts, as below.
        shared.sent.store(sent + given as u64, Ordering::SeqCst);
        Step::Sent(given as usize)
    } else if given > 0 {
        // SeqCst: pairs with the loads of the next comparison of the counts, under this lock or with nobody inside.
        shared.sent.store(sent + given as u64, Ordering::SeqCst);
        STREAM.cut(&connection.own, sent + given as u64);
        // Nagle's algorithm would hold it back until the bytes before it are acknowledged, which takes up to 40 ms, and
        // with it everything that follows in memory. A program that has corked its socket wants it held back.
        if !kernel::is_corked(connection.fd) {
            connection.push();
        }
        Step::Sent(given as usize)
    } else {
        STREAM.abandon(&connection.own);
        Step::Kernel
    }
}

/// Sends by the descriptor that was kept for this call.
fn send_otherwise(connection: &Connection, parts: &Buffers, flags: i32) -> isize {
    let (mut space, count) = parts.rest(0);
    let mut message = iovec::message(&mut space, count);
    // SAFETY: the parts are the program's own, as the program has passed them.
    unsafe { real::sendmsg(connection.fd, &raw mut message, flags) }
}

fn send_now(fd: i32, space: &mut [libc::iovec], count: usize, flags: i32) -> isize {
    let Some(_own) = own_call::begin() else { return errno::fail(libc::EAGAIN) };
    let mut message = iovec::message(space, count);
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the parts are the program's own, as the program has passed them. The call is made by number, because a
    // thread cannot be cancelled in it: the route may be pending.
    unsafe {
        let message = (&raw mut message) as usize;
        real::syscall(libc::SYS_sendmsg, fd as usize, message, flags as usize, 0, 0, 0) as isize
    }
}

/// Sends the rest of a call through the kernel that began in the ring.
fn through_kernel(connection: &mut Connection, parts: &Buffers, done: usize, flags: i32) -> Step {
    let (mut space, count) = parts.rest(done);
    let _inside = counted(&connection.shared.kernel_writers);
    let mut deadline = None;
    loop {
        // An error is for a call that has sent nothing. This call would take it.
        connection.ask_kernel();
        if connection.shared.ended.load(Ordering::Relaxed) & (HUNG_UP | FAILED) != 0 {
            return Step::Refused;
        }
        let sent = send_now(connection.fd, &mut space, count, flags);
        if sent > 0 {
            // SeqCst: pairs with the loads in `offer::accounts_agree` and `send::give_the_last`, which found nobody
            // inside the kernel.
            connection.shared.sent.fetch_add(sent as u64, Ordering::SeqCst);
            return Step::Sent(sent as usize);
        }
        let error = errno::last();
        if error != libc::EAGAIN {
            connection.keep_error(error);
            return Step::Refused;
        }
        if flags & libc::MSG_DONTWAIT != 0 || connection.is_nonblocking() {
            return Step::Refused;
        }
        if deadline.is_none() {
            deadline = connection.deadline(libc::SO_SNDTIMEO);
        }
        // The sleeps are short: `poll` checks what the number means when it wakes, and continues to sleep if it means
        // another file.
        let look_ns = kernel::now_ns().saturating_add(sleep::look_ns(usize::MAX));
        let until_ns = deadline.map_or(look_ns, |deadline| deadline.min(look_ns));
        match kernel::wait_until(connection.fd, libc::POLLOUT, Some(until_ns)) {
            Err(libc::EAGAIN) if deadline.is_none_or(|deadline| deadline > kernel::now_ns()) => {}
            Err(_) => return Step::Refused,
            Ok(_) => {}
        }
        if !connection.follow() {
            return Step::Refused;
        }
    }
}

fn send_in_ring(connection: &Connection, parts: &Buffers, done: usize) -> Step {
    let held = connection.shared.sending.hold();
    if STREAM.route(&connection.own) != Ok(Route::Ring) {
        return Step::Sent(0);
    }
    // A killed peer announces nothing.
    let sends = connection.shared.sends.fetch_add(1, Ordering::Relaxed);
    let is_due = match connection.domain() {
        Domain::Tcp => sends % ASK_EVERY == ASK_EVERY - 1,
        // Its kernel refuses what is sent to a killed peer at once, where TCP's takes it.
        Domain::Unix => connection.is_due_to_ask(),
    };
    let told = STREAM.flags(&connection.remote) & (LEAVING | DEAF);
    if told != 0 || is_due {
        connection.ask_kernel();
        connection.check_engine();
        if STREAM.route(&connection.own) != Ok(Route::Ring) {
            return Step::Sent(0);
        }
    }
    // The kernel has the right error, and the signal, for bytes that can no longer be sent.
    let is_shut = connection.shared.ended.load(Ordering::Relaxed) & SHUT_SENDING != 0;
    if is_shut || connection.peer_is_gone() || (told != 0 && connection.is_refused()) {
        return Step::Refused;
    }
    let left = parts.total().saturating_sub(done);
    let Ok(room) = connection.room(left) else {
        drop(held);
        connection.reset();
        return Step::Sent(0);
    };
    let length = room.min(left);
    if length == 0 {
        STREAM.want_room(&connection.own);
        // Room that was freed meanwhile may have been announced to nobody.
        return match connection.room_hint() {
            Ok(0) => Step::Full,
            _ => Step::Sent(0),
        };
    }
    STREAM.has_room(&connection.own);
    if !connection.back_with_memory(length) {
        // The kernel has memory of its own, or waits for it.
        connection.stay(Reason::Memory);
        connection.end_ring();
        drop(held);
        connection.tell(News::Route);
        return Step::Sent(0);
    }
    connection.guard();
    // The time is that from before the copy, but it is stored beside the tail: the reader looks at both all the time.
    let time = STREAM.is_ordered(&connection.remote).then(distance::moment);
    let mut at = 0;
    while at < length {
        let piece = (length - at).min(PIECE_BYTES);
        stage(connection, parts, done + at, piece);
        if at == 0
            && let Some(time) = time
        {
            STREAM.mark(&connection.own, time);
        }
        STREAM.publish(&connection.own, piece);
        at += piece;
        if at < length {
            // The reader starts with the first piece while the second one is copied.
            connection.tell(News::Bytes);
        }
    }
    drop(held);
    connection.tell(News::Bytes);
    // After the fence of `tell`: an end that has asked for the ring's bytes meanwhile has seen these bytes there, or
    // its request is seen here.
    connection.serve();
    Step::Sent(at)
}

/// Copies a piece into the ring, around the caches if the reader shares none with this core.
#[inline(always)]
fn stage(connection: &Connection, parts: &Buffers, skip: usize, length: usize) {
    let opinion = connection.shared.distance.load(Ordering::Relaxed);
    let is_far = distance::store_kind(opinion, length) == StoreKind::Nontemporal;
    let mut at = 0;
    parts.each(skip, length, |base, length| {
        sanitizer::reads(base, length);
        // SAFETY: the program's bytes, as the program has passed them; within the room.
        unsafe { STREAM.stage(&connection.own, at, base, length, is_far) };
        at += length;
    });
}

fn broken_pipe(done: usize, flags: i32) -> isize {
    if done > 0 {
        return done as isize;
    }
    if flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: raises the signal of a write to a broken connection.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    errno::fail(libc::EPIPE)
}
