//! Starts programs so that their connections are carried. `bywire run` and the laboratory share it.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::filters;
use crate::protocol::{CORES_VARIABLE, LOG_VARIABLE, SERVICE_VARIABLE, SPIN_VARIABLE};
use crate::status::{QueryError, query};

/// The subcommand that runs the pairing service. Each command that uses this module has it. It prints [`READY`] once
/// it listens.
pub const SERVICE: &str = "__pairing";
/// Its option to detach from the process that started it.
pub const DETACH: &str = "--detach";
/// The subcommand that runs an engine beside a measurement. The path of its pairing service follows. It prints [`READY`] once
/// it serves.
pub const ENGINE: &str = "__engine";
/// The line that a service prints once it listens.
pub const READY: &str = "ready\n";
/// The path of the library, if it is not beside the command.
pub const LIBRARY_VARIABLE: &str = "BYWIRE_SOCKETS_LIBRARY";
/// The library's file name.
const LIBRARY: &str = "libbywire_sockets.so";
/// The variable of the C library's loader.
const PRELOAD: &str = "LD_PRELOAD";
/// The values of `$LIB` in C libraries for this processor.
const LIBRARY_DIRECTORIES: [&str; 4] = ["lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib"];

/// Why a program cannot be started with the library.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no library.
    #[error("{LIBRARY} is not beside {}: name it by --library or {LIBRARY_VARIABLE}", .0.display())]
    Absent(PathBuf),
    /// The variable names a file that cannot be read.
    #[error("cannot read {LIBRARY_VARIABLE}={}: {cause}; name the {LIBRARY} of this version, or unset the variable", path.display())]
    Named {
        /// The given name.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// A file cannot be read or found.
    #[error("cannot {what} {}: {cause}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The library cannot be put where the loader would find it.
    #[error("cannot {what} {}: {cause}; set BYWIRE_RUNTIME_DIR to a directory that you may write", path.display())]
    Directory {
        /// What was tried.
        what: &'static str,
        /// The directory.
        path: PathBuf,
        /// The error of the kernel.
        cause: io::Error,
    },
    /// The directory has a character with a special meaning for the loader.
    #[error("{} cannot be named in LD_PRELOAD, where ` `, `:` and `$` have a meaning of their own: choose another BYWIRE_RUNTIME_DIR", .0.display())]
    Place(PathBuf),
    /// The named file is not the library.
    #[error("{} is not Bywire's library for sockets: leave out --library and {LIBRARY_VARIABLE}, or give the path of that", .0.display())]
    OtherFile(PathBuf),
    /// The service could not be started, so everything would stay the kernel's.
    #[error("cannot start the pairing service: {0}")]
    Service(String),
}

/// The library and the service that programs are started with.
#[derive(Clone, Debug)]
pub struct Launch {
    preload: PathBuf,
    service: PathBuf,
    cores: PathBuf,
    variables: Vec<(&'static str, OsString)>,
}

impl Launch {
    /// Uses `library` and `directory`, which no other user may write. The loader finds the library there, and the
    /// service listens there.
    ///
    /// # Errors
    /// [`LaunchError`].
    pub fn new(directory: &Path, library: &Path) -> Result<Self, LaunchError> {
        Ok(Self {
            preload: preload(directory, library)?,
            service: directory.join("pairing"),
            cores: directory.join("pairing.cores"),
            variables: Vec::new(),
        })
    }

    /// A service in `directory`, which no other user may write, without any library.
    pub fn of_service(directory: &Path) -> Self {
        Self {
            preload: PathBuf::new(),
            service: directory.join("pairing"),
            cores: directory.join("pairing.cores"),
            variables: Vec::new(),
        }
    }

    /// Allows or forbids the library to spin before it sleeps. By default it spins for a bounded time where it may.
    pub fn spin(self, spin: Option<bool>) -> Self {
        let Some(spin) = spin else { return self };
        self.variable(SPIN_VARIABLE, if spin { "1" } else { "0" })
    }

    /// Lets the library log to a file.
    pub fn log(self, log: Option<PathBuf>) -> Self {
        let Some(log) = log else { return self };
        self.variable(LOG_VARIABLE, log)
    }

    /// Sets a variable that the library reads. Otherwise the environment decides.
    pub fn variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Uses a service that listens elsewhere and that this does not start.
    pub fn served_at(self, service: PathBuf) -> Self {
        Self { service, ..self }
    }

    /// Where the service listens.
    pub fn service(&self) -> &Path {
        &self.service
    }

    /// Sets the environment that the library needs. Libraries that this process is preloaded with come after it.
    pub fn prepare(&self, command: &mut Command) {
        let mut value = OsString::from(&self.preload);
        if let Some(before) = std::env::var_os(PRELOAD).filter(|value| !value.is_empty()) {
            value.push(":");
            value.push(before);
        }
        command.env(PRELOAD, value).env(SERVICE_VARIABLE, &self.service).env(CORES_VARIABLE, &self.cores);
        // The filters on this process allow its own calls, which are those of the library.
        if let Some(count) = filters::count().filter(|count| *count > 0) {
            command.env(filters::VARIABLE, count.to_string());
        } else {
            command.env_remove(filters::VARIABLE);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// Starts the service of `command` unless one answers, and waits until it listens. The service is detached, so it
    /// is no process's child, and it ends some time after the last program.
    ///
    /// # Errors
    /// [`LaunchError::Service`].
    pub fn found_service(&self, command: &Path) -> Result<(), LaunchError> {
        match query(&self.service) {
            Ok(_) => return Ok(()),
            Err(other @ QueryError::OtherVersion) => return Err(LaunchError::Service(other.to_string())),
            Err(QueryError::Absent | QueryError::Silent) => {}
        }
        let mut command = Command::new(command);
        command.arg(SERVICE).arg(DETACH);
        let mut parent = self.start(command)?;
        parent.wait().map_err(|cause| LaunchError::Service(cause.to_string()))?;
        // The service goes on while a process runs that has asked it, and this one is about to be the program.
        // It listens, so the program has it even if the answer is late.
        let _answer = query(&self.service);
        Ok(())
    }

    /// Starts the service of `command`, which has no arguments yet, and waits until it listens. The caller has to end
    /// the returned process.
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

/// Is the file at `path` the library? For any other file the loader would print an error in each program, and go on.
///
/// # Errors
/// [`LaunchError::OtherFile`], or the error of reading it.
pub fn check_library(path: &Path) -> Result<(), LaunchError> {
    let bytes =
        fs::read(path).map_err(|cause| LaunchError::File { what: "read", path: path.to_owned(), cause })?;
    let mark = SERVICE_VARIABLE.as_bytes();
    let is_ours = bytes.starts_with(b"\x7fELF") && bytes.windows(mark.len()).any(|window| window == mark);
    if is_ours { Ok(()) } else { Err(LaunchError::OtherFile(path.to_owned())) }
}

/// Finds the library: named by [`LIBRARY_VARIABLE`], or beside this command, or where installers put libraries.
///
/// # Errors
/// [`LaunchError::Absent`], or, if the variable names something else, [`LaunchError::Named`] or [`LaunchError::OtherFile`].
pub fn find_library() -> Result<PathBuf, LaunchError> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()) {
        return named_library(Path::new(&named));
    }
    let command = std::env::current_exe().unwrap_or_default();
    let directory = command.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(LIBRARY), directory.join("../lib/bywire").join(LIBRARY)];
    let found = places.iter().find_map(|place| fs::canonicalize(place).ok());
    found.ok_or(LaunchError::Absent(command))
}

/// The library that the variable names.
fn named_library(named: &Path) -> Result<PathBuf, LaunchError> {
    let path =
        fs::canonicalize(named).map_err(|cause| LaunchError::Named { path: named.to_owned(), cause })?;
    check_library(&path).map(|()| path)
}

/// Links the library into `directory`, and returns a path with `$LIB` in it. Only the GNU C library replaces that, so
/// programs of other C libraries find nothing to load and run unchanged.
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
    // Distinguishes libraries at different paths, so links never have to be replaced.
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    // AddressSanitizer's shared runtime ends a program unless the name of the first library contains `libasan`, so
    // that no other library hides the calls that it checks. Our library reports its calls to the runtime. A name
    // works from every directory and with all options of the runtime.
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
