//! Cuts short the calling thread's waits in the kernel, by a timer that sends it signals.

use core::cell::Cell;
use core::ptr;
use std::time::Duration;

use rustix::thread::gettid;

/// The kernel ignores this signal where a program does not handle it, and few programs do.
const SIGNAL: i32 = libc::SIGURG;
/// A longer wait is interrupted, repeatedly until the work is done, as close(2) may wait several times.
const TIMEOUT: Duration = Duration::from_micros(100);
/// The longest wait of a thread that is watched.
const WATCH_PERIOD: Duration = Duration::from_micros(500);

/// Bounds the waits of the thread that made it.
#[derive(Debug)]
pub struct Interrupter {
    /// `None` if the kernel gave no timer: then nothing is cut short.
    timer: Option<libc::timer_t>,
    is_watching: Cell<bool>,
}

extern "C" fn nothing(_signal: i32) {}

impl Interrupter {
    /// Makes an interrupter for the calling thread.
    pub fn here() -> Self {
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: the structures live here, zeroes are a valid value of them, and the signal mask is this thread's
        // own.
        let status = unsafe {
            let mut own: libc::sigset_t = core::mem::zeroed();
            libc::sigaddset(&raw mut own, SIGNAL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, ptr::null_mut());
            let mut event: libc::sigevent = core::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = gettid().as_raw_nonzero().get();
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        };
        Self { timer: (status == 0).then_some(timer), is_watching: Cell::new(false) }
    }

    /// Ends each wait of this thread within half a millisecond, until [`Self::rest`], also by calls that a signal usually restarts.
    /// For short calls, one after the other, this costs less than [`Self::bound`] for each. Every call of the thread may end with
    /// [`rustix::io::Errno::INTR`] meanwhile.
    pub fn watch(&self) {
        if !self.is_watching.get() {
            self.is_watching.set(has_handler(0) && self.arm(WATCH_PERIOD));
        }
    }

    /// Cuts no more waits short. Returns whether it did until now.
    pub fn rest(&self) -> bool {
        let was_watching = self.is_watching.replace(false);
        if was_watching {
            self.arm(Duration::ZERO);
        }
        was_watching
    }

    /// Does `work` and ends its waits early. Only waits that a signal ends are bounded, not those of a file system.
    pub fn bound<T>(&self, work: impl FnOnce() -> T) -> T {
        // With this flag only calls that cannot be restarted end.
        let is_armed = has_handler(libc::SA_RESTART) && self.arm(TIMEOUT);
        let done = work();
        if is_armed {
            self.is_watching.set(false);
            self.arm(Duration::ZERO);
        }
        done
    }

    fn arm(&self, interval: Duration) -> bool {
        let Some(timer) = self.timer else { return false };
        let every = libc::timespec { tv_sec: 0, tv_nsec: interval.subsec_nanos().into() };
        let setting = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the timer belongs to this thread, only `drop` deletes it, and the structure lives here.
        unsafe { libc::timer_settime(timer, 0, &raw const setting, ptr::null_mut()) == 0 }
    }
}

impl Drop for Interrupter {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            // SAFETY: `here` made the timer, and it is deleted only here. It cannot leave its thread, as the type is
            // not `Send`.
            unsafe { libc::timer_delete(timer) };
        }
    }
}

/// Installs a handler that does nothing, unless it is installed with these flags, or with none. `false`: the program has its own
/// handler, which we must not call.
fn has_handler(flags: i32) -> bool {
    let ours = nothing as *const () as usize;
    // SAFETY: the structures live here, zeroes are a valid value of them, and our handler touches nothing.
    unsafe {
        let mut found: libc::sigaction = core::mem::zeroed();
        if libc::sigaction(SIGNAL, ptr::null(), &raw mut found) != 0 {
            return false;
        }
        match found.sa_sigaction {
            known if known == ours && found.sa_flags & libc::SA_RESTART & !flags == 0 => true,
            known if known == ours || matches!(known, libc::SIG_DFL | libc::SIG_IGN) => {
                let mut action: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = ours;
                action.sa_flags = flags;
                libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_wait_ends_early_and_later_ones_do_not() {
        let began = Instant::now();
        let interrupter = Interrupter::here();
        // SAFETY: no pointers. `poll` is never restarted after a handler.
        let wait = |milliseconds| unsafe { libc::poll(ptr::null_mut(), 0, milliseconds) };
        assert_eq!(interrupter.bound(|| wait(600_000)), -1);
        assert!(began.elapsed() < Duration::from_secs(300));
        assert_eq!(wait(20), 0);
    }

    #[test]
    fn all_waits_of_a_watched_thread_end_early_until_it_rests() {
        let began = Instant::now();
        let interrupter = Interrupter::here();
        // SAFETY: no pointers. `poll` is never restarted after a handler.
        let wait = |milliseconds| unsafe { libc::poll(ptr::null_mut(), 0, milliseconds) };
        interrupter.watch();
        interrupter.watch();
        assert_eq!([wait(600_000), wait(600_000), wait(600_000)], [-1; 3]);
        assert!(began.elapsed() < Duration::from_secs(300));
        // A counter that is full: a write waits, and would be restarted after other signals.
        let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("a counter");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("room");
        let written = rustix::io::write(&full, &1u64.to_ne_bytes());
        assert_eq!(written, Err(rustix::io::Errno::INTR));
        assert!(interrupter.rest() && !interrupter.rest());
        assert_eq!(wait(20), 0);
        interrupter.watch();
        interrupter.bound(|| ());
        assert_eq!(wait(20), 0, "the bound of a piece of work ends the watch");
    }
}
