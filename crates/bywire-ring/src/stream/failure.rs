//! An error of the kernel's that one end has taken in the other one's place.
//!
//! An engine gives the kernel what a program has put into its ring. If the kernel answers by an error, it is the
//! program that must be told.

use core::sync::atomic::Ordering;

use super::{FAILURE, Segment, Stream};

impl Stream {
    /// Publishes the error number of the kernel's that has ended what this end gives to it. Nothing more is taken out of
    /// the peer's ring.
    pub fn fail<S: Segment>(&self, own: &S, number: u32) {
        // Release: what was taken before comes first; pairs with the acquire load in `failure`.
        own.store(FAILURE, number.into(), Ordering::Release);
    }

    /// The error number that the peer has published, by its own word, which may be anything; 0: none.
    pub fn failure<S: Segment>(&self, remote: &S) -> u64 {
        // Acquire: pairs with the release store in `fail`.
        remote.load(FAILURE, Ordering::Acquire)
    }
}
