//! Processes: their users, privileges and ends.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

/// A descriptor that becomes readable when process `pid` ends.
///
/// # Errors
/// [`Errno::SRCH`] if it has ended already, [`Errno::INVAL`] for a pid that no process of this namespace can have (0
/// stands for "in another pid namespace").
pub fn watch(pid: i32) -> Result<OwnedFd, Errno> {
    let pid = Pid::from_raw(pid).ok_or(Errno::INVAL)?;
    rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK)
}

/// Has the process behind a descriptor of [`watch`] ended?
pub fn has_ended(process: &impl AsFd) -> bool {
    let mut asked = [rustix::event::PollFd::new(process, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut asked, Some(&now)), Ok(1..))
}

/// The parent of a process; `None`: there is no such process here, or it has none.
pub fn parent(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may hold anything. The state and the parent follow it.
    let parent = text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    (parent != 0).then_some(parent)
}

/// This process's effective user.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// How often the kernel took the core from this thread although it could have continued.
pub fn involuntary_switches() -> u64 {
    // SAFETY: getrusage writes one rusage structure, which lives here.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) != 0 {
            return 0;
        }
        usage.ru_nivcsw.try_into().unwrap_or(0)
    }
}

/// This machine's host name, or `localhost` where it has none.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// Fills `bytes` from the kernel's random generator.
///
/// # Errors
/// The error of `getrandom`.
pub fn random(mut bytes: &mut [u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let filled = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())?;
        bytes = &mut bytes[filled..];
    }
    Ok(())
}

/// Makes `directory` the root of the file system for this process, and its working directory. Leaving it requires
/// CAP_SYS_CHROOT, unless the process holds a descriptor of a directory outside.
///
/// # Errors
/// [`Errno::PERM`] without CAP_SYS_CHROOT; else the error of the kernel.
pub fn make_root(directory: &std::path::Path) -> Result<(), Errno> {
    rustix::process::chroot(directory)?;
    rustix::process::chdir("/")
}

/// Asks the kernel for the version of its Landlock.
///
/// # Errors
/// [`Errno::NOSYS`] if it has none, [`Errno::OPNOTSUPP`] if it is not turned on, and what a filter of system calls answers instead
/// of the kernel.
pub fn landlock_version() -> Result<i64, Errno> {
    /// `LANDLOCK_CREATE_RULESET_VERSION` of include/uapi/linux/landlock.h.
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no attributes, and only returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, core::ptr::null::<u8>(), 0_usize, VERSION)
    };
    if version < 0 { Err(crate::option::last_error()) } else { Ok(version) }
}

/// Returns whether a filter decides about the system calls of this thread, as in most containers.
pub fn has_call_filter() -> bool {
    use rustix::thread::SecureComputingMode;
    // A filter may refuse the question as well.
    rustix::thread::secure_computing_mode() != Ok(SecureComputingMode::Disabled)
}

/// Gives up every capability of this thread for good: none is left, and no program that it executes can gain one.
///
/// # Errors
/// The error of the kernel.
pub fn give_up_privileges() -> Result<(), Errno> {
    use rustix::thread::{CapabilitySet, CapabilitySets};
    rustix::thread::set_no_new_privs(true)?;
    // Later kernels may have more capabilities than we know. The kernel refuses a number that it does not have.
    for number in 0..64 {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(
            1 << number,
        )) {
            Ok(()) => {}
            // PERM: without CAP_SETPCAP the set stays as it is. `no_new_privs` keeps programs from gaining any of it.
            // INVAL: that was the last capability.
            Err(Errno::PERM | Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: none, permitted: none, inheritable: none },
    )
}
