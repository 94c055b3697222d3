//! Descriptors that strangers send and we do not want.
//!
//! Closing the last descriptor of a lingering socket or of a file on a user's file system can take as long
//! as its sender likes, so it is left to a thread that may wait.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

/// Closes descriptors of unknown kind without holding the caller up.
pub fn discard(descriptors: Vec<OwnedFd>) {
    static CLOSER: OnceLock<Option<Sender<Vec<OwnedFd>>>> = OnceLock::new();
    if descriptors.is_empty() {
        return;
    }
    let closer = CLOSER.get_or_init(|| {
        let (sender, receiver) = channel::<Vec<OwnedFd>>();
        let thread = std::thread::Builder::new().name("bywire-closer".to_owned());
        thread.spawn(move || receiver.into_iter().for_each(drop)).ok().map(|_| sender)
    });
    // What waits there is bounded by the limit of descriptors. Without a thread they are closed here.
    if let Some(sender) = closer {
        let _ = sender.send(descriptors);
    }
}
