//! The worker processes of a pair, and their messages.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::Sender;

use anyhow::{Context, Result, anyhow};

use crate::interrupt::Leader;
use crate::namespaces::Namespace;
use crate::plan::{Assignment, End, WorkerMessage};
use crate::preload::Preload;

/// Directories of servers, which are on the path of root only.
const SERVERS: [&str; 4] = ["/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/local/nginx/sbin"];

/// The first path of a program: in `PATH`, in the directories of servers, or in one of `others`. It keeps the name that it is
/// called by, because some programs behave according to that.
pub fn find(program: &str, others: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(SERVERS.map(PathBuf::from)).chain(others);
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// A message of a worker, or `None` when it has ended.
pub(crate) struct Event {
    pub(crate) end: End,
    pub(crate) message: Option<WorkerMessage>,
}

/// The surroundings that a worker process is started in, if they differ from those of this process.
#[derive(Clone, Copy, Default)]
pub struct Setting<'a> {
    /// Its network namespace.
    pub namespace: Option<&'a Namespace>,
    /// The library that carries its connections.
    pub preload: Option<&'a Preload>,
}

impl Setting<'_> {
    /// Makes `command` start in this setting. Fails if the namespace has gone.
    pub fn prepare(&self, command: &mut Command) -> Result<()> {
        self.namespace.map_or(Ok(()), |namespace| namespace.enter(command))?;
        if let Some(preload) = self.preload {
            preload.prepare(command);
        }
        Ok(())
    }
}

/// A worker process in a process group of its own. Dropping it ends the group.
pub(crate) struct Worker {
    _leader: Leader,
}

impl Worker {
    /// Starts this program's own file as a worker. Returns the worker and its output.
    pub(crate) fn start(assignment: &Assignment, setting: Setting) -> Result<(Self, ChildStdout)> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("__worker").stdin(Stdio::piped()).stdout(Stdio::piped());
        setting.prepare(&mut command)?;
        let mut leader = Leader::start(&mut command).context("cannot start a worker process")?;
        let output = leader.child.stdout.take().context("a worker has no output")?;
        let line = serde_json::to_string(assignment)? + "\n";
        let mut input = leader.child.stdin.as_ref().context("a worker has no input")?;
        let told = input.write_all(line.as_bytes());
        told.map_err(|error| anyhow!("a worker died before it began: {error}"))?;
        Ok((Self { _leader: leader }, output))
    }
}

/// Forwards the messages of a worker until its end.
pub(crate) fn listen(end: End, output: impl BufRead, sender: &Sender<Event>) {
    for line in output.lines().map_while(Result::ok) {
        let message = serde_json::from_str(&line).unwrap_or_else(|error| WorkerMessage::Failed {
            end,
            reason: format!("its report is not valid: {error}"),
        });
        if sender.send(Event { end, message: Some(message) }).is_err() {
            return;
        }
    }
    let _gone = sender.send(Event { end, message: None });
}
