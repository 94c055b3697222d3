//! The bounds that the program has set for what its connection buffers: `SO_SNDBUF`, `SO_RCVBUF`, `TCP_NOTSENT_LOWAT`.

use core::sync::atomic::Ordering;

use bywire_ring::bounds;
use bywire_ring::stream::News;

use crate::connection::sockets::{Connection, STREAM};
use crate::os::kernel;
use crate::wakeup::doorbell;

impl Connection {
    /// Adopts what the kernel knows of the program's bounds, whoever has set them: a listener's are its connections'.
    pub fn adopt_bounds(&self) {
        let _held = self.shared.sending.hold();
        let found = kernel::buffer_bounds(self.fd);
        // Relaxed, both: ordered by the lock. A thread that waits for room is woken after this.
        self.shared.sends_max.store(bounds::sends(found.sends, found.unsent), Ordering::Relaxed);
        // The next send reads everything again.
        self.shared.ahead_max.store(0, Ordering::Relaxed);
        let receives = if self.is_unix() { bounds::RECEIVES_NOTHING } else { found.receives.into() };
        STREAM.allow(&self.own, receives);
    }

    /// Adopts them after the program has changed one. Threads of both ends that wait for room check it again.
    pub fn change_bounds(&self) {
        self.adopt_bounds();
        self.tell(News::Room);
        self.wake_own();
        doorbell::ring_own();
    }
}
