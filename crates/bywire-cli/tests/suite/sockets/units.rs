//! `bywire service` by the commands of docs/sockets.md, with the units of Debian's packages, under a booted systemd.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::filters::Group;
use super::{Fabric, ended_within, library, write};
use crate::packages::are_installed;

const PAGE: &str = include_str!("../../../../../docs/sockets.md");
const BOOT: &str = include_str!("systemd/boot.sh");
const INSIDE: &str = include_str!("systemd/inside.sh");
/// The units that the page adds, in this order.
const UNITS: [&str; 3] = ["redis-server", "nginx", "postgresql@15-main"];

/// Fifteen starts of services, each watched for two seconds at least.
const TIMEOUT: Duration = Duration::from_secs(360);

/// A unit that ends at once if it is started by `bywire run`.
const REFUSES: &str = "[Service]
ExecStart=/bin/sh -c 'test -z \"$$LD_PRELOAD\" || { echo too much environment >&2; exit 7; }; exec sleep 1000'
";
/// A unit that does not become active then, within a short time.
const SILENT: &str = "[Service]
Type=notify
NotifyAccess=all
TimeoutStartSec=3
ExecStart=/bin/sh -c 'test -n \"$$LD_PRELOAD\" || systemd-notify --ready; exec sleep 1000'
";
/// A program behind a filter that forbids a call of the library.
const FILTERED: &str = "[Service]
Type=oneshot
SystemCallFilter=~memfd_create
Environment=BYWIRE_RUNTIME_DIR=/tmp
StandardError=file:/run/test/filtered.errors
ExecStart=/usr/local/bin/bywire run -- /bin/true
";

/// The commands of the page, each of which begins with one of these words.
fn commands() -> String {
    let (_, rest) = PAGE.split_once("## As a service").expect("the section");
    let (_, rest) = rest.split_once("```sh\n").expect("its commands");
    rest.split_once("```").expect("their end").0.to_owned()
}

/// What the booted machine printed. `None`, with a message: it cannot be booted here.
fn booted() -> Option<String> {
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
    let slow = SILENT.replace("TimeoutStartSec=3", "TimeoutStartSec=100");
    for (name, text) in [
        ("commands", commands().as_str()),
        ("refuses.service", REFUSES),
        ("silent.service", SILENT),
        ("slow.service", &slow),
        ("filtered.service", FILTERED),
        ("inside", INSIDE),
        ("boot", BOOT),
    ] {
        write(place(name), text);
    }
    let spaces = ["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"];
    let probe = Command::new("unshare").args(spaces).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("not run: services of systemd: this kernel allows no namespaces of all kinds");
        return None;
    }
    let group = Group::new(&fabric)?;
    let enter = "mkdir \"$GROUP\"; echo $$ >\"$GROUP/cgroup.procs\"; exec \"$@\"";
    let words =
        [&["sh", "-ec", enter, "sh", "unshare"], &spaces[..], &["sh", &place("boot"), &shared, &root]];
    let output = ended_within(TIMEOUT, fabric.plain(&words.concat()).env("GROUP", group.path()));
    let said = fs::read_to_string(place("output")).unwrap_or_default();
    assert!(!said.is_empty(), "{output:?}");
    Some(said)
}

/// A command that was run, with its status and its output.
struct Ran<'a> {
    status: u8,
    output: &'a str,
}

fn ran<'a>(said: &'a str, command: &str) -> Ran<'a> {
    let (head, rest) =
        said.split_once(&format!(" {command}\n")).unwrap_or_else(|| panic!("{command}: {said}"));
    let status = head.rsplit("ran ").next().and_then(|status| status.parse().ok()).expect("a status");
    let end = rest.match_indices('\n').map(|(at, _)| at + 1).find(|at| !rest[*at..].starts_with("  "));
    Ran { status, output: if rest.starts_with("  ") { &rest[..end.unwrap_or(rest.len())] } else { "" } }
}

#[test]
fn services_of_debian_are_carried_once_they_are_added_and_put_back_if_they_cannot_work() {
    let Some(said) = booted() else { return };
    println!("{said}");
    // The page's own commands.
    for command in commands().lines() {
        assert_eq!(ran(&said, command).status, 0, "{command}: {said}");
    }
    let shown = ran(&said, "bywire service add redis-server --dry-run").output;
    assert!(shown.contains("ExecPaths=/usr/local/bin/bywire") && shown.contains("PrivateUsers="), "{shown}");
    for unit in UNITS {
        let added = ran(&said, &format!("bywire service add {unit} --restart")).output;
        assert!(added.contains("restarted") && added.contains("can be carried"), "{added}");
    }
    let used: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("used ")).collect();
    // After `add`, and after a further restart.
    for (outcome, unit) in used.iter().zip(UNITS.iter().cycle()).take(6) {
        let words: Vec<&str> = outcome.split(' ').collect();
        assert!(words[..2] == [unit, "active"] && words[2] != "0", "{outcome}: {said}");
    }
    let check = ran(&said, "bywire service check").output;
    assert_eq!(check.matches("connections can be carried").count(), 3, "{check}");
    assert!(check.contains("carried now"), "{check}");
    assert_eq!(ran(&said, "bywire service list").output.lines().count(), 3);
    // Removed, it is TCP, and nothing of it is left.
    assert_eq!(used[6], "redis-server active 0", "{said}");
    assert!(said.contains("state redis-server active \n") && !said.contains("left /run/"), "{said}");
    refusals_say_what_to_do(&said);
    units_that_cannot_work_are_put_back(&said);
    let doctor: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("doctor ")).collect();
    assert!(doctor[0].starts_with("have loaded the library: ") && doctor[0] == doctor[1], "{said}");
    let lacking = "started by `bywire run`, and no process of it has loaded the library, so it is TCP: \
        postgresql@15-main.service";
    assert_eq!(doctor[2], lacking, "{said}");
    let last = said.rsplit("ran ").next().expect("the last command");
    assert!(
        last.starts_with("2 bywire service add postgresql@15-main") && last.contains("already"),
        "{last}"
    );
}

fn refusals_say_what_to_do(said: &str) {
    for (command, expected) in [
        ("bywire service add hidden", "`systemctl unmask hidden.service` first"),
        ("bywire service add no-such-service", "`systemctl list-unit-files --type=service`"),
        ("bywire service add postgresql", "its servers are postgresql@15-main.service"),
        ("bywire service add postgresql@", "name one of its instances, such as postgresql@15-main.service"),
        ("bywire service add redis-server.socket", "is no service"),
        (
            "setpriv --reuid 65534 --regid 65534 --clear-groups bywire service add nginx",
            "`sudo bywire service add nginx`",
        ),
    ] {
        let ran = ran(said, command);
        assert!(ran.status == 2 && ran.output.contains(expected), "{command}: {} {}", ran.status, ran.output);
    }
    // An alias is the unit itself. Without a terminal and --restart the line to type is printed.
    let alias = ran(said, "bywire service add redis");
    assert!(
        alias.status == 0 && alias.output.contains("redis-server.service.d/bywire.conf"),
        "{}",
        alias.output
    );
    assert!(alias.output.contains("`bywire service add redis --restart`"), "{}", alias.output);
    let filtered = ran(said, "cat filtered.errors").output;
    assert!(filtered.contains("forbids the system call memfd_create"), "{filtered}");
    let unmapped = ran(said, "bywire run --library /mnt/libbywire_sockets.so -- true");
    assert!(unmapped.status == 0 && unmapped.output.contains("cannot be mapped"), "{}", unmapped.output);
    assert!(
        unmapped.output.contains("noexec") && unmapped.output.lines().count() == 1,
        "{}",
        unmapped.output
    );
}

fn units_that_cannot_work_are_put_back(said: &str) {
    for (command, status) in [
        ("bywire service add refuses --restart", 1),
        ("bywire service add silent --restart", 1),
        ("timeout --preserve-status --signal INT 4 bywire service add slow --restart", 130),
    ] {
        let ran = ran(said, command);
        assert_eq!(ran.status, status, "{command}: {}", ran.output);
        assert!(ran.output.contains("runs again without the change"), "{command}: {}", ran.output);
    }
    for unit in ["nginx", "refuses", "silent", "slow"] {
        assert!(said.contains(&format!("state {unit} active \n")), "{unit}: {said}");
    }
}
