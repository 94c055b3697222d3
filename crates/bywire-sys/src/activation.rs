//! Sockets that were opened before this program was started, as systemd hands them over.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// The first of them.
const FIRST: i32 = 3;

/// The socket that was handed to this process, the first time that it is asked for. `None`: there is none.
///
/// # Errors
/// [`Errno::INVAL`] for several, [`Errno::BADF`] for one that is not there.
pub fn socket() -> Result<Option<OwnedFd>, Errno> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    // The variables are inherited, the sockets are not.
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
    // SAFETY: it is open, whoever started this process says that it is for us, and nobody here has taken it before.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(FIRST) }))
}
