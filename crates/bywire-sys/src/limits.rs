//! Limits of descriptors and of the lengths of files.

use std::os::fd::OwnedFd;

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

/// The soft limit of open descriptors now.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// May a file of this process become so long? One that becomes too long ends the process by a signal, memory files too.
pub fn may_file_have(length_bytes: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|current| current >= length_bytes)
}

/// A descriptor held only so that it can be closed when there are no others left.
///
/// # Errors
/// What `open` said.
pub fn reserve_descriptor() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}
