//! A service of this program that runs beside measurements: `bywire eth up` or `bywire up`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt::Leader;

/// How long a service may take until it is ready, and until it knows the others.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for the reason of a service that has ended.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// A running service in a process group of its own. Dropping it ends the group.
#[derive(Debug)]
pub(crate) struct ServiceProcess {
    leader: Leader,
    /// Its command, for people.
    name: &'static str,
}

impl ServiceProcess {
    /// Starts `command`, known as `name`. It prints a line for each of its `parts`, which are ready when this returns.
    pub(crate) fn start(command: &mut Command, name: &'static str, parts: usize) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        crate::namespaces::end_with_this_thread(command);
        let leader = Leader::start(command).with_context(|| format!("cannot start `{name}`"))?;
        let mut service = Self { leader, name };
        service.await_lines(parts)?;
        Ok(service)
    }

    /// Its process.
    pub(crate) fn process(&self) -> u32 {
        self.leader.child.id()
    }

    fn await_lines(&mut self, expected: usize) -> Result<()> {
        let name = self.name;
        let child = &mut self.leader.child;
        let said = child.stdout.take().with_context(|| format!("`{name}` has no standard output"))?;
        let complaints = child.stderr.take().with_context(|| format!("`{name}` has no standard error"))?;
        // Its errors are read from the beginning, so that it never blocks on a full pipe; the first line tells the reason.
        let (complain, complaint) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(complaints).lines().map_while(Result::ok) {
                let _nobody_listens = complain.send(line);
            }
        });
        let (sender, lines) = channel();
        // Its later output is read too, so that it never blocks on a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                let _nobody_listens = sender.send(line);
            }
        });
        let until = Instant::now() + TIMEOUT;
        for _ in 0..expected {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(error) => {
                    let said =
                        complaint.recv_timeout(LAST_WORDS).unwrap_or_else(|_| "it said nothing".to_owned());
                    let what =
                        if error == RecvTimeoutError::Timeout { "is not ready in time" } else { "ended" };
                    bail!("`{name}` {what}: {}", said.trim_start_matches("bywire: "));
                }
            }
        }
        Ok(())
    }
}
