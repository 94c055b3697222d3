//! Sockets that were opened before this program started, as systemd passes them on.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// The number of the first passed socket.
const FIRST: i32 = 3;

/// The socket that was passed to this process, at the first call. `None`: there is none.
///
/// # Errors
/// [`Errno::INVAL`] for several sockets, [`Errno::BADF`] if the descriptor is not open.
pub fn socket() -> Result<Option<OwnedFd>, Errno> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    // Child processes inherit the variables, but not the sockets.
    if number("LISTEN_PID") != Some(std::process::id()) || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    if number("LISTEN_FDS") != Some(1) {
        return Err(Errno::INVAL);
    }
    // SAFETY: no pointers.
    if unsafe { libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the descriptor is open, the service manager says that it is for this process, and `IS_TAKEN` lets it be
    // taken only once.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(FIRST) }))
}
