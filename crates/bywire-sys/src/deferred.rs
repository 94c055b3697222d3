//! Deferred close of what other processes have sent.
//!
//! The last close of a descriptor takes as long as whoever has sent it likes: a socket lingers, a file system of a user's
//! own does not answer, what lies in the queue of a socket is closed with it. So nothing of another process is closed by
//! a thread that has anything else to do. Threads of this module do it, one for each user, so that nobody's descriptors
//! wait behind another's. What a user's thread has not closed yet is on that user's account: from a bound on, no more
//! descriptors are taken from that user.
//!
//! A socket is on an account of its peer's user, with a thread of its own, for what lies in its queue. A user of whom many
//! wait, as one whose close never ends, is a crowd: while there is one, no descriptor gets into the queue of a connection
//! that has not been accepted (where the kernel can refuse that, from Linux 6.16 on), and crowds are let in no more. What
//! a crowd has beyond its share takes nobody else's place.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::account::{self, Account};
use crate::credentials;

/// From here on this process closes everything at once, as it may start no threads. Only programs of its own user may be
/// able to reach it: what they send is interrupted on the calling thread, but for a wait of a file system's own.
pub use crate::account::forgo;
pub use crate::account::{Held, Ticket};

/// A descriptor that another process has sent, and of which nothing is known. Dropped, it is closed elsewhere.
#[derive(Debug)]
pub struct Foreign {
    file: ManuallyDrop<OwnedFd>,
    account: Account,
}

/// A connection of a stranger's that is closed as by [`close_socket`] when it is dropped.
#[derive(Debug)]
pub struct Deferred<T: Into<OwnedFd>>(ManuallyDrop<T>);

/// Closes the socket of another process with what lies in its queue.
///
/// That was never in this process's table, so most file systems flush nothing of it, and what lingers is interrupted. The
/// thread serves the user at the other end alone.
pub fn close_socket(file: impl Into<Held>) {
    let file = file.into();
    let account = Account::of_sockets(credentials::user(&file));
    account.hold();
    account.close(file);
}

/// Closes what programs of these two users have had in common. Either could hold up whoever closes it last, so the thread
/// serves these two alone.
pub fn close_common(file: impl Into<Held>, users: [u32; 2]) {
    let account = Account::of_common(users);
    account.hold();
    account.close(file);
}

/// May programs of these two users get something in common? Not while much of what either has had with anybody waits.
pub fn may_have_common(users: [u32; 2]) -> bool {
    account::may_have_common(users)
}

impl Foreign {
    pub(crate) fn new(file: OwnedFd, account: &Account) -> Self {
        account.hold();
        Self { file: ManuallyDrop::new(file), account: account.clone() }
    }

    /// The descriptor itself, for those who know that they may close it: what it is has been looked at, or it comes from
    /// their own program, or their thread serves its sender alone.
    pub fn into_inner(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        this.account.release();
        // SAFETY: this function has put `self` where it is never dropped, and does not look at it again, so each of its parts
        // is taken out of it once.
        unsafe {
            drop(core::ptr::read(&raw const this.account));
            ManuallyDrop::take(&mut this.file)
        }
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: `drop` takes it here, and runs once at most; `into_inner`, which takes it too, keeps `drop` from running.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        self.account.close(file);
    }
}

impl<T: Into<OwnedFd>> Deferred<T> {
    /// From here on.
    pub fn new(connection: T) -> Self {
        Self(ManuallyDrop::new(connection))
    }
}

impl<T: Into<OwnedFd>> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Into<OwnedFd>> DerefMut for Deferred<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Into<OwnedFd>> Drop for Deferred<T> {
    fn drop(&mut self) {
        // SAFETY: `drop` alone takes it, and runs once.
        let connection: OwnedFd = unsafe { ManuallyDrop::take(&mut self.0) }.into();
        close_socket(connection);
    }
}
