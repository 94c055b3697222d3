//! Programs whose connections are to be carried, or not: how their ends are started, with a service and cores of their
//! own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire_measure::pin;
use bywire_pairing::launch::{self, Launch};
use bywire_pairing::status;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::child_guard::ChildGuard;

/// A program that has not ended by then is given up.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How the two ends of connections are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Both as they are.
    Plain,
    /// Both by `bywire run`.
    Carried,
    /// The server by `bywire run`, the client as it is.
    Half,
}

/// Which end a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It listens.
    Server,
    /// It connects.
    Client,
}

/// Both ends' directory and, where one of them is carried, its means.
pub struct Testbed {
    mode: Mode,
    launch: Launch,
    service: Option<Child>,
    directory: tempfile::TempDir,
}

impl Testbed {
    /// With a fresh directory, which everybody may enter.
    ///
    /// # Errors
    /// No library beside this program, or no service.
    pub fn new(mode: Mode) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777))?;
        let launch = Launch::new(directory.path(), &launch::find_library()?)?;
        let service = match mode {
            Mode::Plain => None,
            _ => Some(launch.start_service(Command::new(std::env::current_exe()?))?),
        };
        if service.is_some() {
            // For servers that may not be run by root: where the service listens, and the tokens of cores.
            let tokens = directory.path().join("pairing.cores");
            fs::write(&tokens, [])?;
            for path in [launch.service(), &tokens] {
                fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
            }
        }
        Ok(Self { mode, launch, service, directory })
    }

    /// A path in the directory.
    pub fn place(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// A program as that end, on the end's own core where it is `pinned`; killed with this one.
    pub fn command(&self, end: End, pinned: bool, words: &[&str]) -> Command {
        let (source, target) = pin::two_cores();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if pinned {
            let core = if end == End::Server { target } else { source };
            command.args(["taskset", "-c", &core.to_string()]);
        }
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if self.mode == Mode::Carried || (self.mode == Mode::Half && end == End::Server) {
            self.launch.prepare(&mut command);
        }
        command
    }

    /// Starts a server, which listens when this returns.
    ///
    /// # Errors
    /// It does not.
    pub fn serve(&self, mut command: Command, port: u16) -> Result<Server> {
        let child = command.process_group(0).spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Server(ChildGuard(child));
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(server.0.0.try_wait()?.is_none(), "{command:?} ended before it listened");
            ensure!(started.elapsed() < TIMEOUT, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Runs clients at once, to their ends: what each prints.
    ///
    /// # Errors
    /// One fails, or was to be carried and was not.
    pub fn ask(&self, commands: Vec<Command>, connections: u64) -> Result<Vec<String>> {
        let before = self.carried_ever()?;
        let start = |mut command: Command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
            Ok(ChildGuard(child))
        };
        let running = commands.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        let printed = running.into_iter().map(|running| running.printed("a client", TIMEOUT));
        let printed = printed.collect::<Result<Vec<_>>>()?;
        let carried = self.carried_ever()? - before;
        if self.mode == Mode::Carried && carried < connections {
            let status = status::ask(self.launch.service())?;
            bail!("{carried} of {connections} connections were carried: {:?}", status.not_carried);
        }
        ensure!(self.mode == Mode::Carried || carried == 0, "{carried} connections were carried");
        Ok(printed)
    }

    fn carried_ever(&self) -> Result<u64> {
        match &self.service {
            Some(_) => Ok(status::ask(self.launch.service())?.carried_ever),
            None => Ok(0),
        }
    }
}

/// A server that listens. Dropping it ends its whole process group: workers outlive whoever has started them.
pub struct Server(ChildGuard);

impl Drop for Server {
    fn drop(&mut self) {
        // Before its first process is waited for, whose number the group has.
        if let Some(group) = Pid::from_raw(self.0.0.id() as i32) {
            let _gone_already = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if let Some(service) = &mut self.service {
            let _gone_already = service.kill();
            let _gone = service.wait();
        }
    }
}

/// Where a program lies, in the path or where Debian puts PostgreSQL's.
///
/// # Errors
/// It is not installed.
pub fn find(program: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let places = std::env::split_paths(&path)
        .chain([Path::new("/usr/sbin").to_owned()])
        .chain(versions.map(|version| version.path().join("bin")));
    let found = places.map(|place| place.join(program)).find(|path| path.exists());
    let found =
        found.map(|path| fs::canonicalize(&path).map_or(path.clone(), |whole| kept_name(&path, whole)));
    found.with_context(|| {
        format!(
            "{program} is not installed: benches/sockets installs it as root, or apt-get install {package}"
        )
    })
}

/// Some programs go by the name that they are called by.
fn kept_name(path: &Path, whole: PathBuf) -> PathBuf {
    if whole.file_name() == path.file_name() { whole } else { path.to_owned() }
}

/// A port that nobody listens on, outside of those that the kernel gives to whoever connects.
///
/// # Errors
/// There is none.
pub fn port() -> Result<u16> {
    let own = std::process::id() as u16 % 9000;
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..2000).map(|at| 21_000 + (own + at) % 11_000).find(free).context("no port is free")
}
