//! Writes or removes a drop-in and restarts its unit, or leaves everything as it was.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};

use super::manager;
use super::state::{PROPERTIES, Progress, State};

/// The pause between two looks at a unit that is starting.
const PAUSE: Duration = Duration::from_millis(100);
/// A unit that has become active has to stay so for this time. Most programs that cannot start end within it.
const SETTLE: Duration = Duration::from_secs(2);
/// The time in which a unit has to stop.
const STOP_MAX: Duration = Duration::from_secs(300);

/// Notices Ctrl-C and requests to end.
pub struct Interrupt(Receiver<()>);

impl Interrupt {
    /// From now on a signal does not end this process.
    ///
    /// # Errors
    /// That of the kernel.
    pub fn watch() -> Result<Self> {
        let (sender, receiver) = channel();
        ctrlc::set_handler(move || {
            let _gone = sender.send(());
        })
        .context("cannot watch for an interrupt")?;
        Ok(Self(receiver))
    }

    /// Sleeps, and returns whether a signal came.
    fn came_within(&self, time: Duration) -> bool {
        self.0.recv_timeout(time).is_ok()
    }
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The unit runs with the change.
    Restarted,
    /// The unit does not run, and starts with the change.
    Stopped,
    /// The change waits for a restart.
    Waits,
}

/// Why a change was undone.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Undone {
    #[error("interrupted: {0}")]
    Interrupted(String),
    #[error("{unit} did not come up: {reason}. {state}")]
    Failed { unit: String, reason: String, state: String },
}

/// A change of one drop-in.
pub struct Change<'a> {
    /// The unit.
    pub unit: &'a str,
    /// The drop-in's path.
    pub path: &'a Path,
    /// Its new text; `None` removes it.
    pub text: Option<&'a str>,
}

impl Change<'_> {
    /// Makes the change, and restarts the unit if that is wanted and the unit runs.
    ///
    /// # Errors
    /// The unit did not come up or a signal came, and the change was undone. Or a file cannot be written.
    pub fn apply(&self, restart: bool, interrupt: &Interrupt) -> Result<Outcome> {
        let earlier = match fs::read_to_string(self.path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        };
        let before = state(self.unit)?;
        let began = seconds_since_1970();
        put(self.path, self.text)?;
        let restore = |was_restarted: bool| self.restore(earlier.as_deref(), was_restarted && before.is_up());
        if let Err(error) = manager::call(&["daemon-reload"]) {
            return Err(error.context(restore(false)));
        }
        if interrupt.came_within(Duration::ZERO) {
            return Err(Undone::Interrupted(restore(false)).into());
        }
        if !before.is_up() {
            return Ok(Outcome::Stopped);
        }
        if !restart {
            return Ok(Outcome::Waits);
        }
        if let Err(error) = manager::call(&["restart", "--no-block", "--", self.unit]) {
            return Err(error.context(restore(true)));
        }
        match await_up(self.unit, &before, Some(interrupt)) {
            Err(error) => Err(error.context(restore(true))),
            Ok(End::Up) => Ok(Outcome::Restarted),
            Ok(End::Interrupted) => Err(Undone::Interrupted(restore(true)).into()),
            Ok(End::Down(outcome)) => {
                // Read before the next start adds its own lines.
                let journal = manager::journal(self.unit, began);
                let reason = if journal.is_empty() { outcome } else { format!("{outcome}: {journal}") };
                Err(Undone::Failed { unit: self.unit.to_owned(), reason, state: restore(true) }.into())
            }
        }
    }

    /// Puts back what was there. Returns a sentence about the unit's state. A second signal does not stop this.
    fn restore(&self, earlier: Option<&str>, restart: bool) -> String {
        let unit = self.unit;
        let restored = put(self.path, earlier).and_then(|()| manager::call(&["daemon-reload"]));
        if let Err(error) = restored {
            return format!(
                "The drop-in could not be put back ({error:#}): remove {} by hand",
                self.path.display()
            );
        }
        let undone = "The drop-in is as it was before";
        if !restart {
            return undone.to_owned();
        }
        // Failed starts may have used up the starts that systemd allows in a time.
        let _none_failed = manager::call(&["reset-failed", "--", unit]);
        let restarted = state(unit).and_then(|before| {
            manager::call(&["restart", "--no-block", "--", unit])?;
            await_up(unit, &before, None)
        });
        match restarted {
            Ok(End::Up) => format!("{undone}, and {unit} runs again without the change"),
            Ok(End::Down(outcome)) => {
                format!("{undone}, but {unit} does not come up without the change either: {outcome}")
            }
            Ok(End::Interrupted) => undone.to_owned(),
            Err(error) => format!("{undone}, but {unit} cannot be restarted: {error:#}"),
        }
    }
}

/// How the wait for a restarted unit ended.
enum End {
    Up,
    Down(String),
    Interrupted,
}

/// Waits until a unit has come up and stayed so for a while. `before` is its state when the restart was asked for.
fn await_up(unit: &str, before: &State, interrupt: Option<&Interrupt>) -> Result<End> {
    let began = Instant::now();
    let mut start_began = began;
    let mut up: Option<(State, Instant)> = None;
    loop {
        let now = state(unit)?;
        match (now.progress(before), &up) {
            (Progress::Failed, _) => return Ok(End::Down(now.outcome(before))),
            (Progress::Active, None) => up = Some((now, Instant::now())),
            (Progress::Active, Some((first, _))) if now.has_restarted_since(first) => {
                return Ok(End::Down(format!("it ended at once: {}", now.outcome(before))));
            }
            (Progress::Active, Some((_, since))) if since.elapsed() >= SETTLE => return Ok(End::Up),
            (Progress::Active, Some(_)) => {}
            (Progress::Starting, Some(_)) => {
                return Ok(End::Down(format!("it ended at once: {}", now.outcome(before))));
            }
            (Progress::Starting, None) => {
                if now.is_stopping() && began.elapsed() < STOP_MAX {
                    start_began = Instant::now();
                }
                if start_began.elapsed() > now.start_max() {
                    let seconds = now.start_max().as_secs();
                    return Ok(End::Down(format!("it has not started within {seconds} s")));
                }
            }
        }
        match interrupt {
            Some(interrupt) if interrupt.came_within(PAUSE) => return Ok(End::Interrupted),
            Some(_) => {}
            None => std::thread::sleep(PAUSE),
        }
    }
}

fn state(unit: &str) -> Result<State> {
    Ok(State::of(&manager::show(unit, PROPERTIES)?))
}

/// Writes a drop-in as a whole, or removes it with its directory, if that is empty then.
///
/// # Errors
/// Another user may change what is in its directory, and would so decide what root executes. Or a file cannot be written.
pub fn put(path: &Path, text: Option<&str>) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let Some(text) = text else {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                bail!("cannot remove {}: {error}", path.display())
            }
            _ => {
                let _none = fs::remove_file(path.with_extension("partial"));
                // It may have drop-ins of others.
                let _not_empty = fs::remove_dir(directory);
                Ok(())
            }
        };
    };
    let failed = || format!("cannot write {}", path.display());
    DirBuilder::new().recursive(true).mode(0o755).create(directory).with_context(failed)?;
    if !is_safe(directory).with_context(failed)? {
        bail!(
            "{} is not a directory that root alone may change: nothing was written there; `ls -ld` shows its owner, its mode or \
             where it leads",
            directory.display()
        );
    }
    // systemd reads no file whose name does not end with `.conf`. A killed process may have left one.
    let partial = path.with_extension("partial");
    let _none = fs::remove_file(&partial);
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(&partial).and_then(|mut file| {
            // The umask does not count.
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(text.as_bytes())?;
            // A machine that loses its power has either drop-in, and not half of one.
            file.sync_all()?;
            fs::rename(&partial, path)
        });
    written.with_context(failed)
}

/// Returns whether nobody but this user and root can change what is in a directory. A link is none.
fn is_safe(directory: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(directory)?;
    let is_trusted = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    Ok(found.is_dir() && is_trusted && found.mode() & 0o022 == 0)
}

/// Removes the directory that the unit had for `bywire run`. A unit with a user of its own (`DynamicUser=`) has a link to it.
pub fn remove_runtime(directory: &Path) {
    let name = directory.file_name().unwrap_or_default();
    for path in [directory, &directory.with_file_name("private").join(name)] {
        let _none = fs::remove_dir_all(path);
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_in_is_written_and_removed_as_a_whole() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("x.service.d/zz-bywire.conf");
        put(&path, Some("one")).expect("written");
        put(&path, Some("two")).expect("replaced");
        assert_eq!(fs::read_to_string(&path).expect("there"), "two");
        assert_eq!(fs::read_dir(path.parent().expect("its directory")).expect("listed").count(), 1);
        // The directory of others stays.
        let other = path.with_file_name("other.conf");
        fs::write(&other, "").expect("written");
        put(&path, None).expect("removed");
        assert!(other.exists() && !path.exists());
        fs::remove_file(other).expect("removed");
        put(&path, None).expect("it is gone already");
        assert!(!path.parent().expect("its directory").exists());
    }

    #[test]
    fn a_directory_that_others_may_change_and_a_link_are_left_alone() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("x.service.d");
        fs::create_dir(&directory).expect("made");
        let refused = |path: &Path| {
            let refused = put(&path.join("zz-bywire.conf"), Some("text")).expect_err("refused").to_string();
            assert!(refused.contains("root alone may change"), "{refused}");
            assert_eq!(fs::read_dir(&directory).expect("listed").count(), 0);
        };
        fs::set_permissions(&directory, Permissions::from_mode(0o775)).expect("chmod");
        refused(&directory);
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).expect("chmod");
        let link = root.path().join("link.service.d");
        std::os::unix::fs::symlink(&directory, &link).expect("linked");
        refused(&link);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&directory, Some(65534), None).expect("chown");
            refused(&directory);
            std::os::unix::fs::chown(&directory, Some(0), None).expect("chown");
        }
        // A link in place of the file is replaced, and the file that it names is not written.
        let named = root.path().join("named");
        fs::write(&named, "as before").expect("written");
        std::os::unix::fs::symlink(&named, directory.join("zz-bywire.conf")).expect("linked");
        put(&directory.join("zz-bywire.conf"), Some("text")).expect("written");
        assert_eq!(fs::read_to_string(&named).expect("there"), "as before");
        assert_eq!(fs::metadata(directory.join("zz-bywire.conf")).expect("there").mode() & 0o7777, 0o644);
    }

    #[test]
    fn the_directory_of_a_unit_is_removed_wherever_systemd_has_made_it() {
        let root = tempfile::tempdir().expect("a directory");
        let (link, private) = (root.path().join("bywire-x"), root.path().join("private/bywire-x"));
        fs::create_dir_all(&private).expect("made");
        fs::write(private.join("library"), "").expect("written");
        std::os::unix::fs::symlink("private/bywire-x", &link).expect("linked");
        remove_runtime(&link);
        assert!(fs::symlink_metadata(&link).is_err() && !private.exists());
    }
}
