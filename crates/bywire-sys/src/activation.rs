//! Sockets that were opened before this program was started, as systemd hands them over.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first of them.
const FIRST: i32 = 3;

/// The only socket that was handed to this process, the first time that it is asked for. `None`: none, or several.
pub fn socket() -> Option<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    // The variables are inherited, the sockets are not.
    if number("LISTEN_PID") != Some(std::process::id()) || number("LISTEN_FDS") != Some(1) {
        return None;
    }
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: it is open, whoever started this process says that it is for us, and nobody here has taken it before.
    (flags == 0).then(|| unsafe { OwnedFd::from_raw_fd(FIRST) })
}
