//! Ends what another thread waits for in the kernel, as a signal does.

use rustix::thread::{Pid, gettid};

/// Nobody else uses it, and where it comes unasked it does nothing.
const SIGNAL: i32 = libc::SIGURG;

/// A thread of this process that may be interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Interruptible {
    thread: Pid,
}

extern "C" fn nothing(_signal: i32) {}

impl Interruptible {
    /// The calling thread. From now on this process has a handler of `SIGURG`, which does nothing.
    pub fn here() -> Self {
        // SAFETY: live structures, of which noughts are a value; the handler touches nothing.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            // What can be begun again is: only what cannot ends.
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(SIGNAL, &raw const action, core::ptr::null_mut());
            // Whoever has started this program may have blocked it.
            let mut own: libc::sigset_t = core::mem::zeroed();
            libc::sigaddset(&raw mut own, SIGNAL);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, core::ptr::null_mut());
        }
        Self { thread: gettid() }
    }

    /// Ends what this thread waits for now. What it begins to wait for a moment later goes on: ask again until it is over.
    pub fn interrupt(self) {
        // SAFETY: numbers alone. Whoever else has that thread's number by now is of this process, and notices nothing.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.thread.as_raw_pid(), SIGNAL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[test]
    fn a_sleep_of_another_thread_ends() {
        let (say, heard) = channel();
        let began = Instant::now();
        let sleeper = std::thread::spawn(move || {
            say.send(Interruptible::here()).expect("somebody listens");
            // SAFETY: no pointers. It is one of those calls that no handler begins again.
            unsafe { libc::poll(core::ptr::null_mut(), 0, 600_000) }
        });
        let thread = heard.recv().expect("it runs");
        while !sleeper.is_finished() {
            assert!(began.elapsed() < Duration::from_secs(300), "it sleeps on");
            thread.interrupt();
            std::thread::yield_now();
        }
        assert_eq!(sleeper.join().expect("it ends"), -1);
    }
}
