//! Files of the configuration, with checks of who can write and read them.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bywire_sys::{directory, process};
use rustix::fs::OFlags;

/// The mode of a file without secrets.
pub const PUBLIC_MODE: u32 = 0o644;

/// The error of a file as a whole.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It does not exist.
    #[error("there is no {}: begin a fabric by `bywire init NAME`, join one by the line that `bywire invite` prints on its keeper, or give \
         another directory by --config", .0.display())]
    Missing(PathBuf),
    /// This user may not use it.
    #[error("this user may not use {}: run this as its owner or as root, or give another directory by --config", .0.display())]
    Denied(PathBuf),
    /// It cannot be read.
    #[error("cannot read {path}: {1}", path = .0.display())]
    Unreadable(PathBuf, io::Error),
    /// It cannot be written.
    #[error("cannot write {path}: {1}", path = .0.display())]
    Unwritable(PathBuf, io::Error),
    /// It exists already.
    #[error("{} is there already: remove it first to make a new one", .0.display())]
    Exists(PathBuf),
    /// Others can write it.
    #[error("{} can be written by others: run `chmod go-w` on it, and make root or this user its owner", .0.display())]
    WritableByOthers(PathBuf),
    /// Others can read a secret.
    #[error("{} can be read by others: run `chmod 600` on it, and make root or this user its owner", .0.display())]
    Exposed(PathBuf),
    /// It is not a regular file, or is too long.
    #[error("{path} is not a regular file of at most {1} bytes", path = .0.display())]
    TooLong(PathBuf, u64),
}

/// Reads a file that only root and this user can have written.
///
/// # Errors
/// [`FileError`].
pub fn read_public(path: &Path, bytes_max: u64) -> Result<String, FileError> {
    read(path, OFlags::empty(), bytes_max, 0o022, FileError::WritableByOthers)
}

/// Reads a file that only root and this user can have written, from a directory in which others can make files and links.
///
/// # Errors
/// [`FileError`].
pub fn read_among_others(path: &Path, bytes_max: u64) -> Result<String, FileError> {
    read(path, OFlags::NOFOLLOW, bytes_max, 0o022, FileError::WritableByOthers)
}

/// Reads a file that only root and this user can have read.
///
/// # Errors
/// [`FileError`].
pub fn read_secret(path: &Path, bytes_max: u64) -> Result<String, FileError> {
    read(path, OFlags::empty(), bytes_max, 0o077, FileError::Exposed)
}

fn read(
    path: &Path,
    flags: OFlags,
    bytes_max: u64,
    forbidden: u32,
    loose: impl FnOnce(PathBuf) -> FileError,
) -> Result<String, FileError> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => FileError::Missing(path.to_owned()),
        io::ErrorKind::PermissionDenied => FileError::Denied(path.to_owned()),
        _ => FileError::Unreadable(path.to_owned(), error),
    };
    // A fifo in its place is opened without waiting, and refused.
    let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() || found.len() > bytes_max {
        return Err(FileError::TooLong(path.to_owned(), bytes_max));
    }
    let is_trusted = found.uid() == 0 || found.uid() == process::user();
    if !is_trusted || found.mode() & forbidden != 0 {
        return Err(loose(path.to_owned()));
    }
    let mut text = String::new();
    file.take(bytes_max).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// Makes a file with exactly this mode. It must not exist.
///
/// # Errors
/// [`FileError`]. There is no file then, or the one that there was.
pub fn make(path: &Path, mode: u32, text: &str) -> Result<(), FileError> {
    let unwritable = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => FileError::Exists(path.to_owned()),
        io::ErrorKind::PermissionDenied => FileError::Denied(path.to_owned()),
        _ => FileError::Unwritable(path.to_owned(), error),
    };
    let mut file: File =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(unwritable)?;
    let written = file
        .set_permissions(Permissions::from_mode(mode))
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all());
    if written.is_err() {
        // A part of a key or of a fabric would be in the way of the whole one.
        directory::remove(path);
    }
    written.map_err(unwritable)?;
    sync_directory_of(path);
    Ok(())
}

/// Has the names in a file's directory outlast a power failure. Otherwise the old fabric file could be back after other nodes have
/// got the new one, and the next change would have the same serial as that.
fn sync_directory_of(path: &Path) {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The file is in place, and not every file system can do this.
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
}

/// Replaces a file at once: whoever reads it finds the old text or the new one. Its mode stays.
///
/// # Errors
/// [`FileError`].
pub fn replace(path: &Path, text: &str) -> Result<(), FileError> {
    let mode = std::fs::metadata(path).map_or(PUBLIC_MODE, |found| found.mode() & 0o777);
    replace_with_mode(path, mode, text)
}

/// Replaces a file as [`replace`] does, and gives it this mode.
///
/// # Errors
/// [`FileError`].
pub fn replace_with_mode(path: &Path, mode: u32, text: &str) -> Result<(), FileError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // One that was not finished.
    directory::remove(&new);
    make(&new, mode, text)?;
    let renamed = directory::rename(&new, path);
    renamed.map_err(|error| FileError::Unwritable(path.to_owned(), error.into()))?;
    sync_directory_of(path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_whole_is_not_there() {
        const PATH: &str = "BYWIRE_TEST_FILE";
        if let Some(path) = std::env::var_os(PATH) {
            assert!(matches!(make(Path::new(&path), 0o600, "secret"), Err(FileError::Unwritable(..))));
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("node.key");
        // No file of this process may be longer than nothing, as on a full disk.
        let test = "file::tests::a_file_that_cannot_be_written_whole_is_not_there";
        let limited = format!("ulimit -f 0; trap '' XFSZ; exec \"$0\" --exact {test}");
        let program = std::env::current_exe().expect("this program");
        let done = Command::new("sh").args(["-c", &limited]).arg(program).env(PATH, &path).output();
        let done = done.expect("`sh` runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0);
    }

    #[test]
    fn a_file_is_made_once_and_read_only_while_others_cannot_touch_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("node.key");
        assert!(matches!(read_secret(&path, 10), Err(FileError::Missing(_))));
        make(&path, 0o600, "secret").expect("made");
        assert!(matches!(make(&path, 0o600, "other"), Err(FileError::Exists(_))));
        assert_eq!(read_secret(&path, 10).expect("read"), "secret");
        assert!(matches!(read_secret(&path, 5), Err(FileError::TooLong(..))));
        for (mode, is_secret, is_safe) in
            [(0o600, true, true), (0o640, false, true), (0o604, false, true), (0o620, false, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
            assert_eq!(read_secret(&path, 10).is_ok(), is_secret, "{mode:o}");
            assert_eq!(read_public(&path, 10).is_ok(), is_safe, "{mode:o}");
        }
        assert!(matches!(read_public(directory.path(), 10), Err(FileError::TooLong(..))));
    }

    #[test]
    fn a_replaced_file_has_the_new_text_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("fabric.toml");
        // A replacement that was interrupted has left this.
        fs::write(directory.path().join("fabric.toml.new"), "half").expect("written");
        for text in ["one", "two"] {
            replace(&path, text).expect("replaced");
            assert_eq!(read_public(&path, 10).expect("read"), text);
        }
        assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 1);
        assert!(matches!(replace(&path.join("x"), ""), Err(FileError::Unwritable(..))));
    }
}
