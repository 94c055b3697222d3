//! Sockets that connect again: `connect` to no address dissolves a connection, and its socket may connect to another
//! address or listen.

use core::sync::atomic::Ordering;

use bywire_pairing::reason::Reason;
use bywire_ring::stream::{News, Route};

use crate::connection::sockets::{self, Connection, STREAM, Socket};
use crate::connection::{log, outcome};
use crate::memory::arena::{broken, stage};
use crate::os::{errno, kernel};
use crate::pairing::{account, offer};

/// Before a connect: a socket whose connection never came about, or that was a listener, is like a new one.
pub fn before_connect(fd: i32) {
    let Some(socket) = sockets::socket(fd) else { return };
    // A shutdown of a listener, or of a socket that is connecting, only ends that.
    if !socket.is_carried()
        && socket.shared.ended.load(Ordering::Relaxed) != 0
        && errno::keep(|| kernel::is_closed(fd))
    {
        socket.shared.ended.store(0, Ordering::Relaxed);
    }
}

/// The program has connected this socket to no address: nothing that is known of its connection holds any more.
pub fn after_dissolving(fd: i32) {
    errno::keep(|| {
        let Some(socket) = sockets::socket(fd) else { return };
        // Acquire: pairs with the stores of the stage in `offer`. What was mapped comes before.
        if matches!(socket.shared.stage.load(Ordering::Acquire), stage::PLAIN | stage::HELD) {
            count_end(&socket);
            return forget(&socket);
        }
        // An offer, and memory that was mapped for it, belong to the old connection. This thread may have to wait for
        // another one that is about to make it carried.
        socket.stay(Reason::Reconnected);
        offer::await_preparation();
        match socket.carried() {
            Ok(connection) => connection.dissolve(),
            Err(plain) => {
                count_end(&plain);
                forget(&plain);
                account::end(&plain);
            }
        }
    });
}

/// The old connection has ended.
fn count_end(socket: &Socket) {
    log::ending(socket);
    outcome::ended(socket);
}

/// Forgets what is known of the old connection.
fn forget(socket: &Socket) {
    let shared = socket.shared;
    shared.ended.store(0, Ordering::Relaxed);
    shared.kept_error.store(0, Ordering::Relaxed);
    shared.calls.store(0, Ordering::Relaxed);
    // Relaxed, both: the kernel has cleared its own counts. Calls that are inside it make the counts differ, and the
    // socket stays there.
    shared.sent.store(0, Ordering::Relaxed);
    shared.received.store(0, Ordering::Relaxed);
}

impl Connection {
    /// Returns whether the program has dissolved the connection. Its socket is the kernel's alone since.
    pub fn is_dissolved(&self) -> bool {
        self.shared.broken.load(Ordering::Relaxed) == broken::DISSOLVED
    }

    /// The kernel has reset the connection. The peer reads what is in the ring, and then sees that.
    fn dissolve(&self) {
        count_end(self);
        self.with_sending(|| {
            self.shared.never.store(Reason::Reconnected as u8 + 1, Ordering::Relaxed);
            // Relaxed: a call that does not see it yet works with the old connection's memory, which stays mapped.
            self.shared.broken.store(broken::DISSOLVED, Ordering::Relaxed);
            if matches!(STREAM.route(&self.own), Ok(Route::Ring | Route::Ending)) {
                STREAM.back(&self.own, STREAM.tail(&self.own));
            }
            self.owe_nothing();
            self.unguard();
        });
        forget(self);
        account::end(self);
        self.tell(News::Route);
        self.wake_own();
    }
}
