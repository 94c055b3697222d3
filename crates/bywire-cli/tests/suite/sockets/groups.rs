//! Processes end with the test that started them, together with all their descendants, also when the test fails or is
//! killed.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Reads the number of every process group that begins, and kills the groups when its input is closed.
const GUARD: &str = "trap '' TERM INT HUP; while read -r group; do groups=\"$groups $group\"; done
    for group in $groups; do kill -s KILL -- \"-$group\"; done 2>/dev/null";

/// A process group of a test.
#[derive(Clone, Copy, Debug)]
pub struct Group(Pid);

impl Group {
    /// The group that a child leads.
    pub fn of(child: &Child) -> Self {
        static SAID: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
        let guard = SAID.get_or_init(|| {
            let mut guard = Command::new("sh");
            guard.args(["-c", GUARD]).process_group(0).stdin(Stdio::piped());
            // The reader of this test's output must not wait for the guard.
            guard.stdout(Stdio::null()).stderr(Stdio::null());
            Mutex::new(guard.spawn().expect("a guard").stdin.take().expect("piped"))
        });
        let mut guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(guard, "{}", child.id()).expect("the guard hears");
        Self(Pid::from_child(child))
    }

    /// Sends a signal by name.
    pub fn signal(self, name: &str) {
        let signal = match name {
            "KILL" => Signal::KILL,
            "TERM" => Signal::TERM,
            "INT" => Signal::INT,
            other => panic!("{other} is not known here"),
        };
        // An ended group has nobody to receive it.
        let _gone = kill_process_group(self.0, signal);
    }

    /// Kills the whole group.
    pub fn end(self) {
        self.signal("KILL");
    }

    /// Waits until none of it runs any more. A killed process disappears once it has been scheduled, and until then it
    /// looks like a leftover.
    pub fn await_end(self) {
        let started = Instant::now();
        while self.runs() && started.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn runs(self) -> bool {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        stats.any(|stat| {
            // After the name, which may contain anything: the state, the parent, the group.
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
            let state = fields.next().unwrap_or("X");
            let group = fields.nth(1).and_then(|group| group.parse::<i32>().ok());
            group == Some(self.0.as_raw_nonzero().get()) && !matches!(state, "Z" | "X")
        })
    }
}

/// Kills the pairing service of a fabric in `directory`, which is in no group. Returns the other processes that were
/// left.
pub fn end_processes_of(directory: &Path) -> Vec<String> {
    let started = Instant::now();
    let mut others = Vec::new();
    loop {
        let left = processes_of(directory);
        for (process, command) in &left {
            if !command.contains("__pairing") && !others.contains(command) {
                others.push(command.clone());
            }
            let _gone = kill_process(*process, Signal::KILL);
        }
        if left.is_empty() || started.elapsed() > TIMEOUT {
            return others;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processes with the directory in their environment, and their arguments. nginx and PostgreSQL overwrite theirs; their
/// processes are in groups.
fn processes_of(directory: &Path) -> Vec<(Pid, String)> {
    let mark = format!("BYWIRE_RUNTIME_DIR={}", directory.display()).into_bytes();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let environment = fs::read(entry.path().join("environ")).ok()?;
        if !environment.split(|byte| *byte == 0).any(|variable| variable == mark) {
            return None;
        }
        let process = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        Some((process, String::from_utf8_lossy(&words).replace('\0', " ")))
    });
    found.collect()
}

/// The commands that run for a fabric in `directory`.
pub fn commands_of(directory: &Path) -> Vec<String> {
    processes_of(directory).into_iter().map(|(_, command)| command).collect()
}
