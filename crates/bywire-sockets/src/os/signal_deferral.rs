//! Defers the program's signal handlers while something is in the middle of a change; see [`crate::process::signals`].

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::{siginfo_t, sigset_t};

use crate::os::errno;
use crate::os::per_thread::{Zeroed, per_thread};

/// What handlers and the calls that they interrupt tell each other.
pub struct Thread {
    /// Locks that this thread holds, and other changes that no handler may interrupt.
    pub held: Cell<u32>,
    /// A signal was deferred.
    pub is_waiting: Cell<bool>,
    /// The number of the deferred signal.
    pub number: Cell<c_int>,
    /// The process that it was sent to. A forked child must not get it again.
    pub process: Cell<c_int>,
    /// Not 0: a handler without `SA_RESTART` has run, which ends calls. The kernel compares it when the thread falls
    /// asleep.
    pub is_interrupted: AtomicU32,
    /// The stack that handlers run on: its address and length, as the last handler has seen it.
    pub stack: Cell<(usize, usize)>,
    /// The deferred signal's information, and the signal mask when it arrived.
    pub information: UnsafeCell<MaybeUninit<siginfo_t>>,
    /// See `information`.
    pub mask: UnsafeCell<MaybeUninit<sigset_t>>,
}

// SAFETY: zeros are numbers and `false`, and what may be uninitialised may be zeros.
unsafe impl Zeroed for Thread {}

per_thread! {
    /// This thread's.
    pub static THREAD: Thread, "bywire_thread"
}

/// Begins a call of the program that a handler may end.
#[inline(always)]
pub fn begin_call() {
    THREAD.with(|thread| thread.is_interrupted.store(0, Ordering::Relaxed));
}

/// Whether a handler without `SA_RESTART` has run since, which ends the call.
pub fn is_interrupted() -> bool {
    THREAD.with(|thread| thread.is_interrupted.load(Ordering::Relaxed) != 0)
}

/// The word that says so; it is 0 if no such handler has run.
pub fn interruption() -> *const u32 {
    THREAD.with(|thread| thread.is_interrupted.as_ptr().cast_const())
}

/// Whether this thread holds locks, or is in another change that no handler may interrupt.
pub fn is_holding() -> bool {
    THREAD.with(|thread| thread.held.get() > 0)
}

/// Defers handlers until [`admit`] has been called as often.
#[inline(always)]
pub fn hold_off() {
    THREAD.with(|thread| {
        thread.held.set(thread.held.get() + 1);
        // Pairs with the handler that may interrupt this thread here. No other thread is involved.
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    });
}

/// Ends [`hold_off`]. Deferred signals are delivered.
#[inline(always)]
pub fn admit() {
    THREAD.with(|thread| {
        // Pairs with the handler that may interrupt this thread here. No other thread is involved.
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        let held = thread.held.get() - 1;
        thread.held.set(held);
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        if held == 0 && thread.is_waiting.get() {
            deliver_late(thread);
        }
    });
}

/// Delivers the deferred signal.
#[cold]
pub fn deliver_late(thread: &Thread) {
    thread.is_waiting.set(false);
    // SAFETY: `deliver` has filled both before it set `is_waiting`. All signals but those of faults are blocked until
    // the mask is restored.
    errno::keep(|| unsafe {
        if libc::getpid() == thread.process.get() {
            send_again(thread.number.get(), (*thread.information.get()).as_ptr());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, (*thread.mask.get()).as_ptr(), core::ptr::null_mut());
    });
}

/// Sends this thread a signal again that it has already received.
///
/// # Safety
/// `information` is what the kernel has passed with it.
pub unsafe fn send_again(number: c_int, information: *const siginfo_t) {
    // SAFETY: the caller's structure. The kernel lets a process send any information to itself.
    errno::keep(|| unsafe {
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        if libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, number, information) != 0 {
            libc::syscall(libc::SYS_tgkill, process, thread, number);
        }
    });
}

/// The program has set a handler that this library did not see. It may run at any time.
static IS_BYPASSED: AtomicBool = AtomicBool::new(false);

/// Whether handlers may run that cannot be deferred.
#[inline(always)]
pub fn is_bypassed() -> bool {
    IS_BYPASSED.load(Ordering::Relaxed)
}

/// The program has set a handler that this library did not see.
pub fn bypass() {
    IS_BYPASSED.store(true, Ordering::Relaxed);
}

/// The signals that a fault of the thread itself raises. The kernel ends a process that blocks such a signal when it is
/// raised.
pub const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
