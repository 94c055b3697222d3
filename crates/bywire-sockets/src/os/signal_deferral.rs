//! Signal handlers of the program are put off while something is half changed; see [`crate::process::signals`].

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::{siginfo_t, sigset_t};

use crate::os::errno;

/// What handlers and the calls that they interrupt tell each other.
pub struct Thread {
    /// Locks held by this thread, and other things that no handler is to find half changed.
    pub held: Cell<u32>,
    /// A signal has been put aside.
    pub is_waiting: Cell<bool>,
    /// Which one.
    pub number: Cell<c_int>,
    /// The process that it came to: a forked child is not to have it again.
    pub process: Cell<c_int>,
    /// Not 0: a handler has come that ends calls, one without `SA_RESTART`. The kernel compares it as the thread falls asleep.
    pub is_interrupted: AtomicU32,
    /// The stack that handlers may be on: its address and length, as the last one of them was told.
    pub stack: Cell<(usize, usize)>,
    /// What is told of a signal that was put aside, and what was blocked as it came.
    pub information: UnsafeCell<MaybeUninit<siginfo_t>>,
    /// See `information`.
    pub mask: UnsafeCell<MaybeUninit<sigset_t>>,
}

thread_local! {
    // Constant and without a destructor: nothing is allocated or registered for it.
    pub static THREAD: Thread = const {
        Thread {
            held: Cell::new(0),
            is_waiting: Cell::new(false),
            number: Cell::new(0),
            process: Cell::new(0),
            is_interrupted: AtomicU32::new(0),
            stack: Cell::new((0, 0)),
            information: UnsafeCell::new(MaybeUninit::uninit()),
            mask: UnsafeCell::new(MaybeUninit::uninit()),
        }
    };
}

/// A call of the program's begins that handlers may end.
#[inline(always)]
pub fn begin_call() {
    THREAD.with(|thread| thread.is_interrupted.store(0, Ordering::Relaxed));
}

/// Has a handler come since then that ends the call, as one without `SA_RESTART` does?
pub fn is_interrupted() -> bool {
    THREAD.with(|thread| thread.is_interrupted.load(Ordering::Relaxed) != 0)
}

/// The word by which that is known, 0 if none has come.
pub fn interruption() -> *const u32 {
    THREAD.with(|thread| thread.is_interrupted.as_ptr().cast_const())
}

/// Does this thread hold locks, or other things that no handler is to find half changed?
pub fn is_holding() -> bool {
    THREAD.with(|thread| thread.held.get() > 0)
}

/// From here on handlers wait, until [`admit`] has been called as often.
#[inline(always)]
pub fn hold_off() {
    THREAD.with(|thread| {
        thread.held.set(thread.held.get() + 1);
        // Pairs with the handler that may interrupt this thread here: no other thread is concerned.
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    });
}

/// Ends [`hold_off`]; what has come meanwhile is delivered.
#[inline(always)]
pub fn admit() {
    THREAD.with(|thread| {
        // Pairs with the handler that may interrupt this thread here: no other thread is concerned.
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        let held = thread.held.get() - 1;
        thread.held.set(held);
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
        if held == 0 && thread.is_waiting.get() {
            deliver_late(thread);
        }
    });
}

/// What was put aside comes now.
#[cold]
pub fn deliver_late(thread: &Thread) {
    thread.is_waiting.set(false);
    // SAFETY: `deliver` has filled both before it said that a signal waits. All signals but those of faults are blocked until the
    // mask is restored.
    errno::keep(|| unsafe {
        if libc::getpid() == thread.process.get() {
            send_again(thread.number.get(), (*thread.information.get()).as_ptr());
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, (*thread.mask.get()).as_ptr(), core::ptr::null_mut());
    });
}

/// Sends this thread a signal that has come to it already.
///
/// # Safety
/// `information` is what the kernel has told of it.
pub unsafe fn send_again(number: c_int, information: *const siginfo_t) {
    // SAFETY: the caller's structure; the kernel lets a process send any information to itself.
    errno::keep(|| unsafe {
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        if libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, number, information) != 0 {
            libc::syscall(libc::SYS_tgkill, process, thread, number);
        }
    });
}

/// A handler that nobody saw being set may come at any time.
static IS_BYPASSED: AtomicBool = AtomicBool::new(false);

/// Do handlers come that cannot be held off?
#[inline(always)]
pub fn is_bypassed() -> bool {
    IS_BYPASSED.load(Ordering::Relaxed)
}

/// The program has set a handler where nobody sees it.
pub fn bypass() {
    IS_BYPASSED.store(true, Ordering::Relaxed);
}

/// The signals of what a thread does wrong itself. The kernel ends a process in which such a one is blocked when it comes.
pub const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
