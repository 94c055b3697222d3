//! `bywire measure` as a command: one measurement, fields, far ends, sessions, bad input, interrupts that leave
//! nothing. Fields are those of every test of every level in a soak, and before of a draw with each level and each
//! test.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use bywire_testing::draw::crossed;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn bywire(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command.args(arguments).stdin(Stdio::null()).output().expect("bywire runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn the_ports_of_a_measurement_leave_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command
        .args(["measure", "msg", "bidir", "--size", "1MiB", "--time", "0.02"])
        .env("TMPDIR", directory.path());
    let output = command.output().expect("bywire runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn files_of_a_killed_measurement_are_removed_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let left = || fs::read_dir(directory.path()).unwrap().count();
    let bywire = |time: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
        command.args(["measure", "msg", "latency", "--time", time]).env("TMPDIR", directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut killed = bywire("600").spawn().expect("bywire runs");
    // Held, and with both ports: a process that was only just begun would still have its parent's lock.
    let has_both = || {
        let places = fs::read_dir(directory.path()).unwrap().flatten();
        let has = |place: &Path| ["source.port", "target.port"].iter().all(|port| place.join(port).exists());
        places.map(|place| place.path()).any(|place| has(&place))
    };
    while !has_both() {
        assert!(killed.try_wait().unwrap().is_none(), "it ended before both ports were open");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(bywire("0.02").status().expect("bywire runs").success());
    assert_eq!(left(), 1, "what another program still uses stays");
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(left(), 1, "a killed program cannot tidy up");
    assert!(bywire("0.02").status().expect("bywire runs").success());
    assert_eq!(left(), 0);
}

/// The cell that `bywire measure … --json` prints, which is all that it prints.
fn measure(arguments: &[&str]) -> Value {
    let output = bywire(&[&["measure"], arguments, &["--json", "--time", "0.02"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 1, "{arguments:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The one line on standard error of a command that fails.
fn refusal(arguments: &[&str]) -> String {
    let output = bywire(arguments);
    assert!(!output.status.success(), "{arguments:?} should fail");
    assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stdout));
    let line = text(&output.stderr).trim_end().to_owned();
    assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
    line
}

fn two_cores() -> bool {
    let (source, target) = bywire_measure::pin::two_cores();
    source != target
}

#[test]
fn the_text_of_a_cell_has_the_state_of_the_machine_and_the_ends() {
    let output = bywire(&["measure", "msg", "latency", "--time", "0.02"]);
    let said = text(&output.stdout);
    let line = said.lines().find(|line| line.trim_start().starts_with("cache line "));
    assert_eq!(line.is_some(), two_cores(), "{said}");
    assert!(line.is_none_or(|line| line.contains("s before, ") && line.ends_with("s after")), "{said}");
    let alone = bywire(&["measure", "memory", "syscall", "--time", "0.02"]);
    assert!(text(&alone.stdout).starts_with("memory syscall\n"), "{}", text(&alone.stdout));
    let pair = bywire(&["measure", "memory", "pipe", "--time", "0.02"]);
    assert!(text(&pair.stdout).starts_with("memory pipe, between processes\n"), "{}", text(&pair.stdout));
}

#[test]
fn a_sweep_takes_the_requested_time() {
    for seconds in [0.1, 0.8] {
        let output = bywire(&["measure", "unix", "nhalf", "--time", &seconds.to_string(), "--json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let cell: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        // As many blocks of such a length as come to that time; how long each really took is the machine's doing as well.
        let blocks = cell["details"]["blocks_of_streams"].as_u64().unwrap();
        let planned = blocks as f64 * cell["parameters"]["block_us"].as_f64().unwrap() * 1e-6;
        assert!((planned / seconds - 1.0).abs() < 0.05, "{blocks} blocks, {planned} s for {seconds} s");
        assert_eq!(cell["unit"], "bytes");
        assert_eq!(cell["details"]["bytes_per_second_by_size"].as_array().unwrap().len(), 18);
        let sweeps = cell["blocks"].as_array().unwrap();
        let taken: f64 = sweeps.iter().map(|block| block["seconds"].as_f64().unwrap()).sum();
        let sweeps = sweeps.len() as f64 / 5.0;
        assert!(taken >= planned * sweeps * 0.999, "{taken} s, less than {planned} s");
    }
}

#[test]
fn a_cell_has_every_field_at_every_level() {
    let tests = [
        ("latency", "ns"),
        ("stream", "bytes_per_second"),
        ("rr", "transactions_per_second"),
        ("overhead", "ns"),
    ];
    for (level, (test, unit)) in crossed(&["msg", "unix", "tcp", "udp"], &tests) {
        let cell = measure(&[level, test, "--size", "64", "--verify"]);
        assert_eq!((&cell["schema"], &cell["level"]), (&json!("bywire-cell/1"), &json!(level)));
        assert_eq!((&cell["test"], &cell["unit"]), (&json!(test), &json!(unit)));
        assert_eq!(cell["size_bytes"], 64);
        assert!(cell["value"].as_f64().unwrap() > 0.0, "{level} {test}");
        let interval = cell["ci95"].as_array().unwrap();
        assert!(interval[0].as_f64() <= cell["value"].as_f64(), "{level} {test}");
        assert!(interval[1].as_f64() >= cell["value"].as_f64(), "{level} {test}");
        assert_eq!(cell["percentiles"].is_object(), test == "latency", "{level} {test}");
        let pairs: Vec<u64> =
            cell["blocks"].as_array().unwrap().iter().map(|block| block["pair"].as_u64().unwrap()).collect();
        assert_eq!(pairs, [0, 1, 2, 3, 4], "{level} {test}");
        for end in ["source", "target"] {
            assert!(cell["cpu"][end]["attributed"].as_f64().unwrap() > 0.0, "{level} {test} {end}");
        }
        assert_eq!(cell["cpu"]["same_machine"], true);
        assert!(cell["environment"]["kernel"]["release"].is_string());
        assert!(cell["details"]["warmup_blocks"].as_array().unwrap().len() >= 5);
        let beside = ["before_ns", "after_ns"].map(|when| cell["cacheline"][when].as_f64());
        match ["msg", "unix"].contains(&level) && two_cores() {
            true => {
                assert!(beside.iter().all(|ns| ns.is_some_and(|ns| ns > 1.0)), "{}", cell["cacheline"])
            }
            false => assert_eq!(cell["cacheline"], Value::Null, "{level}"),
        }
        let spin = if level == "msg" { json!("adaptive") } else { json!(false) };
        assert_eq!(cell["parameters"]["spin"], spin, "{level} {test}");
    }
}

#[test]
fn ceilings_and_threads_are_measured() {
    for test in ["cacheline", "futex", "pipe", "memcpy"] {
        let cell = measure(&["memory", test]);
        assert!(cell["value"].as_f64().unwrap() > 0.0, "{test}");
        assert_eq!(cell["blocks"].as_array().unwrap().len(), 5, "{test}");
    }
    assert_eq!(measure(&["tcp", "latency", "--between", "threads"])["between"], "threads");
}

#[test]
fn a_neighbour_of_the_target_disturbs_a_ceiling() {
    let (source, target) = bywire_measure::pin::two_cores();
    if source == target {
        eprintln!("not run: one core is all that there is");
        return;
    }
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (busy, is_busy) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            bywire_measure::pin::pin_to(target).unwrap();
            busy.send(()).unwrap();
            while stopped.try_recv() == Err(TryRecvError::Empty) {}
        });
        let cores = format!("{source},{target}");
        is_busy.recv().unwrap();
        let output =
            bywire(&["measure", "memory", "cacheline", "--cores", &cores, "--time", "0.5", "--json"]);
        drop(stop);
        let cell: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let waited =
            |block: &Value| block["disturbed"].as_array().unwrap().contains(&json!("waited-for-core"));
        let blocks = cell["blocks"].as_array().unwrap();
        assert!(blocks.iter().any(waited), "{blocks:?}");
    });
}

#[test]
fn udp_counts_what_was_sent_and_what_arrived() {
    // Buffers of a few datagrams, so that the receiver loses some.
    let cell = measure(&["udp", "stream", "--size", "1KiB", "--socket-buffer", "4KiB"]);
    let detail = |name: &str| cell["details"][name].as_f64().unwrap();
    let (sent, received) = (detail("messages_sent"), detail("messages_received"));
    assert!(0.0 < received && received <= sent, "{received} of {sent}");
    // Two ways to one rate over all blocks: lost datagrams have taken time, and so have those that waited in a buffer.
    let close = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-6;
    let arrived = detail("received_bytes_per_second");
    let kept = 1.0 - detail("lost_share");
    let blocks = cell["blocks"].as_array().unwrap();
    let of_blocks = |of: fn(&Value) -> f64| -> f64 { blocks.iter().map(of).sum() };
    let seconds = of_blocks(|block| block["seconds"].as_f64().unwrap());
    let elapsed = detail("elapsed_seconds");
    assert!(seconds >= elapsed * (1.0 - 1e-6), "{cell}");
    assert!(close(arrived * seconds, 1024.0 * received), "{cell}");
    assert!(close(arrived * seconds, detail("sent_bytes_per_second") * kept * elapsed), "{cell}");
    let bytes = of_blocks(|block| block["value"].as_f64().unwrap() * block["seconds"].as_f64().unwrap());
    assert!(close(bytes, 1024.0 * received), "{cell}");
}

#[test]
fn both_ends_use_the_requested_congestion_control() {
    let chosen = |more: &[&str]| {
        let cell = measure(&[&["tcp", "bidir"], more].concat());
        ["congestion", "target_congestion"].map(|name| cell["details"][name].as_str().unwrap().to_owned())
    };
    let own = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    assert_eq!(chosen(&[]), [own.trim(); 2]);
    // Everyone may choose it, everywhere.
    assert_eq!(chosen(&["--congestion", "reno"]), ["reno"; 2]);
    let unknown = refusal(&["measure", "tcp", "bidir", "--congestion", "nobody-has-it"]);
    assert!(unknown.contains("tcp_available_congestion_control"), "{unknown}");
}

#[test]
fn netperf_style_has_netperfs_headings() {
    // Machine CPU needs spans of half a second in each pair.
    let arguments = ["measure", "tcp", "rr", "--size", "1", "--time", "2.5", "--style", "netperf"];
    let output = bywire(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("TCP REQUEST/RESPONSE TEST to "), "{}", text(&output.stdout));
}

#[test]
fn ports_of_two_nodes_are_measured_over_udp() {
    let directory = tempfile::tempdir().unwrap();
    let measure = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
        // The connections of one test have to run at one time: two that share a busy core need longer for that.
        let time = if options.contains(&"--connections") { "0.5" } else { "0.02" };
        command.args([&["measure", "msg"], options, &["--link", "udp", "--json", "--time", time]].concat());
        command.env("TMPDIR", directory.path()).stdin(Stdio::null()).output().expect("bywire runs")
    };
    for (options, security) in [
        (&["latency", "--size", "8", "--spin"][..], "encrypted"),
        (&["latency", "--size", "8", "--no-spin", "--between", "namespaces"], "encrypted"),
        (&["latency", "--size", "8", "--spin", "--security", "plain"], "plain"),
        (&["stream", "--size", "1MiB", "--verify"], "encrypted"),
        (&["bidir", "--security", "plain"], "plain"),
        (&["overhead"], "encrypted"),
        (&["interleave"], "encrypted"),
        (&["fanin", "--connections", "2"], "encrypted"),
    ] {
        let output = measure(options);
        let complaint = text(&output.stderr);
        if complaint.contains("cannot make a network namespace") || complaint.contains("veth") {
            return eprintln!("not run: {complaint}");
        }
        assert!(output.status.success(), "{options:?}: {complaint}");
        let cell: Value = serde_json::from_slice(&output.stdout).expect("one object");
        assert_eq!((&cell["link"], &cell["between"]), (&json!("udp"), &json!("namespaces")), "{options:?}");
        assert_eq!(cell["parameters"]["security"], security, "{options:?}");
        assert!(cell["cpu"]["carriers"].is_object(), "the services have an account: {cell}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn namespaces_are_joined_by_veth() {
    let arguments =
        ["measure", "tcp", "latency", "--between", "namespaces", "--mtu", "9000", "--time", "0.02"];
    let output = bywire(&[&arguments[..], &["--json"]].concat());
    let said = text(&output.stderr);
    if !output.status.success() && said.contains("cannot make a network namespace") {
        eprintln!("not run: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");
    let cell: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&cell["link"], &cell["parameters"]["mtu"]), (&json!("veth"), &json!(9000)));
}

#[test]
fn invalid_input_is_reported_in_one_line() {
    let refused = [
        (&["measure", "tpc", "latency"][..], "choose one of memory, msg, unix, tcp, sock, udp"),
        (&["measure", "tpc", "latency"], "did you mean `tcp`?"),
        (&["measure", "tcp", "latncy"], "did you mean `latency`?"),
        (&["measure", "eth", "stream", "--link", "vet"], "did you mean `veth`?"),
        (&["measure", "udp", "stream", "--size", "65508"], "1 to 65507"),
        (
            &["measure", "tcp", "streams", "--connections", "64", "--size", "64MiB"],
            "no more than 256MiB together",
        ),
        (&["measure", "unix", "latency", "--between", "nowhere.invalid"], "one machine"),
        (&["measure", "tcp", "latency", "--between", "127.0.0.1:1"], "is `bywire serve` running there?"),
        (&["measure", "tcp", "latency", "--cores", "0,4000"], "core 4000"),
        (&["measure", "tcp", "latency", "--mtu", "9000"], "--between namespaces"),
        (&["measure", "msg", "latency", "--link", "udp", "--between", "processes"], "leave out --between"),
        (&["measure", "msg", "latency", "--link", "udp", "--security", "none"], "encrypted"),
        (&["measure", "msg", "latency", "--security", "plain"], "does not apply"),
        (&["measure", "msg", "latency", "--link", "udp", "--lent"], "does not apply"),
        (&["measure", "unix", "stream", "--congestion", "reno"], "--congestion does not apply"),
        (&["measure", "tcp", "stream", "--congestion", "no name"], "unknown algorithm"),
        (&["bench", "quick", "--levels", "tpc"], "choose one of memory"),
    ];
    for (arguments, part) in refused {
        let line = refusal(arguments);
        assert!(line.starts_with("bywire: ") && line.contains(part), "{arguments:?}: {line}");
    }
}

/// A running `bywire` whose standard error is shared by all its workers: it ends when the last of them has.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    errors: ChildStderr,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("bywire runs");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let errors = child.stderr.take().expect("piped");
        Self { child, output, errors }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("UTF-8");
        line
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.child.id() as i32).expect("a process has a number");
        kill_process(process, signal).expect("it still runs");
    }

    /// Waits for the command and for its last worker. Returns the exit code and the output.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.errors.read_to_string(&mut said).expect("UTF-8");
        let status = self.child.wait().expect("it can be waited for");
        (status.code(), said)
    }
}

fn serve(more: &[&str]) -> (Running, String) {
    let mut server = Running::start(&[&["serve", "--listen", "127.0.0.1:0"], more].concat());
    let line = server.line();
    let address = line.strip_prefix("listening on ").and_then(|line| line.split(',').next());
    let address = address.expect("the server says where it listens").to_owned();
    (server, address)
}

#[test]
fn the_far_end_serves_several_clients_at_once_and_ends_with_its_workers() {
    let (server, address) = serve(&[]);
    std::thread::scope(|scope| {
        for level in ["tcp", "udp", "tcp"] {
            let address = &address;
            scope.spawn(move || {
                let cell = measure(&[level, "latency", "--between", address]);
                assert_eq!((&cell["link"], &cell["between"]), (&json!("network"), &json!(address)));
            });
        }
    });
    server.signal(Signal::INT);
    assert_eq!(server.end().0, Some(130));
}

#[test]
fn the_far_end_may_require_a_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, contents: &str| {
        let path = directory.path().join(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong) =
        (file("right", "sixteen letters or more\n"), file("wrong", "another sixteen letters"));
    let (server, address) = serve(&["--key", &right]);
    measure(&["tcp", "latency", "--between", &address, "--key", &right]);
    let request = ["measure", "tcp", "latency", "--between", &address];
    assert!(refusal(&request).contains("it requires a key"));
    assert!(refusal(&[&request[..], &["--key", &wrong]].concat()).contains("the key is wrong"));
    server.signal(Signal::INT);
    server.end();
}

#[test]
fn the_death_of_a_far_end_during_a_test_is_reported_in_one_line() {
    let (mut server, address) = serve(&[]);
    let client = Running::start(&["measure", "tcp", "stream", "--between", &address, "--time", "600"]);
    assert!(server.line().contains("tcp stream"));
    server.signal(Signal::KILL);
    let (code, said) = client.end();
    assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("the target died") || said.contains("closed the connection"), "{said}");
    // The server's own workers end with it, though it could not tell them.
    server.end();
}

#[test]
fn the_far_end_refuses_other_versions_and_values_out_of_bounds() {
    let (server, address) = serve(&[]);
    let mut connection = Raw::open(&address);
    let version = connection.hear()["version"].as_str().unwrap().to_owned();
    connection.say(&json!({ "protocol": 2, "version": "0.0.0", "nonce": "", "proof": null }));
    let refused = connection.hear()["refused"].as_str().unwrap().to_owned();
    assert!(refused.contains("0.0.0") && refused.contains(&version), "{refused}");

    let mut plan = json!({
        "level": "tcp", "test": "stream", "link": null, "size_bytes": 64, "response_bytes": 1, "block_us": 1000,
        "warmup_blocks": 1, "blocks": 1, "spin": false, "sleep": false, "request": {},
        "bind": "127.0.0.1", "cookie": "0".repeat(32), "deadline_seconds": 30,
    });
    let bounds = [
        ("size_bytes", json!(1u64 << 40), "sizes must be"),
        ("response_bytes", json!(5 << 20), "with a key at both ends (--key) up to 67108864"),
        ("deadline_seconds", json!(1_000_000), "too long"),
        ("blocks", json!(u32::MAX), "too long"),
        ("request", json!({ "socket_buffer_bytes": 1u64 << 40 }), "socket buffers"),
        ("level", json!("unix"), "does not cross machines"),
        ("cookie", json!("short"), "cookie"),
        ("request", json!({ "congestion": "nobody-has-it" }), "congestion control"),
    ];
    for (name, value, part) in bounds {
        let proper = std::mem::replace(&mut plan[name], value);
        let mut connection = Raw::greeted(&address, &version);
        connection.say(&json!({ "messages": plan }));
        let reason = connection.hear()["failed"]["reason"].as_str().unwrap_or_default().to_owned();
        assert!(reason.contains(part), "{name}: {reason}");
        plan[name] = proper;
    }

    let mut connection = Raw::greeted(&address, &version);
    connection.say(&json!({ "messages": plan }));
    assert!(connection.hear()["listening"]["address"].is_string(), "the plan itself is sound");
    // Garbage, and a connection that ends, do the server no harm.
    Raw::open(&address).say(&json!("garbage"));
    drop(connection);
    measure(&["tcp", "latency", "--between", &address]);
    server.signal(Signal::INT);
    server.end();
}

#[test]
fn the_far_end_sends_datagrams_only_to_the_requesting_address() {
    let (server, address) = serve(&[]);
    let mut connection = Raw::open(&address);
    let version = connection.hear()["version"].as_str().unwrap().to_owned();
    connection.say(&json!({ "protocol": 2, "version": version, "nonce": "", "proof": null }));
    assert_eq!(connection.hear()["refused"], Value::Null);
    let cookie = "0".repeat(32);
    // Its own word for where it is counts for nothing.
    connection.say(&json!({ "messages": {
        "level": "udp", "test": "bidir", "link": null, "size_bytes": 64, "response_bytes": 64, "block_us": 1000,
        "warmup_blocks": 1, "blocks": 1, "spin": false, "sleep": false, "verify": false, "nagle": false,
        "socket_buffer_bytes": null, "integrity": null, "lent": false, "nodes": null, "mtu_bytes": null,
        "bind": "127.0.0.1", "source": "127.0.0.2", "cookie": cookie, "deadline_seconds": 30,
    } }));
    let target = connection.hear()["listening"]["address"].as_str().unwrap().to_owned();
    let greeting = format!("{cookie}0");
    let [victim, client] = ["127.0.0.2:0", "127.0.0.1:0"].map(|own| UdpSocket::bind(own).unwrap());
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    victim.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    // As if it were the victim's.
    victim.send_to(greeting.as_bytes(), &target).unwrap();
    let answered = (0..600).any(|_| {
        client.send_to(greeting.as_bytes(), &target).unwrap();
        client.recv(&mut [0; 128]).is_ok()
    });
    assert!(answered, "who asked for the test is answered");
    assert!(victim.recv(&mut [0; 128]).is_err(), "the victim hears of it");
    drop(connection);
    server.signal(Signal::INT);
    server.end();
}

#[test]
fn a_client_cannot_forge_lines_in_the_servers_log() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    fs::write(&key, "sixteen letters or more").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let hostile = "\u{1b}[2J\n10.0.0.1:7: tcp stream 1 bytes";
    for (key, due) in [(None, "its version is \\u{1b}[2J\\n"), (key.to_str(), "a key is required")] {
        let (mut server, address) = serve(&key.map_or_else(Vec::new, |key| vec!["--key", key]));
        let mut connection = Raw::open(&address);
        connection.hear();
        connection.say(&json!({ "protocol": 2, "version": hostile, "nonce": "", "proof": null }));
        assert!(connection.hear()["refused"].is_string());
        let line = server.line();
        let line = line.strip_suffix('\n').expect("a whole line");
        assert!(line.starts_with("127.0.0.1:") && line.contains(due), "{line:?}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert_eq!(line.contains("2J"), key.is_none(), "{line:?}");
        server.signal(Signal::INT);
        server.end();
    }
}

/// A client that may say anything.
struct Raw(BufReader<TcpStream>);

impl Raw {
    fn open(address: &str) -> Self {
        Self(BufReader::new(TcpStream::connect(address).expect("the server listens")))
    }

    fn greeted(address: &str, version: &str) -> Self {
        let mut connection = Self::open(address);
        connection.hear();
        connection.say(&json!({ "protocol": 2, "version": version, "nonce": "", "proof": null }));
        assert_eq!(connection.hear()["refused"], Value::Null);
        connection
    }

    fn say(&mut self, what: &Value) {
        writeln!(self.0.get_mut(), "{what}").expect("the server reads");
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server answers");
        serde_json::from_str(&line).expect("JSON")
    }
}

fn session(directory: &Path) -> (Value, usize) {
    let session = fs::read_to_string(directory.join("session.json")).expect("a session is stored");
    let cells = fs::read_to_string(directory.join("cells.jsonl")).expect("cells are stored");
    (serde_json::from_str(&session).expect("JSON"), cells.lines().count())
}

#[test]
fn a_session_is_stored_with_its_report() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("session");
    let arguments =
        ["bench", "quick", "--time", "0.01", "--levels", "tcp", "--output", place.to_str().unwrap()];
    let output = bywire(&[&arguments[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let (session, cells) = session(&place);
    assert_eq!(session["complete"], true);
    assert_eq!(session["absent"], json!([]));
    assert_eq!(printed["cells"].as_array().unwrap().len(), cells);
    // Nine points, one by epoll too and three between namespaces, and every ceiling before and after.
    let messages =
        printed["cells"].as_array().unwrap().iter().filter(|cell| cell["level"] != "memory").count();
    assert_eq!(messages, 13);
    assert_eq!((cells - messages) % 2, 0);
    assert!(
        session["environment"]["idle_before"].is_array() && session["environment"]["idle_after"].is_array()
    );
    assert!(fs::read_to_string(place.join("report.html")).unwrap().starts_with("<!DOCTYPE html>"));
    // The directory is in use now, and its contents are not overwritten.
    assert!(refusal(&arguments).contains(place.to_str().unwrap()));
}

#[test]
fn an_interrupted_session_keeps_its_cells_and_leaves_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("session");
    let place = place.to_str().unwrap();
    let mut running =
        Running::start(&["bench", "quick", "--time", "600", "--output", place, "--levels", "tcp"]);
    assert!(running.line().contains("cells, about"), "how long it will take");
    assert!(running.line().starts_with("level"), "a heading");
    assert!(running.line().starts_with("memory"), "the first cell is a ceiling");
    running.signal(Signal::INT);
    let mut rest = String::new();
    running.output.read_to_string(&mut rest).unwrap();
    let (code, said) = running.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(rest.contains("report.html") && said.contains("interrupted"), "{rest}{said}");
    let (session, cells) = session(Path::new(place));
    assert_eq!(session["complete"], false);
    assert!(cells >= 1);
    assert!(Path::new(place).join("report.html").exists());
}

#[test]
fn a_killed_measurement_leaves_no_process() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("session");
    let mut running =
        Running::start(&["bench", "quick", "--time", "600", "--output", place.to_str().unwrap()]);
    running.line();
    running.line();
    running.signal(Signal::KILL);
    // Ends only when no worker holds the shared standard error any more.
    assert_eq!(running.end().0, None);
}
