//! `bywire run --explain`: runs a program to its end, and reports what happened to its connections.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, bail};
use bywire_pairing::protocol::LOADED_VARIABLE;
use bywire_pairing::reason::Reason;
use bywire_sys::{Errno, directory, process};
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use signal_hook::consts::{SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::{count, preload_diagnosis};

/// The signals that are passed on to the program.
const PASSED_ON: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH];
/// The signals that a terminal sends to both processes.
const BY_TERMINAL: [i32; 3] = [SIGINT, SIGQUIT, SIGWINCH];

/// The most connections that get a line each.
const TOLD_MAX: usize = 40;
/// The fate of an end that was ready and never used.
const UNUSED: &str = "it was paired, and closed before a byte went through memory";
/// The most bytes of a log that are read.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// The prefix of their names.
const PREFIX: &str = "explain-";
/// The most names that are looked at to find those of killed runs.
const SWEPT_MAX: usize = 4096;
/// Attempts to remove one. A program that writes there meanwhile does so once.
const REMOVALS_MAX: usize = 100;

/// The file that the library appends lines to.
pub struct Account {
    path: PathBuf,
    /// The offset at which this run's lines begin.
    start: u64,
    directory: LogDirectory,
}

/// A directory for the library's files. A program that outlives this process can no longer make any.
struct LogDirectory {
    path: PathBuf,
    /// Held as long as this process lives. A process number would not tell that as reliably.
    _lock: OwnedFd,
}

/// One line of the file.
#[derive(Debug, PartialEq, Eq)]
struct Ended<'a> {
    process: &'a str,
    fate: &'a str,
    ends: [&'a str; 2],
    sent_bytes: u64,
    received_bytes: u64,
    sent_in_memory_bytes: u64,
    received_in_memory_bytes: u64,
    /// The path of the object that is the cause, in a line about a whole program.
    object: Option<&'a str>,
}

impl Account {
    /// With the log that the user asked for, or one of our own in `directory`.
    pub fn open(log: Option<PathBuf>, directory: &Path) -> Result<Self> {
        LogDirectory::sweep(directory);
        let log_directory = LogDirectory::make(directory)?;
        let path = log.unwrap_or_else(|| log_directory.path.join("log"));
        let start = std::fs::metadata(&path).map_or(0, |found| found.len());
        Ok(Self { path, start, directory: log_directory })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the program, prints the report, and ends this process with the program's status.
    pub fn explain(self, program: &str, command: &mut Command) -> Result<()> {
        let mut signals = Signals::new(PASSED_ON.iter().chain([&SIGCHLD]))?;
        let loaded = self.directory.path.join("loaded");
        let status = wait(command.env(LOADED_VARIABLE, &loaded).spawn()?, &mut signals)?;
        let is_loaded = loaded.exists();
        let told = self.read().map(|text| {
            if is_loaded || !text.is_empty() { tell(&text) } else { preload_diagnosis::tell(program) }
        });
        // Dropped here, because a process that ends in this way drops nothing.
        drop(self);
        eprint!("{}", told?);
        if status.signal().is_some() && is_loaded {
            eprintln!("bywire: connections that were open when a signal ended the program are not counted");
        }
        if let Some(signal) = status.signal().and_then(Signal::from_named_raw) {
            // The program has left a core dump, if any. One of this process would tell nothing.
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            let _refused = setrlimit(Resource::Core, none);
            let _refused = emulate_default_handler(signal.as_raw());
            // This process has no handler for it.
            let _refused = kill_process(getpid(), signal);
        }
        std::process::exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
    }

    fn read(&self) -> Result<String> {
        let mut bytes = Vec::new();
        match File::open(&self.path) {
            Ok(mut file) => {
                file.seek(SeekFrom::Start(self.start))?;
                file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
            }
            // No connection has ended.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", self.path.display())),
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl LogDirectory {
    /// Makes one in `directory`, which belongs to this user.
    fn make(directory: &Path) -> Result<Self> {
        loop {
            let mut random = [0; 4];
            process::random(&mut random)?;
            let path = directory.join(format!("{PREFIX}{:08x}", u32::from_ne_bytes(random)));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                made => made.with_context(|| format!("cannot make {}", path.display()))?,
            }
            match directory::try_lock(&path) {
                Ok(lock) if path.exists() => return Ok(Self { path, _lock: lock }),
                // Another run removes it, because it was not locked yet.
                Ok(_) | Err(Errno::AGAIN | Errno::NOENT) => {}
                Err(error) => {
                    let _absent = std::fs::remove_dir(&path);
                    bail!("cannot lock {}: {error}", path.display());
                }
            }
        }
    }

    /// Removes the directories of killed runs.
    fn sweep(directory: &Path) {
        let names = directory::names(directory, SWEPT_MAX).unwrap_or_default();
        for path in names.iter().filter(|name| name.starts_with(PREFIX)).map(|name| directory.join(name)) {
            if let Ok(lock) = directory::try_lock(&path) {
                drop(Self { path, _lock: lock });
            }
        }
    }
}

impl Drop for LogDirectory {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            match std::fs::remove_dir_all(&self.path) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
                _ => return,
            }
        }
    }
}

/// Is this process group in the foreground of its terminal, so that signals from the keyboard reach the program too?
fn is_in_foreground() -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/self/stat") else { return false };
    // The name in parentheses may contain any character. State, parent, group, session, terminal and the terminal's
    // foreground group follow.
    let Some((_, rest)) = text.rsplit_once(')') else { return false };
    let words: Vec<&str> = rest.split_whitespace().collect();
    matches!((words.get(2), words.get(5)), (Some(group), Some(foreground)) if group == foreground)
}

/// Waits for the program, and passes on every signal that this process gets. Signals from the keyboard reach both.
fn wait(mut child: Child, signals: &mut Signals) -> Result<ExitStatus> {
    let pid = Pid::from_raw(child.id() as i32).context("a process without a number")?;
    loop {
        // Checked before the wait, because the program may have ended before its signal was watched.
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        for signal in signals.wait() {
            let is_there = BY_TERMINAL.contains(&signal) && is_in_foreground();
            if PASSED_ON.contains(&signal)
                && !is_there
                && let Some(signal) = Signal::from_named_raw(signal)
            {
                let _gone = kill_process(pid, signal);
            }
        }
    }
}

/// The report on the lines of a log, for readers.
fn tell(text: &str) -> String {
    let (programs, ended): (Vec<_>, Vec<_>) =
        text.lines().filter_map(Ended::read).partition(Ended::is_of_program);
    let (carried, stayed): (Vec<_>, Vec<_>) = ended.iter().partition(|ended| ended.is_carried());
    let were = |ends: usize| if ends == 1 { "was" } else { "were" };
    let mut told = format!(
        "bywire: {} of this program's connections {} carried, {} {} not\n",
        carried.len(),
        were(carried.len()),
        stayed.len(),
        were(stayed.len())
    );
    for ended in carried.iter().chain(&stayed).take(TOLD_MAX) {
        let _ = writeln!(told, "bywire: {}", ended.told());
    }
    if ended.len() > TOLD_MAX {
        let _ = writeln!(told, "bywire: and {} more", ended.len() - TOLD_MAX);
    }
    for program in programs.iter().take(TOLD_MAX) {
        let object = program.object.map(|path| format!(": {path}")).unwrap_or_default();
        let _ = writeln!(told, "bywire: process {}: {}{object}", program.process, reason(program.fate));
    }
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    stayed.iter().for_each(|ended| *reasons.entry(reason(ended.fate)).or_default() += 1);
    for (reason, count) in reasons {
        let _ = writeln!(told, "bywire: {count} not carried: {reason}");
    }
    told
}

impl<'a> Ended<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(9, ' ');
        let (process, fate) = (words.next()?, words.next()?);
        let ends = [words.next()?, words.next()?];
        let mut bytes = || words.next()?.parse().ok();
        Some(Self {
            process,
            fate,
            ends,
            sent_bytes: bytes()?,
            received_bytes: bytes()?,
            sent_in_memory_bytes: bytes()?,
            received_in_memory_bytes: bytes()?,
            object: words.next(),
        })
    }

    /// True if the line is about the whole program and not about a connection.
    fn is_of_program(&self) -> bool {
        self.ends == ["-", "-"]
    }

    /// True if bytes crossed memory. A connection that was ready but ended earlier counts as not carried.
    fn is_carried(&self) -> bool {
        self.fate == "carried" && (self.sent_in_memory_bytes > 0 || self.received_in_memory_bytes > 0)
    }

    fn told(&self) -> String {
        let [local, remote] = self.ends;
        let sent = count::of(self.sent_bytes, "byte", "bytes");
        let bytes = format!("{sent} sent, {} received", self.received_bytes);
        match self.is_carried() {
            true => format!(
                "process {}: {local} to {remote}: {bytes}, of these {} and {} in memory",
                self.process, self.sent_in_memory_bytes, self.received_in_memory_bytes
            ),
            false => {
                format!(
                    "process {}: {local} to {remote}: {bytes}, by the kernel: {}",
                    self.process,
                    reason(self.fate)
                )
            }
        }
    }
}

/// A reason in a few words.
fn reason(name: &str) -> &str {
    if name == "carried" {
        return UNUSED;
    }
    let known = Reason::ALL.iter().find(|reason| format!("{reason:?}") == name);
    known.map_or(name, |reason| reason.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_is_reported_and_invalid_lines_are_ignored() {
        let log = "7 carried 127.0.0.1:4000 127.0.0.1:80 100 2000 90 1900\n\
                   7 Short 127.0.0.1:4001 127.0.0.1:80 1 2 0 0\nnonsense\n7 carried 1 2 3\n";
        let told = tell(log);
        assert!(
            told.starts_with("bywire: 1 of this program's connections was carried, 1 was not\n"),
            "{told}"
        );
        assert!(
            told.contains(
                "4000 to 127.0.0.1:80: 100 bytes sent, 2000 received, of these 90 and 1900 in memory"
            ),
            "{told}"
        );
        assert!(told.contains("bywire: 1 not carried: it was too short"), "{told}");
        assert_eq!(told.lines().count(), 4);
        assert!(tell("").contains("0 of this program's"));
    }

    #[test]
    fn connections_that_were_ready_but_moved_nothing_are_not_reported_as_carried() {
        let told = tell("7 carried a b 1 9 0 0\n7 carried a c 9 9 1 0\n7 carried a d 9 9 0 1\n");
        assert!(told.starts_with("bywire: 2 of this program's connections were carried, 1 was not\n"));
        assert!(
            told.contains("a to b: 1 byte sent, 9 received, by the kernel: it was paired, and closed"),
            "{told}"
        );
        assert!(
            told.contains("bywire: 1 not carried: it was paired, and closed before a byte went"),
            "{told}"
        );
    }

    #[test]
    fn lines_about_a_whole_program_are_reported_once_and_not_counted_as_connections() {
        let told = tell(
            "7 carried a b 1 9 1 9\n7 Sandbox - - 0 0 0 0\n8 Go - - 0 0 0 0\n9 Inline - - 0 0 0 0 /opt/a b/c\n",
        );
        assert!(told.starts_with("bywire: 1 of this program's connections was carried, 0 were not\n"));
        assert!(told.contains("bywire: process 7: a filter of system calls was installed"), "{told}");
        assert!(
            told.contains("bywire: process 8: a program or library in Go calls the kernel by itself"),
            "{told}"
        );
        assert!(told.contains("bywire: process 9: the program calls the kernel by itself"), "{told}");
        assert!(told.contains("(once for each program): /opt/a b/c\n"), "{told}");
        assert_eq!(told.lines().count(), 5);
    }

    #[test]
    fn many_connections_are_counted_instead_of_listed() {
        let log = "7 carried a b 1 1 1 1\n".repeat(TOLD_MAX + 5);
        assert!(tell(&log).contains("and 5 more"));
    }
}
