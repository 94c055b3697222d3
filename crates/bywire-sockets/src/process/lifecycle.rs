//! How sockets begin, are duplicated, passed on, forked and closed.

use core::cell::Cell;
use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use bywire_pairing::reason::Reason;
use bywire_ring::stream::{ASKS_BACK, HALF, LEAVING, News};
use bywire_ring::waiters;

use crate::connection::carried::{self, SHUT, SHUT_SENDING};
use crate::connection::table::{self, Connection, Leaving, Meaning, STREAM, Socket};
use crate::connection::{fallback, log, outcome};
use crate::epoll::control;
use crate::memory::arena;
use crate::os::{errno, jumps, kernel, own_call, pid, real, sanitizer, thread};
use crate::pairing::proposal;
use crate::process::{golang, io_uring, sandbox, signals};
use crate::wakeup::{doorbell, spin};

static PROCESS: AtomicU32 = AtomicU32::new(0);
/// A word that a forked child finds wiped; null: there is none.
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

unsafe extern "C" {
    /// The C library's: what `quick_exit` runs; behind its `at_quick_exit`, which is no symbol.
    fn __cxa_at_quick_exit(work: extern "C" fn(*mut c_void), library: *mut c_void) -> i32;
}

extern "C" fn end_quickly(_: *mut c_void) {
    end();
}

/// A thread ends by itself: the process with it, if it is the last one.
pub fn end_thread() {
    if own_call::are_over() {
        return;
    }
    if pid::is_alone() {
        end();
    }
}

/// When the library is loaded.
pub fn begin() {
    real::find_all();
    sanitizer::find_all();
    // SAFETY: names of the environment, and handlers that live as long as the library.
    unsafe {
        let path = libc::getenv(c"BYWIRE_SOCKETS_SERVICE".as_ptr());
        if path.is_null() {
            return;
        }
        let filters = libc::getenv(c"BYWIRE_SOCKETS_FILTERS".as_ptr());
        let filters = (!filters.is_null()).then(|| CStr::from_ptr(filters));
        if sandbox::find(filters.and_then(|text| text.to_str().ok()?.parse().ok()).unwrap_or(0)) {
            return;
        }
        let log = libc::getenv(c"BYWIRE_LOG".as_ptr());
        if !log.is_null() {
            log::configure(CStr::from_ptr(log).to_bytes());
        }
        let loaded = libc::getenv(c"BYWIRE_SOCKETS_LOADED".as_ptr());
        if !loaded.is_null() {
            // It takes no descriptor. The programs that this one starts find it there, or else its parent gone.
            libc::mkdir(loaded, 0o700);
        }
        let calls = libc::getenv(c"BYWIRE_SOCKETS_CALLS".as_ptr());
        let calls = (!calls.is_null()).then(|| CStr::from_ptr(calls));
        let calls = calls.and_then(|text| text.to_str().ok()?.parse().ok());
        proposal::configure(CStr::from_ptr(path).to_bytes(), calls);
        let rings = libc::getenv(c"BYWIRE_SOCKETS_IO_URING".as_ptr());
        if !rings.is_null() && CStr::from_ptr(rings) == c"1" {
            io_uring::keep();
        }
        arena::found();
        mark();
        let spins = libc::getenv(c"BYWIRE_SOCKETS_SPIN".as_ptr());
        if spins.is_null() || CStr::from_ptr(spins) != c"0" {
            let cores = libc::getenv(c"BYWIRE_SOCKETS_CORES".as_ptr());
            if !cores.is_null() {
                spin::configure(CStr::from_ptr(cores));
            }
        }
        // The first one that is put there runs last.
        __cxa_at_quick_exit(end_quickly, ptr::null_mut());
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child));
    }
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    pid::find_number();
    if golang::is_program() {
        sandbox::withdraw(Reason::Go);
    }
}

thread_local! {
    // Constant and without a destructor: nothing is allocated or registered for it.
    /// This thread waits for the child of its next fork, by a pipe.
    static AWAITS: Cell<bool> = const { Cell::new(false) };
    /// That pipe: where to read, and where to write.
    static PIPE: Cell<[i32; 2]> = const { Cell::new([-1; 2]) };
    /// The number of a fork of this thread's, which may have failed; 0: none.
    static FORK: Cell<u32> = const { Cell::new(0) };
}

/// The next fork of this thread is a `vfork`: [`awaited_child`] is for after it.
pub fn await_next_child() {
    AWAITS.set(true);
}

/// In the parent: what ends when the child has become another program, or has ended.
pub fn awaited_child() -> Option<i32> {
    let [end, _] = PIPE.replace([-1; 2]);
    (end >= 0).then_some(end)
}

pub extern "C" fn before_fork() {
    if own_call::are_over() {
        return;
    }
    FORK.set(table::before_fork());
    // From here to the end of the fork no other thread forks, whose child would have the pipe as well.
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
        // SAFETY: a descriptor of ours. By number, as no thread is cancelled in `fork`.
        errno::keep(|| unsafe { real::syscall(libc::SYS_close, *end as usize, 0, 0, 0, 0, 0) });
    }
}

pub extern "C" fn after_fork_in_parent() {
    if own_call::are_over() {
        return;
    }
    close_end(1);
    table::end_fork();
}

/// Forks by `real`: the handlers behind a fork are not told whether it has failed, and this is.
pub fn fork(real: impl FnOnce() -> i32) -> i32 {
    FORK.set(0);
    let child = real();
    let fork = FORK.replace(0);
    if child < 0 && fork != 0 && !own_call::are_over() {
        errno::keep(|| table::undo_fork(fork));
    }
    child
}

pub extern "C" fn after_fork_in_child() {
    FORK.set(0);
    if own_call::are_over() {
        return;
    }
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    pid::find_number();
    set_mark();
    thread::forget();
    signals::after_fork_in_child();
    own_call::after_fork_in_child();
    table::after_fork_in_child();
    doorbell::after_fork_in_child();
    outcome::after_fork_in_child();
    proposal::after_fork_in_child();
    // The other end closes with the child's exec, or its end.
    close_end(0);
    PIPE.set([-1; 2]);
    table::end_fork();
    // Calls of other threads, for which they were kept, are not here.
    table::each_held(|socket, _| close_kept(waiters::take(&socket.hold.kept)));
}

/// Makes the word by which a fork is noticed without asking the kernel each time.
fn mark() {
    const PAGE_BYTES: usize = 4096;
    // SAFETY: a new private mapping, which stays.
    unsafe {
        let sharing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page =
            libc::mmap(ptr::null_mut(), PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, sharing, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) != 0 {
            return;
        }
        // Release: pairs with the acquire loads of the mark; its page is mapped before.
        MARK.store(page.cast(), Ordering::Release);
    }
    set_mark();
}

fn set_mark() {
    // SAFETY: null, or a page that stays.
    // Acquire: pairs with the release store where the page is mapped.
    if let Some(mark) = unsafe { MARK.load(Ordering::Acquire).as_ref() } {
        mark.store(1, Ordering::Relaxed);
    }
}

/// A process that came from a raw system call counts as forked as soon as it closes something.
pub fn notice_fork() {
    // SAFETY: null, or a page that stays.
    // Acquire: pairs with the release store where the page is mapped.
    if unsafe { MARK.load(Ordering::Acquire).as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) != 0)
    {
        return;
    }
    if PROCESS.load(Ordering::Relaxed) != std::process::id() && proposal::is_possible() {
        thread::forget();
        table::leave_threads_behind();
        before_fork();
        after_fork_in_parent();
        after_fork_in_child();
    }
}

/// A new socket: TCP ones are followed from here on.
pub fn made(fd: i32, domain: i32, kind: i32, protocol: i32) {
    let is_tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & 0xF == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    if fd >= 0 && is_tcp && proposal::is_possible() {
        errno::keep(|| table::track(fd));
    }
}

/// A connection that a listener has taken.
pub fn accepted(listener: i32, fd: i32) {
    if fd < 0 || !proposal::is_possible() {
        return;
    }
    errno::keep(|| {
        let is_tcp = matches!(table::meaning(listener), Meaning::Socket(_))
            || kernel::number(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
        if is_tcp {
            table::track(fd);
        }
    });
}

/// `close`, around the kernel's.
pub fn close(fd: i32, real: impl FnOnce() -> i32) -> i32 {
    match table::meaning(fd) {
        Meaning::Nothing => return real(),
        Meaning::Hidden => {
            errno::set(libc::EBADF);
            return -1;
        }
        Meaning::Socket(_) | Meaning::Set(_) => {}
    }
    let leaving = departing(fd);
    let status = real();
    errno::keep(|| departed(leaving));
    status
}

/// Leaves calls that sleep with a connection a descriptor, if `fd` is the last one: over TCP they go on, and the connection
/// ends when they are over.
fn keep_for_waiters(fd: i32) {
    jumps::forget();
    let Some(Ok(connection)) = table::socket(fd).map(Socket::carried) else { return };
    let hold = connection.hold;
    // SeqCst: pairs with the additions in `table::duplicate` and `hold::close`.
    if !waiters::are_there(&hold.waiters) || hold.descriptors.load(Ordering::SeqCst) != 1 {
        return;
    }
    errno::keep(|| {
        // SAFETY: no pointers.
        let kept = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, doorbell::first_high() as usize) };
        if kept >= 0 {
            table::duplicate(fd, kept);
            let left = waiters::keep(&hold.waiters, &hold.kept, kept as u32 + 1);
            connection.wake_own();
            close_kept(left);
        }
    });
}

/// What was kept for waiters, if nobody waits any more.
pub fn close_kept(left: Option<u32>) {
    if let Some(kept) = left {
        let kept = kept as i32 - 1;
        // SAFETY: a descriptor that calls of ours alone know.
        errno::keep(|| close(kept, || unsafe { real::close(kept) }));
    }
}

/// Takes `fd` out of the table, and tells the kernel how its end will be.
pub fn departing(fd: i32) -> Option<Leaving> {
    notice_fork();
    keep_for_waiters(fd);
    let leaving = table::forget(fd)?;
    errno::keep(|| control::leave_closing(&leaving, leaving.is_last));
    if leaving.is_carried()
        && let Some(Ok(connection)) = table::by_index(fd, leaving.index).map(Socket::mapped)
    {
        if leaving.is_last {
            connection.take_leave();
        // SeqCst: pairs with the additions in `table::duplicate` and `hold::close`.
        } else if leaving.hold.descriptors.load(Ordering::SeqCst) == 0 {
            connection.leave_to_others();
        }
    }
    // What was given back by then went through the kernel.
    if leaving.is_last {
        log::ending(&leaving);
    }
    Some(leaving)
}

/// The kernel has closed it.
pub fn departed(leaving: Option<Leaving>) {
    let Some(leaving) = leaving else { return };
    if leaving.is_last
        // Acquire: pairs with the release store in `proposal::answered`.
        && !leaving.hold.remote.load(Ordering::Acquire).is_null()
        && let Some(Ok(connection)) = table::by_index(-1, leaving.index).map(Socket::mapped)
    {
        connection.tell(News::Course);
    }
    leaving.finish();
}

/// `close_range`: the library's own descriptors stay.
pub fn close_range(first: u32, last: u32, flags: i32, real: impl Fn(u32, u32) -> i32) -> i32 {
    if flags & libc::CLOSE_RANGE_CLOEXEC as i32 != 0 || first > last {
        return real(first, last);
    }
    let mut start = first;
    let mut status = 0;
    table::each_between(first, last, |fd, meaning| {
        let number = fd as u32;
        if meaning == Meaning::Hidden {
            if start < number {
                status |= real(start, number - 1);
            }
            start = number + 1;
        } else {
            let leaving = departing(fd);
            status |= real(number, number);
            departed(leaving);
        }
    });
    if start <= last {
        status |= real(start, last);
    }
    status
}

/// After `dup` and its like: `new` is what `old` is.
pub fn duplicated(old: i32, new: i32) {
    if new >= 0 && new != old && matches!(table::meaning(old), Meaning::Socket(_) | Meaning::Set(_)) {
        errno::keep(|| table::duplicate(old, new));
    }
}

/// `dup2` and `dup3`, around the kernel's: whatever `new` was is closed by it.
pub fn duplicate_over(old: i32, new: i32, real: impl FnOnce() -> i32) -> i32 {
    if old == new || table::meaning(old) == Meaning::Hidden {
        return if old == new { real() } else { errno::fail(libc::EBADF) as i32 };
    }
    match table::meaning(new) {
        Meaning::Nothing => {}
        Meaning::Hidden => make_way(new),
        Meaning::Socket(_) | Meaning::Set(_) => {
            // Nothing of `new` is given up for a call that fails.
            // SAFETY: no pointers.
            if unsafe { real::fcntl(old, libc::F_GETFD, 0) } < 0 || !kernel::may_make(new) {
                return real();
            }
            let leaving = departing(new);
            let status = real();
            errno::keep(|| departed(leaving));
            duplicated(old, status);
            return status;
        }
    }
    let status = real();
    duplicated(old, status);
    status
}

/// The program wants this very number: the library's own descriptor moves.
fn make_way(fd: i32) {
    // SAFETY: a descriptor of ours.
    let moved = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    table::unhide(fd);
    if moved >= 0 {
        table::hide(moved);
        doorbell::renumber(fd, moved);
        proposal::renumber(fd, moved);
    }
}

/// `shutdown`, around the kernel's.
pub fn shutdown(fd: i32, how: i32, real: impl FnOnce() -> i32) -> i32 {
    let Some(socket) = table::socket(fd) else { return real() };
    let (ends_receiving, ends_sending) =
        (how == libc::SHUT_RD || how == libc::SHUT_RDWR, how == libc::SHUT_WR || how == libc::SHUT_RDWR);
    let connection = match socket.carried() {
        Ok(connection) => connection,
        Err(plain) => {
            let status = real();
            // It may be carried later: what the kernel then says of its end is our own doing.
            if status == 0 {
                let bits =
                    if ends_receiving { SHUT } else { 0 } | if ends_sending { SHUT_SENDING } else { 0 };
                plain.record.ended.fetch_or(bits, Ordering::Relaxed);
            }
            return status;
        }
    };
    connection.serve();
    connection.ask_kernel();
    // What has ended both ways cannot be shut down for its peer: that one has heard something else.
    let is_over = connection.record.ended.load(Ordering::Relaxed) & carried::HUNG_UP != 0;
    if ends_receiving {
        connection.record.ended.fetch_or(SHUT, Ordering::Relaxed);
    }
    if ends_sending {
        connection.end_before_the_kernels(false);
        let _held = connection.record.sending.hold();
        let before = connection.record.ended.fetch_or(SHUT_SENDING, Ordering::Relaxed);
        // Whoever still receives has half a connection; a killed one is then to be a reset, as nothing else
        // would tell its peer, who goes on sending.
        if before & (SHUT | SHUT_SENDING) == 0 && how == libc::SHUT_WR && !is_over {
            STREAM.raise(&connection.own, HALF);
            // What was asked back comes through the kernel, which answers for it.
            if STREAM.flags(&connection.own) & ASKS_BACK == 0 {
                connection.guard();
            }
        }
    }
    // What comes from now on is answered by a reset, as by an end that is closed.
    let ended = connection.record.ended.load(Ordering::Relaxed);
    if ended & (SHUT | SHUT_SENDING) == SHUT | SHUT_SENDING && !is_over {
        STREAM.raise(&connection.own, LEAVING);
    }
    let status = match ends_sending && is_shut_when_paid(&connection) {
        // SAFETY: no pointers.
        true if ends_receiving => unsafe { real::shutdown(fd, libc::SHUT_RD) },
        true => 0,
        false => real(),
    };
    errno::keep(|| {
        connection.ask_kernel();
        connection.tell(News::Course);
        connection.wake_own();
    });
    status
}

/// Is something owed? Then the kernel is told the end of what we send when it has all of that.
fn is_shut_when_paid(connection: &Connection) -> bool {
    // Whoever pays holds it as well: either the last of it is still to be paid, or nothing is.
    let _held = connection.record.sending.hold();
    let is_owing = connection.owes();
    if is_owing {
        // Relaxed: ordered by the lock, as the load in `Connection::paid`.
        connection.record.shuts.store(1, Ordering::Relaxed);
    }
    is_owing
}

/// Before another program takes this process's place.
pub fn before_replacement() {
    if own_call::are_over() {
        return;
    }
    errno::keep(|| table::each_held(leave_to_kernel));
    hand_over(false);
    proposal::leave(proposal::tally());
}

/// Another program will close this one, in order, where nobody is to see it.
fn leave_to_kernel(socket: &Socket, fd: i32) {
    if is_inherited(fd) {
        return;
    }
    if let Some(Ok(connection)) = table::by_index(fd, socket.index).map(Socket::carried) {
        // Acquire: pairs with the changes of the count in `table::before_fork` and `table::let_go`.
        if socket.record.processes.load(Ordering::Acquire) == 1 {
            connection.end_before_the_kernels(false);
            connection.settle_guard(|_| true);
        } else {
            connection.leave_to_others();
            // This process counts from here on, and has it no more.
            socket.record.is_replaced.store(1, Ordering::Relaxed);
        }
    }
}

/// Does a program that is started have this descriptor?
fn is_inherited(fd: i32) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Before another program is started; `has_actions`: after steps that may copy descriptors.
pub fn hand_over(has_actions: bool) {
    let goes_on = |fd| is_inherited(fd) || (has_actions && table::is_named(fd));
    errno::keep(|| {
        let has_sets = control::share(goes_on);
        fallback::hand_back(goes_on, Reason::Passed);
        if has_sets {
            empty_shared_sets();
        }
    });
}

/// What is in sets that another program may have goes back to the kernel, and those are the program's own.
fn empty_shared_sets() {
    let is_shared = |fd| table::socket(fd).is_some_and(|socket| control::is_shared(&socket));
    fallback::hand_back(is_shared, Reason::Epoll);
    // One that another thread was making ready meanwhile is ready by now, or never.
    proposal::settle();
    fallback::hand_back(is_shared, Reason::Epoll);
    control::leave_shared();
}

/// Before the descriptors that `each` visits go to programs that may not know this library.
pub fn before_passing(each: impl Fn(&mut dyn FnMut(i32))) {
    errno::keep(|| {
        fallback::hand_back_each(
            |visit| {
                each(&mut |fd| {
                    if let Some(socket) = table::socket(fd) {
                        visit(socket);
                    }
                });
            },
            Reason::Passed,
        );
    });
}

/// The process ends in order: its peers are told to look.
pub fn end() {
    if own_call::are_over() || PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    carried::end_guards();
    let tally = proposal::tally();
    table::let_go_of_sets();
    table::each_held(|socket, fd| {
        let is_last = table::is_last_holder(socket.record);
        if is_last && let Some(Ok(connection)) = table::by_index(fd, socket.index).map(Socket::carried) {
            connection.take_leave();
            connection.tell(News::Course);
        }
        if is_last {
            log::ending(socket);
            outcome::ended(socket);
        }
        table::let_go(socket.record);
        // Nobody else is in the middle of something: it may be used again.
        // SeqCst: pairs with the additions and exchanges of `hold::enter` and `hold::leave`.
        if is_last && socket.hold.users.load(Ordering::SeqCst) == 1 {
            // Its registrations would be the next socket's.
            control::forget(socket);
            // Release: pairs with the exchange in `table::track`.
            socket.record.used.store(0, Ordering::Release);
        }
    });
    table::end();
    outcome::report();
    proposal::leave(tally);
}
