//! Limits of open descriptors, of file lengths, of memory and of watched files.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open descriptors to at least `needed`, or as far as the hard limit allows.
///
/// # Errors
/// [`Errno::MFILE`] when the hard limit is lower than `needed`.
pub fn raise_descriptor_limit(needed: u64) -> Result<(), Errno> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let target = limit.maximum.map_or(needed, |maximum| maximum.min(needed.max(65_536)));
    setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum: limit.maximum })?;
    if target < needed { Err(Errno::MFILE) } else { Ok(()) }
}

/// The present soft limit of open descriptors.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// May a file of this process have this length? A signal ends a process whose file, even a memory file, grows too
/// long.
pub fn may_file_have(length_bytes: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|current| current >= length_bytes)
}

/// The memory of this machine.
pub fn memory_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let found = rustix::system::sysinfo();
        (found.totalram as u64).saturating_mul(found.mem_unit.into())
    })
}

/// The files that a user may watch at once, by inotify.
pub fn watches_of_user() -> usize {
    /// The kernel's least value.
    const LEAST: usize = 8192;
    let found = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches");
    found.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(LEAST)
}

/// A descriptor to close when no other descriptors are left.
///
/// # Errors
/// The error of `open`.
pub fn reserve_descriptor() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}
