//! Starts programs with and without `bywire run`, with a pairing service and cores for each end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bywire_measure::interrupt::Leader;
use bywire_measure::pin;
use bywire_pairing::launch::{self, Launch};
use bywire_pairing::status;

/// A program that runs longer is killed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which ends of the connections run under `bywire run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Neither end.
    Plain,
    /// Both ends.
    Carried,
    /// Only the server.
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

/// The directory of both ends and, if an end is carried, its pairing service.
pub struct Testbed {
    mode: Mode,
    launch: Launch,
    service: Option<Child>,
    directory: tempfile::TempDir,
}

impl Testbed {
    /// With a fresh directory, which every user may enter.
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
            // For servers that may not run as root: the service's socket, and the tokens of cores.
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

    /// A program as that end, on the end's own core if `pinned`. It is killed with this program.
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

    /// Starts a server. It listens when this returns. Dropping it kills its whole process group, because workers outlive the process
    /// that started them.
    ///
    /// # Errors
    /// It does not.
    pub fn serve(&self, mut command: Command, port: u16) -> Result<Leader> {
        let started = Leader::start(&mut command);
        let mut server = started.with_context(|| format!("cannot start {command:?}"))?;
        let started = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(server.child.try_wait()?.is_none(), "{command:?} ended before it listened");
            ensure!(started.elapsed() < TIMEOUT, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Runs clients at the same time until they exit. Returns their output.
    ///
    /// # Errors
    /// One fails, or was to be carried and was not.
    pub fn ask(&self, commands: Vec<Command>, connections: u64) -> Result<Vec<String>> {
        let before = self.carried_ever()?;
        let start = |mut command: Command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let started = Leader::start(&mut command);
            started.with_context(|| format!("cannot start {command:?}"))
        };
        let running = commands.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        let printed = running.into_iter().map(|running| running.printed("a client", TIMEOUT));
        let printed = printed.collect::<Result<Vec<_>>>()?;
        let carried = self.carried_ever()? - before;
        if self.mode == Mode::Carried && carried < connections {
            let status = status::query(self.launch.service())?;
            bail!("{carried} of {connections} connections were carried: {:?}", status.not_carried);
        }
        ensure!(self.mode == Mode::Carried || carried == 0, "{carried} connections were carried");
        Ok(printed)
    }

    fn carried_ever(&self) -> Result<u64> {
        match &self.service {
            Some(_) => Ok(status::query(self.launch.service())?.carried_ever),
            None => Ok(0),
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

/// The path of a program: in `PATH`, or in Debian's directory of PostgreSQL.
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
            "{program} is not installed: ./x figures sockets installs it as root, or apt-get install {package}"
        )
    })
}

/// Some programs behave according to the name that they are called by.
fn kept_name(path: &Path, whole: PathBuf) -> PathBuf {
    if whole.file_name() == path.file_name() { whole } else { path.to_owned() }
}

/// A port without a listener, outside the kernel's range for connecting sockets.
///
/// # Errors
/// There is none.
pub fn port() -> Result<u16> {
    let own = std::process::id() as u16 % 9000;
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..2000).map(|at| 21_000 + (own + at) % 11_000).find(free).context("no port is free")
}
