//! The key that `bywire serve` and its clients share, in a file at each end.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bywire_command::exit_status::Misuse;

/// How to make a key, for the help of both commands.
pub const HELP: &str = "\
A key is 16 random bytes or more. Make it once, and copy the file to the other machine:
  (umask 077; head -c 32 /dev/urandom | base64 > key)
  scp key HOST:
Nobody but its owner (or a group of your choice) may have access to the file. The key itself never crosses the \
network.";

/// The fewest bytes of a key, without white space around them.
const LENGTH_BYTES_MIN: usize = 16;

/// Reads a shared key: the file's contents without white space around them.
///
/// # Errors
/// A file that cannot be read or that everybody can, or too short a key: all of them misuse.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_checked(path).map_err(Misuse::of)
}

fn read_checked(path: &Path) -> Result<Vec<u8>> {
    let file = path.display();
    let bytes = fs::read(path).with_context(|| {
        format!("cannot read the key file {file}: `bywire serve --help` tells how to make one")
    })?;
    let is_file = fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & 0o007 != 0);
    ensure!(
        !is_file,
        "everybody has access to the key in {file}: `chmod 600 {file}`, and make a new one if it was read"
    );
    let key = bytes.trim_ascii();
    ensure!(
        key.len() >= LENGTH_BYTES_MIN,
        "the key in {file} is shorter than {LENGTH_BYTES_MIN} bytes: make one by `head -c 32 /dev/urandom | base64`"
    );
    Ok(key.to_vec())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_must_be_long_and_unreadable_for_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read_as = |mode, contents: &str| {
            fs::write(file.path(), contents).unwrap();
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            read(file.path()).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(read_as(0o600, " sixteen letters!\n").unwrap(), b"sixteen letters!");
        assert!(read_as(0o640, "sixteen letters!").is_ok(), "a group of the owner's choice");
        assert!(read_as(0o644, "sixteen letters!").unwrap_err().contains("chmod 600"));
        assert!(read_as(0o600, "fifteen letters").unwrap_err().contains("shorter than 16 bytes"));
        assert!(format!("{:#}", read(Path::new("/nowhere")).unwrap_err()).contains("tells how to make one"));
    }
}
