//! Wakes threads that sleep at either end of a connection.

use core::sync::atomic::{Ordering, fence};

use bywire_ring::stream::News;

use crate::connection::sockets::{Connection, STREAM};
use crate::os::{errno, own_call, real};
use crate::wakeup::{hints, peers};

impl Connection {
    /// Wakes threads that sleep at the other end for this event.
    #[inline]
    pub fn tell(&self, news: News) {
        let woken = self.shared.woken.load(Ordering::Relaxed);
        let wake = STREAM.wake(&self.own, &self.remote, news, woken);
        if let Some(number) = wake.hint {
            hints::count(number);
        }
        if wake.futex {
            self.shared.woken.store(wake.round, Ordering::Relaxed);
            wake_futex(self.own.event_address());
        }
        if news == News::Route {
            self.count_own_news();
        }
        if wake.doorbell {
            // Acquire: pairs with the release store in `offer::answered`. The peer's page is mapped before.
            peers::ring(self.local.peer.load(Ordering::Acquire));
        }
    }

    /// Wakes threads of this end that sleep on the peer's word: a shutdown concerns them.
    pub fn wake_own(&self) {
        self.count_own_news();
        wake_futex(self.remote.event_address());
    }

    /// This end has changed. Its epoll sets look at it, also if it is quiet.
    pub fn count_own_news(&self) {
        // SeqCst: pairs with the fence of `Stream::begin_quiet`. Either the last look there finds the change, or it is counted here.
        fence(Ordering::SeqCst);
        if STREAM.is_quiet(&self.own) {
            hints::count_own(STREAM.number(&self.own));
        }
    }
}

/// Wakes threads that sleep on the word at `address`.
fn wake_futex(address: *const u32) {
    let Some(_own) = own_call::begin() else { return };
    // SAFETY: a word of a mapped segment.
    errno::keep(|| unsafe {
        let (word, all) = (address as usize, i32::MAX as usize);
        real::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE as usize, all, 0, 0, 0)
    });
}
