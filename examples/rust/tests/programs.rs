//! Every example runs, in a runtime directory of its own.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

/// A program that is ended with the test, and what it prints.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    /// The rest of what it prints, once it has ended well.
    fn finish(mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("read");
        assert!(self.child.wait().expect("wait").success(), "{rest}");
        rest
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails for those that have ended by themselves.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(place: &TempDir, program: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new(program);
    command.args(arguments).env("BYWIRE_RUNTIME_DIR", place.path().join("run"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    Running { child, output }
}

fn place() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn ping_pong_measures_and_its_other_end_leaves_with_it() {
    let (place, program) = (place(), env!("CARGO_BIN_EXE_ping-pong"));
    let mut answering = start(&place, program, &[]);
    let address = answering.line();
    let printed = start(&place, program, &[&address, "200"]).finish();
    assert!(printed.starts_with("200 round trips, half of one takes "), "{printed}");
    answering.finish();
}

#[test]
fn requests_of_many_clients_are_answered_each_in_order() {
    let (place, program) = (place(), env!("CARGO_BIN_EXE_requests"));
    let mut server = start(&place, program, &[]);
    let address = server.line();
    let words: Vec<String> = (0..500).map(|number| format!("word{number}")).collect();
    let clients: Vec<Running> = (0..4)
        .map(|client| {
            let mut arguments = vec![address.as_str()];
            arguments.extend(words.iter().skip(client).map(String::as_str));
            start(&place, program, &arguments)
        })
        .collect();
    for (client, running) in clients.into_iter().enumerate() {
        let answers = running.finish();
        let expected: Vec<String> = words.iter().skip(client).map(|word| word.to_uppercase()).collect();
        assert_eq!(answers.lines().collect::<Vec<_>>(), expected);
    }
    let lines: Vec<String> = (0..8).map(|_| server.line()).collect();
    assert_eq!(lines.iter().filter(|line| line.starts_with("serving ")).count(), 4, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("a client has gone: ")).count(), 4, "{lines:?}");
}

#[test]
fn the_ring_passes_its_counter_round() {
    let printed = start(&place(), env!("CARGO_BIN_EXE_ring"), &["3", "20"]).finish();
    let lines: Vec<&str> = printed.lines().collect();
    // Three puts a lap: the first node sees the last of them.
    assert_eq!(lines, ["node 0 last saw 60", "node 1 last saw 58", "node 2 last saw 59"]);
}

#[test]
fn the_asynchronous_port_serves_and_asks_on_one_thread() {
    let printed = start(&place(), env!("CARGO_BIN_EXE_asynchronous"), &[]).finish();
    assert_eq!(printed, "10 requests served, 10 answered, on one thread\n");
}

#[test]
fn bad_arguments_end_with_one_line_and_no_panic() {
    for (program, argument) in [
        (env!("CARGO_BIN_EXE_ping-pong"), "no address"),
        (env!("CARGO_BIN_EXE_requests"), "localhost/nobody"),
        (env!("CARGO_BIN_EXE_ring"), "many"),
    ] {
        let place = place();
        let mut command = Command::new(program);
        let output =
            command.arg(argument).env("BYWIRE_RUNTIME_DIR", place.path()).env("RUST_BACKTRACE", "0").output();
        let output = output.expect("run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{program}: {said}");
        assert!(said.starts_with("Error: ") && !said.contains("panicked"), "{said}");
    }
}
