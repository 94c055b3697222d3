//! `bywire run`: programs whose connections to each other, by TCP or Unix stream sockets, are carried in memory.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bywire_command::chosen::Chosen;
use bywire_command::exit_status::{Misuse, complain};
use bywire_command::option_row::OptionRow;
use bywire_command::options;
use bywire_engine::control::{self, Request};
use bywire_pairing::launch::{self, Launch, LaunchError};
use bywire_pairing::protocol::{
    CALLS_VARIABLE, ENGINE_VARIABLE, ENGINE_WORDS, IO_URING_VARIABLE, LOG_PATH_BYTES_MAX, LOG_VARIABLE,
    SPIN_VARIABLE, UDP_VARIABLE,
};
use bywire_pairing::service::{Service, StartError};
use bywire_pairing::status::{self, QueryError};
use bywire_pairing::user::Scope;
use bywire_sys::directory;
use clap::Args;
use rustix::fs::{Access, access};

use crate::explain::Account;
use crate::{preload_check, preload_diagnosis};

/// A service without programs ends after this time.
pub const IDLE: Duration = Duration::from_secs(30);
/// The socket of a service for the whole machine. Only root can make files there.
pub const MACHINE_SOCKET: &str = "/run/bywire-pairing/socket";
/// The environment variable that names another socket, or none. The user who sets it trusts the service there.
pub const MACHINE_VARIABLE: &str = "BYWIRE_PAIRING";
/// The socket of a user's own service, in the user's directory.
pub const OWN_SOCKET: &str = "pairing";

options! {
    /// How a program is run.
    #[derive(Debug, Default)]
    pub struct Manner {}

    /// Every option of `bywire run`. A flag with a variable reaches the preloaded library, which reads that variable.
    pub static OPTIONS;

    "" {
        library: Option<PathBuf> =
            OptionRow::of("library", "FILE", "the one that came with this command", "Preload this library");
        spin: Option<bool> =
            OptionRow::flag("spin", true, "Spin before each sleep, if the core has nothing else to do")
                .by_default("only while waits are short")
                .excludes("no-spin")
                .variable(SPIN_VARIABLE, "0 forbids to spin before sleeping, and 1 allows it"),
            OptionRow::flag("no-spin", false, "Sleep at once")
                .by_default("spin while waits are short")
                .variable(SPIN_VARIABLE, "0 forbids to spin before sleeping, and 1 allows it");
        io_uring: bool =
            OptionRow::flag("io-uring", true, "Let the program use io_uring, which ends carrying")
                .by_default("refuse it, as most containers do")
                .variable(IO_URING_VARIABLE, "1 lets the program use io_uring, and 0 does not");
        udp: bool =
            OptionRow::flag("udp", true, "Carry datagrams of UDP sockets as well")
                .by_default("leave them to the kernel")
                .variable(UDP_VARIABLE, "1 carries datagrams of UDP sockets, and 0 does not");
        engine: Option<String> =
            OptionRow::of(
                "engine",
                "WHEN",
                "prefer",
                "Let an engine of this user carry connections to other machines, and relay what is sent in small pieces \
                 (prefer), or relay everything that is not carried (always), or nothing (off); or reset every connection with \
                 a node of the fabric that it cannot carry encrypted from the first byte on (require)",
            )
            .words(|| ENGINE_WORDS.to_vec())
            .reads(|word| match ENGINE_WORDS.contains(&word) {
                true => Ok(word.to_owned()),
                false => bail!("`{word}` is not valid: it is {}", ENGINE_WORDS.join(", ")),
            });
        explain: bool =
            OptionRow::flag(
                "explain",
                true,
                "When the program has ended, print its connections, carried or why not, on standard error",
            );
    }
}

/// The name of the control socket of a user's engine, in the user's directory.
pub const ENGINE_CONTROL: &str = "engine";
/// The word of [`ENGINE_WORDS`] for programs that send nothing in clear to a node of the fabric.
const REQUIRE: &str = "require";

/// The program, and the options of its run.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire run -- redis-server --port 7000
  bywire run -- redis-benchmark -p 7000
  bywire run --engine require -- redis-server --bind 10.0.0.1
  bywire run --explain -- curl http://127.0.0.1:8000/
  bywire status",
    after_help = after_help()
)]
pub struct RunArgs {
    /// The program, as the shell would start it, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<String>,
    #[command(flatten)]
    options: Chosen<Manner>,
}

fn after_help() -> String {
    let variables: String = OPTIONS.iter().filter_map(OptionRow::variable_help).collect();
    format!(
        "\
Connections by TCP or Unix stream sockets between two programs that run this way, on one machine and in one network \
namespace, leave the kernel after their first calls. Every other connection stays the kernel's. Both programs must be of one user, unless `bywire pair` \
serves the machine.

Variables:
  BYWIRE_LOG=FILE            append a line to FILE for every connection that closes
{variables}  BYWIRE_SOCKETS_CALLS=N     offer a connection after N calls that moved data [default: 8]
  BYWIRE_SOCKETS_ENGINE=WHEN the same as --engine
  BYWIRE_PAIRING=SOCKET      the socket of the machine's `bywire pair`
  BYWIRE_PAIRING=            use only a pairing service of your own
  BYWIRE_RUNTIME_DIR=DIR     the runtime directory [default: /run/bywire]

The exit status is the program's own, 127 if there is no such program, and 126 if it cannot be run."
    )
}

/// The socket of the service.
#[derive(Args, Debug)]
pub struct ServiceArgs {
    /// The socket
    path: PathBuf,
    /// Detach from the process that has started this
    #[arg(long)]
    detach: bool,
}

impl RunArgs {
    /// Becomes the program. Returns only if that fails.
    pub fn run(self) -> Result<()> {
        let mut manner = Manner::default();
        self.options.set_in(&mut manner)?;
        let library = match &manner.library {
            Some(named) => {
                launch::check_library(named).map_err(Misuse::of)?;
                named.clone()
            }
            None => launch::find_library().map_err(|error| match error {
                LaunchError::Named { .. } | LaunchError::OtherFile(_) => Misuse::of(error),
                error => error.into(),
            })?,
        };
        OPTIONS.iter().try_for_each(OptionRow::check_variable).map_err(Misuse::of)?;
        check_calls().map_err(Misuse::of)?;
        check_engine().map_err(Misuse::of)?;
        let log = log().map_err(Misuse::of)?;
        let directory = own_directory()?;
        let account = manner.explain.then(|| Account::open(log.clone(), &directory)).transpose()?;
        let log = account.as_ref().map(|account| account.path().to_owned()).or(log);
        let launch = Launch::new(&directory, &library)?.log(log);
        let assignments = OPTIONS.iter().filter_map(|row| row.assignment(&manner));
        let launch = assignments.fold(launch, |launch, (name, value)| launch.variable(name, value));
        let launch = match &manner.engine {
            Some(engine) => launch.variable(ENGINE_VARIABLE, engine),
            None => launch,
        };
        let [program, arguments @ ..] = &self.program[..] else { bail!("name a program to run") };
        let word = manner.engine.clone().or_else(|| std::env::var(ENGINE_VARIABLE).ok());
        let is_required = word.as_deref() == Some(REQUIRE);
        let launch = match preload_check::obstacle(&library) {
            None if is_required => {
                if let Some(reason) = preload_diagnosis::of_program(program) {
                    bail!("`{program}` cannot be held to --engine require: {reason}");
                }
                let launch = served(launch, true)?;
                check_far(&directory.join(ENGINE_CONTROL)).context("--engine require needs an engine")?;
                Some(launch)
            }
            None => Some(served(launch, false)?),
            Some(obstacle) if is_required => bail!("{obstacle}, which --engine require does not allow"),
            Some(obstacle) => {
                complain("bywire", format!("{obstacle}: everything stays the kernel's"));
                None
            }
        };
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(launch) = launch {
            launch.prepare(&mut command);
        }
        if let Some(account) = account {
            let explained = account.explain(program, &mut command);
            return explained.or_else(|error| not_run(program, &error.downcast()?));
        }
        not_run(program, &command.exec())
    }
}

/// Checked here, because the library does not report an invalid number.
fn check_calls() -> Result<()> {
    match std::env::var_os(CALLS_VARIABLE) {
        Some(word) if !word.is_empty() && word.to_str().is_none_or(|word| word.parse::<u32>().is_err()) => {
            bail!(
                "{CALLS_VARIABLE}={} is not valid: it is the number of calls after which a connection is offered",
                word.display()
            )
        }
        _ => Ok(()),
    }
}

/// Checked here for the same reason.
fn check_engine() -> Result<()> {
    let word = std::env::var_os(ENGINE_VARIABLE).unwrap_or_default();
    if !word.is_empty() && !ENGINE_WORDS.iter().any(|known| word == *known) {
        bail!("{ENGINE_VARIABLE}={} is not valid: it is {}", word.display(), ENGINE_WORDS.join(", "));
    }
    Ok(())
}

/// Checks that this user's engine, which answers at `control`, carries connections to other machines.
fn check_far(control: &Path) -> Result<()> {
    let counts = control::ask(control, Request::Status)
        .with_context(|| format!("the engine at {} does not answer", control.display()))?;
    match counts {
        None => bail!("no engine of this user runs: start one by `bywire engine up --background`"),
        Some(counts) if !counts.is_far => bail!(
            "the engine of this user carries nothing to other machines: start it once `bywire up` runs, with link `fabric`"
        ),
        Some(_) => Ok(()),
    }
}

/// Checks that the library can write the log, because it would not report that.
fn log() -> Result<Option<PathBuf>> {
    let Some(named) = std::env::var_os(LOG_VARIABLE).filter(|path| !path.is_empty()) else { return Ok(None) };
    // An absolute path, because the program may change its directory.
    let path = std::path::absolute(&named)?;
    let wanted = format!(
        "name a file that you may write, or a new one in a directory that you may write, by a path of at most \
         {LOG_PATH_BYTES_MAX} bytes"
    );
    match check_log(&path) {
        Ok(()) => Ok(Some(path)),
        Err(error) => bail!("no log can be written to {LOG_VARIABLE}={}: {error}; {wanted}", path.display()),
    }
}

fn check_log(path: &Path) -> Result<()> {
    if path.as_os_str().len() > LOG_PATH_BYTES_MAX {
        bail!("the name is too long");
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() || found.file_type().is_char_device() => {
            Ok(access(path, Access::WRITE_OK)?)
        }
        Ok(_) => bail!("it is a directory, a link or no file at all"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(access(path.parent().unwrap_or(path), Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// The exit status of `env` and `nohup`, which differs from the program's own.
fn not_run(program: &str, failed: &io::Error) -> ! {
    complain("bywire", format!("cannot run `{program}`: {failed}"));
    std::process::exit(if failed.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

impl ServiceArgs {
    /// Serves until no program needs it.
    pub fn run(self) -> Result<()> {
        if self.detach {
            // The parent of this process ends now. Output goes to the reader of the parent's output.
            let this = std::env::current_exe().context("cannot tell where this command is")?;
            let mut command = Command::new(this);
            command.arg(launch::SERVICE).arg(&self.path).process_group(0);
            return command.spawn().map(drop).context("cannot start the pairing service");
        }
        match Service::start(&self.path, Scope::User) {
            Ok(mut service) => {
                bywire_command::output::print(launch::READY)?;
                Ok(service.serve(IDLE)?)
            }
            Err(StartError::Served(_)) => bywire_command::output::print(launch::READY),
            Err(error) => Err(error.into()),
        }
    }
}

/// Uses the machine's service if there is one, and otherwise this user's own, which is started. Without any service,
/// everything stays the kernel's, and the program still runs, unless one is required.
fn served(launch: Launch, is_required: bool) -> Result<Launch> {
    let complain = |said: String| match is_required {
        true => Err(anyhow!(said)),
        false => {
            complain("bywire", said + ": everything stays the kernel's");
            Ok(())
        }
    };
    if let Some(socket) = machine_socket()? {
        match status::query(&socket) {
            Ok(_) => return Ok(launch.served_at(socket)),
            // A user who names a service wants no other.
            Err(cause) if std::env::var_os(MACHINE_VARIABLE).is_some() => {
                complain(Unheard { socket: socket.clone(), cause }.to_string())?;
                return Ok(launch.served_at(socket));
            }
            Err(_) => {}
        }
    }
    let command = std::env::current_exe().context("cannot tell where this command is")?;
    if let Err(error) = launch.found_service(&command) {
        complain(error.to_string())?;
    }
    Ok(launch)
}

/// The service that [`MACHINE_VARIABLE`] names does not exist.
#[derive(Debug, thiserror::Error)]
#[error(
    "{MACHINE_VARIABLE}={}: {}; name the socket of a running `bywire pair`, or leave it empty for a service of your own",
    socket.display(),
    match cause { QueryError::Absent => "no pairing service listens there".to_owned(), other => other.to_string() }
)]
pub struct Unheard {
    /// The given name.
    pub socket: PathBuf,
    /// The error.
    pub cause: QueryError,
}

/// The possible socket of a service for the whole machine. A user's own runtime directory has none.
pub fn machine_socket() -> Result<Option<PathBuf>> {
    if let Some(named) = std::env::var_os(MACHINE_VARIABLE) {
        // An absolute path, because the program may change its directory.
        return Ok(if named.is_empty() { None } else { Some(std::path::absolute(named)?) });
    }
    let socket = PathBuf::from(MACHINE_SOCKET);
    let is_roots = directory::entry(&socket).is_ok_and(|entry| entry.is_socket && entry.owner == 0)
        && socket.parent().is_some_and(directory::is_roots_alone);
    Ok((std::env::var_os("BYWIRE_RUNTIME_DIR").is_none() && is_roots).then_some(socket))
}

/// This user's own directory, which other users cannot write to. Programs load files from it, even programs that become
/// another user.
pub fn own_directory() -> Result<PathBuf> {
    let user = bywire_sys::process::user();
    let wanted = "set BYWIRE_RUNTIME_DIR to a directory that you may write";
    // An absolute path, because programs change their directories.
    let path =
        std::path::absolute(bywire_eth::control::runtime_directory()?)?.join(format!("sockets-{user}"));
    match fs::DirBuilder::new().mode(0o711).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            bail!("cannot make {}: {error}; {wanted}", path.display());
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&path)
        .map_err(|error| anyhow!("cannot look at {}: {error}; {wanted}", path.display()))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
        bail!(
            "{} must be a directory of this user alone: remove it, or choose another BYWIRE_RUNTIME_DIR",
            path.display()
        );
    }
    Ok(path)
}
