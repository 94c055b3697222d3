//! `bywire run`: programs whose TCP connections to each other are carried in memory.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bywire_lab::ending::{Misuse, complain};
use bywire_pairing::launch::{self, Launch};
use bywire_pairing::protocol::LOG_VARIABLE;
use bywire_pairing::service::{Service, StartError};
use bywire_pairing::status::{self, AskError, Status};
use bywire_pairing::user::Scope;
use bywire_sys::directory;
use clap::Args;

use crate::explain::Account;

/// A service that nobody has needed for so long ends.
pub const IDLE: Duration = Duration::from_secs(30);
/// Where a service for the whole machine listens: root alone can make something there.
pub const MACHINE_SOCKET: &str = "/run/bywire-pairing/socket";
/// Names another place, or none; whoever sets it trusts who listens there.
const MACHINE_VARIABLE: &str = "BYWIRE_PAIRING";
/// In a directory of a user's own: that user's service.
const OWN_SOCKET: &str = "pairing";

/// The program, and how it is run.
#[derive(Args, Debug)]
#[command(after_help = "\
Connections between two programs that are run this way, on one machine and in one network namespace, leave the kernel
after their first calls. Everything else stays TCP as it was. The two are one user's, unless `bywire pair` serves the
machine; BYWIRE_PAIRING=SOCKET says where it does, and BYWIRE_PAIRING= that it is not to be used.

Examples:
  bywire run -- redis-server --port 7000
  bywire run -- redis-benchmark -p 7000
  bywire run --explain -- curl http://127.0.0.1:8000/
  bywire status

BYWIRE_LOG=FILE adds a line to FILE for every connection that ends. The end is the program's own; 127 where there is no such
program, and 126 where it cannot be run.")]
pub struct RunArgs {
    /// The program, as the shell would start it, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<String>,
    /// The preloaded library, instead of the one that came with this command
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Spin before sleeping, where a core has nothing else to do [default: while waits are short]
    #[arg(long, conflicts_with = "no_spin")]
    spin: bool,
    /// Sleep at once
    #[arg(long)]
    no_spin: bool,
    /// When the program has ended, tell on standard error which connections were carried, which not and why, and the
    /// bytes of each way
    #[arg(long)]
    explain: bool,
}

/// Where the service listens.
#[derive(Args, Debug)]
pub struct ServiceArgs {
    /// The socket
    path: PathBuf,
    /// Leave whoever has started this
    #[arg(long)]
    detach: bool,
}

/// The state of the pairing service.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  bywire status\n  bywire status --json")]
pub struct StatusArgs {
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

impl RunArgs {
    /// Becomes the program; returns only if that fails.
    pub fn run(self) -> Result<()> {
        let spin = (self.spin || self.no_spin).then_some(self.spin);
        let library = match self.library {
            Some(named) => {
                launch::check_library(&named).map_err(Misuse::of)?;
                named
            }
            None => launch::find_library()?,
        };
        let directory = own_directory()?;
        let log = std::env::var_os(LOG_VARIABLE).filter(|path| !path.is_empty());
        // The program may change its directory before it writes there.
        let log = log.map(std::path::absolute).transpose().context("no log can be written there")?;
        let account = self.explain.then(|| Account::open(log.clone(), &directory)).transpose()?;
        let log = account.as_ref().map(|account| account.path().to_owned()).or(log);
        let launch = served(Launch::new(&directory, &library)?.spin(spin).log(log))?;
        let [program, arguments @ ..] = &self.program[..] else { bail!("no program is named") };
        let mut command = Command::new(program);
        launch.prepare(command.args(arguments));
        if let Some(account) = account {
            let explained = account.explain(&mut command);
            return explained.or_else(|error| not_run(program, &error.downcast()?));
        }
        not_run(program, &command.exec())
    }
}

/// Ends as `env` and `nohup` do, so that it can be told from an end of the program's own.
fn not_run(program: &str, failed: &io::Error) -> ! {
    complain("bywire", format!("cannot run `{program}`: {failed}"));
    std::process::exit(if failed.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

impl ServiceArgs {
    /// Serves until nobody needs it.
    pub fn run(self) -> Result<()> {
        if self.detach {
            // The parent of what is started now ends; what it says goes to whoever reads our output.
            let this = std::env::current_exe().context("cannot tell where this command is")?;
            let mut command = Command::new(this);
            command.arg(launch::SERVICE).arg(&self.path).process_group(0);
            return command.spawn().map(drop).context("cannot start the pairing service");
        }
        match Service::start(&self.path, Scope::User) {
            Ok(mut service) => {
                crate::print(launch::READY)?;
                Ok(service.serve(IDLE)?)
            }
            Err(StartError::Served(_)) => crate::print(launch::READY),
            Err(error) => Err(error.into()),
        }
    }
}

/// With the machine's service where there is one, else with this user's own, which is started. Without any, everything
/// stays TCP; the program runs in any case.
fn served(launch: Launch) -> Result<Launch> {
    let complain = |said: String| complain("bywire", said + ": everything stays TCP");
    if let Some(socket) = machine_socket() {
        match status::ask(&socket) {
            Ok(_) => return Ok(launch.served_at(socket)),
            // Whoever names it wants no other.
            Err(error) if std::env::var_os(MACHINE_VARIABLE).is_some() => {
                complain(format!("{}: {error}", socket.display()));
                return Ok(launch.served_at(socket));
            }
            Err(_) => {}
        }
    }
    let command = std::env::current_exe().context("cannot tell where this command is")?;
    if let Err(error) = launch.found_service(&command) {
        complain(error.to_string());
    }
    Ok(launch)
}

/// Where a service of the whole machine may listen. In a runtime directory of one's own nobody else is met.
fn machine_socket() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(MACHINE_VARIABLE) {
        return Some(PathBuf::from(named)).filter(|path| !path.as_os_str().is_empty());
    }
    let socket = PathBuf::from(MACHINE_SOCKET);
    let is_roots = directory::entry(&socket).is_ok_and(|entry| entry.is_socket && entry.owner == 0)
        && socket.parent().is_some_and(directory::is_roots_alone);
    (std::env::var_os("BYWIRE_RUNTIME_DIR").is_none() && is_roots).then_some(socket)
}

impl StatusArgs {
    /// Programs that were started before the machine had a service talk to their user's own.
    fn ask(&self) -> Result<Status, AskError> {
        let own = own_directory().ok().map(|directory| directory.join(OWN_SOCKET));
        let mut found = None;
        for socket in [machine_socket(), own].into_iter().flatten() {
            match status::ask(&socket) {
                Ok(status) => found = Some(found.unwrap_or_default() + status),
                Err(AskError::Absent) => {}
                Err(error) => return Err(error),
            }
        }
        found.ok_or(AskError::Absent)
    }

    /// Asks the service and prints what it says.
    pub fn run(self) -> Result<()> {
        let status = self.ask()?;
        if self.json {
            let reasons: serde_json::Map<_, _> = status
                .not_carried
                .iter()
                .map(|(reason, count)| (format!("{reason:?}"), (*count).into()))
                .collect();
            let line = serde_json::json!({
                "processes": status.processes, "carried": status.carried, "carried_ever": status.carried_ever,
                "waiting": status.waiting, "bytes": status.bytes, "cut": status.cut, "not_carried": reasons,
            });
            return crate::print(&format!("{line}\n"));
        }
        let mut text = format!(
            "{} programs, {} connections carried now, {} since the service began\n",
            status.processes, status.carried, status.carried_ever
        );
        text += &format!("{} bytes were sent in memory over connections that have ended\n", status.bytes);
        text += &format!("{} ends were cut by a kill: their peers saw a reset\n", status.cut);
        text += &format!("{} ends wait for the other one\n", status.waiting);
        for (reason, count) in &status.not_carried {
            text += &format!("{count} not carried: {}\n", reason.text());
        }
        crate::print(&text)
    }
}

/// This user's own directory, which nobody else can write: what is loaded into programs lies there, also into those that
/// become another user.
pub fn own_directory() -> Result<PathBuf> {
    let user = bywire_sys::process::user();
    let path = bywire_eth::control::runtime_directory()?.join(format!("sockets-{user}"));
    match fs::DirBuilder::new().mode(0o711).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot make {}", path.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&path).with_context(|| format!("cannot look at {}", path.display()))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        bail!("{} is not ours alone: remove it, or choose another BYWIRE_RUNTIME_DIR", path.display());
    }
    Ok(path)
}
