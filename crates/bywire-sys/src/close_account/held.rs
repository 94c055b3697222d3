//! A file that waits to be closed.

use core::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Gives something back when it is dropped.
pub type Ticket = Arc<dyn Any + Send + Sync>;

/// A descriptor, and the ticket that is given back once it is closed. The fields are dropped in this order.
#[derive(Debug)]
pub struct Held {
    file: OwnedFd,
    _ticket: Option<Ticket>,
}

impl Held {
    /// Gives `ticket` back when `file` is closed.
    pub fn new(file: OwnedFd, ticket: Option<Ticket>) -> Self {
        Self { file, _ticket: ticket }
    }
}

impl From<OwnedFd> for Held {
    fn from(file: OwnedFd) -> Self {
        Self::new(file, None)
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
