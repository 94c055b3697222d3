//! A process between this program and a server, so that the server and its files are removed however this program ends.
//!
//! If the process that was started is killed, a server's other processes live on, and files do so anyway. The guard
//! sees the end of its standard input when its parent ends, and then cleans up. The parent's signals do not reach it.

use std::fs;
use std::io::{self, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::documents::Documents;
use super::plan::Plan;
use super::server::{self, Running};
use crate::interrupt::{self, awaited};
use crate::pin::pin;
use crate::plan::{Assignment, End, Job, Role, WorkerMessage};
use crate::process::{Setting, listen};
use crate::scratch_directory::ScratchDirectory;

/// How long a guard may take until its server listens.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to clean up. This is longer than it waits for anything itself, as files stay if it is killed.
const FAREWELL: Duration = server::TIMEOUT.saturating_add(Duration::from_secs(10));
/// How often it checks for an interrupt.
const LOOK: Duration = Duration::from_millis(50);
const PREFIX: &str = "bywire-web-";

/// The address and the processes of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// `IP:PORT`, or `unix:PATH`.
    pub socket: String,
    /// The server's processes.
    pub processes: Vec<u32>,
    /// The name and version that it prints.
    pub version: String,
    /// The core that it is pinned to.
    pub core: Option<u32>,
}

/// A running server and its guard. Dropping this ends both.
pub struct ServerGuard {
    child: Child,
    input: Option<ChildStdin>,
    address: Address,
}

impl ServerGuard {
    /// Starts the server that `plan` asks for on `core`, and waits until it listens. Fails if the server is not installed, or
    /// cannot be started.
    pub fn start(plan: &Plan, core: Option<u32>, setting: Setting) -> Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("__worker").stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        setting.prepare(&mut command)?;
        let mut child = command.spawn().context("cannot start the guard of a server")?;
        let output = child.stdout.take().context("the guard has no output")?;
        let mut input = child.stdin.take().context("the guard has no input")?;
        let assignment = Assignment { job: Job::Web(plan.clone()), role: Role::Target { core } };
        let told = input.write_all((serde_json::to_string(&assignment)? + "\n").as_bytes());
        let nowhere = Address { socket: String::new(), processes: Vec::new(), version: String::new(), core };
        let mut guard = Self { child, input: Some(input), address: nowhere };
        told.context("the guard of a server died before it began")?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || listen(End::Target, BufReader::new(output), &sender));
        let until = Instant::now() + TIMEOUT;
        let event = loop {
            match receiver.recv_timeout(LOOK) {
                Ok(event) => break event,
                Err(_) => interrupt::check()?,
            }
            ensure!(Instant::now() <= until, "the server has not started in time");
        };
        match event.message.context("the guard of a server died")? {
            WorkerMessage::Listening { address, .. } => guard.address = serde_json::from_str(&address)?,
            WorkerMessage::Failed { reason, .. } => bail!(reason),
            WorkerMessage::Outcome(_) => bail!("an unexpected message of the process that keeps a server"),
        }
        Ok(guard)
    }

    /// The server's address.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for ServerGuard {
    fn drop(&mut self) {
        // The guard cleans up when its input ends, and then ends.
        drop(self.input.take());
        if let Ok(None) = awaited(Duration::from_millis(1), FAREWELL, || Ok(self.child.try_wait()?)) {
            let _gone = self.child.kill();
            let _gone = self.child.wait();
        }
    }
}

/// Runs this process as a guard until its input ends. Fails on an error that prevents it from writing. All other errors
/// are reported to the parent.
pub fn guard(plan: &Plan, core: Option<u32>, say: impl Fn(WorkerMessage)) -> Result<()> {
    // A signal to the whole session ends the parent too.
    ctrlc::set_handler(|| {}).context("cannot watch for signals")?;
    // The server's children become ours when it ends, and are reaped.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("cannot keep a server")?;
    match open(plan, core) {
        Ok((_kept, address)) => {
            say(WorkerMessage::Listening { address: serde_json::to_string(&address)?, boot: None });
            let _ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
        }
        Err(error) => say(WorkerMessage::Failed { end: End::Target, reason: format!("{error:#}") }),
    }
    Ok(())
}

/// Starts a server. Returns it with its files, of which it is dropped first, and its address.
fn open(plan: &Plan, core: Option<u32>) -> Result<((Running, ScratchDirectory), Address)> {
    // The server inherits it.
    pin(core)?;
    let directory = directory(plan);
    let files = ScratchDirectory::make(directory.clone(), PREFIX)?;
    let site = directory.join("site");
    fs::create_dir(&site).with_context(|| format!("cannot make {}", site.display()))?;
    // The workers may be another user, whose group gets access. On Debian it is `nogroup`, which other daemons share.
    let group = server::group_that_answers();
    for path in [&directory, &site] {
        std::os::unix::fs::chown(path, None, group)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o750))?;
    }
    Documents::of(plan).write(&site, is_wanted)?;
    let server = Running::start(plan, &directory, is_wanted)?;
    let (socket, processes, version) = (server.address.clone(), server.processes(), server.version.clone());
    Ok(((server, files), Address { socket, processes, version, core }))
}

/// Fails once the parent has ended or closed the input. That alone does not end a server that is starting.
fn is_wanted() -> Result<()> {
    let input = io::stdin();
    let mut ends = [PollFd::new(&input, PollFlags::IN)];
    let looked = poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ensure!(looked.is_err() || !ends[0].revents().contains(PollFlags::HUP), "nobody waits for the server");
    Ok(())
}

/// A directory in memory if there is such a file system. Its name has the parent's process number.
fn directory(plan: &Plan) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let owner = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    parent.join(format!("{PREFIX}{owner}-{}", plan.cookie))
}
