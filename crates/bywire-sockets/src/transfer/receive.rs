//! Receiving on the program's sockets.

use core::cell::Cell;
use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::distance;
use bywire_ring::lane::Corrupt;
use bywire_ring::stream::{ASKS_BACK, HALF, News, Route, Sleep};

use crate::connection::owed;
use crate::connection::sleep::{self, Woken};
use crate::connection::sockets::{self, Connection, KernelCall, STREAM, Socket};
use crate::connection::source::Source;
use crate::memory::arena::SharedSocket;
use crate::memory::descriptors::{self, DescriptorKind};
use crate::os::iovec::{self, Buffers, CALL_MAX};
use crate::os::jumps::{self, GiveBack};
use crate::os::{errno, kernel, own_call, real, sanitizer, signal_deferral, thread};
use crate::pairing::{account, offer, requirement};
use crate::process::inline;
use crate::transfer::datagrams::{self, Received};
use crate::transfer::kernel_wait::{ASIDE, paying, wait_beside_engine, wait_in_kernel};
use crate::transfer::waiting::Waiting;

/// Flags that Unix streams do not know.
const NOT_OF_UNIX: i32 = libc::MSG_ERRQUEUE | libc::MSG_TRUNC;

/// A receive by any call. `real` is that call as the program has made it.
#[inline(always)]
pub fn receive<'a>(
    fd: i32,
    parts: impl FnOnce() -> Buffers<'a>,
    flags: i32,
    real: impl Fn() -> isize,
) -> isize {
    let index = match descriptors::kind(fd) {
        DescriptorKind::Socket(index) => index,
        DescriptorKind::Datagram(_) => {
            let mut received = Received::NONE;
            return datagrams::receive(fd, &parts(), flags, None, &mut received, &|| {
                paying(fd, flags, &real)
            });
        }
        _ => return paying(fd, flags, real),
    };
    if flags & ASIDE == 0
        && let Some((_inside, shared)) = sockets::pass(fd, index, |shared| &shared.kernel_readers)
    {
        let received = paying(fd, flags, real);
        count(shared, flags, received);
        return received;
    }
    match sockets::socket(fd) {
        None => paying(fd, flags, real),
        Some(socket) => receive_tracked(socket, &parts(), flags, &real),
    }
}

fn receive_tracked(socket: Socket, parts: &Buffers, flags: i32, real: &dyn Fn() -> isize) -> isize {
    let flags = if socket.is_unix() { flags & !NOT_OF_UNIX } else { flags };
    if let Err(number) = requirement::admit_receive(&socket, flags) {
        return errno::fail(number);
    }
    if flags & ASIDE != 0 {
        return real();
    }
    let mut socket = socket;
    if !socket.is_carried() {
        offer::consider(&socket, inline::examine_once);
    }
    loop {
        match socket.carried() {
            Err(plain) => match receive_plainly(&plain, flags, real) {
                Some(received) => return received,
                None => socket = plain,
            },
            Ok(mut connection) => {
                let received = receive_carried(&mut connection, parts, flags, real);
                if received < 0 {
                    connection.note_told(errno::last());
                } else if received > 0 && connection.is_relayed() {
                    connection.note_received();
                }
                // The kernel, too, reports an error instead of the end of the stream, once.
                return match if received == 0 { connection.take_error_at_end() } else { None } {
                    Some(number) => errno::fail(number),
                    None => received,
                };
            }
        }
    }
}

/// Receives through the kernel, counted; `None`: the connection is carried by now.
fn receive_plainly(socket: &Socket, flags: i32, real: &dyn Fn() -> isize) -> Option<isize> {
    let _inside = KernelCall::enter(&socket.shared.kernel_readers, socket.shared)?;
    let received = socket.away(|| paying(socket.fd, flags, real));
    count(socket.shared, flags, received);
    Some(received)
}

#[inline(always)]
fn count(shared: &SharedSocket, flags: i32, received: isize) {
    if received > 0 && flags & libc::MSG_PEEK == 0 {
        // SeqCst: pairs with the loads in `offer::accounts_agree` and `Connection::source`, which found nobody inside
        // the kernel.
        shared.received.fetch_add(received as u64, Ordering::SeqCst);
    }
}

/// The result of one look at the connection.
enum Step {
    /// This many bytes were received.
    Received(usize),
    /// This many bytes were received, and the last of them have come with descriptors: a receive of the kernel's ends behind these.
    Last(usize),
    /// There is nothing.
    Empty,
    /// There is nothing yet: bytes are on their way through the kernel.
    UnderWay,
    /// There is nothing in the kernel, which an engine may leave.
    BesideEngine,
    /// Where the next byte is will be known in a moment.
    Moment,
    /// The stream has ended.
    End,
    /// This error number.
    Failed(i32),
    /// The program's own call is right again, permanently.
    Real,
    /// Another look is needed.
    Again,
    /// There may be no memory behind the bytes of the other end's ring, and this process may not provide more.
    Unbacked,
}

fn receive_carried(
    connection: &mut Connection,
    parts: &Buffers,
    flags: i32,
    real: &dyn Fn() -> isize,
) -> isize {
    let (given_fd, mut waiting) = (connection.fd, None);
    let total = parts.total();
    if total == CALL_MAX && is_refused(connection.fd, parts) {
        return real();
    }
    // `MSG_WAITALL` is implemented here: part of the bytes may be in the kernel, part in the ring.
    let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    // A Unix stream waits for no more than there is to peek at.
    let mut peeks_at_all =
        flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK != 0 && !connection.is_unix();
    let (mut done, mut fruitless, mut deadline, mut moment) = (0, 0, None, None);
    // Asked once, as is the timeout, and as in the kernel: a change does not affect a call that sleeps already.
    let mut returns_at_once = None;
    jumps::forget();
    signal_deferral::begin_call();
    loop {
        // Another thread has returned all connections meanwhile. Only the program's own call is right now.
        if own_call::are_over() {
            return if done > 0 { done as isize } else { real() };
        }
        connection.serve();
        let mut is_waiting = || {
            !*returns_at_once
                .get_or_insert_with(|| flags & libc::MSG_DONTWAIT != 0 || connection.is_nonblocking())
        };
        if connection.owes() && is_waiting() {
            waiting.get_or_insert_with(|| Waiting::begin(connection));
            if let Some(woken) = pay_first(connection, &mut deadline) {
                match after_sleep(connection, woken, done) {
                    Some(result) => return result,
                    None => continue,
                }
            }
        }
        let step = match look(connection, parts, done, flags) {
            Ok(step) => step,
            Err(Corrupt) => {
                connection.reset();
                Step::Failed(libc::ECONNRESET)
            }
        };
        let step = match step {
            Step::Real if waiting.is_some() || connection.is_required() => {
                more_from_kernel(connection, parts, done, flags)
            }
            // The engine has reset it, and another call has the error.
            Step::Failed(libc::ENOTCONN) if connection.is_far() => {
                connection.reset();
                Step::Failed(libc::ECONNRESET)
            }
            step => step,
        };
        // The bytes that a look has found and left.
        let mut seen = 0;
        match step {
            Step::Received(received) if peeks_at_all && received < total => {
                // Bytes before an end that has come meanwhile are found by one more look.
                peeks_at_all = !has_ended(connection);
                if !peeks_at_all {
                    continue;
                }
                seen = received;
            }
            Step::Received(received) => {
                sanitizer::has_received();
                done += received;
                let goes_on = waits_for_all || (flags & libc::MSG_PEEK == 0 && has_more(connection));
                if done >= total || !goes_on {
                    return done as isize;
                }
                fruitless = 0;
                continue;
            }
            Step::Last(received) => {
                return (done + received) as isize;
            }
            Step::Again => continue,
            Step::Unbacked => {
                // An honest peer sends them through the kernel.
                errno::keep(|| connection.begin_back(Reason::Memory));
                continue;
            }
            // Another thread is halfway through a change, which takes microseconds unless it was stopped.
            Step::Moment if is_short(&mut moment) => continue,
            Step::End if connection.begin_rest() => continue,
            Step::End => {
                if done > 0 && waits_for_all {
                    connection.forgo_error();
                }
                return done as isize;
            }
            Step::Failed(number) if done > 0 => {
                connection.keep_error(number);
                return done as isize;
            }
            Step::Failed(libc::EBADF) if waiting.is_some() && is_left_another(connection) => continue,
            Step::Failed(number) => return errno::fail(number),
            // A call that waits already continues, whatever its end was told since. The program's own call would be a
            // new one.
            Step::Real if done == 0 && !owed::may_owe() && waiting.is_none() && !connection.is_required() => {
                let received = connection.away(|| match connection.fd == given_fd {
                    true => real(),
                    false => receive_now(connection, parts, done, flags, usize::MAX),
                });
                count(connection.shared, flags, received);
                if received == 0 && total > 0 && connection.begin_rest() {
                    continue;
                }
                if received > 0 && waits_for_all && (received as usize) < total && is_over(connection) {
                    connection.forgo_error();
                }
                return received;
            }
            Step::Real | Step::Empty | Step::UnderWay | Step::BesideEngine | Step::Moment => {}
        }
        // Another thread may have taken what followed the bytes that this one has.
        if done > 0 && !waits_for_all && !peeks_at_all {
            return done as isize;
        }
        if *returns_at_once
            .get_or_insert_with(|| flags & libc::MSG_DONTWAIT != 0 || connection.is_nonblocking())
        {
            return if done + seen > 0 { (done + seen) as isize } else { errno::fail(libc::EAGAIN) };
        }
        let deadline = *deadline.get_or_insert_with(|| connection.deadline(libc::SO_RCVTIMEO));
        // As in the kernel, any handler ends a call that has part of its bytes, as it ends one with a timeout.
        let deadline = if done + seen > 0 { deadline.or(Some(u64::MAX)) } else { deadline };
        waiting.get_or_insert_with(|| Waiting::begin(connection));
        let woken = match step {
            Step::Received(_) => wait_behind(connection, seen, fruitless, deadline),
            Step::Real | Step::UnderWay => {
                wait_in_kernel(connection, libc::POLLIN, sleep::look_ns(fruitless), deadline)
            }
            Step::BesideEngine => wait_beside_engine(connection, sleep::look_ns(fruitless), deadline),
            // A sleeper that leaves the kernel wakes nobody, so these sleeps are short.
            Step::Moment => connection
                .sleep(Sleep::Bytes, 0, deadline, || !matches!(connection.source(), Ok(Source::Moment))),
            _ if matches!(connection.source(), Ok(Source::Held)) && is_given_back(connection) => continue,
            _ => connection.sleep(Sleep::Bytes, fruitless, deadline, || {
                !matches!(connection.source(), Ok(Source::Ring(0) | Source::Held))
            }),
        };
        fruitless += 1;
        account::note_memory();
        if let Some(result) = after_sleep(connection, woken, done + seen) {
            return result;
        }
    }
}

/// Whether the kernel refuses buffers of that length, rather than that it moves as much as one call may.
#[cold]
fn is_refused(fd: i32, parts: &Buffers) -> bool {
    let (list, count) = parts.as_list();
    kernel::refuses(fd, list, count)
}

/// The interval between looks at bytes that were left in the kernel. They keep the descriptor readable.
const LEFT_NS: u64 = 1_000_000;

/// Waits until there is more than the bytes that were seen and left.
fn wait_behind(connection: &Connection, seen: usize, fruitless: usize, deadline_ns: Option<u64>) -> Woken {
    match connection.source() {
        Ok(Source::Ring(_)) => connection.sleep(
            Sleep::Bytes,
            fruitless,
            deadline_ns,
            || !matches!(connection.source(), Ok(Source::Ring(available)) if available <= seen),
        ),
        _ => wait_in_kernel(connection, 0, LEFT_NS, deadline_ns),
    }
}

/// The bytes that the other end was asked for may be ones that this very process must give.
#[cold]
fn is_given_back(connection: &Connection) -> bool {
    errno::keep(owed::serve_all);
    connection.source() != Ok(Source::Held)
}

/// Checks whether the descriptor of a waiting call was closed just now, and another one was kept for it.
#[cold]
fn is_left_another(connection: &mut Connection) -> bool {
    let closed = connection.fd;
    connection.follow() && connection.fd != closed
}

/// The result of a call after a sleep. `None`: it looks again, by the descriptor that was kept for it if its own was
/// closed.
fn after_sleep(connection: &mut Connection, woken: Woken, done: usize) -> Option<isize> {
    match woken {
        Woken::Recheck if own_call::are_over() || connection.follow() => None,
        _ if done > 0 => Some(done as isize),
        Woken::Recheck => Some(errno::fail(libc::EBADF)),
        Woken::Signal => Some(errno::fail(libc::EINTR)),
        Woken::TimeOut => Some(errno::fail(libc::EAGAIN)),
    }
}

/// A call that owes the kernel bytes does not sleep there until it receives some: it pays meanwhile.
fn pay_first(connection: &Connection, deadline: &mut Option<Option<u64>>) -> Option<Woken> {
    if connection.in_ring().is_ok_and(|there| there > 0) {
        return None;
    }
    let deadline = *deadline.get_or_insert_with(|| connection.deadline(libc::SO_RCVTIMEO));
    // What is there already is received first.
    if kernel::ready(connection.fd, libc::POLLIN | libc::POLLRDHUP) != 0 {
        return None;
    }
    connection.pay_while_waiting(libc::POLLIN | libc::POLLRDHUP, deadline)
}

/// The longest duration of a moment.
const MOMENT_NS: u64 = 1_000_000;

/// Offers the core to others for as long as the moment lasts that began with the first call. `false`: it lasts longer.
///
/// The thread that ends the moment may wait for this very core. Spinning's allowance does not cover this, because each
/// direction leaves the kernel once and returns once. A sleep is not possible: a non-blocking call would report that
/// there is nothing, and no edge-triggered event would follow.
fn is_short(since: &mut Option<u64>) -> bool {
    let now = kernel::now_ns();
    if now.saturating_sub(*since.get_or_insert(now)) >= MOMENT_NS {
        return false;
    }
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
    true
}

/// A stream is continuous: a call that has read all bytes of one place continues with the next place.
fn has_more(connection: &Connection) -> bool {
    match connection.source() {
        Ok(Source::Ring(available)) => available > 0,
        Ok(Source::Kernel) if STREAM.route(&connection.remote) != Ok(Route::Kernel) => {
            kernel::queued(connection.fd).is_some_and(|queued| queued > 0) && !connection.is_before_urgent()
        }
        _ => false,
    }
}

/// Takes what is there. While the writer is in the kernel, it sleeps there.
fn look(connection: &Connection, parts: &Buffers, done: usize, flags: i32) -> Result<Step, Corrupt> {
    if connection.is_broken() {
        return Ok(match connection.is_dissolved() {
            true => back_in_kernel(connection, parts, done, flags),
            false => Step::Failed(libc::ECONNRESET),
        });
    }
    if STREAM.route(&connection.remote)? == Route::Kernel {
        return sleep_in_kernel(connection, parts, done, flags);
    }
    let held = connection.shared.receiving.hold();
    match connection.current_source()? {
        Source::Moment => {
            let waits = flags & libc::MSG_DONTWAIT == 0 && !connection.is_nonblocking();
            if waits || !connection.is_early() {
                return Ok(Step::Moment);
            }
            Ok(take_from_kernel(connection, parts, done, flags, u64::MAX))
        }
        Source::Kernel if STREAM.route(&connection.remote)? == Route::Kernel => Ok(Step::Again),
        Source::Kernel => Ok(back_in_kernel(connection, parts, done, flags)),
        Source::KernelUntil(_) if connection.is_shared() && !connection.is_counted() => Ok(Step::Again),
        Source::KernelUntil(left) => {
            let mut step = take_from_kernel(connection, parts, done, flags, left);
            if flags & libc::MSG_PEEK != 0
                && let Step::Received(seen) = step
                && seen as u64 == left
            {
                let in_ring = connection.in_ring()?;
                let more = in_ring.min(parts.total().saturating_sub(done + seen));
                let more = if parts.has_null() { parts.before_null(done + seen, more) } else { more };
                let more = if take_from_ring(connection, parts, done + seen, flags, more) { more } else { 0 };
                let behind =
                    if more == in_ring { peek_behind(connection, parts, seen, more, flags) } else { 0 };
                step = Step::Received(seen + more + behind);
            }
            Ok(match step {
                Step::Empty => Step::UnderWay,
                step => step,
            })
        }
        Source::Held => {
            // Another program that has the socket may have shut it down.
            connection.ask_kernel();
            match connection.source()? {
                Source::Held => Ok(Step::Empty),
                _ => Ok(Step::Again),
            }
        }
        Source::Ring(0) if done == 0 && connection.may_have_ended() => Ok(end_or_nothing(connection)),
        Source::Ring(0) if done > 0 && is_over(connection) => Ok(Step::End),
        Source::Ring(0) => Ok(Step::Empty),
        Source::Ring(_) => {
            let taking = Taking { connection };
            let route = STREAM.begin_taking(&connection.own, &connection.remote)?;
            // Its writer may be about to end it.
            if route == Route::Ending && !matches!(connection.source()?, Source::Ring(_)) {
                return Ok(Step::Again);
            }
            let available = connection.in_ring()?;
            let mut length = available.min(parts.total().saturating_sub(done));
            // With `MSG_TRUNC` nothing is written there.
            if flags & libc::MSG_TRUNC == 0 && parts.has_null() && length > 0 {
                length = parts.before_null(done, length);
                if length == 0 {
                    return Ok(Step::Failed(libc::EFAULT));
                }
            }
            if !take_from_ring(connection, parts, done, flags, length) {
                // A peer that was asked for them has had its way.
                return if STREAM.flags(&connection.own) & ASKS_BACK == 0 {
                    Ok(Step::Unbacked)
                } else {
                    Err(Corrupt)
                };
            }
            drop(taking);
            let is_taken = flags & libc::MSG_PEEK == 0;
            let is_last = matches!(STREAM.route(&connection.remote)?, Route::Back(_));
            if !is_taken && is_last && length == available {
                // The following bytes are in the kernel again.
                let flags = flags | libc::MSG_DONTWAIT;
                let more = receive_now(connection, parts, done + length, flags, usize::MAX).max(0);
                count(connection.shared, flags, more);
                return Ok(Step::Received(length + more as usize));
            }
            drop(held);
            if is_taken && STREAM.is_relieved(&connection.own, &connection.remote, length) {
                STREAM.relieve(&connection.own, distance::moment());
                connection.tell(News::Room);
            }
            Ok(Step::Received(length).or_end(parts.total()))
        }
    }
}

/// Bytes are being taken out of the ring, until dropped. Its writer takes none of them back meanwhile.
struct Taking<'a> {
    connection: &'a Connection,
}

impl Drop for Taking<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        STREAM.end_taking(&self.connection.own);
    }
}

impl Step {
    /// A receive of no bytes returns at once.
    fn or_end(self, total: usize) -> Self {
        match self {
            Self::Received(0) if total == 0 => Self::End,
            other => other,
        }
    }

    /// The last bytes of a receive, if they have come with descriptors.
    fn or_last(self, is_last: bool) -> Self {
        match self {
            Self::Received(received) if is_last => Self::Last(received),
            other => other,
        }
    }
}

/// The writer is in the kernel. So this thread sleeps there, counted, and the writer's last piece wakes it at the
/// latest.
#[inline(never)]
fn sleep_in_kernel(
    connection: &Connection,
    parts: &Buffers,
    done: usize,
    flags: i32,
) -> Result<Step, Corrupt> {
    let use_of_place = connection.shared.generation.load(Ordering::Relaxed);
    let mut route = Err(Corrupt);
    // Counted as a sleeper in the kernel until this is dropped: the thread may be cancelled there.
    let argument = connection.index as usize;
    let sleeping = jumps::taking(GiveBack { ends: has_left_kernel, left: was_left_there, argument }, || {
        route = connection.enter_kernel();
    });
    let step = match route {
        // The engine rings once the route changes.
        Ok(Route::Kernel) if connection.is_far() => {
            take_from_kernel(connection, parts, done, flags, u64::MAX)
        }
        Ok(Route::Kernel) if done > 0 => receive_rest(connection, parts, done, flags),
        Ok(Route::Kernel) => {
            let ends = Cell::new(false);
            let received = paying(connection.fd, flags, || {
                let flags = flags & !libc::MSG_WAITALL;
                let (received, is_last) = receive_noting(connection, parts, done, flags, usize::MAX);
                ends.set(is_last);
                received
            });
            count(connection.shared, flags, received);
            of_kernel(received).or_last(ends.get())
        }
        _ => Step::Again,
    };
    if !sleeping.end(|| connection.leave_kernel(thread::number())) && !connection.is_as_it_was(use_of_place) {
        // A handler has closed it. The bytes received belong to this call.
        return Ok(match step {
            Step::Received(_) | Step::Last(_) | Step::End => step,
            _ => Step::Failed(libc::EINTR),
        });
    }
    route?;
    Ok(match step {
        Step::Empty if connection.is_far() => Step::BesideEngine,
        // It has slept for as long as the program allows.
        Step::Empty => Step::Failed(libc::EAGAIN),
        step => step,
    })
}

/// The same for a call that has part of its bytes, which any handler ends. The kernel would start a new receive for the
/// rest.
fn receive_rest(connection: &Connection, parts: &Buffers, done: usize, flags: i32) -> Step {
    let waits = flags & libc::MSG_DONTWAIT == 0 && !connection.is_nonblocking();
    let deadline = if waits { connection.deadline(libc::SO_RCVTIMEO) } else { Some(0) };
    loop {
        let now = kernel::now_ns();
        // Short sleeps, as in `wait_in_kernel`.
        let look_ns = sleep::look_ns(usize::MAX);
        let left_ns = deadline.map_or(look_ns, |deadline| deadline.saturating_sub(now).min(look_ns));
        let until = owed::pay_before_wait(Some(left_ns)).map(|left| now.saturating_add(left));
        match kernel::wait_until(connection.fd, libc::POLLIN | libc::POLLRDHUP, until) {
            // Another thread has closed the descriptor. Its number may mean another file.
            Ok(_) | Err(libc::EAGAIN) if !connection.is_current() => return Step::Failed(libc::EBADF),
            // Only one short sleep is over.
            Err(libc::EAGAIN) if deadline.is_none_or(|deadline| deadline > kernel::now_ns()) => {}
            Err(number) => return Step::Failed(number),
            Ok(_) => {
                return match take_from_kernel(connection, parts, done, flags, u64::MAX) {
                    // Another thread has taken the bytes first.
                    Step::Empty => Step::Again,
                    step => step,
                };
            }
        }
    }
}

/// This thread no longer sleeps in the kernel, on the connection of this index.
fn has_left_kernel(index: usize) {
    if let Some(Ok(connection)) = sockets::by_index(-1, index as u32).map(Socket::mapped) {
        connection.leave_kernel(thread::number());
    }
}

/// The same for a call that was left.
fn was_left_there(index: usize) {
    has_left_kernel(index);
    sockets::used(index);
}

/// The ring has ended, and the rest of the stream comes through the kernel.
fn back_in_kernel(connection: &Connection, parts: &Buffers, done: usize, flags: i32) -> Step {
    // What this process owes on another connection may cause what it waits for, so it does not sleep in the program's
    // own call.
    if done == 0 && !owed::may_owe() {
        return Step::Real;
    }
    more_from_kernel(connection, parts, done, flags)
}

/// Receives what is there right now; `Real`: nothing.
fn more_from_kernel(connection: &Connection, parts: &Buffers, done: usize, flags: i32) -> Step {
    if done > 0 && connection.is_before_urgent() {
        return Step::Last(0);
    }
    let flags = flags | libc::MSG_DONTWAIT;
    let (received, is_last) = receive_noting(connection, parts, done, flags, usize::MAX);
    count(connection.shared, flags, received);
    match of_kernel(received) {
        Step::Empty => Step::Real,
        step => step.or_last(is_last),
    }
}

fn take_from_kernel(connection: &Connection, parts: &Buffers, done: usize, flags: i32, left: u64) -> Step {
    let flags = (flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
    let received = receive_now(connection, parts, done, flags, usize::try_from(left).unwrap_or(usize::MAX));
    count(connection.shared, flags, received);
    of_kernel(received)
}

/// Peeks at bytes that came through the kernel behind the ring, while bytes from before the ring wait there as well.
/// Those are read once more, to where they are already.
fn peek_behind(connection: &Connection, parts: &Buffers, seen: usize, in_ring: usize, flags: i32) -> usize {
    if !matches!(STREAM.route(&connection.remote), Ok(Route::Back(_))) {
        return 0;
    }
    let (before, first) = parts.window(0, seen);
    let (after, second) = parts.rest(seen + in_ring);
    let mut both = iovec::join(&before, first, &after);
    let mut message = iovec::message(&mut both, first + second);
    // SAFETY: the program's own buffers, as the program has passed them.
    let found = unsafe { real::recvmsg(connection.fd, &raw mut message, flags | libc::MSG_DONTWAIT) };
    usize::try_from(found).unwrap_or(0).saturating_sub(seen)
}

/// Whether the stream has ended in the kernel, with nothing left to read there.
fn is_over(connection: &Connection) -> bool {
    has_ended(connection) && kernel::queued(connection.fd) == Some(0) && !connection.awaits_engine()
}

/// Whether the stream has ended in the kernel.
fn has_ended(connection: &Connection) -> bool {
    let ends = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    kernel::ready(connection.fd, ends) & ends != 0
}

fn receive_now(connection: &Connection, parts: &Buffers, done: usize, flags: i32, limit: usize) -> isize {
    receive_noting(connection, parts, done, flags, limit).0
}

/// Receives as [`receive_now`] does, and returns as well whether the bytes have come with descriptors.
fn receive_noting(
    connection: &Connection,
    parts: &Buffers,
    done: usize,
    flags: i32,
    limit: usize,
) -> (isize, bool) {
    // An error is for a call that has received nothing. This call would consume it.
    if done > 0 && is_over(connection) {
        return (0, false);
    }
    let (mut space, count) = parts.window(done, limit);
    let Some(own) = own_call::begin() else { return (errno::fail(libc::EAGAIN), false) };
    if flags & libc::MSG_DONTWAIT == 0 {
        // Nobody can wake it.
        drop(own);
    }
    // SAFETY: the program's own buffers, as the program has passed them.
    let (received, is_with) = iovec::receive_by(parts, &mut space, count, |message| unsafe {
        real::recvmsg(connection.fd, message, flags)
    });
    if received > 0 && connection.refuse_kernel() {
        // Whoever has sent them is not the program that was required.
        return (errno::fail(libc::ECONNRESET), false);
    }
    (received, is_with && connection.is_unix())
}

fn of_kernel(received: isize) -> Step {
    match received {
        0 => Step::End,
        1.. => Step::Received(received as usize),
        _ => match errno::last() {
            libc::EAGAIN => Step::Empty,
            number => Step::Failed(number),
        },
    }
}

/// Takes available bytes. `false`: there may be no memory behind them, and nothing was taken.
fn take_from_ring(connection: &Connection, parts: &Buffers, done: usize, flags: i32, length: usize) -> bool {
    let mut at = 0;
    // With `MSG_TRUNC`, bytes of a stream are discarded.
    if flags & libc::MSG_TRUNC == 0 {
        let first = STREAM.first_unread(&connection.own, &connection.remote);
        if !connection.may_read(first, length) {
            return false;
        }
        parts.each(done, length, |base, length| {
            sanitizer::writes(base, length);
            // SAFETY: the program's own buffer, as the program has passed it.
            unsafe { STREAM.peek(&connection.remote, first, at, base, length) };
            at += length;
        });
    }
    if flags & libc::MSG_PEEK == 0 {
        STREAM.consume(&connection.own, length);
    }
    true
}

/// The ring is empty: asks the kernel whether the stream has ended.
fn end_or_nothing(connection: &Connection) -> Step {
    let Some(_own) = own_call::begin() else { return Step::Empty };
    if connection.is_lost() {
        // Bytes that were published before are read before.
        if connection.source() != Ok(Source::Ring(0)) {
            return Step::Again;
        }
        connection.reset();
        return Step::Failed(libc::ECONNRESET);
    }
    let found = kernel::ready(connection.fd, libc::POLLIN | libc::POLLRDHUP);
    if found == 0 {
        // The kernel's end follows the engine's, and wakes nobody who sleeps in memory.
        let is_near = connection.is_far() && STREAM.flags(&connection.remote) & HALF != 0;
        return if is_near { Step::BesideEngine } else { Step::Empty };
    }
    if connection.awaits_engine() {
        // The kernel's end is none of this stream. If it was a reset, another call may have its error.
        if !connection.is_reset(found) {
            return Step::Empty;
        }
        connection.reset();
        return Step::Failed(libc::ECONNRESET);
    }
    // Bytes that were published before the end are read before it. The kernel reports an error only once, so it is not
    // taken before that.
    if connection.source() != Ok(Source::Ring(0)) {
        return Step::Again;
    }
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: room for one byte.
    let found = unsafe { real::recv(connection.fd, (&raw mut byte).cast(), 1, flags) };
    if found < 0 {
        return match errno::last() {
            libc::EAGAIN => Step::Empty,
            // An end that had shut down in order and was killed afterwards has sent everything.
            _ if !connection.is_unix() && STREAM.flags(&connection.remote) & HALF != 0 => {
                connection.ask_kernel();
                Step::End
            }
            number => Step::Failed(number),
        };
    }
    // A byte in the kernel may belong to a stream that has returned there meanwhile.
    if connection.source() != Ok(Source::Ring(0)) {
        return Step::Again;
    }
    if found > 0 {
        connection.reset();
        return Step::Failed(libc::ECONNRESET);
    }
    connection.ask_kernel();
    Step::End
}
