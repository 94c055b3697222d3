//! Interrupts (Ctrl-C): running workers end at once, and measured pairs are kept.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire_command::exit_status::INTERRUPTED;
use rustix::process::{Pid, Signal, kill_process_group};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Makes an interrupt, a hang-up or a request to terminate end the running workers rather than this process.
pub fn arm() -> Result<()> {
    ctrlc::set_handler(|| {
        REQUESTED.store(true, Ordering::Relaxed);
        end_workers();
    })
    .context("cannot watch for Ctrl-C")
}

/// Makes the same signals end the running workers and then this process.
pub fn exit_on_request() -> Result<()> {
    ctrlc::set_handler(|| {
        end_workers();
        std::process::exit(INTERRUPTED);
    })
    .context("cannot watch for Ctrl-C")
}

fn end_workers() {
    for &group in groups().iter() {
        let _gone = kill_process_group(group, Signal::KILL);
    }
}

/// True after an interrupt.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Fails after an interrupt.
pub fn check() -> Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}

/// A process group that an interrupt ends, and so does dropping this.
#[derive(Debug)]
struct Group(Pid);

impl Group {
    /// The group of the process `leader`.
    fn of(leader: Pid) -> Self {
        groups().push(leader);
        // An interrupt before this registration has not ended it.
        if requested() {
            let _gone = kill_process_group(leader, Signal::KILL);
        }
        Self(leader)
    }
}

/// A process in a group of its own, which ends with an interrupt. Dropping it ends the group.
#[derive(Debug)]
pub struct Leader {
    /// The process itself.
    pub child: Child,
    group: Option<Group>,
}

impl Leader {
    /// Starts it.
    ///
    /// # Errors
    /// No process can be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        let group = Pid::from_raw(child.id() as i32).map(Group::of);
        Ok(Self { child, group })
    }

    /// Its output until it exits. Both output streams are piped and neither is long.
    ///
    /// # Errors
    /// It does not end within `timeout`, or fails: then with the last line that it printed.
    pub fn printed(mut self, program: &str, timeout: Duration) -> Result<String> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            ensure!(started.elapsed() < timeout, "{program} has not ended after {} s", timeout.as_secs());
            std::thread::sleep(Duration::from_millis(5));
        };
        let output = self.child.stdout.take().map(io::read_to_string).transpose()?.unwrap_or_default();
        let errors = self.child.stderr.take().map(io::read_to_string).transpose()?.unwrap_or_default();
        if !status.success() {
            let last = errors.lines().last().or(output.lines().last());
            bail!("{program}: {status}: {}", last.unwrap_or("it printed nothing"));
        }
        Ok(output)
    }

    /// Ends it and all of its group.
    pub(crate) fn end(&mut self) {
        // The group first: after `wait`, the process id may belong to another process.
        drop(self.group.take());
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut groups = groups();
        groups.retain(|&group| group != self.0);
        let _gone = kill_process_group(self.0, Signal::KILL);
    }
}

fn groups() -> std::sync::MutexGuard<'static, Vec<Pid>> {
    GROUPS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
