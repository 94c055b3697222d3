//! An error of the kernel's that a call of the library has taken. The kernel reports it once, so the library reports it
//! to the program.

use core::sync::atomic::Ordering;

use crate::connection::sockets::Connection;
use crate::memory::arena::{FAILED, HUNG_UP};
use crate::os::kernel;

/// Errors with which the kernel ends a connection.
pub const ENDS: [i32; 5] =
    [libc::ETIMEDOUT, libc::ECONNRESET, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ECONNABORTED];

impl Connection {
    /// Keeps the error of a call that the program does not see. Returns whether the kernel has ended the connection.
    pub fn keep_error(&self, number: i32) -> bool {
        self.ask_kernel();
        let has_ended = self.shared.ended.load(Ordering::Relaxed) & HUNG_UP != 0;
        if has_ended && !self.is_broken() && ENDS.contains(&number) {
            self.shared.kept_error.store(number as u32, Ordering::Relaxed);
            self.shared.ended.fetch_or(FAILED, Ordering::Relaxed);
            self.count_own_news();
        }
        has_ended
    }

    /// Takes the error, for a call that reports it.
    pub fn take_error(&self) -> Option<i32> {
        self.keep_loss();
        self.keep_failure();
        match self.shared.kept_error.load(Ordering::Relaxed) {
            0 => None,
            _ => Some(self.shared.kept_error.swap(0, Ordering::Relaxed) as i32).filter(|number| *number != 0),
        }
    }

    /// Takes the error of a stream that has just ended for a receive. Nobody may have asked the kernel how, yet.
    pub fn take_error_at_end(&self) -> Option<i32> {
        if self.is_unix() {
            self.ask_kernel();
            self.keep_loss_of_owed();
        }
        self.keep_failure_at_end();
        self.take_error()
    }

    /// Takes the error, wherever it is kept.
    pub fn take_any_error(&self) -> Option<i32> {
        self.ask_kernel();
        let kernels = kernel::number(self.fd, libc::SOL_SOCKET, libc::SO_ERROR).filter(|number| *number != 0);
        self.take_error().or(kernels)
    }

    /// Returns whether the program has not seen the error yet.
    pub fn has_error(&self) -> bool {
        self.keep_loss();
        self.keep_failure();
        self.shared.kept_error.load(Ordering::Relaxed) != 0
    }
}
