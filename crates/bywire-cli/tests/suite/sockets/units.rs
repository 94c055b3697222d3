//! The recipes of docs/sockets.md for Debian's Redis, nginx and PostgreSQL, word for word, with the packages' own
//! units, under a booted systemd: the services are up and carried, and the doctor names one that has not loaded the
//! library. Needs root.

use std::fs;
use std::process::{Command, Stdio};

use super::filters::Group;
use super::{Fabric, ended, library, write};
use crate::packages::are_installed;

const PAGE: &str = include_str!("../../../../../docs/sockets.md");
const BOOT: &str = include_str!("systemd/boot.sh");
const INSIDE: &str = include_str!("systemd/inside.sh");
/// The packages' units, and the names of their files here.
const RECIPES: [(&str, &str); 3] =
    [("redis-server", "redis"), ("nginx", "nginx"), ("postgresql@15-main", "postgresql")];

/// The recipe that the page gives for `systemctl edit UNIT`.
fn recipe(unit: &str) -> &'static str {
    let named = format!("by `systemctl edit {unit}`");
    let (_, rest) = PAGE.split_once(&named).expect("the page has the unit");
    let (_, rest) = rest.split_once("```ini\n").expect("its recipe");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_recipes_for_systemd_make_the_services_of_debian_carried() {
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
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return println!("not run: the recipes for systemd: it boots in namespaces, which takes root");
    }
    if !fs::exists("/etc/postgresql/15/main").unwrap_or(false) {
        return println!("not run: the recipes for systemd: they are for Debian 12, with PostgreSQL 15");
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
    for (unit, name) in RECIPES {
        write(place(&format!("{name}.recipe")), recipe(unit));
    }
    write(place("inside"), INSIDE);
    write(place("boot"), BOOT);
    let spaces = ["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"];
    let probe = Command::new("unshare").args(spaces).arg("true").stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        return println!("not run: the recipes for systemd: this kernel allows no namespaces of all kinds");
    }
    let Some(group) = Group::new(&fabric) else { return };
    let enter = "mkdir \"$GROUP\"; echo $$ >\"$GROUP/cgroup.procs\"; exec \"$@\"";
    let words =
        [&["sh", "-ec", enter, "sh", "unshare"], &spaces[..], &["sh", &place("boot"), &shared, &root]];
    let booted = ended(fabric.plain(&words.concat()).env("GROUP", group.path()));
    let said = fs::read_to_string(place("output")).unwrap_or_default();
    let outcomes: Vec<&str> = said.lines().filter(|line| line.contains(" active ")).collect();
    assert_eq!(outcomes.len(), 4, "{said}\n{booted:?}");
    for ((unit, _), outcome) in RECIPES.iter().zip(&outcomes) {
        println!("{outcome}");
        let mut words = outcome.strip_prefix(unit).expect("in order").split_whitespace().skip(1);
        let carried: u64 = words.next().and_then(|count| count.parse().ok()).expect("a count");
        assert!(carried > 0, "{outcome}\n{said}");
        let doctor = format!("have loaded the library: {unit}.service");
        assert!(outcome.ends_with(&doctor), "{outcome}");
    }
    // The fourth one has no recipe: the doctor names it.
    let lacking = "active 0 started by `bywire run`, and no process of it has loaded the library, so it is TCP: \
        postgresql@15-main.service";
    assert!(outcomes[3].ends_with(lacking), "{said}");
}
