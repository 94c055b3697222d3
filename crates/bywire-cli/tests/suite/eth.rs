//! `bywire eth` as a command: up, down, status, errors in one line, signals, killed and stopped processes and their
//! leftovers, directories of other users, the unit's limits, reloading the file. Needs root.
//!
//! Callers and watchers are slow, send descriptors, or stop or end at any step. Other users plant entries, and send
//! descriptors to the ports of carriers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bywire_sys::Errno;
use bywire_sys::interrupt::Interrupter;
use bywire_sys::namespace::Namespace;
use bywire_sys::socket::Socket;
use bywire_testing::Guarded;
use bywire_testing::eventually;
use bywire_testing::here::{has_taps, namespace};
use bywire_testing::linger;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Two namespaces and a runtime directory. `None`, after the reason is printed, if this machine cannot make them.
fn fixture() -> Option<(Namespace, Namespace, tempfile::TempDir)> {
    if !has_taps() {
        return None;
    }
    Some((namespace()?, namespace()?, tempfile::tempdir().expect("a directory")))
}

fn bywire(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command.args(arguments).env("BYWIRE_RUNTIME_DIR", directory).stdin(Stdio::null());
    command
}

fn output(directory: &Path, arguments: &[&str]) -> Output {
    bywire(directory, arguments).output().expect("it runs")
}

/// The argument of `--interface` for an interface in a namespace of this test.
fn interface(namespace: &Namespace, address: &str) -> String {
    format!("/proc/{}/fd/{}:by0={address}", std::process::id(), namespace.as_fd().as_raw_fd())
}

/// `bywire eth up`, killed when dropped.
struct Up {
    child: Guarded,
}

/// Starts it, and waits until it has printed its interfaces.
fn up(directory: &Path, arguments: &[&str], interfaces: usize) -> Up {
    let mut command = bywire(directory, &[&["eth", "up"], arguments].concat());
    await_interfaces(command.stdout(Stdio::piped()).spawn().expect("it runs"), interfaces)
}

/// The address of the metrics. It is inside a namespace of the test, because another program could take a free port of the
/// machine at any moment.
const METRICS: &str = "127.0.0.1:9477";

/// The same from inside a namespace, with metrics there.
fn up_with_metrics(within: &Namespace, directory: &Path, arguments: &[&str], interfaces: usize) -> Up {
    let mut command = bywire(directory, &[&["eth", "up", "--metrics", METRICS], arguments].concat());
    command.stdout(Stdio::piped());
    let started = within.run(|| {
        let loopback = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(loopback.expect("`ip` of iproute2").success());
        command.spawn().expect("it runs")
    });
    await_interfaces(started.expect("inside"), interfaces)
}

fn metrics(within: &Namespace) -> TcpStream {
    within.run(|| TcpStream::connect(METRICS)).expect("inside").expect("connected")
}

/// Waits until a process has printed its interfaces.
fn await_interfaces(mut child: Child, interfaces: usize) -> Up {
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    for _ in 0..interfaces {
        let line = lines.next().expect("a line").expect("a line");
        assert!(line.contains(":by0 02:"), "{line}");
    }
    // Reads on, so that later output meets no closed pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Up { child: Guarded(child) }
}

impl Up {
    fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
        rustix::process::kill_process(pid, signal).expect("signalled");
    }

    /// Waits for its exit.
    fn end(&mut self) -> std::process::ExitStatus {
        eventually("it ends", || self.child.try_wait().expect("waited for"))
    }
}

fn status(directory: &Path) -> Vec<Value> {
    let output = output(directory, &["eth", "status", "--json"]);
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn has_interface(namespace: &Namespace) -> bool {
    let listing = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).expect("inside");
    listing.expect("a list").contains("by0:")
}

fn connect(from: &Namespace, to: &Namespace, address: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = to.run(|| TcpListener::bind(address)).expect("inside").expect("bound");
    let near =
        from.run(|| TcpStream::connect_timeout(&address, TIMEOUT)).expect("inside").expect("connected");
    let (far, _) = listener.accept().expect("accepted");
    for end in [&near, &far] {
        end.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        end.set_write_timeout(Some(TIMEOUT)).expect("a timeout");
    }
    (near, far)
}

/// Two namespaces whose frames one process carries, as node `near`, and a connection between them.
fn carried(one: &Namespace, other: &Namespace, directory: &Path) -> (Up, TcpStream, TcpStream) {
    let (first, second) = (interface(one, "10.77.0.1/24"), interface(other, "10.77.0.2/24"));
    let running = up(directory, &["--node", "near", "--interface", &first, "--interface", &second], 2);
    let (near, far) = connect(one, other, "10.77.0.2:7000".parse().expect("an address"));
    (running, near, far)
}

fn say(mut from: &TcpStream, mut to: &TcpStream, text: &[u8]) {
    from.write_all(text).expect("sent");
    let mut heard = vec![0; text.len()];
    to.read_exact(&mut heard).expect("received");
    assert_eq!(heard, text);
}

#[test]
fn two_namespaces_are_joined_and_restored() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (first, second) = (interface(&one, "10.77.0.1/24"), interface(&other, "10.77.0.2/24"));
    let mut running = up(directory, &["--interface", &first, "--interface", &second, "--mtu", "9000"], 2);
    let (near, far) = connect(&one, &other, "10.77.0.2:7000".parse().expect("an address"));
    say(&near, &far, b"across");
    let shown = status(directory);
    assert_eq!(shown[0]["schema"], "bywire-eth-status/2");
    let interfaces = shown[0]["interfaces"].as_array().expect("a list");
    assert_eq!((interfaces.len(), &interfaces[0]["mtu"]), (2, &Value::from(9000)));
    assert!(interfaces[0]["sent"]["frames"].as_u64() > Some(0), "{interfaces:?}");
    let carrier = &shown[0]["carriers"][0];
    assert_eq!(carrier["capabilities"], "0000000000000000", "{carrier}");
    assert_eq!(carrier["capabilities_bound"], "0000000000000000", "{carrier}");
    assert_eq!(
        (&carrier["seccomp"], &carrier["no_new_privileges"]),
        (&Value::Bool(true), &Value::Bool(true))
    );
    if carrier["files"] != "the directory of ports only" {
        println!("not run: the restriction of files: {}", carrier["files"]);
    }
    let root = std::fs::read_link(format!("/proc/{}/root", carrier["process"])).expect("its root");
    assert_eq!(
        root,
        directory.canonicalize().expect("a directory").join("eth/ports"),
        "the carrier reaches no other socket"
    );
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&root).expect("its root").permissions());
    assert_eq!(mode & 0o777, 0o700, "nobody else can put a port there");
    let text = output(directory, &["eth", "status"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("superframes: TCP whole"));

    let again = output(directory, &["eth", "up", "--interface", &first]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        !again.status.success() && said.lines().count() == 1 && said.contains("bywire eth down"),
        "{said}"
    );

    assert!(output(directory, &["eth", "down"]).status.success());
    assert!(running.end().success());
    assert!(!has_interface(&one) && !has_interface(&other));
    let nothing = output(directory, &["eth", "down"]);
    assert!(!nothing.status.success());
    assert_eq!(names(directory), ["eth"]);
    assert_eq!(names(&directory.join("eth")), ["ports"], "no control socket is left");
    assert_eq!(names(&directory.join("eth/ports")), [""; 0], "no port is left");
}

#[test]
fn metrics_are_served_where_configured() {
    let Some((one, _, directory)) = fixture() else { return };
    let first = interface(&one, "10.77.0.1/24");
    let _running = up_with_metrics(&one, directory.path(), &["--interface", &first], 1);
    let mut page = String::new();
    // A caller that gives place to others asks again.
    eventually("an answer", || {
        page.clear();
        let mut stream = metrics(&one);
        let asked = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        asked.and_then(|()| stream.read_to_string(&mut page)).is_ok_and(|length| length > 0)
    });
    assert!(
        page.starts_with("HTTP/1.1 200 OK") && page.contains("bywire_eth_frames_total{interface="),
        "{page}"
    );
}

#[test]
fn frames_are_recorded_on_request() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (first, second) = (interface(&one, "10.77.0.1/24"), interface(&other, "10.77.0.2/24"));
    let _running = up(directory, &["--interface", &first, "--interface", &second], 2);
    let file = directory.join("frames.pcapng");
    let label = first.split('=').next().expect("a label");
    // More frames than a namespace and a handshake send by themselves, so that the searched text is among them.
    let arguments =
        ["capture", "--interface", label, "--count", "50", "--output", file.to_str().expect("a path")];
    let mut recording = bywire(directory, &arguments).stderr(Stdio::piped()).spawn().expect("it runs");
    eventually("the file exists", || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0));
    let (near, far) = connect(&one, &other, "10.77.0.2:7000".parse().expect("an address"));
    eventually("fifty frames were recorded", || {
        say(&near, &far, b"a frame to be recognised");
        recording.try_wait().expect("waited for").is_some()
    });
    let bytes = std::fs::read(&file).expect("a file");
    assert_eq!(bytes[..4], [0x0A, 0x0D, 0x0D, 0x0A]);
    let holds = |wanted: &[u8]| bytes.windows(wanted.len()).any(|window| window == wanted);
    assert!(holds(b"a frame to be recognised") && holds(label.as_bytes()));
    say(&near, &far, b"after the recording");

    let file = directory.join("again.pcapng");
    let arguments = ["capture", "--output", file.to_str().expect("a path")];
    let recording = bywire(directory, &arguments).stderr(Stdio::piped()).spawn().expect("it runs");
    let recorded = || std::fs::metadata(&file).map_or(0, |file| file.len());
    // One after the other, because a recording that is delayed loses frames.
    eventually("a frame was recorded", || {
        say(&near, &far, b"one more");
        let said = Instant::now();
        while recorded() <= 500 && said.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(10));
        }
        recorded() > 500
    });
    let pid = rustix::process::Pid::from_child(&recording);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
    let ended = recording.wait_with_output().expect("waited for");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.contains("frames recorded, 0 lost"), "{said}");
}

#[test]
fn an_interrupt_removes_everything() {
    let Some((one, _, directory)) = fixture() else { return };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let first = interface(&one, "10.77.0.1/24");
        let mut running = up(directory.path(), &["--interface", &first, "--queues", "2"], 1);
        assert!(has_interface(&one));
        running.signal(signal);
        assert!(running.end().success());
        assert!(!has_interface(&one));
    }
}

#[test]
fn a_killed_process_leaves_nothing_and_an_open_connection_survives_its_restart() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (first, second) = (interface(&one, "10.77.0.1/24"), interface(&other, "10.77.0.2/24"));
    let _near = up(directory, &["--node", "near", "--interface", &first], 1);
    let mut killed = up(directory, &["--node", "far", "--interface", &second], 1);
    let (near, far) = connect(&one, &other, "10.77.0.2:7000".parse().expect("an address"));
    say(&near, &far, b"before");
    killed.signal(libc::SIGKILL);
    killed.end();
    eventually("the device of a killed process is gone", || !has_interface(&other));
    (&near).write_all(b"meanwhile").expect("taken");
    let _again = up(directory, &["--node", "far", "--interface", &second], 1);
    let mut heard = [0; 9];
    (&far).read_exact(&mut heard).expect("what was sent meanwhile");
    assert_eq!(&heard, b"meanwhile");
    say(&far, &near, b"after");
}

/// Byte `place` of a stream. The pattern has a period of a prime number of bytes.
fn byte_at(place: u64) -> u8 {
    ((place % 65_521).wrapping_mul(0x9E37_79B9) >> 13) as u8
}

/// Sends the pattern until `ends` is set. Returns how many bytes were sent.
fn send_pattern(mut stream: &TcpStream, ends: &Mutex<bool>) -> u64 {
    let pattern: Vec<u8> = (0..2 * 65_521).map(byte_at).collect();
    let mut sent = 0;
    while !*ends.lock().expect("no thread has panicked") {
        let from = (sent % 65_521) as usize;
        stream.write_all(&pattern[from..from + 30_000]).expect("connected");
        sent += 30_000;
    }
    stream.shutdown(std::net::Shutdown::Write).expect("ended");
    sent
}

/// Compares received bytes with the pattern and counts them, until the orderly end of the stream.
fn check_pattern(mut stream: &TcpStream, received: &Mutex<u64>) {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let length = stream.read(&mut buffer).expect("connected");
        let place = *received.lock().expect("no thread has panicked");
        let wrong = (place..).zip(&buffer[..length]).find(|(place, byte)| byte_at(*place) != **byte);
        assert_eq!(wrong, None, "a byte is wrong");
        *received.lock().expect("no thread has panicked") += length as u64;
        if length == 0 {
            return;
        }
    }
}

/// Causes `fault` this many times while data flows both ways over one connection. Everything that one end sent must arrive
/// at the other.
fn check_flow(one: &Namespace, other: &Namespace, faults: usize, mut fault: impl FnMut()) {
    const FLOWING_BYTES: u64 = 8 << 20;
    let (near, far) = connect(one, other, "10.77.0.2:7000".parse().expect("an address"));
    let (ends, there, back) = (Mutex::new(false), Mutex::new(0), Mutex::new(0));
    let count = |received: &Mutex<u64>| *received.lock().expect("no thread has panicked");
    let flowing = |what: &str| {
        let before = [&there, &back].map(count);
        eventually(what, || {
            let now = [&there, &back].map(count);
            now.iter().zip(before).all(|(now, before)| now - before > FLOWING_BYTES)
        });
    };
    std::thread::scope(|scope| {
        let sending = [&near, &far].map(|stream| scope.spawn(|| send_pattern(stream, &ends)));
        scope.spawn(|| check_pattern(&far, &there));
        scope.spawn(|| check_pattern(&near, &back));
        // After a failure the senders end as well, so that the failure is reported.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..faults {
                flowing("data flows");
                fault();
            }
            flowing("data flows again");
        }));
        *ends.lock().expect("no thread has panicked") = true;
        let sent = sending.map(|sending| sending.join().expect("it ended well"));
        result.expect("as above");
        eventually("everything has arrived", || [&there, &back].map(count) == sent);
    });
}

#[test]
fn a_stream_continues_after_every_kill_of_the_far_process() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (first, second) = (interface(&one, "10.77.0.1/24"), interface(&other, "10.77.0.2/24"));
    let _near = up(directory, &["--node", "near", "--interface", &first], 1);
    let again = || up(directory, &["--node", "far", "--interface", &second], 1);
    let mut far = again();
    check_flow(&one, &other, 3, || {
        far.signal(libc::SIGKILL);
        far.end();
        eventually("the device of a killed process is gone", || !has_interface(&other));
        far = again();
    });
}

#[test]
fn a_stream_continues_after_a_kill_of_the_only_process() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (first, second) = (interface(&one, "10.77.0.1/24"), interface(&other, "10.77.0.2/24"));
    let again = || up(directory, &["--interface", &first, "--interface", &second], 2);
    let mut both = again();
    check_flow(&one, &other, 2, || {
        both.signal(libc::SIGKILL);
        both.end();
        eventually("its devices are gone", || !has_interface(&one) && !has_interface(&other));
        both = again();
    });
}

/// The carrier process of a node.
fn carrier(directory: &Path, node: &str) -> rustix::process::Pid {
    let number = status_of(directory, node)["carriers"][0]["process"].as_i64().expect("a process");
    rustix::process::Pid::from_raw(number as i32).expect("a process")
}

/// The status of one node alone.
fn status_of(directory: &Path, node: &str) -> Value {
    let output = output(directory, &["eth", "status", "--json", "--node", node]);
    assert!(output.status.success(), "{output:?}");
    let shown: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    shown[0].clone()
}

/// What one node reports of another one.
fn peer(directory: &Path, node: &str, other: &str) -> Value {
    let shown = status_of(directory, node);
    let mut peers = shown["peers"].as_array().into_iter().flatten();
    peers.find(|peer| peer["node"] == other).cloned().unwrap_or_default()
}

/// Segments that TCP has retransmitted in a namespace.
fn retransmitted(namespace: &Namespace) -> u64 {
    let text = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).expect("inside");
    let text = text.expect("counts");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, numbers) = (lines.next().expect("names"), lines.next().expect("numbers"));
    let place = names.split(' ').position(|name| name == "RetransSegs").expect("a name");
    numbers.split(' ').nth(place).expect("a number").parse().expect("a number")
}

/// Stopped processes, which continue when this is dropped.
struct Stopped([rustix::process::Pid; 2]);

impl Stopped {
    fn stop(processes: [rustix::process::Pid; 2]) -> Self {
        for process in processes {
            rustix::process::kill_process(process, rustix::process::Signal::STOP).expect("stopped");
        }
        Self(processes)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for process in self.0 {
            let _gone = rustix::process::kill_process(process, rustix::process::Signal::CONT);
        }
    }
}

#[test]
fn a_stopped_far_process_neither_delays_nor_loses_frames_for_others() {
    const ROUNDS: usize = 200;
    let Some((one, stopped, directory)) = fixture() else { return };
    let live = Namespace::fresh().expect("a third one");
    let directory = directory.path();
    let ends = [(&one, "10.77.0.1/24"), (&stopped, "10.77.0.2/24"), (&live, "10.77.0.3/24")];
    let nodes = ["near", "stopped", "live"];
    let running: Vec<Up> = nodes
        .iter()
        .zip(ends)
        .map(|(node, (end, address))| {
            up(directory, &["--node", node, "--mtu", "9000", "--interface", &interface(end, address)], 1)
        })
        .collect();
    eventually("near knows both", || {
        ["stopped", "live"].iter().all(|other| peer(directory, "near", other)["interfaces_count"] == 1)
    });
    let address = |end: &str| end.parse().expect("an address");
    let (waiting, held_up) = connect(&one, &stopped, address("10.77.0.2:7000"));
    let (near, far) = connect(&one, &live, address("10.77.0.3:7000"));
    say(&waiting, &held_up, b"before");
    say(&near, &far, b"before");
    let flood = one.run(|| std::net::UdpSocket::bind("10.77.0.1:0")).expect("inside").expect("bound");

    let parent = rustix::process::Pid::from_child(&running[1].child);
    let hold = Stopped::stop([carrier(directory, "stopped"), parent]);
    // This fits into the socket's buffer, so the write does not block.
    (&waiting).write_all(&[7; 10_000]).expect("taken");
    let lost = |other: &str| peer(directory, "near", other)["drops"]["target_full"].as_u64().unwrap_or(0);
    eventually("there is no room towards it", || {
        (0..100).for_each(|_| drop(flood.send_to(&[0; 8000], address("10.77.0.2:9"))));
        lost("stopped") > 0
    });
    // Retransmissions use the queue that is held back. Unanswered datagrams may use any queue.
    let before = retransmitted(&one);
    eventually("its connection has retransmitted", || retransmitted(&one) > before);
    let text: Vec<u8> = (0..32_768).map(byte_at).collect();
    for round in 0..ROUNDS {
        // The stopped node gets more all the time. The other one never gets more than its ring holds.
        drop(flood.send_to(&[0; 8000], address("10.77.0.2:9")));
        say(&near, &far, &text[round..]);
        say(&far, &near, &text[round..]);
    }
    assert_eq!(lost("live"), 0, "the live node loses nothing");

    drop(hold);
    let mut heard = [0; 10_000];
    (&held_up).read_exact(&mut heard).expect("what was sent meanwhile");
    assert_eq!(heard, [7; 10_000]);
    say(&held_up, &waiting, b"after");
}

#[test]
fn files_of_a_killed_carrier_are_removed_at_the_next_start() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (first, second) = (interface(&one, "10.77.0.1/24"), interface(&other, "10.77.0.2/24"));
    let mut running = up(directory, &["--node", "first", "--interface", &first], 1);
    let carrier = carrier(directory, "first");
    rustix::process::kill_process(carrier, rustix::process::Signal::KILL).expect("killed");
    assert!(!running.end().success(), "a failure, so that systemd starts it again");
    assert!(!has_interface(&one));
    assert_eq!(names(&directory.join("eth")), ["ports"], "its control socket is gone");
    let left = names(&directory.join("eth/ports"));
    assert_eq!(left.len(), 1, "a killed process removes no file: {left:?}");

    let mut killed = up(directory, &["--node", "second", "--interface", &first], 1);
    assert!(!names(&directory.join("eth/ports")).contains(&left[0]), "removed");
    killed.signal(libc::SIGKILL);
    killed.end();
    eventually("the device of a killed process is gone", || !has_interface(&one));
    assert!(names(&directory.join("eth")).contains(&"default.second.eth".to_owned()), "it is left");
    let _third = up(directory, &["--node", "third", "--interface", &second], 1);
    assert_eq!(names(&directory.join("eth")), ["default.third.capture", "default.third.eth", "ports"]);
    assert_eq!(status(directory).len(), 1);
}

#[test]
fn a_reused_process_number_does_not_lead_to_another_namespace() {
    let Some((one, _, directory)) = fixture() else { return };
    let directory = directory.path();
    let Ok(mut resident) = Command::new("unshare").args(["--net", "sleep", "60"]).spawn() else {
        return println!("not run: a process in a namespace of its own: `unshare` of util-linux is missing");
    };
    let its = format!("pid:{}:by0=10.77.0.2/24", resident.id());
    let elsewhere = std::fs::read_link("/proc/self/ns/net").expect("ours");
    let place = format!("/proc/{}/ns/net", resident.id());
    eventually("it has a namespace", || std::fs::read_link(&place).is_ok_and(|its| its != elsewhere));
    let _running = up(directory, &["--interface", &interface(&one, "10.77.0.1/24"), "--interface", &its], 2);
    resident.kill().expect("killed");
    resident.wait().expect("waited for");
    eventually("it is listed as missing", || {
        let shown = &status(directory)[0];
        let is_missed = shown["missing"].as_array().is_none_or(|missing| !missing.is_empty());
        shown["interfaces"].as_array().is_some_and(|left| left.len() == 1) && !is_missed
    });
}

#[test]
fn a_directory_of_another_user_is_not_used() {
    let Some((one, _, directory)) = fixture() else { return };
    let directory = directory.path();
    let theirs = directory.join("eth");
    std::fs::create_dir(&theirs).expect("made");
    std::os::unix::fs::chown(&theirs, Some(65_534), Some(65_534)).expect("chown");
    let first = interface(&one, "10.77.0.1/24");
    for arguments in [&["up", "--interface", &first][..], &["status"], &["down"]] {
        let refused = output(directory, &[&["eth"], arguments].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.lines().count() == 1, "{said}");
        assert!(said.contains("belongs to another user"), "{said}");
    }
}

#[test]
fn a_directory_planted_by_another_user_is_neither_used_nor_followed() {
    use std::os::unix::fs::{lchown, symlink};
    let Some((one, _, directory)) = fixture() else { return };
    let directory = directory.path();
    let (planted, own) = (directory.join("eth"), directory.join("own"));
    std::fs::create_dir(&own).expect("made");
    let first = interface(&one, "10.77.0.1/24");
    for what in ["a file", "a fifo", "a link to nothing", "a link to a directory of ours", "a socket"] {
        match what {
            "a file" => std::fs::write(&planted, "planted").expect("written"),
            "a fifo" => {
                let status = Command::new("mkfifo").arg(&planted).status();
                assert!(status.expect("`mkfifo` of coreutils").success());
            }
            "a link to nothing" => symlink("/nonexistent/nothing", &planted).expect("linked"),
            "a link to a directory of ours" => symlink(&own, &planted).expect("linked"),
            _ => drop(std::os::unix::net::UnixListener::bind(&planted).expect("bound")),
        }
        lchown(&planted, Some(65_534), Some(65_534)).expect("chown");
        for arguments in [&["up", "--interface", &first][..], &["status"], &["down"]] {
            let refused = output(directory, &[&["eth"], arguments].concat());
            let said = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(!refused.status.success() && said.contains("belongs to another user"), "{what}: {said}");
        }
        assert!(names(&own).is_empty() && !has_interface(&one), "{what}");
        std::fs::remove_file(&planted).expect("removed");
    }
}

/// A caller stops at each step of a request, and ends later.
#[test]
fn clients_that_stop_or_exit_at_any_step_delay_no_frame() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (_running, near, far) = carried(&one, &other, directory);
    let control = directory.join("eth/default.near.eth");
    let began = Instant::now();
    let mut stopped = Vec::new();
    for word in ["", "\"", "\"status", "\"status\"", "\"nonsense\"", "18446744073709551616"] {
        let mut caller = UnixStream::connect(&control).expect("a control socket");
        caller.write_all(word.as_bytes()).expect("room");
        say(&near, &far, b"across");
        assert_eq!(status(directory).len(), 1, "{word:?}");
        stopped.push(OwnedFd::from(caller));
    }
    for is_watching in [false, true] {
        let watcher = Socket::connect(&control.with_extension("capture")).expect("a capture socket");
        // An accepted watcher is sent frames, which it does not read.
        if is_watching {
            assert_eq!(status(directory).len(), 1);
        }
        (0..200).for_each(|_| say(&near, &far, &[7; 1000]));
        stopped.push(watcher.as_fd().try_clone_to_owned().expect("a copy"));
    }
    drop(stopped);
    say(&near, &far, b"across");
    assert_eq!(status(directory).len(), 1);
    assert!(began.elapsed() < Duration::from_secs(60), "delayed for {:?}", began.elapsed());
}

/// A process of the same user can reach the ports of carriers. They close received descriptors at once.
#[test]
fn descriptors_sent_to_a_carriers_port_delay_no_frame() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (_running, near, far) = carried(&one, &other, directory);
    let ports = directory.join("eth/ports");
    let (began, interrupter, mut kept) = (Instant::now(), Interrupter::here(), Vec::new());
    for name in names(&ports).iter().filter(|name| name.ends_with(".port")) {
        for count in [1, 3, 4, linger::PACKET_DESCRIPTORS_MAX] {
            let (sender, receiver) = linger::lingering();
            let caller = Socket::connect(&ports.join(name)).expect("a port");
            for packet in [&b"nonsense"[..], b"", b"unread"] {
                let many = vec![sender.as_fd(); count];
                let sent = linger::send(&caller, packet, &many);
                // The port may have closed the connection, before or after it read the last packet.
                let is_over = matches!(sent, Err(Errno::PIPE | Errno::CONNRESET));
                assert!(sent.is_ok() || is_over, "{sent:?}");
            }
            interrupter.bound(|| drop(sender));
            kept.push((receiver, caller));
            say(&near, &far, b"across");
        }
    }
    assert!(!kept.is_empty(), "a carrier has a port");
    say(&near, &far, b"across");
    let elapsed = began.elapsed();
    assert!(elapsed < linger::UNDISTURBED, "delayed for {elapsed:?}");
}

#[test]
fn slow_clients_do_not_delay_others_for_long() {
    let Some((one, _, directory)) = fixture() else { return };
    let first = interface(&one, "10.77.0.1/24");
    let arguments = ["--node", "near", "--interface", &first];
    let _running = up_with_metrics(&one, directory.path(), &arguments, 1);
    let control = directory.path().join("eth/default.near.eth");
    // A busy machine may delay one of these rounds. Slow clients would delay all of them.
    let delays: Vec<Duration> = (0..3)
        .map(|_| {
            let mut silent = UnixStream::connect(&control).expect("a control socket");
            // A client that was too slow has been disconnected.
            let _disconnected = silent.write_all(b"\"");
            let mut deaf = metrics(&one);
            let _disconnected = deaf.write_all(b"G");
            let began = Instant::now();
            assert_eq!(status(directory.path()).len(), 1);
            began.elapsed()
        })
        .collect();
    assert!(delays.iter().any(|delay| *delay < Duration::from_secs(4)), "{delays:?}");
}

/// Nobody asks a caller for descriptors. The manager of the network and its carriers go on.
#[test]
fn descriptors_sent_to_control_sockets_delay_nobody() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (_running, near, far) = carried(&one, &other, directory);
    let control = directory.join("eth/default.near.eth");
    let (began, interrupter, mut kept) = (Instant::now(), Interrupter::here(), Vec::new());
    // A valid request with surplus descriptors, of which the last one lingers.
    let null = std::fs::File::open("/dev/null").expect("open");
    for count in [1, 4, linger::PACKET_DESCRIPTORS_MAX] {
        let (sender, receiver) = linger::lingering();
        let mut many = vec![null.as_fd(); count - 1];
        many.push(sender.as_fd());
        let caller = UnixStream::connect(&control).expect("a control socket");
        linger::send(&caller, b"\"status\"", &many).expect("sent");
        // If the other end is faster, this is the last close. No child may inherit a copy.
        interrupter.bound(|| drop(sender));
        kept.push((receiver, OwnedFd::from(caller)));
        assert_eq!(status(directory).len(), 1, "{count} descriptors");
        say(&near, &far, b"across");
    }
    // Watchers that send packets, before and after they are accepted, and then leave their place to others.
    for round in 0..4 {
        let watcher = Socket::connect(&control.with_extension("capture")).expect("a capture socket");
        for is_late in [false, true] {
            let (sender, receiver) = linger::lingering();
            let sent = linger::send(&watcher, b"look", &[sender.as_fd()]);
            interrupter.bound(|| drop(sender));
            assert!(is_late || sent.is_ok() || sent == Err(Errno::PIPE), "{sent:?}");
            kept.push((receiver, watcher.as_fd().try_clone_to_owned().expect("a copy")));
            // By now earlier callers have been accepted.
            assert_eq!(status(directory).len(), 1, "watcher {round}");
        }
        say(&near, &far, b"across");
    }
    kept.clear();
    say(&near, &far, b"across");
    let elapsed = began.elapsed();
    assert!(elapsed < linger::UNDISTURBED, "delayed for {elapsed:?}");
}

/// The installed unit.
const UNIT: &str = include_str!("../../../../packaging/bywire-eth.service");

#[test]
fn the_systemd_unit_is_valid() {
    let directory = tempfile::tempdir().expect("a directory");
    let unit = directory.path().join("bywire-eth.service");
    let text = UNIT.replace("/usr/local/bin/bywire", env!("CARGO_BIN_EXE_bywire"));
    std::fs::write(&unit, text).expect("written");
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output();
    match verified {
        Ok(said) => {
            let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
            assert!(!said.contains("bywire-eth.service"), "{said}");
        }
        Err(error) => println!("not run: `systemd-analyze` cannot verify the unit: {error}"),
    }
    println!(
        "not run: under systemd itself, which is not process 1 here: DeviceAllow, ProtectHome, PrivateTmp and \
         RestrictAddressFamilies"
    );
}

#[test]
fn the_capabilities_of_the_unit_suffice_and_readiness_is_reported() {
    let Some((one, other, directory)) = fixture() else { return };
    let bound = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("a bound");
    let kept: Vec<String> =
        bound.split(' ').map(|name| name.to_lowercase().replacen("cap_", "+", 1)).collect();
    let socket = directory.path().join("notify");
    let manager = UnixDatagram::bind(&socket).expect("bound");
    manager.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let (first, second) = (interface(&one, "10.77.0.1/24"), interface(&other, "10.77.0.2/24"));
    let child = Command::new("setpriv")
        .args(["--no-new-privs", "--bounding-set", &format!("-all,{}", kept.join(","))])
        .args([env!("CARGO_BIN_EXE_bywire"), "eth", "up", "--interface", &first, "--interface", &second])
        .env("BYWIRE_RUNTIME_DIR", directory.path())
        .env("NOTIFY_SOCKET", &socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut running = match child {
        Ok(child) => Up { child: Guarded(child) },
        Err(error) => return println!("not run: the unit's capabilities: `setpriv` of util-linux: {error}"),
    };
    let mut told = [0; 256];
    let length = manager.recv(&mut told).expect("told");
    assert!(told[..length].starts_with(b"READY=1"), "{:?}", String::from_utf8_lossy(&told[..length]));
    let (near, far) = connect(&one, &other, "10.77.0.2:7000".parse().expect("an address"));
    say(&near, &far, b"across");
    let shown = status(directory.path());
    assert_eq!(shown[0]["carriers"][0]["capabilities_bound"], "0000000000000000");
    running.signal(libc::SIGTERM);
    assert!(running.end().success());
    assert!(!has_interface(&one) && !has_interface(&other));
}

#[test]
fn the_file_is_read_again_on_request() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let file = directory.join("bywire.toml");
    let path = |namespace: &Namespace| interface(namespace, "").trim_end_matches(":by0=").to_owned();
    // The file is complete at every moment.
    let write = |text: String| {
        let new = directory.join("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(&new, &file).expect("renamed");
    };
    let table = |namespace: &Namespace, rest: &str| {
        format!("[[ethernet.interface]]\nnamespace = {:?}\nname = \"by0\"\n{rest}\n", path(namespace))
    };
    write(table(&one, "mtu = 1400"));
    let running = up(directory, &["--config", file.to_str().expect("a path")], 1);
    write(
        table(&one, "mtu = 9000\naddresses = [\"10.77.0.1/24\"]")
            + &table(&other, "addresses = [\"10.77.0.2/24\"]"),
    );
    running.signal(libc::SIGHUP);
    // The status lists interfaces once they have their addresses.
    let interfaces = || status(directory)[0]["interfaces"].as_array().map_or(0, Vec::len);
    eventually("the new interface exists", || interfaces() == 2);
    let (near, far) = connect(&one, &other, "10.77.0.2:7000".parse().expect("an address"));
    say(&near, &far, b"across");
    let shown = status(directory);
    assert_eq!(shown[0]["interfaces"][0]["mtu"], 9000);
    assert_eq!(shown[0]["warnings"].as_array().map(Vec::len), Some(1), "the MTUs differ");

    for unusable in ["[ethernet]\nmut = 9000\n", ""] {
        write(unusable.to_owned());
        running.signal(libc::SIGHUP);
        // Long enough for a wrong program to apply it.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(interfaces(), 2, "a file that cannot be used changes nothing");
    }
    write(table(&other, "mtu = 1400"));
    running.signal(libc::SIGHUP);
    eventually("an interface that is no longer in the file is gone", || !has_interface(&one));
    assert!(has_interface(&other));
}

#[test]
fn the_background_start_returns_once_interfaces_are_up() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (first, second) = (interface(&one, "10.77.0.1/24"), interface(&other, "10.77.0.2/24"));
    let started =
        output(directory, &["eth", "up", "--background", "--interface", &first, "--interface", &second]);
    let said = String::from_utf8_lossy(&started.stdout).into_owned();
    assert!(started.status.success() && said.contains("to end it: bywire eth down"), "{started:?}");
    assert!(has_interface(&one) && has_interface(&other));
    let again =
        output(directory, &["eth", "up", "--background", "--interface", &first, "--interface", &second]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let elsewhere = output(directory, &["eth", "status", "--network", "foo"]);
    let said = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(elsewhere.status.code() == Some(2) && said.contains("--network default --node"), "{said}");
    let unknown = output(directory, &["capture", "--interface", "foo"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    assert!(output(directory, &["eth", "down"]).status.success());
    assert!(!has_interface(&one) && !has_interface(&other));
    for arguments in [&["eth", "status", "--json"][..], &["eth", "status"], &["eth", "down"]] {
        assert_eq!(output(directory, arguments).status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_missing_interface_is_created_again_with_current_settings() {
    let Some((one, other, directory)) = fixture() else { return };
    let directory = directory.path();
    let (file, place) = (directory.join("bywire.toml"), directory.join("place"));
    let elsewhere = format!("/proc/{}/fd/{}", std::process::id(), one.as_fd().as_raw_fd());
    let appear = || std::os::unix::fs::symlink(&elsewhere, &place).expect("a link");
    let write = |rest: &str| {
        let text = format!("[[ethernet.interface]]\nnamespace = {place:?}\nname = \"by0\"\n{rest}\n");
        std::fs::write(&file, text).expect("written");
    };
    appear();
    write("mtu = 1400");
    let second = interface(&other, "10.77.0.2/24");
    let running = up(directory, &["--config", file.to_str().expect("a path"), "--interface", &second], 2);
    std::fs::remove_file(&place).expect("removed");
    let removed = one.run(|| Command::new("ip").args(["link", "delete", "by0"]).status());
    assert!(removed.expect("inside").expect("`ip` of iproute2").success());
    let missing = || status(directory)[0]["missing"].as_array().map_or(0, Vec::len);
    eventually("it is missing", || missing() == 1);
    std::fs::write(&file, std::fs::read_to_string(&file).expect("text").replace("1400", "9000"))
        .expect("written");
    running.signal(libc::SIGHUP);
    assert_eq!(missing(), 1);
    appear();
    eventually("it exists again", || has_interface(&one) && missing() == 0);
    // The signal may be handled after later events.
    eventually("it has its new settings", || {
        let shown = &status(directory)[0];
        shown["interfaces"].as_array().into_iter().flatten().any(|its| its["mtu"] == 9000)
    });
}

#[test]
fn invalid_settings_are_refused_in_one_line() {
    let directory = tempfile::tempdir().expect("a directory");
    for arguments in [
        &["--interface", "by0"][..],
        &["--interface", "-:by0=10.0.0.1"],
        &["--interface", "-:by0", "--mtu", "67"],
        &["--interface", "-:by0", "--queues", "0"],
        &["--interface", "-:by0", "--node", "a.b"],
        &["--config", "/no/such/file"],
        &[],
    ] {
        let refused = output(directory.path(), &[&["eth", "up"], arguments].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && !said.is_empty(), "{arguments:?}");
        assert!(said.lines().count() == 1 || said.starts_with("error: invalid value"), "{said}");
    }
    let strange = output(directory.path(), &["__carrier", "/tmp"]);
    assert!(!strange.status.success() && String::from_utf8_lossy(&strange.stderr).lines().count() == 1);
}
