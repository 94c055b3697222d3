//! Unmodified programs of other projects over `bywire eth up`, on one machine and between two of a fabric: DHCP, router
//! advertisements, nc, ssh, multicast DNS. Needs root, which installs them.
//!
//! A package that would start a service of the whole machine is unpacked beside the tests instead.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use bywire_sys::namespace::{Namespace, NamespaceName};
use bywire_testing::Guarded;
use bywire_testing::eventually;
use bywire_testing::here::{has_taps, namespace};
use bywire_testing::test_network::{Machine, TestNetwork};

use crate::packages::{self, Service};

/// Two namespaces, blue with addresses and red without, joined while this value lives.
struct Fixture {
    blue: Namespace,
    red: Namespace,
    directory: tempfile::TempDir,
    _up: Vec<Guarded>,
    _network: Option<TestNetwork>,
}

/// Everything that a test needs, by one process on one machine, and then between two machines of a fabric. None, with a
/// message, if this machine lacks it.
fn fixtures(programs: &[(&str, &str)]) -> impl Iterator<Item = Fixture> {
    let is_possible = packages::have(programs) && has_taps();
    let each: [fn() -> Option<Fixture>; 2] = [on_one_machine, between_machines];
    each.into_iter().filter(move |_| is_possible).filter_map(|joined| joined())
}

fn on_one_machine() -> Option<Fixture> {
    let (blue, red) = (namespace()?, namespace()?);
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = mortal(&[env!("CARGO_BIN_EXE_bywire"), "eth", "up"]);
    command.args(["--interface", &format!("{}:by0=10.77.0.1/24,fd77::1/64", path(&blue))]);
    command.args(["--interface", &format!("{}:by0", path(&red))]);
    command.env("BYWIRE_RUNTIME_DIR", directory.path());
    Some(Fixture { blue, red, directory, _up: vec![started(command, 2)], _network: None })
}

fn between_machines() -> Option<Fixture> {
    let network = TestNetwork::up(2)?;
    let up = |machine: &Machine, interface: &str| {
        let words = [
            env!("CARGO_BIN_EXE_bywire"),
            "eth",
            "up",
            "--fabric",
            "--mtu",
            "1500",
            "--interface",
            interface,
        ];
        let mut command = inside(&machine.namespace, &words);
        command.env("BYWIRE_RUNTIME_DIR", machine.runtime());
        started(command, 1)
    };
    let [a, b] = &network.machines[..] else { unreachable!() };
    let ups = vec![up(a, "-:by0=10.77.0.1/24,fd77::1/64"), up(b, "-:by0")];
    let have_met = |machine: &Machine| {
        let mut command = inside(&machine.namespace, &[env!("CARGO_BIN_EXE_bywire"), "eth", "status"]);
        let output = command.env("BYWIRE_RUNTIME_DIR", machine.runtime()).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).contains("another machine: 1 interface(s)")
    };
    eventually("the machines meet", || have_met(a) && have_met(b));
    let namespace = |machine: &Machine| {
        Namespace::open(&NamespaceName::Path(path(&machine.namespace).into())).expect("it is there")
    };
    let directory = tempfile::tempdir().expect("a directory");
    Some(Fixture { blue: namespace(a), red: namespace(b), directory, _up: ups, _network: Some(network) })
}

/// Starts `bywire eth up`, and waits for the lines about its interfaces.
fn started(mut command: Command, interfaces: usize) -> Guarded {
    let mut up = Guarded(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("it runs"),
    );
    let mut said = BufReader::new(up.0.stdout.take().expect("piped")).lines();
    for _ in 0..interfaces {
        let line = said.next().expect("a line").expect("a line");
        assert!(line.contains(":by0 02:"), "{line}");
    }
    std::thread::spawn(move || said.for_each(drop));
    up
}

impl Fixture {
    /// Gives red its address if no program is to do that.
    fn with_address(self) -> Self {
        for words in ["address add 10.77.0.2/24 dev by0", "route add 224.0.0.0/4 dev by0"] {
            let words: Vec<&str> = std::iter::once("ip").chain(words.split(' ')).collect();
            let output = inside(&self.red, &words).output().expect("`ip` of iproute2");
            assert!(output.status.success(), "{output:?}");
        }
        self
    }

    /// A path in the test's directory.
    fn place(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

fn path(namespace: &Namespace) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd())
}

/// The users that the services look for.
const USERS: [(&str, &str); 3] = [
    (
        "passwd",
        "root:x:0:0::/root:/bin/sh\nsshd:x:65533:65533::/run/sshd:/bin/false\n\
         avahi:x:65532:65532::/run/avahi-daemon:/bin/false\n",
    ),
    ("shadow", "root:*:1::::::\n"),
    ("group", "root:x:0:\nsshd:x:65533:\navahi:x:65532:\n"),
];

/// Starts a service inside, with its own files in place of the machine's: users, and runtime files. `None`, with a
/// message, if this machine cannot.
fn start(service: &Service, fixture: &Fixture, arguments: &[&str]) -> Option<Guarded> {
    const PRIVATE_DIRECTORIES: &str = "mount -t tmpfs tmpfs /run; mkdir /run/sshd /run/avahi-daemon
         for name in passwd shadow group; do mount --bind \"$1/$name\" /etc/$name; done";
    let own = |script: &str| {
        let words = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"];
        let mut command = inside(&fixture.blue, &words);
        command.arg(fixture.directory.path());
        command
    };
    for (name, lines) in USERS {
        fs::write(fixture.place(name), lines).expect("written");
    }
    let tried = own(PRIVATE_DIRECTORIES).output().expect("it runs");
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        println!("not run: no files of its own for {}: {}", service.program.display(), said.trim());
        return None;
    }
    let mut command = own(&format!("{PRIVATE_DIRECTORIES}; shift; exec \"$@\""));
    command.arg(&service.program).args(arguments).env("LD_LIBRARY_PATH", &service.libraries);
    let said = File::create(fixture.place("said")).expect("a file");
    let running = command.stdout(said.try_clone().expect("a descriptor")).stderr(said).spawn();
    Some(Guarded(running.expect("it runs")))
}

/// A command that dies with the thread that starts it, even if this process is killed.
fn mortal(words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).args(words);
    command
}

/// A program inside a namespace.
fn inside(namespace: &Namespace, words: &[&str]) -> Command {
    let mut command = mortal(&["nsenter"]);
    command.arg(format!("--net={}", path(namespace))).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Bytes that differ from each other wherever they are cut.
fn noise(seed: u32, length_bytes: usize) -> Vec<u8> {
    let mut state = u64::from(seed) | 1 << 40;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(length_bytes).collect()
}

/// Gives addresses by DHCP and advertises its prefix.
fn dnsmasq(fixture: &Fixture) -> Guarded {
    let leases = format!("--dhcp-leasefile={}", fixture.place("leases"));
    let pid = format!("--pid-file={}", fixture.place("pid"));
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
    let mut command = inside(&fixture.blue, &words);
    Guarded(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs"))
}

#[test]
fn an_address_is_obtained_by_dhcp() {
    for fixture in fixtures(&[("dnsmasq", "dnsmasq-base"), ("busybox", "busybox")]) {
        let _server = dnsmasq(&fixture);
        let lease = eventually("a lease", || {
            let ask =
                ["busybox", "udhcpc", "-i", "by0", "-n", "-q", "-f", "-t", "3", "-T", "1", "-s", "/bin/true"];
            let output = inside(&fixture.red, &ask).output().expect("it runs");
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            said.lines()
                .find(|line| line.contains("lease of 10.77.0.") && line.contains("obtained"))
                .map(str::to_owned)
        });
        assert!(lease.contains("10.77.0.5") || lease.contains("10.77.0.60"), "{lease}");
    }
}

#[test]
fn an_address_is_obtained_by_router_advertisements() {
    for fixture in fixtures(&[("dnsmasq", "dnsmasq-base")]) {
        let _server = dnsmasq(&fixture);
        eventually("an address of the advertised prefix", || {
            let show = ["ip", "-6", "address", "show", "dev", "by0", "scope", "global"];
            let output = inside(&fixture.red, &show).output().expect("it runs");
            String::from_utf8_lossy(&output.stdout).contains("inet6 fd77:")
        });
    }
}

#[test]
fn nc_transfers_a_file_each_way() {
    const FILE_BYTES: usize = 16 << 20;
    for fixture in fixtures(&[("nc", "netcat-openbsd")]) {
        let fixture = fixture.with_address();
        let file = |name: &str| File::open(fixture.place(name)).expect("a file");
        let run = |namespace: &Namespace, words: &[&str], from: File, to: &str| {
            let mut command = inside(namespace, &[&["timeout", "20", "nc"], words].concat());
            command.stdin(from).stdout(File::create(fixture.place(to)).expect("a file"));
            Guarded(command.spawn().expect("it runs"))
        };
        let nothing = || File::open("/dev/null").expect("nothing");
        // In both directions at once nc sometimes loses the end of a file, over plain veth too.
        for (seed, is_from_caller) in [(1, true), (2, false)] {
            let sent = noise(seed, FILE_BYTES);
            fs::write(fixture.place("sent"), &sent).expect("written");
            // The sender announces the end, and the receiver does not read its input.
            let (caller, listener) = if is_from_caller { ("-N", "-d") } else { ("-d", "-N") };
            let input = |option: &str| if option == "-N" { file("sent") } else { nothing() };
            let listening =
                run(&fixture.blue, &[listener, "-l", "10.77.0.1", "7000"], input(listener), "listener's");
            eventually("somebody listens", || {
                let output = inside(&fixture.blue, &["cat", "/proc/net/tcp"]).output().expect("it runs");
                // Port 7000 in hexadecimal, any remote address, and the state for it.
                String::from_utf8_lossy(&output.stdout).contains(":1B58 00000000:0000 0A")
            });
            let calling = run(&fixture.red, &[caller, "10.77.0.1", "7000"], input(caller), "caller's");
            for mut end in [calling, listening] {
                assert!(end.0.wait().expect("it ends").success());
            }
            let came = fs::read(fixture.place(if is_from_caller { "listener's" } else { "caller's" }));
            let came = came.expect("a file");
            assert!(came == sent, "{} of {FILE_BYTES} bytes came, or others", came.len());
        }
    }
}

/// `ssh` from red to blue, which must show the key that its configuration names.
fn ssh(fixture: &Fixture, words: &[&str]) -> Command {
    let known = format!("UserKnownHostsFile={}", fixture.place("known"));
    let mut command = inside(&fixture.red, &["timeout", "20", "ssh", "-F", "none", "-p", "2222", "-T"]);
    for option in ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", &known] {
        command.args(["-o", option]);
    }
    command.args(["-i", &fixture.place("user"), "root@10.77.0.1"]).args(words);
    command
}

/// An ssh server for this test, with its own keys. It listens when this returns.
fn sshd(fixture: &Fixture, service: &Service) -> Option<Guarded> {
    for key in ["host", "user"] {
        let place = fixture.place(key);
        let words = ["-q", "-t", "ed25519", "-N", "", "-C", key, "-f", &place];
        assert!(Command::new("ssh-keygen").args(words).status().expect("it runs").success());
    }
    let host = fs::read_to_string(fixture.place("host.pub")).expect("a key");
    fs::write(fixture.place("known"), format!("[10.77.0.1]:2222 {host}")).expect("written");
    let configuration = format!(
        "ListenAddress 10.77.0.1:2222\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
         StrictModes no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n",
        fixture.place("host"),
        fixture.place("user.pub"),
    );
    fs::write(fixture.place("configuration"), configuration).expect("written");
    let running = start(service, fixture, &["-D", "-e", "-f", &fixture.place("configuration")])?;
    eventually("ssh listens", || {
        let said = fs::read_to_string(fixture.place("said"));
        said.is_ok_and(|said| said.contains("listening on"))
    });
    Some(running)
}

#[test]
fn ssh_runs_a_command_and_transfers_piped_bytes() {
    const PIPED_BYTES: usize = 32 << 20;
    let Some(service) = Service::find("sshd", "openssh-server") else { return };
    for fixture in fixtures(&[("ssh", "openssh-client")]) {
        let fixture = fixture.with_address();
        let Some(_server) = sshd(&fixture, &service) else { return };
        let said = |output: &Output| {
            let log = fs::read_to_string(fixture.place("said")).unwrap_or_default();
            format!("{}{log}", String::from_utf8_lossy(&output.stderr))
        };

        let output = ssh(&fixture, &["echo $SSH_CONNECTION; exit 7"]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        let connection = String::from_utf8_lossy(&output.stdout).into_owned();
        let ends: Vec<&str> = connection.split_whitespace().collect();
        assert_eq!((ends[0], ends[2], ends[3]), ("10.77.0.2", "10.77.0.1", "2222"));

        let sent = noise(3, PIPED_BYTES);
        let mut piping = ssh(&fixture, &["cat"]).stdin(Stdio::piped()).spawn().expect("it runs");
        let mut input = piping.stdin.take().expect("piped");
        let output = std::thread::scope(|scope| {
            // Its status shows an early end.
            scope.spawn(|| input.write_all(&sent).map(|()| drop(input)));
            piping.wait_with_output().expect("it ends")
        });
        assert!(output.status.success(), "{}", said(&output));
        assert!(output.stdout == sent, "{} of {PIPED_BYTES} bytes came, or others", output.stdout.len());
    }
}

/// Answers for `blue-host.local` by multicast DNS.
fn avahi(fixture: &Fixture, service: &Service) -> Option<Guarded> {
    let configuration = "[server]\nhost-name=blue-host\nuse-ipv4=yes\nuse-ipv6=yes\nallow-interfaces=by0\n\
                         enable-dbus=no\n[publish]\npublish-hinfo=no\npublish-workstation=yes\n";
    fs::write(fixture.place("avahi.conf"), configuration).expect("written");
    let options = ["--no-drop-root", "--no-chroot", "--no-rlimits", "-f", &fixture.place("avahi.conf")];
    start(service, fixture, &options)
}

/// The question for an IPv4 address, as RFC 1035 writes it.
const QUESTION: &[u8] = b"\0\0\0\0\0\x01\0\0\0\0\0\0\x09blue-host\x05local\0\0\x01\0\x01";

#[test]
fn a_host_is_found_by_multicast_dns() {
    let Some(service) = Service::find("avahi-daemon", "avahi-daemon") else { return };
    for fixture in fixtures(&[("mdns-scan", "mdns-scan")]) {
        let fixture = fixture.with_address();
        let Some(_responder) = avahi(&fixture, &service) else { return };
        eventually("the host that publishes itself", || {
            // It scans until it is killed.
            let output = inside(&fixture.red, &["timeout", "2", "mdns-scan"]).output().expect("it runs");
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            said.lines()
                .any(|line| line.contains("+ blue-host [") && line.ends_with("]._workstation._tcp.local"))
        });
        // Asks for its address in a separate packet. From the service's own port the answer would be a multicast.
        let group = Ipv4Addr::new(224, 0, 0, 251);
        let socket = fixture.red.run(|| UdpSocket::bind("0.0.0.0:5353").expect("a port")).expect("inside");
        socket.join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 0, 2)).expect("joined");
        socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        socket.set_multicast_loop_v4(false).expect("nothing of our own");
        eventually("the name's address, told to everybody", || {
            socket.send_to(QUESTION, (group, 5353)).expect("sent");
            let mut packet = [0; 9000];
            let (length, from) = socket.recv_from(&mut packet).ok()?;
            let is_answer = from.ip() == Ipv4Addr::new(10, 77, 0, 1) && packet[2] & 0x80 != 0;
            (is_answer && packet[..length].windows(4).any(|four| four == [10, 77, 0, 1])).then_some(())
        });
    }
}
