//! A directory with the package as the wheel installs it, and the system's Python to run programs with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The package, and a runtime directory of its own.
pub struct Package {
    directory: TempDir,
}

impl Package {
    /// The package. `None`: this machine has no Python of 3.9 or newer, which is said.
    pub fn make() -> Option<Self> {
        let version = "import sys; sys.exit(sys.version_info < (3, 9))";
        if !Command::new("python3").args(["-c", version]).status().is_ok_and(|status| status.success()) {
            println!("not run: no python3 of version 3.9 or newer");
            return None;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let package = directory.path().join("bywire");
        std::fs::create_dir(&package).expect("a directory");
        std::fs::create_dir(directory.path().join("run")).expect("a directory");
        for entry in
            std::fs::read_dir(root().join("crates/bywire-python/python/bywire")).expect("the package")
        {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                std::fs::copy(&path, package.join(path.file_name().expect("a name"))).expect("a copy");
            }
        }
        std::fs::copy(module(), package.join("_bywire.abi3.so")).expect("the module that cargo has built");
        Some(Self { directory })
    }

    /// The system's Python, with this package.
    pub fn python(&self) -> Command {
        let mut command = Command::new("python3");
        command
            .arg("-W")
            .arg("error::ResourceWarning")
            .env("PYTHONPATH", self.directory.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("BYWIRE_RUNTIME_DIR", self.directory.path().join("run"));
        command
    }
}

/// The root of the tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The module, which cargo has built beside this program.
fn module() -> PathBuf {
    let built = std::env::current_exe().expect("a path").with_file_name("libbywire_python.so");
    assert!(built.exists(), "{} is not there: run the tests by cargo", built.display());
    built
}

/// Fails with a program's output unless it has succeeded.
pub fn succeeded(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    err.lines().filter(|line| line.starts_with("not run: ")).for_each(|line| println!("{line}"));
    out
}
