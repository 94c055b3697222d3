//! A bell between users who do not trust each other.
//!
//! A timer, whose count anybody who holds it may set. Setting it wakes whoever watches it by edge, every time, and never
//! waits: a counter (eventfd) that one side has filled would hold the other one up.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags};

/// `TFD_IOC_SET_TICKS` of linux/timerfd.h. Kernels without checkpoints (`CONFIG_CHECKPOINT_RESTORE`) lack it.
pub const SET_COUNT: libc::c_ulong = 0x4008_5400;

/// A new one.
///
/// # Errors
/// What the kernel said; [`Errno::NOTTY`] where it cannot be struck.
pub fn new() -> Result<OwnedFd, Errno> {
    let file = rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
    )?;
    let count = 1u64;
    // SAFETY: eight bytes that are read.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), SET_COUNT, &raw const count) };
    if status == 0 {
        return Ok(file);
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
