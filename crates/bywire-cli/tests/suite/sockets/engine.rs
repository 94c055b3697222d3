//! `bywire engine` and real programs that it relays, or carries to another machine: docs/engine.md.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use bywire_testing::eventually;
use serde_json::Value;

use super::{Fabric, await_listener, ended, port, said, start};
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
