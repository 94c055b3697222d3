//! A doorbell between users who do not trust each other.
//!
//! It is a timer: each holder may set its count. Setting it wakes every edge-triggered watcher, each time, and never
//! waits. An eventfd would not do, as one side could fill its counter and so hold up the other one.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags};

/// `TFD_IOC_SET_TICKS` of linux/timerfd.h. Kernels without checkpoints (`CONFIG_CHECKPOINT_RESTORE`) lack it.
pub const SET_COUNT: libc::c_ulong = 0x4008_5400;

/// A new doorbell.
///
/// # Errors
/// The error of the kernel; [`Errno::NOTTY`] if this kernel does not let the count be set.
pub fn new() -> Result<OwnedFd, Errno> {
    let file = rustix::time::timerfd_create(
        TimerfdClockId::Monotonic,
        TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
    )?;
    let count = 1u64;
    // SAFETY: the kernel reads the eight bytes of `count`, which lives here.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), SET_COUNT, &raw const count) };
    if status == 0 {
        return Ok(file);
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
