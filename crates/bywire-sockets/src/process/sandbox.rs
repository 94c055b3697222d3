//! Programs that forbid themselves calls of the kernel (`seccomp`), or were started where some are forbidden.
//!
//! What a filter lets through is known to whoever made it alone, who has not thought of this library: one call too many
//! may end the program. So everything is brought back before a filter is installed, and from then on the library does
//! nothing: each call is the C library's, and as the program has made it. The same goes for children, and for programs
//! that are started behind such a filter. One that `bywire run` was itself started behind, as by a container or systemd, is
//! another thing: whoever has made that one has to let through what docs/sockets.md names.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bywire_pairing::filters;
use bywire_pairing::reason::Reason;

use crate::connection::table::{self, Meaning, Socket};
use crate::connection::{fallback, log, outcome};
use crate::epoll::control;
use crate::memory::{arena, lock};
use crate::os::jumps::{GiveBack, Noted};
use crate::os::{errno, jumps, kernel, real};
use crate::pairing::proposal;
use crate::process::{lifecycle, signals};
use crate::wakeup::doorbell;

static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Does this library do nothing any more?
#[inline(always)]
pub fn is_closed() -> bool {
    // Relaxed: a call that has to see it asks `own_call`.
    IS_CLOSED.load(Ordering::Relaxed)
}

/// Threads that are in calls of the library's own.
static BUSY: [Busy; STRIPES] = [const { Busy(AtomicU32::new(0)) }; STRIPES];
/// So many counts, that threads do not take each other's line away.
const STRIPES: usize = 16;
/// The thread that brings everything back, for which nothing is closed before it is done.
static CLOSER: AtomicU32 = AtomicU32::new(0);
/// How long it waits for others: a thread that is stopped, as in a debugger, may never come.
const PATIENCE_NS: u64 = 2_000_000_000;

#[repr(C, align(64))]
struct Busy(AtomicU32);

/// A call of the library's own, until dropped.
pub struct OwnCall(&'static AtomicU32);

/// Begins a call that the program has not made; `None`: there are to be none any more.
#[inline]
pub fn own_call() -> Option<OwnCall> {
    let thread = lock::thread();
    let count = &BUSY.get(thread as usize % STRIPES)?.0;
    // SeqCst: pairs with the load in `await_threads`: either this call is counted there, or sees that there are to be none.
    count.fetch_add(1, Ordering::SeqCst);
    let call = OwnCall(count);
    // SeqCst: pairs with the store in `withdraw`.
    let is_over = IS_CLOSED.load(Ordering::SeqCst) && CLOSER.load(Ordering::Relaxed) != thread;
    (!is_over).then_some(call)
}

/// The same for one that sleeps, which a handler may jump out of.
pub fn own_sleep() -> Option<Noted> {
    let thread = lock::thread();
    let stripe = thread as usize % STRIPES;
    let count = &BUSY.get(stripe)?.0;
    let noted = jumps::taking(GiveBack { ends: wakes, left: wakes, argument: stripe }, || {
        // SeqCst: pairs with the load in `await_threads`, as in `own_call`.
        count.fetch_add(1, Ordering::SeqCst);
    });
    // SeqCst: pairs with the store in `withdraw`.
    let is_over = IS_CLOSED.load(Ordering::SeqCst) && CLOSER.load(Ordering::Relaxed) != thread;
    (!is_over).then_some(noted)
}

/// A sleep is over, of a thread that is counted there.
fn wakes(stripe: usize) {
    if let Some(busy) = BUSY.get(stripe) {
        // Release: pairs with the load in `await_threads`; the call is over.
        busy.0.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for OwnCall {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the load in `await_threads`; the call is over.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Threads stayed behind, with the calls that they were in.
pub fn after_fork_in_child() {
    BUSY.iter().for_each(|busy| busy.0.store(0, Ordering::Relaxed));
    jumps::after_fork_in_child();
}

/// When the library is loaded: is it behind more filters than `bywire run` was?
///
/// By calls that the dynamic loader has made just before. Where that cannot be told, it is.
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
    IS_CLOSED.store(is_unknown, Ordering::Relaxed);
    is_unknown
}

/// Before `prctl`.
pub fn before_prctl(option: c_int, mode: usize, program: usize) {
    let is_strict = mode == libc::SECCOMP_MODE_STRICT as usize;
    // Without a program it is a question: whether there are filters at all.
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

/// Brings everything back, tells what there is to tell, and does nothing from here on.
pub fn withdraw(reason: Reason) {
    if is_closed() {
        return;
    }
    lifecycle::notice_fork();
    jumps::forget();
    if proposal::is_possible() {
        leave(reason);
    }
    signals::give_back();
    CLOSER.store(lock::thread(), Ordering::Relaxed);
    // SeqCst: pairs with the load in `own_call`.
    IS_CLOSED.store(true, Ordering::SeqCst);
    if proposal::is_possible() {
        await_threads();
        table::forget_all();
        proposal::unconfigure();
        doorbell::forget();
        arena::retire();
    }
    CLOSER.store(0, Ordering::Relaxed);
}

fn leave(reason: Reason) {
    fallback::all_to_kernel(reason);
    // One that another thread was making ready meanwhile is ready by now, or never.
    proposal::settle();
    fallback::all_to_kernel(reason);
    let tally = proposal::tally();
    table::each_held(|socket, _| {
        control::leave(socket, None, |_| true);
        if table::is_last_holder(socket.record) {
            log::ending(socket);
            outcome::ended(socket);
        }
    });
    table::each(|fd, meaning| {
        if let Meaning::Set(_) = meaning {
            control::silence(fd);
        }
    });
    log::program(reason);
    outcome::report();
    proposal::note(reason, 1);
    proposal::leave(tally);
}

/// Those that sleep where only a word or a bell would wake them look again, and make the program's own calls. None is in a
/// call of the library's any more.
fn await_threads() {
    let end_ns = kernel::now_ns() + PATIENCE_NS;
    loop {
        wake_threads();
        // SeqCst: pairs with the changes in `own_call` and by its drop.
        if BUSY.iter().all(|busy| busy.0.load(Ordering::SeqCst) == 0) || kernel::now_ns() > end_ns {
            return;
        }
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }
}

fn wake_threads() {
    table::each_held(|socket, fd| {
        if let Some(Ok(connection)) = table::by_index(fd, socket.index).map(Socket::mapped) {
            connection.wake_own();
        }
    });
    doorbell::ring_own();
}
