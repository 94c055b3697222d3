//! The process at the other end of a Unix socket, as the kernel reports it.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::option::last_error;

/// The process at the other end, as the kernel attests it: for an accepted socket the process that called `connect`,
/// for a connecting one the process that called `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process, in our pid namespace; 0 if it lives in one that we cannot see.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The process at the other end of a socket.
pub(crate) fn of(file: &impl AsFd) -> Result<Credentials, Errno> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: `ucred` is plain data of the size that SO_PEERCRED writes, and lives here.
    let written = unsafe { option(file, libc::SO_PEERCRED, (&raw mut found).cast(), size_of_val(&found)) }?;
    if written != size_of_val(&found) {
        return Err(Errno::INVAL);
    }
    Ok(Credentials { pid: found.pid, uid: found.uid, gid: found.gid })
}

/// The user at the other end, or `u32::MAX`, which no user has, if it is not known.
pub(crate) fn user(file: &impl AsFd) -> u32 {
    of(file).map_or(u32::MAX, |found| found.uid)
}

/// The supplementary groups of the other end, at most 256 of them.
pub(crate) fn groups(file: &impl AsFd) -> Result<Vec<u32>, Errno> {
    let mut groups = [0u32; 256];
    // SAFETY: SO_PEERGROUPS writes an array of gid_t (u32) of at most the given length.
    let written =
        unsafe { option(file, libc::SO_PEERGROUPS, groups.as_mut_ptr().cast(), size_of_val(&groups)) }?;
    Ok(groups[..written / size_of::<u32>()].to_vec())
}

/// A descriptor that becomes readable when the process at the other end ends. It works across pid namespaces from
/// Linux 6.5 on, else by pid.
pub(crate) fn watch_process(file: &impl AsFd) -> Result<OwnedFd, Errno> {
    /// `SO_PEERPIDFD` of linux/socket.h.
    const SO_PEERPIDFD: i32 = 77;
    let mut raw: i32 = -1;
    // SAFETY: SO_PEERPIDFD writes one int.
    match unsafe { option(file, SO_PEERPIDFD, (&raw mut raw).cast(), size_of::<i32>()) } {
        // SAFETY: on success the int is a new descriptor that nobody else owns.
        Ok(_) if raw >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        Err(Errno::NOPROTOOPT) => crate::process::watch(of(file)?.pid),
        Ok(_) => Err(Errno::BADF),
        Err(error) => Err(of_ended(error)),
    }
}

/// Translates the error of SO_PEERPIDFD for a process that has been waited for: ESRCH, but EINVAL from Linux 6.5 to
/// 6.14, which has no other reason.
fn of_ended(error: Errno) -> Errno {
    if error == Errno::INVAL { Errno::SRCH } else { error }
}

/// # Safety
/// `target` must be valid for writes of `length` bytes. All bytes that the option writes must be a valid value of the
/// type behind it.
unsafe fn option(
    file: &impl AsFd,
    name: i32,
    target: *mut libc::c_void,
    length: usize,
) -> Result<usize, Errno> {
    let mut written = libc::socklen_t::try_from(length).map_err(|_| Errno::INVAL)?;
    let file = file.as_fd().as_raw_fd();
    // SAFETY: the caller vouches for `target`, `written` is a local socklen_t, and the descriptor is borrowed.
    let status = unsafe { libc::getsockopt(file, libc::SOL_SOCKET, name, target, &raw mut written) };
    if status == 0 { Ok(written as usize) } else { Err(last_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_errors_for_an_ended_process_are_recognised() {
        assert_eq!([Errno::INVAL, Errno::SRCH].map(of_ended), [Errno::SRCH; 2]);
        assert_eq!(of_ended(Errno::MFILE), Errno::MFILE);
    }
}
