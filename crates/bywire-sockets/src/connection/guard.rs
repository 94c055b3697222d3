//! Makes the death of an end of a carried connection a reset for the other end, by `SO_LINGER`. So is a breach of the
//! rules. A Unix socket has no such option: its other end finds out what was lost by [`Connection::keep_loss`].

use core::sync::atomic::{AtomicBool, Ordering};

use bywire_ring::stream::{BROKEN_OFF, LEAVING, News};

use crate::connection::sockets::Connection;
use crate::memory::arena::{broken, linger};
use crate::os::{errno, kernel, real};

/// The process is exiting in order: its connections end as TCP's do.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// No connection is guarded from here on.
pub fn end_guards() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

impl Connection {
    /// Called before bytes go into the ring: from here on a killed end is a reset. The bytes may be ones that a reader
    /// behind the kernel should get, and an orderly end would hide that they are lost. The caller holds the sending
    /// lock, as for [`Self::unguard`]: the state and the kernel's option change together.
    #[inline]
    pub fn guard(&self) {
        if self.shared.lingers.load(Ordering::Relaxed) == linger::UNSET {
            self.guard_now();
        }
    }

    #[inline(never)]
    fn guard_now(&self) {
        if IS_ENDING.load(Ordering::Relaxed) {
            return;
        }
        let is_programs = kernel::lingers(self.fd);
        let next = if is_programs { linger::PROGRAMS } else { linger::OURS };
        let lingers = &self.shared.lingers;
        let is_changed =
            lingers.compare_exchange(linger::UNSET, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_changed && !is_programs {
            kernel::linger(self.fd, Some(0));
        }
    }

    /// Lets the connection end as TCP's again. The caller holds the sending lock.
    pub fn unguard(&self) {
        let lingers = &self.shared.lingers;
        if lingers.compare_exchange(linger::OURS, linger::UNSET, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            kernel::linger(self.fd, None);
        }
    }

    /// Runs `work` with the sending lock held. This thread may hold it already: the handler of a fault in a copy may
    /// end the process.
    pub fn with_sending(&self, work: impl FnOnce()) {
        let _held = (!self.shared.sending.is_own()).then(|| self.shared.sending.hold());
        work();
    }

    /// The peer broke the rules: resets the connection, with no other effect.
    pub fn reset(&self) {
        self.shared.broken.store(broken::RESET, Ordering::Relaxed);
        if self.is_unix() {
            self.raise_end(BROKEN_OFF | LEAVING);
            // SAFETY: no pointers.
            errno::keep(|| unsafe { real::shutdown(self.fd, libc::SHUT_RDWR) });
            return self.tell(News::Route);
        }
        kernel::break_off(self.fd);
        self.tell(News::Route);
    }

    /// Whether the connection was broken off or dissolved.
    pub fn is_broken(&self) -> bool {
        self.shared.broken.load(Ordering::Relaxed) != broken::NOT
    }
}
