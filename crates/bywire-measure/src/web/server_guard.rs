//! A process between this program and a server, so that the server and its files go however this program ends.
//!
//! A server's own processes live on when the one that was started is killed, and files live on anyway. The guard learns
//! of the end of its parent by the end of its standard input, and cleans up then. No signal of the parent's reaches it.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::documents::Documents;
use super::plan::Plan;
use super::server::{self, Running};
use crate::interrupt;
use crate::pin;
use crate::plan::{Assignment, End, Job, Role, WorkerMessage};
use crate::process::Setting;
use crate::scratch_directory::ScratchDirectory;

/// How long a guard may take until its server listens.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long it may take to clean up: longer than it waits for anything itself, as its files stay where it is killed.
const FAREWELL: Duration = server::TIMEOUT.saturating_add(Duration::from_secs(10));

/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// What every directory's name begins with.
const PREFIX: &str = "bywire-web-";

/// Where a server is found, and who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// `IP:PORT`, or `unix:PATH`.
    pub socket: String,
    /// The server's processes.
    pub processes: Vec<u32>,
    /// What it calls itself.
    pub version: String,
    /// The core that it is pinned to.
    pub core: Option<u32>,
}

/// A running server with whoever cleans up after it. Dropping this ends both.
pub struct ServerGuard {
    child: Child,
    input: Option<ChildStdin>,
    address: Address,
}

impl ServerGuard {
    /// Starts the server that `plan` asks for on `core`, and waits until it listens.
    ///
    /// # Errors
    /// It is not installed, or cannot be started.
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
        std::thread::spawn(move || {
            let mut line = String::new();
            let _gone = BufReader::new(output).read_line(&mut line).map(|_| sender.send(line));
        });
        let until = Instant::now() + TIMEOUT;
        let line = loop {
            match receiver.recv_timeout(LOOK) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Disconnected) => bail!("the guard of a server died"),
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                    bail!("the server has not started in time")
                }
                Err(RecvTimeoutError::Timeout) => interrupt::check()?,
            }
        };
        match serde_json::from_str(&line).map_err(|_| anyhow!("the guard of a server died"))? {
            WorkerMessage::Listening { address, .. } => guard.address = serde_json::from_str(&address)?,
            WorkerMessage::Failed { reason, .. } => bail!(reason),
            WorkerMessage::Outcome(_) => bail!("an unexpected message of the process that keeps a server"),
        }
        Ok(guard)
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for ServerGuard {
    fn drop(&mut self) {
        // It ends with its input, and cleans up before.
        drop(self.input.take());
        let until = Instant::now() + FAREWELL;
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > until {
                let _gone = self.child.kill();
                let _gone = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs this process as a guard until its input ends.
///
/// # Errors
/// Only what keeps it from saying anything; all else is told to the parent.
pub fn guard(plan: &Plan, core: Option<u32>, say: impl Fn(WorkerMessage)) -> Result<()> {
    // Whoever ends the whole session by signals ends the parent too.
    ctrlc::set_handler(|| {}).context("cannot watch for signals")?;
    // The server's children are ours once it is gone, and are waited for.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).context("cannot keep a server")?;
    let _kept = match Guarded::open(plan, core) {
        Ok((kept, address)) => {
            say(WorkerMessage::Listening { address: serde_json::to_string(&address)?, boot: None });
            kept
        }
        Err(error) => {
            say(WorkerMessage::Failed { end: End::Target, reason: format!("{error:#}") });
            return Ok(());
        }
    };
    let mut rest = io::stdin().lock();
    while rest.fill_buf().is_ok_and(|bytes| !bytes.is_empty()) {
        let length = rest.fill_buf().map_or(0, <[u8]>::len);
        rest.consume(length);
    }
    Ok(())
}

/// A server and its files; the server goes first.
struct Guarded {
    _server: Running,
    _place: ScratchDirectory,
}

impl Guarded {
    fn open(plan: &Plan, core: Option<u32>) -> Result<(Self, Address)> {
        if let Some(core) = core {
            // The server inherits it.
            pin::pin_to(core).with_context(|| format!("cannot run on core {core}"))?;
        }
        let directory = directory(plan);
        let place = ScratchDirectory::make(directory.clone(), PREFIX)?;
        let site = directory.join("site");
        fs::create_dir(&site).with_context(|| format!("cannot make {}", site.display()))?;
        // Whoever answers may be another user, whose group gets in; on Debian that is `nogroup`, which other daemons have
        // as well.
        let group = server::group_that_answers();
        for path in [&directory, &site] {
            std::os::unix::fs::chown(path, None, group)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o750))?;
        }
        Documents::of(plan).write(&site, is_wanted)?;
        let server = Running::start(plan, &directory, is_wanted)?;
        let address = Address {
            socket: server.address().to_owned(),
            processes: server.processes(),
            version: server.version().to_owned(),
            core,
        };
        Ok((Self { _server: server, _place: place }, address))
    }
}

/// Fails once the parent has gone or let go of the input, which ends nothing by itself while a server starts.
fn is_wanted() -> Result<()> {
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let input = io::stdin();
    let mut ends = [PollFd::new(&input, PollFlags::IN)];
    let looked = poll(&mut ends, Some(&AT_ONCE));
    ensure!(looked.is_err() || !ends[0].revents().contains(PollFlags::HUP), "nobody waits for the server");
    Ok(())
}

/// In memory where there is a file system for that. The parent's number tells whose it is.
fn directory(plan: &Plan) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let owner = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    parent.join(format!("{PREFIX}{owner}-{}", plan.cookie))
}
