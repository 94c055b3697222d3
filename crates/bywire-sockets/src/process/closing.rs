//! The last steps for a socket that the kernel has closed.

use crate::connection::outcome;
use crate::connection::sockets::Leaving;
use crate::epoll::handover;
use crate::pairing::account;

/// Counts a socket that has ended, and frees its record.
pub fn finish(leaving: Leaving) {
    if leaving.is_last {
        outcome::ended(&leaving);
    }
    free(leaving);
}

/// The kernel has closed a socket that was counted already. Frees its record if nobody holds it.
pub fn free(leaving: Leaving) {
    if !leaving.is_last {
        return;
    }
    handover::forget(&leaving);
    account::end(&leaving);
    leaving.free();
}
