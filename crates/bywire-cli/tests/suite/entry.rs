//! `./x` on a machine that lacks what it needs: its last line is what to type, and it installs nothing among the sources.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The commands that the script calls before it builds.
const PROGRAMS: [&str; 11] =
    ["sh", "cut", "dirname", "fold", "git", "head", "paste", "sed", "sort", "cat", "grep"];

/// A run of `./x` by a user other than root who has only the programs above, and others of which only the names count.
fn x(names: &[&str], words: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let link = |target: &Path, name: &str| symlink(target, directory.path().join(name)).expect("linked");
    PROGRAMS.iter().for_each(|name| link(&Path::new("/usr/bin").join(name), name));
    names.iter().for_each(|name| link(Path::new("/bin/false"), name));
    let id = directory.path().join("id");
    fs::write(&id, "#!/bin/sh\necho 1000\n").expect("written");
    fs::set_permissions(&id, Permissions::from_mode(0o755)).expect("executable");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../x");
    let mut command = Command::new("/bin/sh");
    command.arg(script).args(words).stdin(Stdio::null()).env_clear();
    command.env("PATH", directory.path()).env("HOME", directory.path()).output().expect("it runs")
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).lines().next_back().unwrap_or_default().to_owned()
}

#[test]
fn the_last_line_is_what_has_to_be_typed() {
    let prefix = tempfile::tempdir().expect("a directory");
    let install = ["install", "--prefix", prefix.path().to_str().expect("text")];
    for (there, package) in [
        (&["apt-get"][..], "build-essential curl ca-certificates"),
        (&["apt-get", "curl"], "build-essential"),
        (&["apt-get", "cc"], "curl ca-certificates"),
    ] {
        let output = x(there, &install);
        let wanted = format!("x: type this line, and the same command again: sudo apt-get install {package}");
        assert_eq!((last_line(&output), output.status.code()), (wanted, Some(1)), "{output:?}");
    }
    let output = x(&["cc"], &install);
    assert!(last_line(&output).contains("install curl by the package manager of this system"), "{output:?}");
}

#[test]
fn nothing_is_installed_among_the_sources() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = x(&[], &["install", "--prefix", sources.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(last_line(&output).contains("this is the directory of the sources"), "{output:?}");
}
