//! Calls that enter the kernel with a socket. A signal handler may jump out of them there.

use core::sync::atomic::Ordering;

use bywire_ring::hold as rule;

use crate::connection::sockets::{self, Connection, Socket};
use crate::os::jumps::{self, GiveBack};

impl Socket {
    /// Runs a call that enters the kernel with this socket. A handler may jump out of it.
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

    /// This call was taken for one that was left by a jump, and its use of the socket was released. It takes it again.
    #[cold]
    fn enter_again(&self) {
        rule::enter(&self.local.users);
    }
}

impl Connection {
    /// Like [`Socket::away`], for a connection that is used afterwards. `false`: it must not be used, because others
    /// have unmapped it.
    pub fn away_and_back<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        let use_of_place = self.shared.generation.load(Ordering::Relaxed);
        let noted = jumps::taking(
            GiveBack { ends: |_| {}, left: sockets::used, argument: self.index as usize },
            || {},
        );
        let result = work();
        (result, noted.end(|| {}) || self.is_as_it_was(use_of_place))
    }

    /// This call was taken for one that was left by a jump. It counts as a user again. Returns whether the connection
    /// is still the same one, in this use of its record.
    #[cold]
    pub fn is_as_it_was(&self, use_of_place: u32) -> bool {
        self.enter_again();
        // Acquire: pairs with the swap in `unmap_now`. What this call has found mapped stays mapped while it is a user.
        self.local.own.load(Ordering::Acquire) == self.own.base()
            && self.local.remote.load(Ordering::Acquire) == self.remote.base()
            && self.shared.generation.load(Ordering::Relaxed) == use_of_place
    }
}
