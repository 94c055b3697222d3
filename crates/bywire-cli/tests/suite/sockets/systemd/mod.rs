//! systemd, booted over a throw-away copy of this machine's files.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::filters::Group;
use super::{Fabric, ended_within, library, write};
use crate::packages::are_installed;

const BOOT: &str = include_str!("boot.sh");
const SETUP: &str = include_str!("setup.sh");
const CLIENTS: &str = include_str!("clients.py");

/// Some twenty starts of services, each watched for two seconds at least.
const TIMEOUT: Duration = Duration::from_secs(420);

/// The output of a script in a booted machine that has these files, by their names and texts, and the packages of a directory
/// beside it. `None`, with a message: it cannot be booted here.
pub fn booted(script: &str, files: &[(&str, &str)], packages: Option<&Path>) -> Option<String> {
    let servers = [
        ("redis-server", "redis-server"),
        ("nginx", "nginx-light"),
        ("pg_ctlcluster", "postgresql"),
        ("systemctl", "systemd-sysv"),
        ("dbus-daemon", "dbus"),
        ("python3", "python3"),
        ("pivot_root", "util-linux"),
    ];
    if !are_installed(&servers) {
        return None;
    }
    if !rustix::process::geteuid().is_root() {
        println!("not run: services of systemd: it boots in namespaces, which takes root");
        return None;
    }
    if !fs::exists("/etc/postgresql/15/main").unwrap_or(false) {
        println!("not run: services of systemd: their units are Debian 12's, with PostgreSQL 15");
        return None;
    }
    let spaces = ["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"];
    let probe = Command::new("unshare").args(spaces).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("not run: services of systemd: this kernel allows no namespaces of all kinds");
        return None;
    }
    let fabric = Fabric::new();
    let [shared, root] = ["shared", "root"].map(|name| fabric.place(name));
    for directory in [&shared, &root] {
        fs::create_dir(directory).expect("made");
    }
    let place = |name: &str| format!("{shared}/{name}");
    fs::copy(env!("CARGO_BIN_EXE_bywire"), place("bywire")).expect("copied");
    fs::copy(library(), place("libbywire_sockets.so")).expect("copied");
    for (name, text) in super::service::UNITS {
        write(place(name), text);
    }
    let scripts = [("boot", BOOT), ("setup", SETUP), ("clients.py", CLIENTS), ("inside", script)];
    for (name, text) in files.iter().chain(&scripts) {
        write(place(name), text);
    }
    if let Some(packages) = packages {
        let status = Command::new("cp").arg("-r").arg(packages).arg(place("packages")).status();
        assert!(status.expect("it starts").success(), "packages are copied");
    }
    let group = Group::new(&fabric)?;
    let enter = "mkdir \"$GROUP\"; echo $$ >\"$GROUP/cgroup.procs\"; exec \"$@\"";
    let words =
        [&["sh", "-ec", enter, "sh", "unshare"], &spaces[..], &["sh", &place("boot"), &shared, &root]];
    let output = ended_within(TIMEOUT, fabric.plain(&words.concat()).env("GROUP", group.path()));
    let said = fs::read_to_string(place("output")).unwrap_or_default();
    assert!(!said.is_empty(), "{output:?}");
    println!("{said}");
    Some(said)
}

/// A command that was run, with its status and its output.
pub struct Ran<'a> {
    /// Its exit status.
    pub status: u8,
    /// Its output.
    pub output: &'a str,
}

/// Finds a command in the output of a booted machine.
pub fn ran<'a>(said: &'a str, command: &str) -> Ran<'a> {
    let (head, rest) =
        said.split_once(&format!(" {command}\n")).unwrap_or_else(|| panic!("{command}: {said}"));
    let status = head.rsplit("ran ").next().and_then(|status| status.parse().ok()).expect("a status");
    let end = rest.match_indices('\n').map(|(at, _)| at + 1).find(|at| !rest[*at..].starts_with("  "));
    Ran { status, output: if rest.starts_with("  ") { &rest[..end.unwrap_or(rest.len())] } else { "" } }
}
