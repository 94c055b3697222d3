//! Calls that sleep with a socket, or go into the kernel with it, until they return or a handler has jumped out of them.

use core::sync::atomic::Ordering;

use bywire_ring::hold as rule;
use bywire_ring::waiters;

use crate::connection::table::{self, Connection, Socket};
use crate::memory::arena::{self, Hold};
use crate::os::jumps::{self, GiveBack, Noted};
use crate::process::lifecycle;

/// A call that sleeps with a connection, until dropped.
pub struct Waiting {
    hold: &'static Hold,
    noted: Option<Noted>,
}

impl Waiting {
    /// Whoever closes the last descriptor from here on leaves this call another one.
    pub fn begin(connection: &Connection) -> Self {
        let (hold, argument) = (connection.hold, connection.index as usize);
        let noted = jumps::taking(GiveBack { ends: waits_no_more, left: waited, argument }, || {
            waiters::begin(&hold.waiters);
        });
        Self { hold, noted: Some(noted) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.noted.take());
        lifecycle::close_kept(waiters::left(&self.hold.waiters, &self.hold.kept));
    }
}

/// A call has waited, with the socket of this index.
fn waits_no_more(index: usize) {
    if let Some(hold) = arena::own().and_then(|own| own.holds.get(index)) {
        waiters::end(&hold.waiters);
    }
}

/// The same for one that was left.
fn waited(index: usize) {
    waits_no_more(index);
    if let Some(hold) = arena::own().and_then(|own| own.holds.get(index)) {
        lifecycle::close_kept(waiters::left(&hold.waiters, &hold.kept));
    }
}

impl Socket {
    /// Goes into the kernel with it, where a handler may jump out.
    pub fn away<T>(&self, work: impl FnOnce() -> T) -> T {
        let noted =
            jumps::taking(GiveBack { ends: |_| {}, left: table::used, argument: self.index as usize }, || {});
        let result = work();
        if !noted.end(|| {}) {
            self.enter_again();
        }
        result
    }

    /// This call was taken for one that was left, and its use of the socket was given back.
    #[cold]
    fn enter_again(&self) {
        rule::enter(&self.hold.users);
    }
}

impl Connection {
    /// As [`Socket::away`], where the connection is used afterwards; `false`: it must not be, as others have cleared it away.
    pub fn away_and_back<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        let use_of_place = self.record.generation.load(Ordering::Relaxed);
        let noted =
            jumps::taking(GiveBack { ends: |_| {}, left: table::used, argument: self.index as usize }, || {});
        let result = work();
        (result, noted.end(|| {}) || self.is_as_it_was(use_of_place))
    }

    /// This call was taken for one that was left: it counts as a user again. Is the connection as it was, of this use of its
    /// place?
    #[cold]
    pub fn is_as_it_was(&self, use_of_place: u32) -> bool {
        self.enter_again();
        // Acquire: pairs with the swap in `unmap_now`; what this call has mapped is there for as long as it is a user.
        self.hold.own.load(Ordering::Acquire) == self.own.base()
            && self.hold.remote.load(Ordering::Acquire) == self.remote.base()
            && self.record.generation.load(Ordering::Relaxed) == use_of_place
    }
}
