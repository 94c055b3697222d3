//! `bywire service` under a booted systemd, with the units of Debian's packages: Redis, nginx, PostgreSQL, Apache, HAProxy,
//! memcached, MariaDB, PHP, PgBouncer and RabbitMQ are added, and a client's connections are carried after that, after a
//! reload, a restart and an upgrade of the package, and none once the services are removed. Units that cannot work are
//! put back. Needs root; `./x test` downloads the packages.
//!
//! Redis, nginx and PostgreSQL are also added by the commands of docs/sockets.md. Others are units with sandboxes that
//! need exceptions, a name with escapes, and a changed unit. A unit that does not start by `bywire run`, one that ends at
//! once, and one whose command is interrupted, are put back and run. A killed command is named by `check`. Masked, absent
//! and unsuitable units are refused, and so is a drop-in directory of another user. The doctor names a unit that has not
//! loaded the library. A library on a mount without the right to execute is reported.

use super::systemd::{booted, ran};
use crate::packages::cached;

const PAGE: &str = include_str!("../../../../../docs/sockets.md");
const INSIDE: &str = include_str!("systemd/inside.sh");
const PACKAGED: &str = include_str!("systemd/packaged.sh");
/// The script that installs Bywire, and removes it.
const X: &str = include_str!("../../../../../x");
/// The units that the page adds, in this order.
const UNITS: [&str; 3] = ["redis-server", "nginx", "postgresql@15-main"];
/// The units whose packages `./x test` downloads, and whether each can be reloaded.
const PACKAGED_UNITS: [(&str, bool); 10] = [
    ("apache2", true),
    ("haproxy", true),
    ("memcached", false),
    ("mariadb", false),
    ("php8.2-fpm", true),
    ("pgbouncer", true),
    ("rabbitmq-server", false),
    ("redis-server", false),
    ("nginx", true),
    ("postgresql@15-main", true),
];

/// A unit that ends at once if it is started by `bywire run`, with a message that would clear a terminal.
const REFUSES: &str = "[Service]
ExecStart=/bin/sh -c 'test -z \"$$LD_PRELOAD\" || { echo \"$$CLEAR too much environment\" >&2; exit 7; }; exec sleep 1000'
Environment=\"CLEAR=\\x1b[2J\"
";
/// A unit that ends at once then, without an error.
const ENDS: &str = "[Service]
ExecStart=/bin/sh -c 'test -z \"$$LD_PRELOAD\" || exit 0; exec sleep 1000'
";
/// A unit of any program.
const SLEEPS: &str = "[Service]
ExecStart=/bin/sleep 1000
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

/// A sandbox that hides the pairing service, and forbids the library's calls and Unix sockets.
const STRICT: &str = "[Service]
ExecStart=/usr/bin/redis-server --port 6401 --save \"\"
User=redis
NoExecPaths=/
ExecPaths=/usr/bin/redis-server /usr/lib
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
TemporaryFileSystem=/run:ro
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6
SystemCallFilter=~memfd_create eventfd2 @reboot
";
/// A user that exists while the unit runs.
const DYNAMIC: &str = "[Service]
ExecStart=/usr/bin/redis-server --port 6402 --save \"\"
DynamicUser=yes
ProtectProc=invisible
PrivateUsers=yes
";
/// A root of its own, which is this one without what is mounted in it.
const ROOTED: &str = "[Service]
ExecStart=/usr/bin/redis-server --port 6403 --save \"\"
User=redis
RootDirectory=/srv/root
MountAPIVFS=yes
";
/// A network of its own.
const PRIVATE: &str = "[Service]
ExecStart=/usr/bin/redis-server --port 6404
PrivateNetwork=yes
";

/// The commands of the page, each of which begins with one of these words.
fn commands() -> String {
    let (_, rest) = PAGE.split_once("## As a service").expect("the section");
    let (_, rest) = rest.split_once("```sh\n").expect("its commands");
    rest.split_once("```").expect("their end").0.to_owned()
}

#[test]
fn services_of_debian_are_carried_once_they_are_added_and_put_back_if_they_cannot_work() {
    let slow = SILENT.replace("TimeoutStartSec=3", "TimeoutStartSec=100");
    let commands = commands();
    let files = [
        ("commands", commands.as_str()),
        ("refuses.service", REFUSES),
        ("silent.service", SILENT),
        ("ends.service", ENDS),
        ("slow.service", &slow),
        ("killed.service", &slow),
        (r"odd\x2dname:1.service", SLEEPS),
        ("filtered.service", FILTERED),
        ("strict.service", STRICT),
        ("dynamic.service", DYNAMIC),
        ("rooted.service", ROOTED),
        ("private.service", PRIVATE),
        ("x", X),
    ];
    let Some(said) = booted(INSIDE, &files, None) else { return };
    assert!(!has_failed(&said), "{said}");
    // The page's own commands.
    for command in commands.lines() {
        assert_eq!(ran(&said, command).status, 0, "{command}: {said}");
    }
    let shown = ran(&said, "bywire service add redis-server --dry-run").output;
    assert!(shown.contains("ExecPaths=/usr/local/bin/bywire") && shown.contains("PrivateUsers="), "{shown}");
    for unit in UNITS {
        let added = ran(&said, &format!("bywire service add {unit} --restart")).output;
        assert!(added.contains("restarted") && added.contains("can be carried"), "{added}");
    }
    let used: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("used ")).collect();
    // After `add`, a reload and a restart.
    for (outcome, unit) in used.iter().zip(UNITS.iter().cycle()).take(9) {
        assert!(is_carried(outcome, unit), "{outcome}: {said}");
    }
    let check = ran(&said, "bywire service check").output;
    assert_eq!(check.matches("connections can be carried").count(), 3, "{check}");
    assert!(check.contains("carried now"), "{check}");
    assert_eq!(ran(&said, "bywire service list").output.lines().count(), 3);
    // Removed, it is TCP, and nothing of it is left.
    assert_eq!(used[9], "redis-server active 0", "{said}");
    assert!(said.contains("state redis-server active \n") && !said.contains("left /run/"), "{said}");
    changed_units_are_noticed(&said);
    assert!(is_carried(used[10], "nginx"), "{said}");
    for (outcome, unit) in used[11..].iter().zip(["strict", "dynamic", "rooted"]) {
        assert_eq!(ran(&said, &format!("bywire service add {unit} --restart")).status, 0, "{unit}: {said}");
        assert!(is_carried(outcome, unit), "{outcome}: {said}");
    }
    let odd = ran(&said, r"bywire service add 'odd\x2dname:1' --restart");
    assert!(odd.status == 0 && odd.output.contains("can be carried"), "{}", odd.output);
    one_command_changes_a_unit_at_a_time(&said);
    refusals_say_what_to_do(&said);
    units_that_cannot_work_are_put_back(&said);
    let doctor: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("doctor ")).collect();
    assert!(doctor[0].starts_with("have loaded the library: ") && doctor[..3] == [doctor[0]; 3], "{said}");
    let lacking = "started by `bywire run`, and no process of it has loaded the library, so nothing of it is carried: \
        postgresql@15-main.service";
    assert_eq!(doctor[3], lacking, "{said}");
    let last = said.rsplit("ran ").next().expect("the last command");
    assert!(
        last.starts_with("2 bywire service add postgresql@15-main") && last.contains("already"),
        "{last}"
    );
}

/// Returns whether a client failed, or a reload.
fn has_failed(said: &str) -> bool {
    said.lines().any(|line| line.starts_with("failed "))
}

/// Returns whether the last word of `use`, the count of carried connections, is not 0.
fn is_carried(used: &str, unit: &str) -> bool {
    let words: Vec<&str> = used.split(' ').collect();
    words[..2] == [unit, "active"] && words[2] != "0"
}

#[test]
fn services_of_debian_are_carried_after_reloads_restarts_and_upgrades_of_their_packages() {
    let Some(packages) = cached("services") else {
        return println!(
            "not run: services' upgrades: `./x test` downloads their packages, as root of Debian 12"
        );
    };
    let units: Vec<&str> = PACKAGED_UNITS.iter().map(|(unit, _)| *unit).collect();
    let Some(said) = booted(PACKAGED, &[("units", &units.join("\n"))], Some(&packages)) else { return };
    for step in ["installed 0", "upgraded 0"] {
        let place = packages.display();
        let hint = format!("if packages do not fit, remove {place}, and `./x test` downloads newer ones");
        assert!(said.lines().any(|line| line == step), "{hint}: {said}");
    }
    assert!(!has_failed(&said), "{said}");
    for (unit, can_reload) in PACKAGED_UNITS {
        for command in ["add", "remove"] {
            let command = format!("bywire service {command} {unit} --restart");
            assert_eq!(ran(&said, &command).status, 0, "{command}: {said}");
        }
        let check = ran(&said, &format!("bywire service check {unit}"));
        assert!(check.status == 0 && check.output.contains("connections can be carried"), "{}", check.output);
        // After `add`, a reload, a restart and the upgrade.
        let uses = if can_reload { 4 } else { 3 };
        let used: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("used ")).collect();
        let used: Vec<&str> = used.into_iter().filter(|line| line.starts_with(&format!("{unit} "))).collect();
        assert!(
            used.len() == uses && used.iter().all(|outcome| is_carried(outcome, unit)),
            "{used:?}: {said}"
        );
        assert!(said.contains(&format!("state {unit} active \n")), "{unit}: {said}");
    }
    let misnamed = ran(&said, "bywire service add php-fpm");
    assert!(
        misnamed.status == 2 && misnamed.output.contains("is it php8.2-fpm.service?"),
        "{}",
        misnamed.output
    );
    assert!(said.contains("plain 0\n"), "{said}");
    let left = said.lines().filter(|line| line.starts_with("left ")).collect::<Vec<_>>();
    assert_eq!(left, ["left /run/bywire-pairing/"], "{said}");
}

fn changed_units_are_noticed(said: &str) {
    let changed = ran(said, "bywire service check nginx").output;
    assert!(changed.contains("its own ExecStart= has changed"), "{changed}");
    assert_eq!(ran(said, "bywire service add nginx.service --restart").status, 0, "{said}");
    let renewed = ran(said, "bywire service check nginx.service").output;
    assert!(!renewed.contains("has changed") && renewed.contains("can be carried"), "{renewed}");
    let uninstalled = ran(said, "HOME=/root sh x uninstall");
    assert_eq!(uninstalled.status, 1, "{}", uninstalled.output);
    assert!(uninstalled.output.contains("those are: nginx postgresql@15-main"), "{}", uninstalled.output);
}

fn refusals_say_what_to_do(said: &str) {
    for (command, expected) in [
        ("bywire service add hidden", "`systemctl unmask hidden.service` first"),
        ("bywire service add no-such-service", "`systemctl list-unit-files --type=service`"),
        ("bywire service add postgresql", "its servers are postgresql@15-main.service"),
        ("bywire service add postgresql@", "name one of its instances, such as postgresql@15-main.service"),
        ("bywire service add redis-server.socket", "is no service"),
        ("bywire service add private", "PrivateNetwork=yes"),
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
        alias.status == 0 && alias.output.contains("redis-server.service.d/zz-bywire.conf"),
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
        ("bywire service add ends --restart", 1),
        ("timeout --preserve-status --signal INT 4 bywire service add slow --restart", 130),
    ] {
        let ran = ran(said, command);
        assert_eq!(ran.status, status, "{command}: {}", ran.output);
        assert!(ran.output.contains("runs again without the change"), "{command}: {}", ran.output);
    }
    // The journal's words do nothing to a terminal.
    let refuses = ran(said, "bywire service add refuses --restart").output;
    assert!(refuses.contains(r"\u{1b}[2J too much environment"), "{refuses}");
    let owned = ran(said, "bywire service add owned --restart");
    assert!(owned.status == 1 && owned.output.contains("root alone may change"), "{}", owned.output);
    assert_eq!(ran(said, "timeout --signal KILL 4 bywire service add killed --restart").status, 137);
    let killed = ran(said, "bywire service check killed");
    assert!(killed.output.contains("was killed halfway"), "{}", killed.output);
    assert_eq!(ran(said, "bywire service remove killed --restart").status, 0, "{said}");
    assert!(said.contains("state nginx active override.conf \n"), "{said}");
    for unit in ["refuses", "silent", "ends", "slow", "killed"] {
        assert!(said.contains(&format!("state {unit} active \n")), "{unit}: {said}");
    }
}

fn one_command_changes_a_unit_at_a_time(said: &str) {
    let second = ran(said, "flock /run/bywire.changes/strict.service bywire service remove strict");
    assert!(second.status == 1 && second.output.contains("another `bywire service`"), "{}", second.output);
    for unit in ["strict", "dynamic", r"'odd\x2dname:1'"] {
        assert_eq!(ran(said, &format!("bywire service remove {unit} --restart")).status, 0, "{unit}: {said}");
        let unit = unit.trim_matches('\'');
        assert!(said.contains(&format!("state {unit} active \n")), "{unit}: {said}");
    }
}
