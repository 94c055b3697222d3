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
    on_signal(|| {})
}

/// Makes the same signals end the running workers and then this process.
pub fn exit_on_request() -> Result<()> {
    on_signal(|| std::process::exit(INTERRUPTED))
}

/// Ends the running workers and then calls `then`, on each of those signals.
fn on_signal(then: fn()) -> Result<()> {
    let handler = move || {
        REQUESTED.store(true, Ordering::Relaxed);
        groups().iter().for_each(|group| kill(*group));
        then();
    };
    ctrlc::set_handler(handler).context("cannot watch for Ctrl-C")
}

fn kill(group: Pid) {
    let _gone = kill_process_group(group, Signal::KILL);
}

/// Returns whether an interrupt has come.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// Fails after an interrupt.
pub fn check() -> Result<()> {
    ensure!(!requested(), "interrupted");
    Ok(())
}

/// Looks `every` so often until something is found. `None` if nothing is found within `limit`.
pub fn awaited<T>(
    every: Duration,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let until = Instant::now() + limit;
    loop {
        let found = look()?;
        if found.is_some() || Instant::now() >= until {
            return Ok(found);
        }
        std::thread::sleep(every);
    }
}

/// A process in a group of its own, which ends with an interrupt. Dropping it ends the group.
#[derive(Debug)]
pub struct Leader {
    /// The process itself.
    pub child: Child,
    /// Its group, until it has been ended.
    group: Option<Pid>,
}

impl Leader {
    /// Starts it. Fails if no process can be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        let group = Pid::from_raw(child.id() as i32);
        groups().extend(group);
        // An interrupt before this registration has not ended it.
        if requested() {
            group.into_iter().for_each(kill);
        }
        Ok(Self { child, group })
    }

    /// Its output until it exits. Both output streams are piped and neither is long. Fails if it does not end within
    /// `timeout`, and if it fails, with the last line that it printed.
    pub fn printed(mut self, program: &str, timeout: Duration) -> Result<String> {
        let status = awaited(Duration::from_millis(5), timeout, || Ok(self.child.try_wait()?))?;
        let status =
            status.with_context(|| format!("{program} has not ended after {} s", timeout.as_secs()))?;
        let output = self.child.stdout.take().map_or(Ok(String::new()), io::read_to_string)?;
        let errors = self.child.stderr.take().map_or(Ok(String::new()), io::read_to_string)?;
        if !status.success() {
            let last = errors.lines().last().or(output.lines().last());
            bail!("{program}: {status}: {}", last.unwrap_or("it printed nothing"));
        }
        Ok(output)
    }

    /// Ends it and all of its group.
    pub(crate) fn end(&mut self) {
        // The group first: after `wait`, the process id may belong to another process.
        if let Some(group) = self.group.take() {
            groups().retain(|known| *known != group);
            kill(group);
        }
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.end();
    }
}

fn groups() -> std::sync::MutexGuard<'static, Vec<Pid>> {
    GROUPS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
