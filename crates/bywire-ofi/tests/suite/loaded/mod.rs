//! The built library, as libfabric loads it, and programs in C that use it.
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a program may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A directory with the library under the name that libfabric looks for, and for what the programs leave.
pub struct Loaded {
    directory: TempDir,
}

impl Loaded {
    /// `None`: the machine lacks what the test needs, which is printed.
    pub fn new(commands: &[&str], header: &str) -> Option<Self> {
        for command in commands {
            if !exists(command) {
                eprintln!("not run: {command} is not installed");
                return None;
            }
        }
        if !includes(header) {
            eprintln!("not run: the header {header} is not installed");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let test = std::env::current_exe().expect("this program");
        let library = test.parent().expect("a directory").join("libbywire_fi.so");
        assert!(library.exists(), "{} is missing", library.display());
        std::os::unix::fs::symlink(library, directory.path().join("libbywire-fi.so")).expect("a link");
        std::fs::create_dir(directory.path().join("run")).expect("a directory");
        Some(Self { directory })
    }

    /// The same for jobs of Open MPI.
    pub fn of_open_mpi(more: &[&str]) -> Option<Self> {
        let loaded = Self::new(&[&["mpirun", "mpicc"], more].concat(), "mpi.h")?;
        let is_open_mpi = run(loaded.command("mpirun").arg("--version")).contains("Open MPI");
        if !is_open_mpi {
            eprintln!("not run: mpirun is not that of Open MPI");
        }
        is_open_mpi.then_some(loaded)
    }

    /// The same with a program of `tests/c` over libfabric's own interface.
    pub fn with_program(source: &str) -> Option<(Self, PathBuf)> {
        let loaded = Self::new(&["cc"], "rdma/fabric.h")?;
        let program = loaded.compile("cc", source, &["-lfabric"]);
        Some((loaded, program))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command that finds the library, and ports of its own.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_remove("FI_PROVIDER").env("FI_PROVIDER_PATH", self.directory.path());
        command.env("BYWIRE_RUNTIME_DIR", self.path("run"));
        command
    }

    /// Compiles a program of `tests/c`, once for all tests.
    pub fn compile(&self, compiler: &str, source: &str, options: &[&str]) -> PathBuf {
        let program = self.path(source.trim_end_matches(".c"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let words = [&["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"], options].concat();
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
        bywire_testing::compile(kept, compiler, &source, &words, &program).expect("a compiler");
        program
    }
}

/// Open MPI refuses to run as root without two variables.
pub const OPEN_MPI: [(&str, &str); 2] =
    [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];

/// Where MPICH of the Python Package Index is, as the laboratory looks for it.
pub fn mpich() -> Option<PathBuf> {
    std::env::var_os("BYWIRE_MPICH").map(PathBuf::from).or_else(|| cached("mpich"))
}

/// The directory of Intel MPI of the same index.
pub fn intel_mpi() -> Option<PathBuf> {
    cached("impi")
}

/// A directory of the cache.
fn cached(name: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    Some(cache?.join("bywire").join(name))
}

/// The compiler and the launcher of MPICH, where they would be.
pub fn mpich_commands() -> [String; 2] {
    let prefix = mpich().unwrap_or_default();
    ["bin/mpicc", "bin/mpiexec"].map(|name| prefix.join(name).display().to_string())
}

/// The directories of libfabrics to load: that of the system, and the newer one of MPICH, if it is there.
pub fn libfabrics() -> Vec<Option<PathBuf>> {
    let newer = mpich().map(|prefix| prefix.join("lib/mpich"));
    let newer = newer.filter(|directory| directory.join("libfabric.so.1").exists());
    if newer.is_none() {
        eprintln!("not run: MPICH of the Python Package Index, with a newer libfabric, is not installed");
    }
    [None].into_iter().chain(newer.map(Some)).collect()
}

/// docs/mpi.md, with each command in one line.
pub fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mpi.md");
    std::fs::read_to_string(page).expect("docs/mpi.md").replace("\\\n", " ")
}

/// The options by which that page has Open MPI use the provider.
pub fn options() -> Vec<String> {
    let page = page();
    let mut lines = page.lines().filter_map(|line| line.strip_prefix("mpirun -n 2 --mca "));
    let line = lines.next().and_then(|line| line.strip_suffix(" ./program")).expect("a command");
    std::iter::once("--mca").chain(line.split_whitespace()).map(str::to_owned).collect()
}

/// The variables by which it has MPICH use the provider.
pub fn mpich_variables() -> Vec<(String, String)> {
    variables_of("MPIR_CVAR_")
}

/// Those of Intel MPI.
pub fn intel_mpi_variables() -> Vec<(String, String)> {
    variables_of("I_MPI_FABRICS=")
}

/// The variables of the page's command that begins so.
fn variables_of(start: &str) -> Vec<(String, String)> {
    let page = page();
    let line = page.lines().find(|line| line.starts_with(start)).expect("a command");
    let variables = line.split(' ').map_while(|word| word.split_once('='));
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Runs a command to its end, and returns what it prints. It has to succeed, and in time.
pub fn run(command: &mut Command) -> String {
    let output = finish(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Collects what is written to a pipe, however much that is.
fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.expect("a pipe").read_to_end(&mut bytes).expect("readable");
        bytes
    })
}

/// Runs a command to its end, in time.
pub fn finish(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break Some(status);
        }
        if start.elapsed() > TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let [stdout, stderr] = [stdout, stderr].map(|collected| collected.join().expect("collected"));
    match status {
        Some(status) => Output { status, stdout, stderr },
        None => panic!("it takes too long:\n{}\n{}", text(&stdout), text(&stderr)),
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn exists(command: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(command).exists())
}

/// Has the compiler this header?
fn includes(header: &str) -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("header.c");
    std::fs::write(&source, format!("#include <{header}>\n")).expect("written");
    let compiler = if header == "mpi.h" { "mpicc" } else { "cc" };
    Command::new(compiler)
        .arg("-fsyntax-only")
        .arg(&source)
        .output()
        .is_ok_and(|output| output.status.success())
}
