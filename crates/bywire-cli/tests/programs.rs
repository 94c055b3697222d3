//! Other people's programs over `bywire eth up`, unmodified: DHCP and router advertisements. As root what
//! is not there is installed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bywire_sys::namespace::Namespace;

const PATIENCE: Duration = Duration::from_secs(20);

/// A process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _dead_already = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// Two namespaces, blue with addresses and red without, joined for as long as this lives.
struct Stage {
    blue: Namespace,
    red: Namespace,
    directory: tempfile::TempDir,
    _up: Running,
}

/// Everything that a test needs, or nothing where this machine cannot, with the reason said.
fn stage(programs: &[(&str, &str)]) -> Option<Stage> {
    for (program, package) in programs {
        if !(is_there(program) || install(package) && is_there(program)) {
            println!("not run: {program} is not installed and cannot be here: apt-get install {package}");
            return None;
        }
    }
    if let Err(error) = fs::metadata("/dev/net/tun") {
        println!("not run: no TAP device can be made here (/dev/net/tun: {error}): `modprobe tun`");
        return None;
    }
    match (Namespace::fresh(), Namespace::fresh()) {
        (Ok(blue), Ok(red)) => Some(joined(blue, red)),
        (Err(error), _) | (_, Err(error)) => {
            println!("not run: no network namespace can be made here ({error}): run as root");
            None
        }
    }
}

fn joined(blue: Namespace, red: Namespace) -> Stage {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command.args(["eth", "up", "--interface", &format!("{}:by0=10.77.0.1/24,fd77::1/64", path(&blue))]);
    command.args(["--interface", &format!("{}:by0", path(&red))]);
    command.env("BYWIRE_RUNTIME_DIR", directory.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut up = Running(command.spawn().expect("it runs"));
    let mut said = BufReader::new(up.0.stdout.take().expect("piped")).lines();
    for _ in 0..2 {
        let line = said.next().expect("a line").expect("a line");
        assert!(line.contains(":by0 02:"), "{line}");
    }
    std::thread::spawn(move || said.for_each(drop));
    Stage { blue, red, directory, _up: up }
}

fn path(namespace: &Namespace) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd())
}

fn is_there(program: &str) -> bool {
    let mut look = Command::new("sh");
    look.args(["-c", &format!("command -v {program}")]).stdout(Stdio::null());
    look.status().is_ok_and(|status| status.success())
}

fn install(package: &str) -> bool {
    let mut apt = Command::new("timeout");
    apt.args(["60", "apt-get", "install", "-qq", "-y", "--no-install-recommends", package]);
    apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    apt.stdout(Stdio::null()).stderr(Stdio::null());
    rustix::process::geteuid().is_root() && apt.status().is_ok_and(|status| status.success())
}

/// A program inside a namespace.
fn inside(namespace: &Namespace, words: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path(namespace))).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Gives addresses by DHCP and advertises its prefix.
fn dnsmasq(stage: &Stage) -> Running {
    let place = |name: &str| stage.directory.path().join(name).display().to_string();
    let (leases, pid) =
        (format!("--dhcp-leasefile={}", place("leases")), format!("--pid-file={}", place("pid")));
    let words = [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--user=root",
        "--interface=by0",
        "--bind-interfaces",
        "--dhcp-authoritative",
        "--no-ping",
        "--dhcp-range=10.77.0.50,10.77.0.60,1h",
        "--dhcp-range=::,constructor:by0,ra-only",
        "--enable-ra",
        &leases,
        &pid,
    ];
    let mut command = inside(&stage.blue, &words);
    Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs"))
}

#[test]
fn an_address_is_had_by_dhcp() {
    let Some(stage) = stage(&[("dnsmasq", "dnsmasq-base"), ("busybox", "busybox")]) else { return };
    let _server = dnsmasq(&stage);
    let lease = eventually("a lease", || {
        let ask =
            ["busybox", "udhcpc", "-i", "by0", "-n", "-q", "-f", "-t", "3", "-T", "1", "-s", "/bin/true"];
        let output = inside(&stage.red, &ask).output().expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        said.lines()
            .find(|line| line.contains("lease of 10.77.0.") && line.contains("obtained"))
            .map(str::to_owned)
    });
    assert!(lease.contains("10.77.0.5") || lease.contains("10.77.0.60"), "{lease}");
}

#[test]
fn an_address_follows_from_router_advertisements() {
    let Some(stage) = stage(&[("dnsmasq", "dnsmasq-base")]) else { return };
    let _server = dnsmasq(&stage);
    eventually("an address of the advertised prefix", || {
        let show = ["ip", "-6", "address", "show", "dev", "by0", "scope", "global"];
        let output = inside(&stage.red, &show).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).contains("inet6 fd77:").then_some(())
    });
}
