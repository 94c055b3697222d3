//! A fabric file of the keeper that is in force and not written yet. A disk that is full or cannot be written holds up no change; it is
//! tried again until it takes the file. Until then a copy is in the runtime directory, which is mostly in memory: otherwise a service
//! that restarts meanwhile would begin with the older file, and take a removed node for a member until its keeper answers.

use std::path::Path;

use bywire_sys::directory;
use bywire_wire::handshake::PublicKey;

use crate::fabric::{BYTES_MAX, Fabric};
use crate::file::{self, FileError, PUBLIC_MODE};

/// The name of the copy in the runtime directory.
pub(super) const COPY_NAME: &str = "fabric.toml";

/// The first pause between two attempts, and the longest one.
const PAUSE_NS: u64 = 1_000_000_000;
const PAUSE_NS_MAX: u64 = 30_000_000_000;

/// The file.
#[derive(Debug)]
pub(super) struct Unwritten {
    /// Its text.
    pub text: String,
    next_ns: u64,
    pause_ns: u64,
    /// Why the last attempt failed.
    reason: Option<String>,
    has_copy: bool,
}

impl Unwritten {
    /// A file that is to be written now.
    pub(super) fn new(now_ns: u64, text: String) -> Self {
        Self { text, next_ns: now_ns, pause_ns: PAUSE_NS, reason: None, has_copy: false }
    }

    /// When the next attempt is due.
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Why the file could not be written so far. `None`: nothing was tried yet.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// An attempt has failed. Returns whether the reason is a new one.
    pub(super) fn fail(&mut self, now_ns: u64, reason: String) -> bool {
        self.next_ns = now_ns.saturating_add(self.pause_ns);
        self.pause_ns = PAUSE_NS_MAX.min(2 * self.pause_ns);
        let is_new = self.reason.as_ref() != Some(&reason);
        self.reason = Some(reason);
        is_new
    }

    /// Writes the copy, once.
    pub(super) fn copy_to(&mut self, path: &Path) -> Result<(), FileError> {
        if !self.has_copy {
            // Another user may have made a file of this name, whose mode does not count.
            file::replace_with_mode(path, PUBLIC_MODE, &self.text)?;
            self.has_copy = true;
        }
        Ok(())
    }
}

/// The fabric and the text of a copy that the service before this one has left, if it is newer than the file on the disk. Everybody
/// can make files in the runtime directory of a service for all users.
pub(super) fn take_copy(path: &Path, on_disk: &Fabric, own: &PublicKey) -> Option<(Fabric, String)> {
    let text = file::read_among_others(path, BYTES_MAX as u64).ok();
    let found = text.and_then(|text| Some((Fabric::of(path, &text, own).ok()?, text)));
    let newer = found.filter(|(copy, _)| copy.name == on_disk.name && copy.serial > on_disk.serial);
    if newer.is_none() {
        directory::remove(path);
    }
    newer
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use bywire_sys::process;

    use super::*;
    use crate::key;

    #[test]
    fn a_copy_counts_if_it_is_newer_and_nobody_else_can_have_written_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let [copy, other] = [COPY_NAME, "other"].map(|name| directory.path().join(name));
        let own = key::make(&directory.path().join("node.key")).expect("a key").public();
        let text = |name: &str, serial: u64| {
            let key = key::to_text(&own);
            format!(
                "name = \"{name}\"\nserial = {serial}\nsecurity = \"encrypted\"\n\n[[node]]\nname = \"a\"\n\
                 addresses = [\"10.0.0.1\"]\nkey = \"{key}\"\n"
            )
        };
        let on_disk = Fabric::of(&copy, &text("lab", 4), &own).expect("valid");
        let write = |text: &str| {
            let mut unwritten = Unwritten::new(0, text.to_owned());
            // A file of somebody else who wants to change it later.
            fs::write(&copy, "").expect("written");
            fs::set_permissions(&copy, Permissions::from_mode(0o666)).expect("chmod");
            unwritten.copy_to(&copy).expect("written");
        };
        let serial = || take_copy(&copy, &on_disk, &own).map(|(fabric, _)| fabric.serial);
        assert_eq!(serial(), None);
        write(&text("lab", 5));
        assert_eq!(serial(), Some(5));
        assert_eq!(serial(), Some(5), "it stays until the file is written");
        for (name, serial_there) in [("lab", 4), ("lab", 3), ("office", 5)] {
            write(&text(name, serial_there));
            assert_eq!(serial(), None, "{name} {serial_there}");
            assert!(!copy.exists());
        }
        write(&text("lab", 5).replace(&key::to_text(&own), &key::to_text(&PublicKey([7; 32]))));
        assert_eq!(serial(), None, "it is another node's");
        fs::write(&other, text("lab", 5)).expect("written");
        symlink(&other, &copy).expect("linked");
        assert_eq!(serial(), None, "a link");
        assert!(other.exists());
        write(&text("lab", 5));
        fs::set_permissions(&copy, Permissions::from_mode(0o664)).expect("chmod");
        assert_eq!(serial(), None, "others can write it");
        if process::user() == 0 {
            write(&text("lab", 5));
            chown(&copy, Some(12345), None).expect("chown");
            assert_eq!(serial(), None, "another user's");
        }
    }

    #[test]
    fn a_file_is_tried_again_with_longer_pauses_and_each_reason_is_new_once() {
        let mut unwritten = Unwritten::new(0, String::new());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let now_ns = unwritten.next_ns();
            assert_eq!(unwritten.fail(now_ns, "full".to_owned()), pauses.is_empty());
            pauses.push((unwritten.next_ns() - now_ns) / 1_000_000_000);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert!(unwritten.fail(0, "read-only".to_owned()));
        assert_eq!(unwritten.reason(), Some("read-only"));
    }
}
