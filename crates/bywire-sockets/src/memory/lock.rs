//! Locks in memory that forked processes share. They do not allocate, and survive the death of their holder.
//!
//! The program's signal handlers are deferred while a lock is held ([`crate::process::signals`]). So no handler sees a
//! connection in the middle of a change, and no handler that jumps out of a call leaves a lock held.
//!
//! Each lock type has a [`rank`]. A thread takes locks in the order of their ranks, and at most one of each rank, so
//! threads cannot deadlock. Builds with debug assertions, such as those of the tests, abort a program that breaks this
//! order, whether or not another thread waits.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

use bywire_ring::lock as rule;

use crate::os::{own_call, signal_deferral, thread};

/// The order in which a thread takes locks.
pub mod rank {
    /// Whether sockets may go on in the kernel.
    pub const DECIDING: u8 = 0;
    /// The connection to the pairing service.
    pub const TALKING: u8 = 1;
    /// Epoll sets that are members of other epoll sets.
    pub const NESTING: u8 = 2;
    /// An epoll set and its registrations.
    pub const SET: u8 = 3;
    /// The receiver of a connection.
    pub const RECEIVING: u8 = 4;
    /// The sender of a connection.
    pub const SENDING: u8 = 5;
    /// The middles of the sockets' lists of registrations.
    pub const REGISTERING: u8 = 6;
    /// Doorbells for programs of other users.
    pub const HEARING: u8 = 7;
    /// This process's doorbell, and those of peers.
    pub const ADOPTING: u8 = 8;
    /// The kinds of descriptors.
    pub const CHANGING: u8 = 9;
    /// The program's signal handlers.
    pub const HANDLERS: u8 = 10;
    /// The loaded objects that are examined.
    pub const EXAMINING: u8 = 11;
}

/// How long a waiter sleeps before it checks that the holder is alive.
const LOOK_NS: i64 = 20_000_000;

/// The number of the thread that holds it, and whether others wait.
#[derive(Debug)]
#[repr(transparent)]
pub struct Lock<const RANK: u8> {
    word: AtomicU32,
}

/// A held lock.
pub struct Held<'a, const RANK: u8> {
    lock: &'a Lock<RANK>,
    /// The signal mask before; `None` where handlers are deferred instead.
    blocked: Option<libc::sigset_t>,
}

impl<const RANK: u8> Lock<RANK> {
    /// A lock that is not held.
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    /// Waits for the lock. It takes the lock over from a holder that was killed: an unfinished change is invisible
    /// until it is published.
    #[inline]
    pub fn hold(&self) -> Held<'_, RANK> {
        if signal_deferral::is_bypassed() {
            return self.hold_undisturbed();
        }
        signal_deferral::hold_off();
        self.take();
        Held { lock: self, blocked: None }
    }

    /// Takes the lock if nobody holds it, and waits for nobody. The caller holds no lock.
    pub fn hold_if_free(&self) -> Option<Held<'_, RANK>> {
        let blocked = signal_deferral::is_bypassed().then(block_signals);
        if blocked.is_none() {
            signal_deferral::hold_off();
        }
        if rule::take_if_free(&self.word, thread::number()) {
            #[cfg(debug_assertions)]
            order::begin(RANK);
            return Some(Held { lock: self, blocked });
        }
        admit(blocked.as_ref());
        None
    }

    /// Holds it as [`Self::hold`] does, for longer work. Signals are blocked, so none interrupts a call of the kernel.
    pub fn hold_undisturbed(&self) -> Held<'_, RANK> {
        let blocked = Some(block_signals());
        self.take();
        Held { lock: self, blocked }
    }

    /// Takes the lock without a guard, for a holder that returns in between; [`Self::give`] releases it.
    #[inline]
    pub fn take(&self) {
        #[cfg(debug_assertions)]
        order::begin(RANK);
        rule::take(&self.word, thread::number(), &Kernel);
    }

    /// Releases the lock.
    #[inline]
    pub fn give(&self) {
        #[cfg(debug_assertions)]
        order::end(RANK);
        rule::give(&self.word, &Kernel);
    }

    /// Whether this thread holds the lock.
    pub fn is_own(&self) -> bool {
        // Relaxed: only this thread stores its own number there.
        rule::holder(self.word.load(Ordering::Relaxed)) == thread::number()
    }

    /// Clears a child's copy of a private lock: its holders exist in the parent only.
    pub fn reset(&self) {
        #[cfg(debug_assertions)]
        order::end(RANK);
        self.word.store(0, Ordering::Relaxed);
    }
}

/// The ranks that this thread holds.
#[cfg(debug_assertions)]
mod order {
    use core::cell::Cell;

    thread_local! {
        // Constant and without a destructor: the thread-local variable allocates and registers nothing.
        static RANKS: Cell<u32> = const { Cell::new(0) };
    }

    pub fn begin(rank: u8) {
        let held = RANKS.get();
        if held >> rank != 0 {
            eprintln!("bywire: a lock of rank {rank} is taken while those of the ranks {held:#b} are held");
            std::process::abort();
        }
        RANKS.set(held | 1 << rank);
    }

    pub fn end(rank: u8) {
        RANKS.set(RANKS.get() & !(1 << rank));
    }
}

/// Sleeps on futex words, and asks which threads are alive.
struct Kernel;

impl rule::Sleeping<AtomicU32> for Kernel {
    fn sleep(&self, word: &AtomicU32, expected: u32) -> bool {
        let Some(_own) = own_call::begin() else { return false };
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: LOOK_NS };
        // SAFETY: a live word and a live timeout.
        let status = unsafe {
            let (word, timeout) = (word.as_ptr(), &raw const timeout);
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, timeout)
        };
        status == -1 && crate::os::errno::last() == libc::ETIMEDOUT
    }

    fn wake(&self, word: &AtomicU32) {
        let Some(_own) = own_call::begin() else { return };
        // SAFETY: a live word.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    fn lives(&self, thread: u32) -> bool {
        crate::os::pid::lives(thread)
    }

    #[inline(always)]
    fn pause(&self) -> bool {
        core::hint::spin_loop();
        true
    }
}

impl<const RANK: u8> Drop for Held<'_, RANK> {
    fn drop(&mut self) {
        self.lock.give();
        admit(self.blocked.as_ref());
    }
}

/// Lets handlers run again. `blocked` is the signal mask before, if signals were blocked instead.
fn admit(blocked: Option<&libc::sigset_t>) {
    match blocked {
        None => signal_deferral::admit(),
        // SAFETY: the mask that `block_signals` returned.
        Some(mask) => unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, mask, core::ptr::null_mut());
        },
    }
}

fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
    // SAFETY: both are valid for writes, and only this thread's mask changes.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in signal_deferral::FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}
