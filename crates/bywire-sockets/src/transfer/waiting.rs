//! Calls that sleep with a socket, or enter the kernel with it, until they return or a handler has jumped out of them.

use bywire_ring::waiters;

use crate::connection::sockets::Connection;
use crate::memory::arena::{self, LocalSocket};
use crate::os::jumps::{self, GiveBack, Noted};
use crate::process::lifecycle;

/// A call that sleeps with a connection, until dropped.
pub struct Waiting {
    local: &'static LocalSocket,
    noted: Option<Noted>,
}

impl Waiting {
    /// From here on, a thread that closes the last descriptor keeps a duplicate for this call.
    pub fn begin(connection: &Connection) -> Self {
        let (local, argument) = (connection.local, connection.index as usize);
        let noted = jumps::taking(GiveBack { ends: waits_no_more, left: waited, argument }, || {
            waiters::begin(&local.waiters);
        });
        Self { local, noted: Some(noted) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.noted.take());
        lifecycle::close_kept(waiters::left(&self.local.waiters, &self.local.kept));
    }
}

/// A call with the socket of this index has finished waiting.
fn waits_no_more(index: usize) {
    if let Some(local) = arena::private().and_then(|own| own.sockets.get(index)) {
        waiters::end(&local.waiters);
    }
}

/// The same for a call that was left by a jump.
fn waited(index: usize) {
    waits_no_more(index);
    if let Some(local) = arena::private().and_then(|own| own.sockets.get(index)) {
        lifecycle::close_kept(waiters::left(&local.waiters, &local.kept));
    }
}
