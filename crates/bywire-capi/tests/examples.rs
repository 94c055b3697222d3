//! Every C example compiles without a warning and runs.

mod installed;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use installed::Installed;

/// A program that is ended with the test, and what it prints.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    input: Option<ChildStdin>,
}

impl Running {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    fn say(&mut self, line: &str) {
        self.input.as_mut().expect("input").write_all(line.as_bytes()).expect("write");
    }

    /// The rest of what it prints, once its input is over and it has ended well.
    fn finish(mut self) -> String {
        self.input = None;
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

struct Example {
    installed: Installed,
    program: std::path::PathBuf,
}

impl Example {
    fn new(name: &str) -> Self {
        let installed = Installed::new();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c").join(name);
        let program = installed.compile(&source, "c11");
        Self { installed, program }
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.installed.command(&self.program, arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let input = child.stdin.take();
        Running { child, output, input }
    }
}

#[test]
fn ping_pong_measures_and_its_other_end_leaves_with_it() {
    let example = Example::new("ping-pong.c");
    let mut answering = example.start(&[]);
    let address = answering.line();
    let printed = example.start(&[&address, "200"]).finish();
    assert!(printed.starts_with("200 round trips, half of one takes "), "{printed}");
    answering.finish();
}

#[test]
fn requests_of_many_clients_are_answered_each_in_order() {
    let example = Example::new("requests.c");
    let mut server = example.start(&[]);
    let address = server.line();
    let words: Vec<String> = (0..500).map(|number| format!("word{number}")).collect();
    let clients: Vec<Running> = (0..4)
        .map(|client| {
            let mut arguments = vec![address.as_str()];
            arguments.extend(words.iter().skip(client).map(String::as_str));
            example.start(&arguments)
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
    let printed = Example::new("ring.c").start(&["3", "20"]).finish();
    let lines: Vec<&str> = printed.lines().collect();
    // Three puts a lap: the first node sees the last of them.
    assert_eq!(lines, ["node 0 last saw 60", "node 1 last saw 58", "node 2 last saw 59"]);
}

#[test]
fn two_chat_beside_their_keyboards() {
    let example = Example::new("chat.c");
    let mut first = example.start(&[]);
    let address = first.line();
    let mut second = example.start(&[&address]);
    second.line();
    second.say("hello\n");
    assert_eq!(first.line(), "hello");
    first.say("who is there?\n");
    assert_eq!(second.line(), "who is there?");
    // One leaves, and the other with it.
    second.finish();
    first.finish();
}

#[test]
fn the_program_of_the_manual_works_as_it_stands() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/c.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let text = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program");
    let installed = Installed::new();
    let source = installed.path().join("hello.c");
    std::fs::write(&source, text).expect("write");
    let program = installed.compile(&source, "c11");
    assert_eq!(installed.run(&program, &[]), "hello\n");
}

#[test]
fn what_fails_ends_with_one_line() {
    let example = Example::new("ping-pong.c");
    let output = example.installed.command(&example.program, &["localhost/nobody"]).output().expect("run");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "ping-pong: nobody listens there: start the other end first, or check the address\n"
    );
}
