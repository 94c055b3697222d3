//! Locks in memory that forked processes share, without the library's allocation and safe against a killed holder.
//!
//! The program's handlers wait while one is held ([`crate::process::signals`]): none finds a connection half changed, and none
//! that jumps out of a call leaves a lock behind.
//!
//! Each lock has a [`rank`], by its type. A thread takes them in the order of their ranks, and one of each at most: then
//! threads cannot wait for each other in a circle. Builds with debug assertions, as those of the tests, stop a program that
//! does otherwise, whether anybody waits or not.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};

use bywire_ring::lock as rule;

use crate::os::{own_call, signal_deferral, thread};

/// The order in which a thread takes locks.
pub mod rank {
    /// The connection to the pairing service.
    pub const TALKING: u8 = 0;
    /// Epoll sets within epoll sets.
    pub const NESTING: u8 = 1;
    /// An epoll set, and its registrations.
    pub const SET: u8 = 2;
    /// A connection's receiver.
    pub const RECEIVING: u8 = 3;
    /// A connection's sender.
    pub const SENDING: u8 = 4;
    /// The middles of sockets' lists of registrations.
    pub const REGISTERING: u8 = 5;
    /// Doorbells for programs of other users.
    pub const HEARING: u8 = 6;
    /// The own doorbell, and those of peers.
    pub const ADOPTING: u8 = 7;
    /// What descriptors mean.
    pub const CHANGING: u8 = 8;
    /// The program's handlers.
    pub const HANDLERS: u8 = 9;
}

/// How long a waiter sleeps before it looks whether the holder still lives.
const LOOK_NS: i64 = 20_000_000;

/// The thread that holds it, and whether others wait.
#[derive(Debug)]
#[repr(transparent)]
pub struct Lock<const RANK: u8> {
    word: AtomicU32,
}

/// A held lock.
pub struct Held<'a, const RANK: u8> {
    lock: &'a Lock<RANK>,
    /// What was blocked before; `None` where handlers are held off.
    blocked: Option<libc::sigset_t>,
}

impl<const RANK: u8> Lock<RANK> {
    /// Not held.
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    /// Waits for it. A holder that was killed is taken over from: what it had begun is invisible until published.
    #[inline]
    pub fn hold(&self) -> Held<'_, RANK> {
        if signal_deferral::is_bypassed() {
            return self.hold_undisturbed();
        }
        signal_deferral::hold_off();
        self.take();
        Held { lock: self, blocked: None }
    }

    /// The same for long work: no call of the kernel's is interrupted by a signal.
    pub fn hold_undisturbed(&self) -> Held<'_, RANK> {
        let blocked = Some(block_signals());
        self.take();
        Held { lock: self, blocked }
    }

    /// The lock alone, for a holder that returns between; [`Self::give`] ends it.
    #[inline]
    pub fn take(&self) {
        #[cfg(debug_assertions)]
        order::begin(RANK);
        rule::take(&self.word, thread::number(), &Kernel);
    }

    /// Lets go of it.
    #[inline]
    pub fn give(&self) {
        #[cfg(debug_assertions)]
        order::end(RANK);
        rule::give(&self.word, &Kernel);
    }

    /// Has this thread it?
    pub fn is_own(&self) -> bool {
        // Relaxed: only this thread puts its number there.
        rule::holder(self.word.load(Ordering::Relaxed)) == thread::number()
    }

    /// For a child's copy of a private lock, whose holders stayed behind.
    pub fn reset(&self) {
        #[cfg(debug_assertions)]
        order::end(RANK);
        self.word.store(0, Ordering::Relaxed);
    }
}

/// Which ranks this thread holds.
#[cfg(debug_assertions)]
mod order {
    use core::cell::Cell;

    thread_local! {
        // Constant and without a destructor: nothing is allocated or registered for it.
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

/// Sleeps on words, and asks who lives.
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
        match &self.blocked {
            None => signal_deferral::admit(),
            // SAFETY: the mask that `block_signals` found.
            Some(mask) => unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, mask, core::ptr::null_mut());
            },
        }
    }
}

fn block_signals() -> libc::sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
    // SAFETY: both are valid for writes; the mask of this thread alone is changed.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for fault in signal_deferral::FAULTS {
            libc::sigdelset(all.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}
