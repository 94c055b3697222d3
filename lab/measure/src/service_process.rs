//! A service of this program that runs beside measurements: `bywire eth up` or `bywire up`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::interrupt::Leader;

/// How long a service may take until it is ready, and until it knows the others.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// How long to wait for the reason of a service that has ended.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// A running service in a process group of its own. Dropping it ends the group.
#[derive(Debug)]
pub(crate) struct ServiceProcess(Leader);

impl ServiceProcess {
    /// Starts `command`, known as `name`. It prints a line for each of its `parts`, which are ready when this returns.
    pub(crate) fn start(command: &mut Command, name: &'static str, parts: usize) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        crate::namespaces::end_with_this_thread(command);
        let mut leader = Leader::start(command).with_context(|| format!("cannot start `{name}`"))?;
        let (said, complaints) = (lines(leader.child.stdout.take()), lines(leader.child.stderr.take()));
        let until = Instant::now() + TIMEOUT;
        for _ in 0..parts {
            if let Err(error) = said.recv_timeout(until.saturating_duration_since(Instant::now())) {
                let said = complaints.recv_timeout(LAST_WORDS);
                let said = said.unwrap_or_else(|_| "it said nothing".to_owned());
                let is_late = error == RecvTimeoutError::Timeout;
                let what = if is_late { "is not ready in time" } else { "ended" };
                bail!("`{name}` {what}: {}", said.trim_start_matches("bywire: "));
            }
        }
        Ok(Self(leader))
    }

    pub(crate) fn process(&self) -> u32 {
        self.0.child.id()
    }
}

/// The lines of `output`, which is read to its end, so that the process never blocks on a full pipe.
fn lines(output: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
        for line in lines.map_while(Result::ok) {
            let _nobody_listens = sender.send(line);
        }
    });
    receiver
}
