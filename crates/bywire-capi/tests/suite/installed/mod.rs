//! Bywire for C, installed in a directory of its own, and programs compiled against it as its users do.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// An installation that is removed with the test; its ports live in a runtime directory inside it.
pub struct Installed {
    directory: TempDir,
}

const WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"];

impl Installed {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // Built with the tests themselves, which lie beside them.
        let program = std::env::current_exe().expect("this program");
        let libraries = program.parent().expect("a directory");
        let mut install = Command::new(env!("CARGO_BIN_EXE_bywire-install"));
        install.arg("--libraries").arg(libraries);
        succeed(install.arg("--prefix").arg(directory.path()));
        Self { directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A program of a C or C++ source, linked by what pkg-config says.
    pub fn compile(&self, source: &Path, dialect: &str) -> PathBuf {
        let flags = self.pkg_config(&["--cflags", "--libs"]);
        self.compile_with(source, dialect, &flags)
    }

    /// The same with the static library.
    pub fn compile_static(&self, source: &Path) -> PathBuf {
        let flags = self.pkg_config(&["--cflags", "--libs", "--static"]);
        let archive = self.path().join("lib/libbywire.a").to_str().expect("UTF-8").to_owned();
        let flags = flags.into_iter().map(|flag| if flag == "-lbywire" { archive.clone() } else { flag });
        self.compile_with(source, "c11", &flags.collect::<Vec<_>>())
    }

    fn compile_with(&self, source: &Path, dialect: &str, flags: &[String]) -> PathBuf {
        let stem = source.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let program = self.path().join(format!("{stem}-{dialect}"));
        let language = if dialect.starts_with("c++") { "c++" } else { "c" };
        let mut compiler = Command::new(if language == "c++" { "g++" } else { "cc" });
        compiler
            .arg(format!("-std={dialect}"))
            .args(WARNINGS)
            .args(["-D_GNU_SOURCE", "-pthread", "-x", language])
            .arg(source);
        succeed(compiler.args(["-x", "none"]).arg("-o").arg(&program).args(flags));
        program
    }

    /// A program of a source of this name's language, as a compiler makes it by these words. Its warnings are errors.
    pub fn build(&self, compiler: &str, words: &[&str], source: &Path) -> PathBuf {
        let mut program = self.path().join(source.file_name().expect("a name")).into_os_string();
        program.push("-program");
        let mut command = Command::new(compiler);
        command.args(WARNINGS).arg("-pthread").args(words).arg(source).arg("-o").arg(&program);
        succeed(command.args(self.pkg_config(&["--cflags", "--libs"])));
        program.into()
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        let said = succeed(
            command.args(arguments).arg("bywire").env("PKG_CONFIG_PATH", self.path().join("lib/pkgconfig")),
        );
        said.split_whitespace().map(str::to_owned).collect()
    }

    /// A program of this installation, not started yet.
    pub fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", self.path().join("lib"));
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
        let library = self.path().join("lib/libbywire.so");
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
