//! How the scheduler treats a thread.

use std::time::Duration;

use rustix::io::Errno;

/// `struct sched_attr` of linux/sched/types.h, in its first version.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Asks for short slices of processor time for the calling thread: it runs sooner when it wakes, and is interrupted sooner.
/// Its share of the time stays what it was. Linux before 6.12 accepts that and does nothing.
///
/// # Errors
/// The error of the kernel; [`Errno::INVAL`] if the thread has another policy than the usual one.
pub fn take_short_slices(slice: Duration) -> Result<(), Errno> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>() as u32;
    // SAFETY: the kernel writes at most as many bytes as it is told, into a live structure.
    let found = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if found != 0 {
        return Err(last_error());
    }
    if attributes.policy != libc::SCHED_OTHER as u32 {
        return Err(Errno::INVAL);
    }
    attributes.runtime_ns = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: the kernel reads a live structure of the size that it states.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// Has the waits of the calling thread end when they are due, and not up to 50 µs later, by which the kernel lets timers share
/// an interrupt.
pub fn take_exact_timers() {
    // SAFETY: no pointers. The kernel accepts any time but zero, which stands for the default.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_ask_for_short_slices() {
        let asked = std::thread::spawn(|| take_short_slices(Duration::from_micros(100))).join();
        assert_eq!(asked.expect("no panic"), Ok(()));
    }
}
