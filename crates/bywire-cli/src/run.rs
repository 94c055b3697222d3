//! `bywire run`: programs whose TCP connections to each other are carried in memory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bywire_pairing::protocol::SERVICE_VARIABLE;
use bywire_pairing::service::{Service, StartError};
use clap::Args;

/// The hidden subcommand that is the pairing service.
pub const SERVICE: &str = "__pairing";
/// The library's file name.
const LIBRARY: &str = "libbywire_sockets.so";
/// A service that nobody has needed for so long ends.
const IDLE: Duration = Duration::from_secs(30);
/// What `$LIB` stands for in the C libraries of this processor's systems.
const LIBRARY_DIRECTORIES: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];

/// The program, and how it is run.
#[derive(Args, Debug)]
#[command(after_help = "\
Connections between two programs that are run this way, on one machine and in one network namespace, leave the kernel
after their first calls. Everything else stays TCP as it was.

Examples:
  bywire run -- redis-server --port 7000
  bywire run -- redis-benchmark -p 7000
  bywire status")]
pub struct RunArgs {
    /// The program, as the shell would start it, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<String>,
    /// The preloaded library, instead of the one that came with this command
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// Where the service listens.
#[derive(Args, Debug)]
pub struct ServiceArgs {
    /// The socket
    path: PathBuf,
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
        let directory = own_directory()?;
        let service = directory.join("pairing");
        let library = self.library.map_or_else(find_library, Ok)?;
        let preload = preload(&directory, &library)?;
        // Without a service everything stays TCP; the program runs in any case.
        if let Err(error) = start_service(&service) {
            bywire_lab::ending::complain("bywire", format!("{error:#}: everything stays TCP"));
        }
        let before = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty());
        let mut value = preload.into_os_string();
        if let Some(before) = before {
            value.push(":");
            value.push(before);
        }
        let [program, arguments @ ..] = &self.program[..] else { bail!("no program is named") };
        let failed = Command::new(program)
            .args(arguments)
            .env("LD_PRELOAD", value)
            .env(SERVICE_VARIABLE, &service)
            .exec();
        Err(failed).with_context(|| format!("cannot run {program}"))
    }
}

impl ServiceArgs {
    /// Serves until nobody needs it.
    pub fn run(self) -> Result<()> {
        match Service::start(&self.path) {
            Ok(mut service) => {
                crate::print("ready\n")?;
                Ok(service.serve(IDLE)?)
            }
            Err(StartError::Served(_)) => crate::print("ready\n"),
            Err(error) => Err(error.into()),
        }
    }
}

impl StatusArgs {
    /// Asks the service and prints what it says.
    pub fn run(self) -> Result<()> {
        let status = bywire_pairing::status::ask(&own_directory()?.join("pairing"))?;
        if self.json {
            let reasons: serde_json::Map<_, _> = status
                .not_carried
                .iter()
                .map(|(reason, count)| (format!("{reason:?}"), (*count).into()))
                .collect();
            let line = serde_json::json!({
                "processes": status.processes, "carried": status.carried, "carried_ever": status.carried_ever,
                "waiting": status.waiting, "bytes": status.bytes, "not_carried": reasons,
            });
            return crate::print(&format!("{line}\n"));
        }
        let mut text = format!(
            "{} programs, {} connections carried now, {} since the service began\n",
            status.processes, status.carried, status.carried_ever
        );
        text += &format!("{} bytes were sent in memory over connections that have ended\n", status.bytes);
        text += &format!("{} ends wait for the other one\n", status.waiting);
        for (reason, count) in &status.not_carried {
            text += &format!("{count} not carried: {}\n", reason.text());
        }
        crate::print(&text)
    }
}

/// This user's own directory, which nobody else can write: what is loaded into programs lies there.
fn own_directory() -> Result<PathBuf> {
    let user = bywire_sys::process::user();
    let path = bywire_eth::control::runtime_directory()?.join(format!("sockets-{user}"));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
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

/// Beside the command, or where installers put libraries.
fn find_library() -> Result<PathBuf> {
    let command = std::env::current_exe().context("cannot tell where this command is")?;
    let directory = command.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(LIBRARY), directory.join("../lib/bywire").join(LIBRARY)];
    let found = places.iter().find_map(|place| fs::canonicalize(place).ok());
    found.with_context(|| format!("{LIBRARY} is not beside {}: name it by --library", command.display()))
}

/// A path with `$LIB` in it: only the GNU C library knows what it stands for, so programs of other C libraries find
/// nothing to load and run as they are.
fn preload(directory: &Path, library: &Path) -> Result<PathBuf> {
    let name = format!("bywire-{:x}.so", fingerprint(library)?);
    for place in LIBRARY_DIRECTORIES {
        let place = directory.join(place);
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        match symlink(library, place.join(&name)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot link in {}", place.display()));
            }
            _ => {}
        }
    }
    Ok(directory.join("$LIB").join(name))
}

/// Tells libraries of different places apart, so that links never have to be replaced.
fn fingerprint(library: &Path) -> Result<u64> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let library =
        fs::canonicalize(library).with_context(|| format!("there is no library {}", library.display()))?;
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    Ok(hasher.finish())
}

/// Starts the service unless it runs, and waits until it listens.
fn start_service(path: &Path) -> Result<()> {
    if bywire_pairing::status::ask(path).is_ok() {
        return Ok(());
    }
    let command = std::env::current_exe().context("cannot tell where this command is")?;
    let mut child = Command::new(command)
        .arg(SERVICE)
        .arg(path)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .env_remove("LD_PRELOAD")
        .spawn()
        .context("cannot start the pairing service")?;
    let output = child.stdout.take().context("the pairing service has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).context("the pairing service said nothing")?;
    if line.trim() == "ready" { Ok(()) } else { bail!("the pairing service could not start") }
}
