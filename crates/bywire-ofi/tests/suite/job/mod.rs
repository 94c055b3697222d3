//! A job of `tests/c/steady.c` under way.
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The job. The command has to end by itself.
pub struct Job {
    child: Child,
    printed: BufReader<ChildStdout>,
    said: ChildStderr,
    /// The process of each rank.
    processes: Vec<(u32, i32)>,
}

impl Job {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let printed = BufReader::new(child.stdout.take().expect("piped"));
        let said = child.stderr.take().expect("piped");
        Self { child, printed, said, processes: Vec::new() }
    }

    /// Waits for the end of the first exchange.
    pub fn wait_until_it_has_begun(&mut self) {
        loop {
            let mut line = String::new();
            if self.printed.read_line(&mut line).expect("text") == 0 {
                let mut said = String::new();
                let _ = self.said.read_to_string(&mut said);
                panic!("it has ended before: {said}");
            }
            match *line.split_whitespace().collect::<Vec<_>>() {
                ["rank", rank, "is", "process", process] => {
                    let (rank, process) =
                        (rank.parse().expect("a rank"), process.parse().expect("a process"));
                    self.processes.push((rank, process));
                }
                ["begun"] => return,
                _ => {}
            }
        }
    }

    /// Stops a rank for some time.
    pub fn stop(&self, rank: u32, time: Duration) {
        let found = self.processes.iter().find(|(known, _)| *known == rank);
        let process = found.expect("it has told its process").1.to_string();
        let signal =
            |name: &str| Command::new("kill").args([name, &process]).status().expect("kill").success();
        assert!(signal("-STOP"));
        std::thread::sleep(time);
        assert!(signal("-CONT"));
    }

    fn end(mut self) -> (ExitStatus, String, String) {
        let (mut printed, mut said) = (String::new(), String::new());
        self.printed.read_to_string(&mut printed).expect("text");
        self.said.read_to_string(&mut said).expect("text");
        (self.child.wait().expect("a child"), printed, said)
    }

    pub fn has_to_succeed(self) {
        let (status, printed, said) = self.end();
        assert!(
            status.success() && printed.ends_with("exchanged to the end\n"),
            "{status}\n{printed}\n{said}"
        );
    }

    /// It has to end with an error of MPI, and not by the time limit of its command.
    pub fn has_to_fail(self) {
        let (status, printed, said) = self.end();
        assert!(!status.success() && status.code() != Some(124), "{status}\n{printed}\n{said}");
    }
}
