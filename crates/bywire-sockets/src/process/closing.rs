//! The last steps for a socket that the kernel has closed.

use crate::connection::outcome;
use crate::connection::sockets::Leaving;
use crate::epoll::handover;
use crate::pairing::offer;

/// Counts a socket that has ended, and frees it.
pub fn finish(leaving: Leaving) {
    if leaving.is_last {
        outcome::ended(&leaving);
    }
    free(leaving);
}

/// The kernel has closed a socket that is counted already. A record that nobody holds is free again.
pub fn free(leaving: Leaving) {
    if !leaving.is_last {
        return;
    }
    handover::forget(&leaving);
    offer::end(&leaving);
    leaving.free();
}
