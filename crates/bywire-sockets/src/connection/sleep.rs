//! Calls that sleep with a carried connection: for how long, and what wakes them.

use core::sync::atomic::{AtomicU32, Ordering};

use bywire_ring::stream::{LEAVING, Sleep};

use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::connection::{owed, policy};
use crate::os::jumps::{self, GiveBack};
use crate::os::{errno, kernel, own_call, real, signal_deferral};
use crate::wakeup::spin;

/// Intervals at which sleepers check the kernel's state: a killed peer wakes nobody.
const LOOK_MS: [u64; 6] = [5, 20, 50, 100, 200, 500];
/// Extra checks, one each millisecond, for an end that was announced.
const LOOKS_AT_LAST: u32 = 20;

unsafe extern "C-unwind" {
    /// The C library's function. It ends a thread that is to be cancelled, as every blocking call of the C library
    /// does.
    fn pthread_testcancel();
}

/// A state of `SharedSocket::has_timeout`: the program has set a negative time, and calls never wait. The kernel does
/// not report that.
pub const NEVER_WAITS: u8 = 3;

/// The reason why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Something may have changed.
    Recheck,
    /// A signal arrived: the call ends with `EINTR`.
    Signal,
    /// The socket's own timeout has passed.
    TimeOut,
}

impl Connection {
    /// Returns whether a call on it returns at once when there is nothing.
    pub fn is_nonblocking(&self) -> bool {
        // A process that got a copy in a message may change this unnoticed, and so may inline system calls.
        if self.shared.never.load(Ordering::Relaxed) != 0 || !policy::are_flags_known() {
            return kernel::is_nonblocking(self.fd);
        }
        match self.shared.waits.load(Ordering::Relaxed) {
            0 => {
                let found = kernel::is_nonblocking(self.fd);
                // It must not overwrite what a call that changes it has stored meanwhile.
                let _ = self.shared.waits.compare_exchange(
                    0,
                    1 + u8::from(found),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                found
            }
            known => known == 2,
        }
    }

    /// When a call that begins to wait now ends by the socket's own timeout, `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    pub fn deadline(&self, name: i32) -> Option<u64> {
        let place = self.shared.has_timeout.get(usize::from(name == libc::SO_SNDTIMEO))?;
        match place.load(Ordering::Relaxed) {
            1 if self.shared.never.load(Ordering::Relaxed) == 0 => return None,
            NEVER_WAITS => return Some(0),
            _ => {}
        }
        let found = kernel::timeout_ns(self.fd, name);
        if found.is_none() {
            let _ = place.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        found.map(|has_timeout| kernel::now_ns().saturating_add(has_timeout))
    }

    /// Sleeps until something may have changed, without a lock, for a call that handlers end. `fruitless` counts sleeps
    /// in a row.
    pub fn sleep(
        &self,
        sleep: Sleep,
        fruitless: usize,
        deadline_ns: Option<u64>,
        again: impl Fn() -> bool,
    ) -> Woken {
        self.sleep_by(sleep, deadline_ns, again, |expected| {
            // A signal that came between two sleeps of the call ends it as well.
            match signal_deferral::is_interrupted() {
                true => Woken::Signal,
                false => {
                    self.sleep_on(expected, fruitless, deadline_ns, Some(signal_deferral::interruption()))
                }
            }
        })
    }

    /// The same for a call that no handler ends.
    pub fn sleep_through(&self, sleep: Sleep, again: impl Fn() -> bool) {
        self.sleep_by(sleep, None, again, |expected| self.sleep_on(expected, 0, None, None));
    }

    fn sleep_by(
        &self,
        sleep: Sleep,
        deadline_ns: Option<u64>,
        again: impl Fn() -> bool,
        nod_off: impl FnOnce(u32) -> Woken,
    ) -> Woken {
        if spin::until(1, &again, deadline_ns) {
            return Woken::Recheck;
        }
        let use_of_place = self.shared.generation.load(Ordering::Relaxed);
        let mut expected = 0;
        let argument = (self.index as usize) << 1 | usize::from(sleep == Sleep::Room);
        let nap = jumps::taking(GiveBack { ends: is_awake, left: was_left_asleep, argument }, || {
            expected = STREAM.arm(&self.own, &self.remote, sleep);
        });
        let woken = if again() {
            Woken::Recheck
        } else {
            let first = STREAM.first_unread(&self.own, &self.remote);
            let woken = nod_off(expected);
            STREAM.expect(&self.own, &self.remote, first);
            woken
        };
        if !nap.end(|| STREAM.disarm(&self.own, sleep)) && !self.is_as_it_was(use_of_place) {
            // A handler has closed the socket. The next call checks again.
            return Woken::Signal;
        }
        // SAFETY: no arguments. Everything held is released when the thread is unwound.
        unsafe { pthread_testcancel() };
        woken
    }

    /// `interruption` is the word by which handlers tell this thread that the call must end.
    fn sleep_on(
        &self,
        expected: u32,
        fruitless: usize,
        deadline_ns: Option<u64>,
        interruption: Option<*const u32>,
    ) -> Woken {
        let leaving = STREAM.flags(&self.remote) & LEAVING != 0;
        let look_ms = self.look_ms(if leaving { Some(&self.shared.last_looks) } else { None }, fruitless);
        let now = kernel::now_ns();
        if deadline_ns.is_some_and(|deadline| deadline <= now) {
            return Woken::TimeOut;
        }
        let look_ns = owed::pay_before_wait(Some(look_ms * 1_000_000)).unwrap_or(0);
        let until = deadline_ns.unwrap_or(u64::MAX).min(now + look_ns);
        match wait_on_futex(self.remote.event_address(), expected, until, deadline_ns.is_some(), interruption)
        {
            libc::EINTR => Woken::Signal,
            _ => Woken::Recheck,
        }
    }

    /// The time until the next check, after this many fruitless sleeps. An announced end comes soon, if it comes.
    /// `announced` counts the checks for it.
    fn look_ms(&self, announced: Option<&AtomicU32>, fruitless: usize) -> u64 {
        let looks = announced.map_or(LOOKS_AT_LAST, |looks| looks.load(Ordering::Relaxed));
        if let Some(announced) = announced
            && looks < LOOKS_AT_LAST
        {
            announced.store(looks + 1, Ordering::Relaxed);
            return 1;
        }
        look_ns(fruitless) / 1_000_000
    }

    /// For a call that would wait for `events`: waits for them, and pays meanwhile. `None`: nothing is owed.
    pub fn pay_while_waiting(&self, events: i16, deadline_ns: Option<u64>) -> Option<Woken> {
        if !self.owes() {
            return None;
        }
        let look_ns = kernel::now_ns() + owed::LOOK_NS;
        let until_ns = deadline_ns.map_or(look_ns, |deadline| deadline.min(look_ns));
        let found = self.wait_in_kernel(events | libc::POLLOUT, Some(until_ns), deadline_ns.is_some());
        // If the descriptor was closed meanwhile, its number may mean another file. The call looks for another
        // descriptor first.
        if self.is_current() {
            self.serve();
        }
        let is_late = deadline_ns.is_some_and(|deadline| deadline <= kernel::now_ns());
        Some(match found {
            Ok(_) => Woken::Recheck,
            Err(libc::EAGAIN) if is_late => Woken::TimeOut,
            Err(libc::EAGAIN) => Woken::Recheck,
            Err(_) => Woken::Signal,
        })
    }

    /// Sleeps in the kernel until this time, for a call that handlers with `SA_RESTART` end only if it has a timeout.
    /// Returns what `poll` reports, nothing after such a handler, or the error number, `EAGAIN` at the time.
    pub fn wait_in_kernel(&self, events: i16, until_ns: Option<u64>, has_timeout: bool) -> Result<i16, i32> {
        self.wait_by(|| kernel::wait_until(self.fd, events, until_ns), has_timeout)
    }

    /// Sleeps by any such call that is bounded by a time. Returns what [`Self::wait_in_kernel`] does.
    pub fn wait_by(&self, wait: impl FnOnce() -> Result<i16, i32>, has_timeout: bool) -> Result<i16, i32> {
        // A signal that came between two sleeps ends the call as well.
        if signal_deferral::is_interrupted() {
            return Err(libc::EINTR);
        }
        match self.away_and_back(wait) {
            (_, false) => Err(libc::EINTR),
            (Err(libc::EINTR), true)
                if !signal_deferral::is_interrupted() && !has_timeout && !signal_deferral::is_bypassed() =>
            {
                Ok(0)
            }
            (found, true) => found,
        }
    }
}

/// The time until the next check, after this many fruitless sleeps, where nothing was announced.
pub fn look_ns(fruitless: usize) -> u64 {
    LOOK_MS.get(fruitless).copied().unwrap_or(1000) * 1_000_000
}

/// A sleeper is awake. The number encodes its connection and what it slept for.
fn is_awake(number: usize) {
    let sleep = if number & 1 != 0 { Sleep::Room } else { Sleep::Bytes };
    if let Some(Ok(connection)) = sockets::by_index(-1, (number >> 1) as u32).map(Socket::mapped) {
        STREAM.disarm(&connection.own, sleep);
    }
}

/// A handler has jumped out of a sleep.
fn was_left_asleep(number: usize) {
    is_awake(number);
    sockets::used(number >> 1);
}

/// `struct futex_waitv` of linux/futex.h.
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const SYS_FUTEX_WAITV: i64 = 449;
const FUTEX2_SIZE_U32: u32 = 2;
const FUTEX2_PRIVATE: u32 = 128;

/// Sleeps while the word at `address` is `expected`. Returns the error number, 0 after a wake.
///
/// Without a timeout of the socket, a handler with `SA_RESTART` must not end the call: the kernel restarts
/// `futex_waitv`, as it restarts `recv`. With a timeout, `recv` always ends, and so does `futex` with a timeout.
///
/// A handler that runs just before the system call changes the word at `interruption`. Then the kernel does not let the
/// thread sleep.
fn wait_on_futex(
    address: *const u32,
    expected: u32,
    until_ns: u64,
    has_deadline: bool,
    interruption: Option<*const u32>,
) -> i32 {
    let Some(_own) = own_call::begin_sleep() else { return 0 };
    let until = libc::timespec {
        tv_sec: (until_ns / 1_000_000_000) as i64,
        tv_nsec: (until_ns % 1_000_000_000) as i64,
    };
    // SAFETY: a word of a mapped segment, one of this thread's, and structures that live until the calls are over.
    let status = unsafe {
        let mut status = -1;
        if !has_deadline {
            let waiter = |address: *const u32, value: u32, flags: u32| Waiter {
                value: value.into(),
                address: address as u64,
                flags,
                reserved: 0,
            };
            let waiters = [
                waiter(address, expected, FUTEX2_SIZE_U32),
                waiter(interruption.unwrap_or_default(), 0, FUTEX2_SIZE_U32 | FUTEX2_PRIVATE),
            ];
            let count = 1 + usize::from(interruption.is_some());
            let (waiters, until) = (waiters.as_ptr() as usize, (&raw const until) as usize);
            let clock = libc::CLOCK_MONOTONIC as usize;
            status = real::syscall(SYS_FUTEX_WAITV, waiters, count, 0, until, clock, 0);
        }
        if has_deadline || (status < 0 && errno::last() == libc::ENOSYS) {
            status = libc::syscall(
                libc::SYS_futex,
                address,
                libc::FUTEX_WAIT_BITSET,
                expected,
                &raw const until,
                core::ptr::null::<u32>(),
                u32::MAX,
            );
        }
        status
    };
    if status < 0 { errno::last() } else { 0 }
}
