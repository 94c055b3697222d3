//! Units with `SystemCallFilter=@system-service` are carried: the packaged units of the machine's service and Redis,
//! under systemd as process 1 of a namespace (as root), and filters that libseccomp makes of systemd's lists, before
//! and behind `bywire run`, if systemd cannot be started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::geteuid;

use super::{Fabric, Running, SLOW_SERVER, await_listener, ended, library, port, row, start, text, write};
use crate::packages::{Service, have};

const COMMAND: &str = env!("CARGO_BIN_EXE_bywire");
const SYSTEMD: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];

/// Starts systemd as process 1 of new namespaces, in a new control group, with the units of a directory, of which it
/// starts `all.target`. Its `/run` has only the command, and it has only a loopback network.
const BOOT: &str = r#"set -e
mkdir "$GROUP"
echo $$ >"$GROUP/cgroup.procs"
exec unshare --pid --mount --fork --kill-child --cgroup --uts --ipc --net sh -ec '
mount --make-rprivate /
umount -l /sys/fs/cgroup/* 2>/dev/null || true
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t proc proc /proc
ip link set lo up
mount -t tmpfs tmpfs /run
: >/run/bywire
mount --bind "$COMMAND" /run/bywire
mkdir -p /run/systemd/system
cp "$UNITS"/* /run/systemd/system/
exec env -i container=bywire PATH="$PATH" SYSTEMD_UNIT_PATH=/run/systemd/system \
    "$SYSTEMD" --system --unit=all.target --log-target=console --log-level=notice --show-status=no'"#;

/// A control group, which is removed with its last process.
pub struct Group(PathBuf);

impl Group {
    /// `None`, with a message: systemd can have none here.
    pub fn new(fabric: &Fabric) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").expect("a list");
        let place = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let place = fields.next()?;
            (fields.next() == Some("cgroup2")).then(|| place.to_owned())
        });
        if place.is_none() {
            println!("not run: systemd needs cgroup2, which is not mounted here");
        }
        // The name of the directory, too, is no other test's.
        let name = fabric.directory.path().file_name()?.to_string_lossy().into_owned();
        Some(Self(Path::new(&place?).join(format!("bywire-test{name}"))))
    }

    /// Its directory. The process that enters it makes it.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let remove = "find \"$0\" -depth -type d -exec rmdir {} + 2>/dev/null";
        for _ in 0..100 {
            let _tried = std::process::Command::new("sh").args(["-c", remove]).arg(&self.0).status();
            if !self.0.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Starts units until one of them stops systemd. Returns systemd's output. `None`, with a message: it cannot be started
/// here.
fn boot(fabric: &Fabric, units: &[(&str, String)]) -> Option<String> {
    let systemd = SYSTEMD.into_iter().find(|path| Path::new(path).exists());
    let (Some(systemd), true) = (systemd, geteuid().is_root()) else {
        println!("not run: systemd is not installed, or its namespaces need root");
        return None;
    };
    let group = Group::new(fabric)?;
    let place = fabric.place("units");
    fs::create_dir_all(&place).expect("a directory");
    for (name, text) in units {
        write(format!("{place}/{name}"), text);
    }
    let mut command = fabric.plain(&["sh", "-c", BOOT]);
    command.env("GROUP", &group.0).env("UNITS", &place).env("SYSTEMD", systemd).env("COMMAND", COMMAND);
    let output = ended(&mut command);
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The target that starts one unit, which then stops systemd.
fn target(last: &str) -> (&'static str, String) {
    ("all.target", format!("[Unit]\nDefaultDependencies=no\nRequires={last}\n"))
}

/// A unit that runs commands behind filters, after other units.
fn unit(after: &str, is_last: bool, settings: &str) -> String {
    let end = if is_last {
        "SuccessAction=exit-force\nFailureAction=exit-force\n"
    } else {
        "FailureAction=exit-force\n"
    };
    format!(
        "[Unit]\nDefaultDependencies=no\nRequires={after}\nAfter={after}\n{end}\n[Service]\n\
         SystemCallFilter=@system-service\nRestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n\
         MemoryDenyWriteExecute=yes\nNoNewPrivileges=yes\nEnvironment=BYWIRE_PAIRING=/run/bywire-pairing/socket\n{settings}"
    )
}

/// The packaged units of the machine's service, with the command of this test. They hide `/tmp` and `/home`, where that may be.
fn machine() -> [(&'static str, String); 2] {
    [
        ("bywire-pairing.socket", include_str!("../../../../../packaging/bywire-pairing.socket")),
        ("bywire-pairing.service", include_str!("../../../../../packaging/bywire-pairing.service")),
    ]
    .map(|(name, text)| {
        let text = text.replace("/usr/local/bin/bywire", "/run/bywire");
        (name, text.replace("[Unit]\n", "[Unit]\nDefaultDependencies=no\n"))
    })
}

/// Redis and its load generator, each in a unit with `SystemCallFilter=`. Returns whether the load succeeded, and the
/// number of carried connections. `None`, with a message: systemd or Redis is not available.
fn redis_in_units(is_carried: bool) -> Option<(bool, u64)> {
    let service = Service::find("redis-server", "redis-server")?;
    let fabric = Fabric::new();
    let place = |name: &str| fabric.place(name);
    let run = if is_carried { format!("{COMMAND} run -- ") } else { String::new() };
    let load = service.program.with_file_name("redis-benchmark");
    let shared = format!(
        "Environment=BYWIRE_SOCKETS_LIBRARY={} LD_LIBRARY_PATH={}\n",
        library().display(),
        service.libraries.display()
    );
    let server = format!(
        "Type=notify\nNotifyAccess=all\nRuntimeDirectory=bywire-redis\nEnvironment=BYWIRE_RUNTIME_DIR=/run/bywire-redis\n{shared}\
         ExecStart={run}{} --port 7000 --bind 127.0.0.1 --save \"\" --dir {} --supervised systemd --daemonize no\n",
        service.program.display(),
        place("")
    );
    let client = format!(
        "Type=oneshot\nRuntimeDirectory=bywire-load\nEnvironment=BYWIRE_RUNTIME_DIR=/run/bywire-load\n{shared}\
         StandardOutput=file:{}\nExecStart={run}{} -p 7000 -c 8 -n 20000 -t set,get --csv\n\
         ExecStart=sh -c '{COMMAND} status --json >{}'\nExecStart=sh -c 'grep Seccomp: /proc/self/status >{}'\n",
        place("load"),
        load.display(),
        place("status"),
        place("filters")
    );
    let [socket, pairing] = machine();
    let units = [
        target("client.service"),
        socket,
        pairing,
        ("server.service", unit("bywire-pairing.socket", false, &server)),
        ("client.service", unit("server.service", true, &client)),
    ];
    let told = boot(&fabric, &units)?;
    let read = |name: &str| fs::read_to_string(place(name)).unwrap_or_default();
    let is_filtered = read("filters").ends_with("2\n");
    assert!(is_filtered, "there was no filter, or no unit: {told}{}{}", read("load"), read("status"));
    let status: serde_json::Value = serde_json::from_str(&read("status")).expect("JSON");
    let is_served = ["\"SET\",", "\"GET\","].iter().all(|test| read("load").contains(test));
    Some((is_served, status["carried_ever"].as_u64().unwrap_or(0)))
}

/// The version that systemd prints.
fn version() -> String {
    let told = ended(std::process::Command::new("systemctl").arg("--version"));
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    told.split(' ').nth(1).map_or_else(String::new, |number| format!("systemd {number}"))
}

#[test]
fn units_with_system_call_filter_are_carried_behind_systemds_filters() {
    let probe = Fabric::new();
    let one = "[Unit]\nDefaultDependencies=no\nSuccessAction=exit-force\nFailureAction=exit-force\n\n[Service]\nType=oneshot\n\
        SystemCallFilter=@system-service\nExecStart=sh -c 'echo runs >PLACE'\n";
    let one = one.replace("PLACE", &probe.place("probe"));
    let Some(told) = boot(&probe, &[target("probe.service"), ("probe.service", one)]) else { return };
    if !Path::new(&probe.place("probe")).exists() {
        return println!("not run: systemd cannot be process 1 of a namespace here: {}", told.trim());
    }
    let Some((is_served, carried)) = redis_in_units(false) else { return };
    assert!(is_served && carried == 0, "plain: {carried}");
    let Some((is_served, carried)) = redis_in_units(true) else { return };
    assert!(is_served && carried >= 8, "{carried} were carried");
    row(&version(), 2, carried);
}

/// Fetches files twenty times, with these prefixes of both programs. Returns the bytes, and the number of carried
/// connections.
fn fetched(server: &[&str], client: &[&str]) -> (Vec<u8>, u64) {
    let fabric = Fabric::new();
    fs::create_dir(fabric.place("www")).expect("a directory");
    write(fabric.place("www/file"), text(3, 300_000));
    let port = port();
    let serve = ["python3", "-c", SLOW_SERVER, &port.to_string(), &fabric.place("www")];
    let mut command = fabric.plain(&[server, &serve].concat());
    let _server: Running = start(&mut command);
    await_listener(port);
    let url = format!("http://127.0.0.1:{port}/file");
    let mut command = fabric.plain(&[client, &["curl", "-sS"], &[url.as_str(); 20]].concat());
    let output = ended(command.stdin(Stdio::null()));
    assert!(output.status.success(), "{server:?} {client:?}: {output:?}");
    let is_there = server.contains(&COMMAND) || client.contains(&COMMAND);
    (output.stdout, if is_there { fabric.carried_ever() } else { 0 })
}

#[test]
fn filters_of_libseccomp_with_systemds_lists_change_no_outcome_before_or_behind_bywire_run() {
    if !have(&[("python3", "python3"), ("curl", "curl"), ("systemd-analyze", "systemd")]) {
        return;
    }
    let program = format!("{}/tests/suite/sockets/filtered.py", env!("CARGO_MANIFEST_DIR"));
    let filter = ["python3", program.as_str(), "@system-service"];
    let look = ended(
        Fabric::new()
            .plain(&[&filter[..], &["grep", "Seccomp:", "/proc/self/status"]].concat())
            .stdin(Stdio::null()),
    );
    if !String::from_utf8_lossy(&look.stdout).ends_with("2\n") {
        return println!(
            "not run: a filter by libseccomp.so.2: {}",
            String::from_utf8_lossy(&look.stderr).trim()
        );
    }
    let run = [COMMAND, "run", "--"];
    let (before, behind) = ([&filter[..], &run].concat(), [&run[..], &filter].concat());
    // They wait most of the time, for a slow server.
    let ways: [[&[&str]; 2]; 5] =
        [[&filter[..]; 2], [&before; 2], [&before, &run], [&behind, &run], [&behind; 2]];
    let [plain, in_front, in_front_of_one, behind_one, behind_both] = std::thread::scope(|scope| {
        let fetching = ways.map(|[server, client]| scope.spawn(move || fetched(server, client)));
        fetching.map(|thread| thread.join().expect("it fetches"))
    });
    let (plain, _) = plain;
    // A filter of a container or a unit precedes the command, and applies to the program too.
    let (found, carried_before) = in_front;
    assert!(found == plain && carried_before >= 1, "filters before the command: {carried_before}");
    let (found, carried) = in_front_of_one;
    assert!(found == plain && carried >= 1, "a filter before one of both: {carried}");
    // A launcher that installs a filter: the program that it starts is not carried.
    let (found, carried) = behind_one;
    assert!(found == plain && carried == 0, "a filter behind the command: {carried}");
    let (found, carried) = behind_both;
    assert!(found == plain && carried == 0, "filters behind the command: {carried}");
    row(&version(), 4, carried_before);
}
