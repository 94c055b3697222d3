//! `bywire engine` and real programs that it relays, or carries to another machine: docs/engine.md.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use bywire_testing::eventually;
use bywire_testing::test_network::{Machine, TestNetwork};
use serde_json::Value;

use super::{Fabric, Running, await_listener, ended, groups, library, port, said, start};
use crate::packages::have;

/// An engine in the background, which ends with the test.
struct Engine<'a>(&'a Fabric);

impl<'a> Engine<'a> {
    fn start(fabric: &'a Fabric, options: &[&str]) -> Self {
        let words = [&["engine", "up", "--background"], options].concat();
        assert_eq!(said(fabric.bywire(&words)), "the engine serves the programs of this user\n");
        Self(fabric)
    }

    fn status(&self) -> Value {
        serde_json::from_str(&said(self.0.bywire(&["engine", "status", "--json"]))).expect("JSON")
    }

    fn count(&self, name: &str) -> u64 {
        self.status()[name].as_u64().expect("a number")
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        let _ended_already = ended(&mut self.0.bywire(&["engine", "down"]));
    }
}

#[test]
fn an_engine_starts_once_says_what_it_does_and_ends() {
    let fabric = Fabric::new();
    let complaint = |words: &[&str]| {
        let output = ended(&mut fabric.bywire(words));
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    for words in [["engine", "status"], ["engine", "down"]] {
        let said = complaint(&words);
        assert!(said.contains("no engine of this user runs: start one by `bywire engine up"), "{said}");
    }
    let metrics = port().to_string();
    let engine = Engine::start(&fabric, &["--metrics", &format!("127.0.0.1:{metrics}")]);
    let again = complaint(&["engine", "up"]);
    assert!(again.contains("runs already: end it by `bywire engine down`"), "{again}");
    assert_eq!(
        said(fabric.bywire(&["engine", "status"])),
        "0 connections relayed now, 0 in all, 0 bytes\n0 connections carried to other machines now, 0 in all, 0 bytes \
         sent, 0 received\n"
    );
    let mut page = String::new();
    let mut caller = TcpStream::connect(format!("127.0.0.1:{metrics}")).expect("it listens");
    caller.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("asked");
    caller.read_to_string(&mut page).expect("a page");
    assert!(
        page.contains("bywire_engine_relayed 0") && page.contains("bywire_engine_bytes_total 0"),
        "{page}"
    );
    drop(engine);
    eventually("it ends", || ended(&mut fabric.bywire(&["engine", "status"])).status.code() == Some(1));
    // The next engine does not mind files of the last one.
    drop(Engine::start(&fabric, &[]));
}

#[test]
fn iperf3_with_short_writes_is_relayed_to_a_plain_server() {
    if !have(&[("iperf3", "iperf3")]) {
        return;
    }
    let fabric = Fabric::new();
    let engine = Engine::start(&fabric, &[]);
    for words in [&["-l", "64", "-n", "20M"][..], &["-l", "1K", "-P", "4", "-n", "100M"]] {
        let before = engine.count("relayed_ever");
        let port = port();
        let port_word = port.to_string();
        let mut server =
            start(&mut fabric.plain(&["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", &port_word]));
        await_listener(port);
        let asked = [&["iperf3", "-c", "127.0.0.1", "-p", &port_word, "-J"], words].concat();
        let told: Value = serde_json::from_str(&said(fabric.carried(&asked))).expect("JSON");
        assert!(told.get("error").is_none(), "{words:?}: {}", told["error"]);
        let bytes = |what: &str| told["end"][what]["bytes"].as_f64().expect("a number");
        assert!(bytes("sum_received") > 1e7, "{words:?}: {}", told["end"]);
        assert!(bytes("sum_received") <= bytes("sum_sent"), "{words:?}: {}", told["end"]);
        assert!(server.end("the server ends").success(), "{words:?}");
        assert!(engine.count("relayed_ever") > before, "{words:?}: {}", engine.status());
    }
    eventually("it has let everything go", || engine.count("relayed") == 0);
}

/// Sends numbered lines without a buffer, as a logger does, and exits.
const LOGGER: &str = "
import socket, sys
log = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
for line in range(60000):
    log.sendall(b'line %d of a log that nobody reads\\n' % line)
";

#[test]
fn every_line_of_a_logger_arrives_and_an_engine_may_end_meanwhile() {
    let fabric = Fabric::new();
    for ends in [false, true] {
        let engine = Engine::start(&fabric, &[]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("an address").port().to_string();
        let mut logger = start(&mut fabric.carried(&["python3", "-c", LOGGER, &port]));
        let mut stream = listener.accept().expect("accept").0;
        let mut first = vec![0; 500_000];
        stream.read_exact(&mut first).expect("lines");
        eventually("it is relayed", || engine.count("relayed_ever") == 1);
        if ends {
            assert_eq!(
                said(fabric.bywire(&["engine", "down"])),
                "the engine ends; 1 relayed connection goes on without it\n"
            );
        }
        let mut text = String::from_utf8(first).expect("text");
        stream.read_to_string(&mut text).expect("the rest");
        assert!(logger.end("the logger ends").success());
        let expected = (0..60_000).map(|line| format!("line {line} of a log that nobody reads\n"));
        assert!(text == expected.collect::<String>(), "{ends}: {} bytes", text.len());
    }
}

#[test]
fn no_engine_takes_what_bywire_run_is_told_to_leave() {
    let fabric = Fabric::new();
    let engine = Engine::start(&fabric, &[]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("an address").port().to_string();
    let words = ["run", "--engine", "off", "--", "python3", "-c", LOGGER, &port];
    let mut logger = start(&mut fabric.bywire(&words));
    let mut text = String::new();
    listener.accept().expect("accept").0.read_to_string(&mut text).expect("lines");
    assert!(logger.end("the logger ends").success());
    assert_eq!((text.lines().count(), engine.count("relayed_ever")), (60_000, 0));
    let output = ended(&mut fabric.bywire(&["run", "--engine", "sometimes", "--", "true"]));
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.code() == Some(2) && said.contains("off, prefer"), "{said}");
}

/// Answers every line with itself.
const ECHO: &str = "
import socket, sys
listener = socket.create_server((sys.argv[1], 7000))
stream = listener.accept()[0].makefile('rwb')
for line in stream:
    stream.write(line)
    stream.flush()
";

/// Says one thing until a file is there, and then another one.
const TALK: &str = "
import os, socket, sys, time
stream = socket.create_connection((sys.argv[1], 7000)).makefile('rwb')
def say(word):
    stream.write(word)
    stream.flush()
    assert stream.readline() == word
while not os.path.exists(sys.argv[2]):
    say(b'said before the connection leaves the kernel\\n')
    time.sleep(0.002)
for number in range(500):
    say(b'said on the way to another machine: %d\\n' % number)
";

/// Keeps every frame of an interface.
const CAPTURE: &str = "
import socket, sys
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
frames.bind(('eth0', 0))
with open(sys.argv[1], 'wb', buffering=0) as file:
    print('captures', flush=True)
    while True:
        file.write(frames.recv(65536))
";

/// Programs of one machine, with its node and an engine.
struct Host<'a> {
    machine: &'a Machine,
}

impl Host<'_> {
    /// A program in its own process group. The thread that starts it inside ends at once, so it does not die with that.
    fn plain(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).process_group(0).stdin(Stdio::null());
        command.env("BYWIRE_RUNTIME_DIR", self.machine.runtime()).env("BYWIRE_SOCKETS_LIBRARY", library());
        command
    }

    fn bywire(&self, words: &[&str]) -> Command {
        self.plain(&[&[env!("CARGO_BIN_EXE_bywire")], words].concat())
    }

    /// A program that is told this about engines.
    fn carried(&self, engine: &str, words: &[&str]) -> Command {
        self.bywire(&[&["run", "--engine", engine, "--"], words].concat())
    }

    fn place(&self, name: &str) -> String {
        self.machine.directory.path().join(name).display().to_string()
    }

    fn inside<T: Send>(&self, mut command: Command, act: impl FnOnce(&mut Command) -> T + Send) -> T {
        self.machine.namespace.run(|| act(&mut command)).expect("inside")
    }

    fn start(&self, command: Command) -> Running {
        self.inside(command, start)
    }

    /// Starts a program, and waits for a line of its output.
    fn start_until(&self, command: Command, line: &str) -> Running {
        let begin = |command: &mut Command| command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut child = self.inside(command, begin);
        let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut first = String::new();
        std::io::BufRead::read_line(&mut output, &mut first).expect("a line");
        assert_eq!(first.trim_end(), line);
        Running::new(child)
    }

    fn count(&self, name: &str) -> u64 {
        let output = self.inside(self.bywire(&["engine", "status", "--json"]), ended);
        let status: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        status[name].as_u64().expect("a number")
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        // The pairing service has no parent here.
        let _left = groups::end_processes_of(&self.machine.runtime());
    }
}

/// Two machines with an engine each, between which two programs talk while the wire is captured.
struct Wire<'a> {
    hosts: [Host<'a>; 2],
    _engines: [Running; 2],
}

impl<'a> Wire<'a> {
    fn new(network: &'a TestNetwork) -> Self {
        let hosts = [0, 1].map(|number| Host { machine: &network.machines[number] });
        let engines = hosts.each_ref().map(|host| {
            host.start_until(host.bywire(&["engine", "up"]), "the engine serves the programs of this user")
        });
        Self { hosts, _engines: engines }
    }

    /// The frames of a conversation between programs that are told this about engines. `until` returns once the client is to say its
    /// second sentence.
    fn capture(&self, word: &str, until: impl FnOnce(&[Host<'a>; 2])) -> Vec<u8> {
        let [a, b] = &self.hosts;
        let address = b.machine.address.ip().to_string();
        let (captured, flag) = (a.place("captured"), a.place("flag"));
        let capture = a.start_until(a.plain(&["python3", "-c", CAPTURE, &captured]), "captures");
        let mut server = b.start(b.carried(word, &["python3", "-c", ECHO, &address]));
        // Looked up, as a connection would be the server's only one: port 7000 in the state LISTEN.
        eventually("the server listens", || {
            let read = || std::fs::read_to_string("/proc/thread-self/net/tcp").expect("a table");
            let table = b.machine.namespace.run(read).expect("inside");
            table.lines().any(|line| line.contains(":1B58 00000000:0000 0A"))
        });
        let mut client = a.start(a.carried(word, &["python3", "-c", TALK, &address, &flag]));
        until(&self.hosts);
        std::fs::write(&flag, "").expect("written");
        assert!(client.end("the client ends").success());
        assert!(server.end("the server ends").success());
        drop(capture);
        eventually("nothing is left", || a.count("carried") + b.count("carried") == 0);
        std::fs::read(&captured).expect("captured")
    }
}

fn is_in(frames: &[u8], word: &[u8]) -> bool {
    frames.windows(word.len()).any(|window| window == word)
}

const BEFORE: &[u8] = b"before the connection leaves the kernel";
const AFTER: &[u8] = b"on the way to another machine";

/// Waits until bytes of both directions are carried.
fn until_carried([a, b]: &[Host<'_>; 2]) {
    eventually("both directions are carried", || {
        a.count("bytes_sent") > 0 && a.count("bytes_received") > 0 && b.count("bytes_received") > 0
    });
}

#[test]
fn programs_of_two_machines_talk_in_encrypted_messages() {
    if !have(&[("python3", "python3")]) {
        return;
    }
    let Some(network) = TestNetwork::up(2) else { return };
    let frames = Wire::new(&network).capture("prefer", until_carried);
    assert!(is_in(&frames, BEFORE), "{} bytes: nothing was captured", frames.len());
    assert!(!is_in(&frames, AFTER), "it crosses in clear");
}

#[test]
fn not_one_byte_of_what_programs_say_crosses_in_clear_where_that_is_required() {
    if !have(&[("python3", "python3")]) {
        return;
    }
    let Some(network) = TestNetwork::up(2) else { return };
    let wire = Wire::new(&network);
    let frames = wire.capture("require", until_carried);
    assert!(is_in(&frames, &7000u16.to_be_bytes()) && frames.len() > 10_000, "{} bytes", frames.len());
    assert!(![BEFORE, AFTER].iter().any(|word| is_in(&frames, word)), "it crosses in clear");
    // A program that does not require it gets nothing, and says nothing that is heard.
    let [a, b] = &wire.hosts;
    let address = b.machine.address.ip().to_string();
    let mut server = b.start(b.carried("off", &["python3", "-c", ECHO, &address]));
    let connect = ["python3", "-c", TALK, &address, &a.place("none")];
    let refused = || a.inside(a.carried("require", &connect), ended);
    let said = eventually("the server listens", || {
        let said = String::from_utf8_lossy(&refused().stderr).into_owned();
        (!said.contains("ConnectionRefusedError")).then_some(said)
    });
    assert!(said.contains("ConnectionResetError") || said.contains("BrokenPipeError"), "{said}");
    assert!(a.count("unmet") > 0);
    assert!(!server.end("the server ends").success(), "it has seen an end in order");
    let status = a.inside(a.bywire(&["engine", "status"]), ended);
    assert!(String::from_utf8_lossy(&status.stdout).contains("reset that had to be carried"), "{status:?}");
}

#[test]
fn a_program_that_cannot_be_held_to_the_requirement_does_not_start() {
    let fabric = Fabric::new();
    let refusal = |program: &str| {
        let output = ended(&mut fabric.bywire(&["run", "--engine", "require", "--", program]));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refusal("true");
    assert!(said.contains("no engine of this user runs: start one by `bywire engine up"), "{said}");
    let engine = Engine::start(&fabric, &["--links", "relay"]);
    let said = refusal("true");
    assert!(said.contains("carries nothing to other machines"), "{said}");
    drop(engine);
    // The one program that every distribution links statically.
    if std::path::Path::new("/sbin/ldconfig").exists() {
        let said = refusal("/sbin/ldconfig");
        assert!(said.contains("linked statically"), "{said}");
    } else {
        println!("not run: /sbin/ldconfig is needed, as a program that is linked statically");
    }
}
