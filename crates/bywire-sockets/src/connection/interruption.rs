//! Calls that go into the kernel with a socket, where a signal handler may jump out of them.

use core::sync::atomic::Ordering;

use bywire_ring::hold as rule;

use crate::connection::sockets::{self, Connection, Socket};
use crate::os::jumps::{self, GiveBack};

impl Socket {
    /// Goes into the kernel with it, where a handler may jump out.
    pub fn away<T>(&self, work: impl FnOnce() -> T) -> T {
        let noted = jumps::taking(
            GiveBack { ends: |_| {}, left: sockets::used, argument: self.index as usize },
            || {},
        );
        let result = work();
        if !noted.end(|| {}) {
            self.enter_again();
        }
        result
    }

    /// This call was taken for one that was left, and its use of the socket was given back.
    #[cold]
    fn enter_again(&self) {
        rule::enter(&self.local.users);
    }
}

impl Connection {
    /// As [`Socket::away`], where the connection is used afterwards; `false`: it must not be, as others have cleared it away.
    pub fn away_and_back<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        let use_of_place = self.shared.generation.load(Ordering::Relaxed);
        let noted = jumps::taking(
            GiveBack { ends: |_| {}, left: sockets::used, argument: self.index as usize },
            || {},
        );
        let result = work();
        (result, noted.end(|| {}) || self.is_as_it_was(use_of_place))
    }

    /// This call was taken for one that was left: it counts as a user again. Is the connection as it was, of this use of its
    /// place?
    #[cold]
    pub fn is_as_it_was(&self, use_of_place: u32) -> bool {
        self.enter_again();
        // Acquire: pairs with the swap in `unmap_now`; what this call has mapped is there for as long as it is a user.
        self.local.own.load(Ordering::Acquire) == self.own.base()
            && self.local.remote.load(Ordering::Acquire) == self.remote.base()
            && self.shared.generation.load(Ordering::Relaxed) == use_of_place
    }
}
