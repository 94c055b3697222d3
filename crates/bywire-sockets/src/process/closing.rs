//! The last steps for a socket that the kernel has closed.

use crate::connection::outcome;
use crate::connection::sockets::Leaving;
use crate::epoll::handover;
use crate::pairing::offer;

/// The kernel has closed it. A record that nobody holds is free again.
pub fn finish(leaving: Leaving) {
    if !leaving.is_last {
        return;
    }
    outcome::ended(&leaving);
    handover::forget(&leaving);
    offer::end(&leaving);
    leaving.free();
}
