//! The right to change a unit's drop-in, which one process has at a time.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bywire_sys::directory;

/// The directory of the units' files. The names of units' own directories for `bywire run` begin with `bywire-`.
const DIRECTORY: &str = "/run/bywire.changes";
/// The time in which another process that only looks whether a file is locked gives it up.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// A unit whose drop-in is being changed. Its file stays if this process is killed.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    _locked: File,
}

impl Claim {
    /// Claims a unit.
    ///
    /// # Errors
    /// Another process changes it. Or the file cannot be made.
    pub fn of(unit: &str) -> Result<Self> {
        Self::within(Path::new(DIRECTORY), unit)
    }

    fn within(place: &Path, unit: &str) -> Result<Self> {
        let path = place.join(unit);
        let failed = || format!("cannot make {}", path.display());
        let end = Instant::now() + LOOK_MAX;
        loop {
            match DirBuilder::new().mode(0o700).create(place) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).with_context(failed);
                }
                _ => {}
            }
            if !directory::is_roots_alone(place) {
                bail!("{} is not root's alone: remove it", place.display());
            }
            let file =
                match OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path) {
                    // The process before has removed the directory meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    other => other.with_context(failed)?,
                };
            match file.try_lock() {
                // The process before has removed the file meanwhile, and a third one may have made another.
                Ok(()) if !is_at(&file, &path) => {}
                Ok(()) => return Ok(Self { path, _locked: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => {
                    bail!(
                        "another `bywire service` changes {unit} now: wait until it has ended, and try again"
                    )
                }
                Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        directory::remove(&self.path);
        if let Some(place) = self.path.parent() {
            directory::remove_empty(place);
        }
    }
}

/// Returns whether a change of the unit was killed before its end. Only root can see that.
pub fn is_unfinished(unit: &str) -> bool {
    is_left(&Path::new(DIRECTORY).join(unit))
}

fn is_left(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock_shared().is_ok() && is_at(&file, path))
}

/// Returns whether a path leads to an open file.
fn is_at(file: &File, path: &Path) -> bool {
    let numbers = |found: fs::Metadata| (found.dev(), found.ino());
    let named = fs::symlink_metadata(path).map(numbers);
    file.metadata().map(numbers).is_ok_and(|open| named.is_ok_and(|named| named == open))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn one_process_changes_a_unit_and_a_killed_one_leaves_a_trace() {
        if !rustix::process::geteuid().is_root() {
            return println!("not run: claims of units: they are root's");
        }
        let root = tempfile::tempdir().expect("a directory");
        let place = root.path().join("changes");
        let path = place.join("x.service");
        let claim = Claim::within(&place, "x.service").expect("free");
        assert!(!is_left(&path));
        let refused = Claim::within(&place, "x.service").expect_err("claimed").to_string();
        assert!(refused.contains("another `bywire service` changes x.service"), "{refused}");
        let _other_unit = Claim::within(&place, "y.service").expect("free");
        drop(claim);
        assert!(!path.exists());
        // A process that is killed removes nothing.
        fs::write(&path, "").expect("written");
        assert!(is_left(&path));
        drop(Claim::within(&place, "x.service").expect("it is free again"));
        assert!(!is_left(&path));
        std::os::unix::fs::chown(&place, Some(65534), None).expect("chown");
        assert!(
            Claim::within(&place, "x.service").expect_err("refused").to_string().contains("not root's alone")
        );
        std::os::unix::fs::chown(&place, Some(0), None).expect("chown");
    }

    #[test]
    fn claims_of_one_unit_follow_each_other() {
        if !rustix::process::geteuid().is_root() {
            return println!("not run: claims of units: they are root's");
        }
        let root = tempfile::tempdir().expect("a directory");
        let place = root.path().join("changes");
        let inside = Mutex::new(());
        let is_alone = |claim: Claim| {
            let alone = inside.try_lock();
            std::thread::yield_now();
            let is_alone = alone.is_ok();
            drop(alone);
            drop(claim);
            is_alone
        };
        // A refused claim is one of the outcomes.
        let claims = || -> Vec<bool> {
            (0..200).filter_map(|_| Claim::within(&place, "x.service").ok()).map(is_alone).collect()
        };
        let claimed = std::thread::scope(|scope| {
            let threads = [&claims; 3].map(|claims| scope.spawn(claims));
            threads.map(|thread| thread.join().expect("no panic")).concat()
        });
        assert!(!claimed.is_empty() && claimed.iter().all(|alone| *alone) && !place.exists());
    }
}
