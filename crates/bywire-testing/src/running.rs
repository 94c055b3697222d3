//! What the examples in Rust, C and C++ have in common: how they are run, and what the same program must do in each.
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use crate::Guarded;

/// A program that is ended with the test, and what it prints.
pub struct Running {
    child: Guarded,
    output: BufReader<ChildStdout>,
    input: Option<ChildStdin>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let input = child.stdin.take();
        Self { child: Guarded(child), output, input }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    pub fn say(&mut self, line: &str) {
        self.input.as_mut().expect("input").write_all(line.as_bytes()).expect("write");
    }

    /// The rest of what it prints, once its input is over and it has ended well.
    pub fn finish(mut self) -> String {
        self.input = None;
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("read");
        assert!(self.child.wait().expect("wait").success(), "{rest}");
        rest
    }

    /// The signal that has ended it, if one has.
    pub fn end(mut self) -> Option<i32> {
        self.child.wait().expect("wait").signal()
    }
}

/// `ping-pong`, whose other end leaves with it.
pub fn check_ping_pong(start: impl Fn(&[&str]) -> Running) {
    let mut answering = start(&[]);
    let line = answering.line();
    let address = line.strip_prefix("give this address to the other end: ").expect("an address");
    let printed = start(&[address, "200"]).finish();
    assert!(printed.starts_with("200 round trips, half of one takes "), "{printed}");
    answering.finish();
}

/// `requests`: those of many clients are answered, each in order.
pub fn check_requests(start: impl Fn(&[&str]) -> Running) {
    let mut server = start(&[]);
    let address = server.line();
    let words: Vec<String> = (0..500).map(|number| format!("word{number}")).collect();
    let clients: Vec<Running> = (0..4)
        .map(|client| {
            let mut arguments = vec![address.as_str()];
            arguments.extend(words.iter().skip(client).map(String::as_str));
            start(&arguments)
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

/// `echo` and `ask`, in whatever language each is written.
pub fn check_echo(serve: impl FnOnce(&[&str]) -> Running, ask: impl Fn(&[&str]) -> Running) {
    let mut server = serve(&[]);
    let line = server.line();
    assert!(line.starts_with("serving ") && line.ends_with("/echo"), "{line}");
    for _ in 0..2 {
        assert_eq!(ask(&[]).finish(), "5 bytes back\n5000 bytes back\n");
    }
}

/// `ring`, which passes its counter round.
pub fn check_ring(start: impl Fn(&[&str]) -> Running) {
    let printed = start(&["3", "20"]).finish();
    let lines: Vec<&str> = printed.lines().collect();
    // Three puts a lap: the first node sees the last of them.
    assert_eq!(lines, ["node 0 last saw 60", "node 1 last saw 58", "node 2 last saw 59"]);
}

/// `chat`, whose two ends say to each other what is typed.
pub fn check_chat(start: impl Fn(&[&str]) -> Running) {
    let mut first = start(&[]);
    let address = first.line();
    let mut second = start(&[&address]);
    second.line();
    second.say("hello\n");
    assert_eq!(first.line(), "hello");
    first.say("who is there?\n");
    assert_eq!(second.line(), "who is there?");
    // One leaves, and the other with it.
    second.finish();
    first.finish();
}
