//! Scratch directories of measurements, for instance for the ports of a `msg` pair, and the removal of those whose
//! owner was killed.
//!
//! The process that makes one holds a lock inside. A lock ends with its process, so a directory without a holder is a
//! leftover. The next program that makes a scratch directory removes it.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

/// The lock inside each directory. Ports lock the directory itself.
const LOCK_FILE: &str = "lock";

/// The prefix of their names.
pub const PREFIX: &str = "bywire-lab-";

/// A directory of this process. Dropping it removes it, with whatever a killed end has left.
#[derive(Debug)]
pub struct ScratchDirectory {
    path: PathBuf,
    _lock: File,
}

/// 128 random bits in hex.
pub fn nonce() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The directory of the pair with this cookie, so that a measurement sees only its own ports.
pub fn directory(cookie: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{PREFIX}{cookie}"))
}

impl ScratchDirectory {
    /// Makes and locks the [`directory`] of a pair. Fails if the file system does not allow it.
    pub fn of(cookie: &str) -> Result<Self> {
        Self::make(directory(cookie), PREFIX)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes and locks the directory at `path`. The first call for a parent directory also removes this user's
    /// leftovers there, whose names begin with `prefix`.
    pub fn make(path: PathBuf, prefix: &str) -> Result<Self> {
        static TIDIED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
        if let Some(parent) = path.parent() {
            let mut tidied = TIDIED.lock().unwrap_or_else(PoisonError::into_inner);
            if tidied.insert(parent.to_owned()) {
                remove_left_over(parent, prefix);
            }
        }
        // Another program may remove it as a leftover, but only before the lock is held.
        loop {
            let made = DirBuilder::new().mode(0o700).create(&path);
            made.with_context(|| format!("cannot make {}", path.display()))?;
            if let Some(lock) = hold(&path)? {
                return Ok(Self { path, _lock: lock });
            }
            // Another program is removing it.
            let _gone_already = fs::remove_dir_all(&path);
        }
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _gone_already = fs::remove_dir_all(&self.path);
    }
}

/// Locks `directory`. Returns `None` if another process holds or removes it.
fn hold(directory: &Path) -> Result<Option<File>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match open(directory.join(LOCK_FILE), flags, Mode::from_raw_mode(0o600)) {
        Err(Errno::NOENT) => return Ok(None),
        opened => File::from(opened.with_context(|| format!("cannot write in {}", directory.display()))?),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::AGAIN) => return Ok(None),
        locked => locked.context("cannot take a lock")?,
    }
    Ok((file.metadata()?.nlink() > 0).then_some(file))
}

/// Removes this user's directories in `parent`, of names that begin with `prefix`, that nobody holds.
fn remove_left_over(parent: &Path, prefix: &str) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes())) {
        // Links are not followed. In a sticky directory, no other user can replace our directory.
        let found = fs::symlink_metadata(entry.path());
        let user = rustix::process::geteuid().as_raw();
        let is_ours = found.is_ok_and(|found| found.is_dir() && found.uid() == user);
        if is_ours && let Ok(Some(_lock)) = hold(&entry.path()) {
            // An error means that another program has taken it.
            let _kept = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_without_an_owner_process_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let held = ScratchDirectory::make(at("pair-held"), "none").unwrap();
        fs::write(at("pair-held").join("target"), "").unwrap();
        for left in ["pair-killed", "pair-older", "other"] {
            fs::create_dir(at(left)).unwrap();
        }
        for left in ["pair-killed/lock", "pair-killed/target", "pair-file"] {
            fs::write(at(left), "").unwrap();
        }
        std::os::unix::fs::symlink(at("other"), at("pair-link")).unwrap();
        remove_left_over(parent.path(), "pair-");
        let names = fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let names: BTreeSet<_> = names.map(|name| name.into_string().unwrap()).collect();
        assert!(names.iter().eq(["other", "pair-file", "pair-held", "pair-link"]), "{names:?}");
        assert!(at("pair-held").join("target").exists());
        drop(held);
        assert!(!at("pair-held").exists());
    }

    #[test]
    fn a_directory_that_is_being_removed_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("pair");
        fs::create_dir(&path).unwrap();
        let first = hold(&path).unwrap();
        assert!(first.is_some());
        assert!(hold(&path).unwrap().is_none(), "somebody holds it");
        fs::remove_dir_all(&path).unwrap();
        assert!(hold(&path).unwrap().is_none(), "it is gone");
    }
}
