//! Deferred close of files that other processes have sent.
//!
//! The sender of a descriptor decides how long its last close takes: a socket may linger, a user's own file system
//! may not answer, and the contents of a socket's queue are closed with the socket. So a thread that has other work
//! never closes a file of another process. Threads of this module do it, one for each user, so that no user's files
//! wait behind another's. Files that a user's thread has not closed yet are on that user's account. At a limit, no
//! more descriptors are taken from that user.
//!
//! A socket is on a separate account of its peer's user, with a thread of its own, because of the contents of its
//! queue. A user with too many waiting sockets is over its quota, for example after a close that never ends, and its
//! connections are refused. While there is such a user, no descriptor gets into the queue of a connection that has not
//! been accepted, where the kernel can refuse that (Linux 6.16). Sockets beyond the quota take no place of another user.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::close_account::{self, Account};
use crate::credentials;

/// From now on this process closes everything at once, as it may start no threads. Only programs of its own user may
/// be able to reach it. A close that waits is interrupted on the calling thread, unless a file system makes it wait.
pub use crate::close_account::forgo;
pub use crate::close_account::{Held, Ticket};

/// A descriptor of unknown kind that another process has sent. When it is dropped, another thread closes it.
#[derive(Debug)]
pub struct ReceivedFd {
    file: ManuallyDrop<OwnedFd>,
    account: Account,
}

/// A connection to an untrusted process. Dropping it closes it as [`close_socket`] does.
#[derive(Debug)]
pub struct Deferred<T: Into<OwnedFd>>(ManuallyDrop<T>);

/// Closes a socket of another process together with the contents of its queue.
///
/// The queued files were never in this process's table, so most file systems flush nothing when they are closed, and
/// a close that lingers is interrupted. The thread serves only the user at the other end.
pub fn close_socket(file: impl Into<Held>) {
    let file = file.into();
    let account = Account::of_sockets(credentials::user(&file));
    account.hold();
    account.close(file);
}

/// Closes a file that programs of these two users have had in common. Either user can delay the last close, so the
/// thread serves only these two.
pub fn close_common(file: impl Into<Held>, users: [u32; 2]) {
    let account = Account::of_common(users);
    account.hold();
    account.close(file);
}

/// May programs of these two users get one more file in common? Not while many files of either user wait.
pub fn may_have_common(users: [u32; 2]) -> bool {
    close_account::may_have_common(users)
}

impl ReceivedFd {
    pub(crate) fn new(file: OwnedFd, account: &Account) -> Self {
        account.hold();
        Self { file: ManuallyDrop::new(file), account: account.clone() }
    }

    /// The descriptor itself. The caller knows that closing it is harmless: it has checked the kind, or the
    /// descriptor comes from its own program, or the calling thread serves only the sender.
    pub fn into_inner(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        this.account.release();
        // SAFETY: `this` is never dropped and not looked at again, so each part of it is taken once.
        unsafe {
            drop(core::ptr::read(&raw const this.account));
            ManuallyDrop::take(&mut this.file)
        }
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        // SAFETY: `drop` runs at most once. `into_inner`, which takes the file too, keeps `drop` from running.
        let file = unsafe { ManuallyDrop::take(&mut self.file) };
        self.account.close(file);
    }
}

impl<T: Into<OwnedFd>> Deferred<T> {
    /// Defers the close of `connection`.
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
        // SAFETY: only `drop` takes the connection, and it runs once.
        let connection: OwnedFd = unsafe { ManuallyDrop::take(&mut self.0) }.into();
        close_socket(connection);
    }
}
