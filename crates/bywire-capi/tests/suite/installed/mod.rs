//! Bywire for C, installed once for all tests, and programs compiled against it as its users do.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use bywire_testing::{compile, exclusive};
use tempfile::TempDir;

/// An installation, and a directory that is removed with the test: for its sources, its programs and its ports.
pub struct Installed {
    prefix: PathBuf,
    directory: TempDir,
}

const INSTALLER: &str = env!("CARGO_BIN_EXE_bywire-install");
/// Programs that several tests use, and the installation.
const KEPT: &str = env!("CARGO_TARGET_TMPDIR");
const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"];

/// The directory of both libraries, which cargo has built beside the tests.
pub fn libraries() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.parent().expect("a directory").to_owned()
}

fn install(prefix: &Path) {
    succeed(Command::new(INSTALLER).arg("--libraries").arg(libraries()).arg("--prefix").arg(prefix));
}

/// The place of the installation of the last build, which the first test makes.
fn shared() -> PathBuf {
    let mut hasher = DefaultHasher::new();
    for file in
        [libraries().join("libbywire_capi.so"), libraries().join("libbywire_capi.a"), INSTALLER.into()]
    {
        let metadata = fs::metadata(file).expect("built");
        (metadata.len(), metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
    }
    let prefix = Path::new(KEPT).join(format!("installed-{:016x}", hasher.finish()));
    let complete = prefix.join("complete");
    let _lock = exclusive("installation");
    if !complete.exists() {
        for entry in fs::read_dir(KEPT).expect("a directory") {
            let earlier = entry.expect("an entry").path();
            if earlier.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"installed-")) {
                fs::remove_dir_all(earlier).expect("removed");
            }
        }
        install(&prefix);
        fs::write(complete, "").expect("written");
    }
    prefix
}

impl Installed {
    /// The installation that tests share and leave as it is.
    pub fn new() -> Self {
        Self { prefix: shared(), directory: tempfile::tempdir().expect("a directory") }
    }

    /// An installation of the test's own, in its directory, which it may change.
    pub fn own() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        install(directory.path());
        Self { prefix: directory.path().to_owned(), directory }
    }

    /// The test's own directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The prefix of the installation.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// A program of a C or C++ source, linked by what pkg-config says.
    pub fn compile(&self, source: &Path, dialect: &str) -> PathBuf {
        let compiler = if dialect.starts_with("c++") { "g++" } else { "cc" };
        self.build(compiler, &[&format!("-std={dialect}"), "-D_GNU_SOURCE"], source)
    }

    /// A program in C with the static library.
    pub fn compile_static(&self, source: &Path) -> PathBuf {
        let flags = self.pkg_config(&["--cflags", "--libs", "--static"]);
        let archive = self.prefix.join("lib/libbywire.a").to_str().expect("UTF-8").to_owned();
        let flags = flags.into_iter().map(|flag| if flag == "-lbywire" { archive.clone() } else { flag });
        self.build_with("cc", &["-std=c11"], source, &flags.collect::<Vec<_>>())
    }

    /// A program of a source of this name's language, as a compiler makes it by these words. Its warnings are errors.
    pub fn build(&self, compiler: &str, words: &[&str], source: &Path) -> PathBuf {
        self.build_with(compiler, words, source, &self.pkg_config(&["--cflags", "--libs"]))
    }

    fn build_with(&self, compiler: &str, words: &[&str], source: &Path, flags: &[String]) -> PathBuf {
        let mut program = self.path().join(source.file_name().expect("a name")).into_os_string();
        program.push("-program");
        let program = PathBuf::from(program);
        let flags = flags.iter().map(String::as_str);
        let words: Vec<&str> =
            WARNINGS.into_iter().chain(["-pthread"]).chain(words.iter().copied()).chain(flags).collect();
        // A source that the test has written is no other test's.
        let kept = if source.starts_with(self.path()) { self.path() } else { Path::new(KEPT) };
        compile(kept, compiler, source, &words, &program).expect(compiler);
        program
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        let said = succeed(
            command.args(arguments).arg("bywire").env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig")),
        );
        said.split_whitespace().map(str::to_owned).collect()
    }

    /// A program of this installation, not started yet.
    pub fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", self.prefix.join("lib"));
        command.env("BYWIRE_RUNTIME_DIR", self.path().join("run")).stdin(Stdio::null());
        command
    }

    /// Runs a program to its end and returns what it printed.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> String {
        succeed(&mut self.command(program, arguments))
    }

    /// Starts a program whose output is read later.
    pub fn start(&self, program: &Path, arguments: &[&str]) -> Child {
        let mut command = self.command(program, arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start")
    }

    /// The functions that the shared library exports.
    pub fn exports(&self) -> BTreeSet<String> {
        let library = self.prefix.join("lib/libbywire.so");
        let listed = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
        listed.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect()
    }
}

/// What a started program printed, once it has ended well.
pub fn finish(child: Child) -> String {
    read(child.wait_with_output().expect("wait"), "the other program")
}

/// Runs a command to its end and returns what it printed.
pub fn succeed(command: &mut Command) -> String {
    let what = format!("{command:?}");
    read(command.output().unwrap_or_else(|error| panic!("{what}: {error}")), &what)
}

fn read(output: Output, what: &str) -> String {
    let [said, complained] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{what}: {}\n{said}\n{complained}", output.status);
    said.into_owned()
}

/// Returns whether a program is installed here; says that a test is not run if it is not.
pub fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|directory| directory.join(program).exists());
    if !found {
        println!("not run: {program} is not installed");
    }
    found
}

/// The functions that a header declares.
pub fn functions(header: &str) -> BTreeSet<String> {
    let words = header.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '(');
    let names = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    names.filter(|name| name.starts_with("bw_")).map(str::to_owned).collect()
}
