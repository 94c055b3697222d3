//! How a program is started so that its connections are carried: what `bywire run` and the laboratory share.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::filters;
use crate::protocol::{CORES_VARIABLE, IO_URING_VARIABLE, LOG_VARIABLE, SERVICE_VARIABLE, SPIN_VARIABLE};

/// The subcommand of whoever uses this that is the pairing service: it says [`READY`] once it listens.
pub const SERVICE: &str = "__pairing";
/// Its option: it leaves whoever has started it.
pub const DETACH: &str = "--detach";
/// What a service says.
pub const READY: &str = "ready\n";
/// Names the library where it does not lie beside the command.
pub const LIBRARY_VARIABLE: &str = "BYWIRE_SOCKETS_LIBRARY";
/// The library's file name.
const LIBRARY: &str = "libbywire_sockets.so";
/// What the C library's own loader reads.
const PRELOAD: &str = "LD_PRELOAD";
/// What `$LIB` stands for in the C libraries of this processor's systems.
const LIBRARY_DIRECTORIES: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];

/// Why a program cannot be started so.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no library.
    #[error("{LIBRARY} is not beside {}: name it by --library or {LIBRARY_VARIABLE}", .0.display())]
    Absent(PathBuf),
    /// The file system refuses.
    #[error("cannot {what} {}: {cause}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// Nothing can be put where the loader would find it.
    #[error("cannot {what} {}: {cause}; set BYWIRE_RUNTIME_DIR to a directory that you may write", path.display())]
    Directory {
        /// What was to be done.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// What the kernel said.
        cause: io::Error,
    },
    /// The loader reads lists.
    #[error("{} cannot be told to the loader, which reads ` `, `:` and `$` as more than letters: choose another BYWIRE_RUNTIME_DIR", .0.display())]
    Place(PathBuf),
    /// What was named is something else.
    #[error("{} is not Bywire's library for sockets: leave out --library and {LIBRARY_VARIABLE}, or name that", .0.display())]
    Foreign(PathBuf),
    /// The service could not be started; everything would stay TCP.
    #[error("cannot start the pairing service: {0}")]
    Service(String),
}

/// The library and the service that programs are started with.
#[derive(Clone, Debug)]
pub struct Launch {
    preload: PathBuf,
    service: PathBuf,
    cores: PathBuf,
    spin: Option<bool>,
    has_io_uring: bool,
    log: Option<PathBuf>,
}

impl Launch {
    /// By `library`, in `directory`, which nobody else may write: what is loaded into programs lies there, and the
    /// service listens there.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub fn new(directory: &Path, library: &Path) -> Result<Self, LaunchError> {
        Ok(Self {
            preload: preload(directory, library)?,
            service: directory.join("pairing"),
            cores: directory.join("pairing.cores"),
            spin: None,
            has_io_uring: false,
            log: None,
        })
    }

    /// Allows or forbids the library to spin before it sleeps; by itself it spins a bounded time where it may.
    pub fn spin(self, spin: Option<bool>) -> Self {
        Self { spin, ..self }
    }

    /// Lets the program use io_uring: it is not carried once it does. Otherwise the environment decides.
    pub fn io_uring(self, has_io_uring: bool) -> Self {
        Self { has_io_uring, ..self }
    }

    /// Lets the library write what it does to a file.
    pub fn log(self, log: Option<PathBuf>) -> Self {
        Self { log, ..self }
    }

    /// By a service that listens elsewhere, which this does not start.
    pub fn served_at(self, service: PathBuf) -> Self {
        Self { service, ..self }
    }

    /// Where the service listens.
    pub fn service(&self) -> &Path {
        &self.service
    }

    /// Gives a program what the library needs. What this process is preloaded with comes after it.
    pub fn prepare(&self, command: &mut Command) {
        let mut value = OsString::from(&self.preload);
        if let Some(before) = std::env::var_os(PRELOAD).filter(|value| !value.is_empty()) {
            value.push(":");
            value.push(before);
        }
        command.env(PRELOAD, value).env(SERVICE_VARIABLE, &self.service).env(CORES_VARIABLE, &self.cores);
        // Whatever this process is behind lets through what it does itself, which is what the library does.
        if let Some(count) = filters::count().filter(|count| *count > 0) {
            command.env(filters::VARIABLE, count.to_string());
        } else {
            command.env_remove(filters::VARIABLE);
        }
        if let Some(spin) = self.spin {
            command.env(SPIN_VARIABLE, if spin { "1" } else { "0" });
        }
        if self.has_io_uring {
            command.env(IO_URING_VARIABLE, "1");
        }
        if let Some(log) = &self.log {
            command.env(LOG_VARIABLE, log);
        }
    }

    /// Starts `command`'s service unless one answers, and waits until it listens. It is nobody's child, who would be told
    /// of its end, and ends some time after the last program.
    ///
    /// # Errors
    /// [`LaunchError::Service`].
    pub fn found_service(&self, command: &Path) -> Result<(), LaunchError> {
        if crate::status::ask(&self.service).is_ok() {
            return Ok(());
        }
        let mut command = Command::new(command);
        command.arg(SERVICE).arg(DETACH);
        let mut parent = self.start(command)?;
        parent.wait().map(drop).map_err(|cause| LaunchError::Service(cause.to_string()))
    }

    /// Starts the service of `command`, which has no arguments yet, and waits until it listens. Whoever gets the process
    /// has to end it.
    ///
    /// # Errors
    /// [`LaunchError::Service`].
    pub fn start_service(&self, mut command: Command) -> Result<Child, LaunchError> {
        command.arg(SERVICE);
        self.start(command)
    }

    fn start(&self, mut command: Command) -> Result<Child, LaunchError> {
        let failed = |cause: io::Error| LaunchError::Service(cause.to_string());
        let mut child = command
            .arg(&self.service)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .env_remove(PRELOAD)
            .spawn()
            .map_err(failed)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        if line == READY {
            return Ok(child);
        }
        let _gone_already = child.kill();
        let _gone = child.wait();
        Err(LaunchError::Service(format!(
            "it ended before it listened at {}; set BYWIRE_RUNTIME_DIR to a directory that you may write, in which that name \
             is at most 107 bytes long",
            self.service.display()
        )))
    }
}

/// Is the file at `path` such a library? Anything else the loader would complain of in every program's name, and go on.
///
/// # Errors
/// [`LaunchError::Foreign`], or it cannot be read.
pub fn check_library(path: &Path) -> Result<(), LaunchError> {
    let bytes =
        fs::read(path).map_err(|cause| LaunchError::File { what: "read", path: path.to_owned(), cause })?;
    let mark = SERVICE_VARIABLE.as_bytes();
    let is_ours = bytes.starts_with(b"\x7fELF") && bytes.windows(mark.len()).any(|window| window == mark);
    if is_ours { Ok(()) } else { Err(LaunchError::Foreign(path.to_owned())) }
}

/// The library: named by [`LIBRARY_VARIABLE`], or beside this command, or where installers put libraries.
///
/// # Errors
/// [`LaunchError::Absent`].
pub fn find_library() -> Result<PathBuf, LaunchError> {
    let command = std::env::current_exe().unwrap_or_default();
    let directory = command.parent().unwrap_or(Path::new("/"));
    let named = std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty());
    let places = match named {
        Some(named) => vec![PathBuf::from(named)],
        None => vec![directory.join(LIBRARY), directory.join("../lib/bywire").join(LIBRARY)],
    };
    let found = places.iter().find_map(|place| fs::canonicalize(place).ok());
    found.ok_or(LaunchError::Absent(command))
}

/// A path with `$LIB` in it: only the GNU C library knows what it stands for, so programs of other C libraries find
/// nothing to load and run as they are.
fn preload(directory: &Path, library: &Path) -> Result<PathBuf, LaunchError> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |cause| LaunchError::Directory { what, path, cause }
    };
    let absent = |cause| LaunchError::File { what: "find", path: library.to_owned(), cause };
    let library = fs::canonicalize(library).map_err(absent)?;
    if directory.as_os_str().as_encoded_bytes().iter().any(|byte| b" :$".contains(byte)) {
        return Err(LaunchError::Place(directory.to_owned()));
    }
    // Tells libraries of different places apart, so that links never have to be replaced.
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    // AddressSanitizer's shared runtime ends programs unless the first library's name has this in it, wherever they were
    // started from and whatever options they were given: so that nothing hides what it checks, of which the library tells it.
    let name = format!("bywire-{:x}-libasan.so", hasher.finish());
    for place in LIBRARY_DIRECTORIES {
        let place = directory.join(place);
        fs::create_dir_all(&place).map_err(failed("make", &place))?;
        match symlink(&library, place.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("link in", &place)(error));
            }
            _ => {}
        }
    }
    Ok(directory.join("$LIB").join(name))
}
