//! A directory shared by users who do not trust each other.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Makes sure that `path` is a directory in which we can create sockets and in which no other user can replace
/// entries: it belongs to us alone, or is sticky. Makes a missing directory: root for all users, another user for
/// itself alone.
///
/// # Errors
/// The error of the kernel; [`Errno::PERM`] if other users could tamper with the directory, or if its owner is
/// untrusted.
pub fn prepare(path: &Path) -> Result<(), Errno> {
    let user = crate::process::user();
    let mode = if user == 0 { Mode::from_raw_mode(0o1777) } else { Mode::from_raw_mode(0o700) };
    match rustix::fs::mkdir(path, mode) {
        // `mkdir` applied the umask; this sets the mode that we mean.
        Ok(()) => rustix::fs::chmod(path, mode)?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir() {
        return Err(Errno::NOTDIR);
    }
    if found.st_uid != user && found.st_uid != 0 {
        return Err(Errno::PERM);
    }
    let (others_write, sticky) = (found.st_mode & 0o022 != 0, found.st_mode & 0o1000 != 0);
    if others_write && !sticky {
        return Err(Errno::PERM);
    }
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
}

/// Is root the only user that can put anything into this directory?
pub fn is_roots_alone(path: &Path) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| {
        let is_directory = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
        is_directory && found.st_uid == 0 && found.st_mode & 0o022 == 0
    })
}

/// Are we and root the only users that can replace the entry at `path`, which is open as `file`, or a directory on
/// the way to it? `false` for a path through a link, as links are not followed.
///
/// # Errors
/// The error of the kernel.
pub fn is_lasting(path: &Path, file: impl AsFd) -> Result<bool, Errno> {
    // This fails only for an empty path, or if the working directory has been removed.
    let Ok(path) = std::path::absolute(path) else { return Ok(false) };
    let is_trusted = |user: u32| user == 0 || user == crate::process::user();
    let mut entry = rustix::fs::fstat(file)?;
    for directory in path.ancestors().skip(1) {
        let found = rustix::fs::statat(CWD, directory, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_directory = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
        let (others_write, sticky) = (found.st_mode & 0o022 != 0, found.st_mode & 0o1000 != 0);
        let is_kept = !others_write || sticky && is_trusted(entry.st_uid);
        if !is_directory || !is_trusted(found.st_uid) || !is_kept {
            return Ok(false);
        }
        entry = found;
    }
    Ok(true)
}

/// Sets which users may connect to the socket at `path`.
///
/// # Errors
/// The error of the kernel; [`Errno::PERM`] for a group that we do not belong to.
pub fn set_access(path: &Path, mode: u32, group: Option<u32>) -> Result<(), Errno> {
    if let Some(group) = group {
        rustix::fs::chown(path, None, Some(Gid::from_raw(group)))?;
    }
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}

/// Renames `old` unless `new` exists.
///
/// # Errors
/// [`Errno::EXIST`] if it exists; else the error of the kernel.
pub fn rename_if_free(old: &Path, new: &Path) -> Result<(), Errno> {
    rustix::fs::renameat_with(CWD, old, CWD, new, RenameFlags::NOREPLACE)
}

/// Renames `old`, and replaces `new` if it exists.
///
/// # Errors
/// [`Errno::PERM`] or [`Errno::ACCESS`] if `new` belongs to another user.
pub fn rename(old: &Path, new: &Path) -> Result<(), Errno> {
    rustix::fs::rename(old, new)
}

/// Removes a name. A missing name is no error.
pub fn remove(path: &Path) {
    let _ = rustix::fs::unlink(path);
}

/// Removes a directory that has nothing in it. Whatever else is there stays.
pub fn remove_empty(path: &Path) {
    let _ = rustix::fs::rmdir(path);
}

/// Takes this user's lock of a directory. It is held until the descriptor is dropped.
///
/// If no other user can open the directory, it is the lock of the directory itself. Otherwise it is the lock of a
/// file in it, which stays: a user that can open a file can hold its lock forever.
///
/// # Errors
/// [`Errno::AGAIN`] if another process has the lock; [`Errno::PERM`] if the file's name belongs to another user.
pub fn try_lock(path: &Path) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let is_private = rustix::fs::fstat(&file)?.st_mode & 0o077 == 0;
    let file = if is_private { file } else { lock_file(&file)? };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// This user's lock file in a shared directory. No other user can open it.
fn lock_file(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let user = crate::process::user();
    // NONBLOCK: a fifo of this name, made by another user, must not block us before it is refused.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, format!(".{user}.lock"), flags, Mode::from_raw_mode(0o600))
        .map_err(|error| match error {
            // The kernel's errors for another user's file, in a sticky directory or elsewhere, and for a link.
            Errno::ACCESS | Errno::LOOP | Errno::NXIO => Errno::PERM,
            error => error,
        })?;
    let found = rustix::fs::fstat(&file)?;
    let is_file = rustix::fs::FileType::from_raw_mode(found.st_mode).is_file();
    // A hard link would lead to another file of ours, which others may open or which has another purpose.
    let is_ours = is_file && found.st_uid == user && found.st_nlink == 1;
    if is_ours && found.st_mode & 0o077 == 0 { Ok(file) } else { Err(Errno::PERM) }
}

/// The properties of an entry that can be read without opening it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The user that owns it.
    pub owner: u32,
    /// Is it a socket?
    pub is_socket: bool,
    /// How long ago it was made or renamed, by the wall clock: only a hint.
    pub age: Duration,
}

/// Reads the properties of an entry. Links are not followed.
///
/// # Errors
/// The error of the kernel.
pub fn entry(path: &Path) -> Result<Entry, Errno> {
    let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    let made =
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(found.st_ctime.try_into().unwrap_or(0)));
    Ok(Entry {
        owner: found.st_uid,
        is_socket: rustix::fs::FileType::from_raw_mode(found.st_mode).is_socket(),
        age: made.and_then(|made| made.elapsed().ok()).unwrap_or_default(),
    })
}

/// Opens an entry of any kind without its contents. Links are not followed.
///
/// # Errors
/// The error of the kernel.
pub fn open_entry(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Returns whether a path still leads to an entry that [`open_entry`] has opened.
pub fn leads_to(path: &Path, entry: &OwnedFd) -> bool {
    match (rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW), rustix::fs::fstat(entry)) {
        (Ok(there), Ok(here)) => (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino),
        _ => false,
    }
}

/// The name of a file that this process has made, and removes again. A successor of the file keeps the name.
#[derive(Debug)]
pub struct OwnName {
    path: PathBuf,
    /// While it is open, no other file gets its identity.
    entry: OwnedFd,
}

impl OwnName {
    /// The name `path`, which leads to a file of this process.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn of(path: &Path) -> Result<Self, Errno> {
        Ok(Self { path: path.to_owned(), entry: open_entry(path)? })
    }

    /// The name of this file once it is renamed to `path`.
    pub fn renamed(self, path: &Path) -> Self {
        Self { path: path.to_owned(), ..self }
    }

    /// Removes the name, unless it leads to another file by now or is missing.
    pub fn remove(&self) {
        if leads_to(&self.path, &self.entry) {
            remove(&self.path);
        }
    }
}

/// The first `count_max` names in a directory, in no order.
///
/// # Errors
/// The error of the kernel.
pub fn names(path: &Path, count_max: usize) -> Result<Vec<String>, Errno> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let entries = rustix::fs::Dir::new(file)?;
    // Our names are text, so others are skipped.
    let text = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok().map(str::to_owned);
    Ok(entries.map_while(Result::ok).take(count_max).filter_map(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn directory(mode: u32) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).expect("chmod");
        directory
    }

    fn own_lock(directory: &Path) -> std::path::PathBuf {
        directory.join(format!(".{}.lock", crate::process::user()))
    }

    #[test]
    fn only_files_that_nobody_else_can_write_count_as_roots() {
        assert!(is_roots_alone(Path::new("/proc")), "root's on every system");
        for (mode, is_such) in [(0o755, true), (0o777, false), (0o1777, false), (0o775, false)] {
            let directory = directory(mode);
            let is_root = crate::process::user() == 0;
            assert_eq!(is_roots_alone(directory.path()), is_such && is_root, "mode {mode:o}");
        }
        assert!(!is_roots_alone(Path::new("/proc/self/exe")), "no directory");
    }

    #[test]
    fn an_entry_lasts_only_where_every_directory_on_its_way_does() {
        let above = directory(0o755);
        let own = above.path().join("own");
        std::fs::create_dir(&own).expect("made");
        std::fs::write(own.join("entry"), "").expect("written");
        std::os::unix::fs::symlink(&own, above.path().join("link")).expect("linked");
        let file = std::fs::File::open(own.join("entry")).expect("open");
        let is_such = |own: &Path| is_lasting(&own.join("entry"), &file).expect("looked at");
        for (mode, expected) in [(0o755, true), (0o1777, true), (0o777, false), (0o775, false)] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(above.path(), mode.clone()).expect("chmod");
            assert_eq!(is_such(&own), expected, "in {mode:?}");
        }
        std::fs::set_permissions(above.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        assert!(is_such(&own) && !is_such(&above.path().join("link")), "a link is another's to change");
    }

    #[test]
    fn a_name_is_removed_only_while_it_leads_to_its_own_file() {
        let directory = directory(0o700);
        let path = directory.path().join("socket");
        std::fs::write(&path, "").expect("written");
        let own = OwnName::of(&path).expect("there");
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "").expect("written");
        own.remove();
        assert!(path.exists(), "it is a successor's");
        let own = OwnName::of(&path).expect("there");
        own.remove();
        own.remove();
        assert!(!path.exists() && OwnName::of(&path).is_err());
    }

    /// Takes the lock as soon as it is free. A child process of a concurrent test holds all locks until its `exec`.
    fn lock_soon(directory: &Path) -> Result<OwnedFd, Errno> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            match try_lock(directory) {
                Err(Errno::AGAIN) if std::time::Instant::now() < deadline => {}
                outcome => return outcome,
            }
        }
    }

    #[test]
    fn a_lock_is_held_once_and_is_a_file_only_where_others_could_open_the_directory() {
        for (mode, leaves_file) in [(0o700, false), (0o755, true), (0o1777, true)] {
            let directory = directory(mode);
            let lock = try_lock(directory.path()).expect("free");
            assert_eq!(try_lock(directory.path()).err(), Some(Errno::AGAIN));
            drop(lock);
            lock_soon(directory.path()).expect("free again");
            assert_eq!(own_lock(directory.path()).exists(), leaves_file, "mode {mode:o}");
        }
    }

    #[test]
    fn a_lock_on_a_shared_directory_delays_nobody() {
        let directory = directory(0o1777);
        let held = std::fs::File::open(directory.path()).expect("anybody can");
        rustix::fs::flock(&held, FlockOperation::LockExclusive).expect("and lock it");
        try_lock(directory.path()).expect("another lock");
    }

    #[test]
    fn a_lock_file_that_others_may_open_is_refused() {
        let open_to_all = directory(0o1777);
        std::fs::write(own_lock(open_to_all.path()), "").expect("written");
        let all = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(own_lock(open_to_all.path()), all).expect("chmod");
        assert_eq!(try_lock(open_to_all.path()).err(), Some(Errno::PERM));
        let linked = directory(0o1777);
        std::os::unix::fs::symlink("/dev/null", own_lock(linked.path())).expect("a link");
        assert_eq!(try_lock(linked.path()).err(), Some(Errno::PERM));
    }
}
