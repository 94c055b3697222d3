//! `bywire up` and the other commands inside the machines of a test network.
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use bywire_testing::Guarded;
use bywire_testing::test_network::Machine;
use serde_json::Value;

/// The command, with the runtime directory of a machine.
pub fn bywire(arguments: &[&str], runtime: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command
        .args(arguments)
        .env("BYWIRE_RUNTIME_DIR", runtime)
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null());
    command
}

/// Runs the command inside a machine.
pub fn inside(machine: &Machine, arguments: &[&str]) -> Output {
    let mut command = bywire(arguments, &machine.runtime());
    machine.namespace.run(|| command.output()).expect("inside").expect("it runs")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `bywire up`, killed when dropped.
pub struct Up(Guarded);

impl Up {
    /// Starts it inside a machine, and waits until it is ready. Returns the line that says so.
    pub fn start(machine: &Machine) -> (Self, String) {
        Self::run(machine, &["up"])
    }

    /// The same with any command that serves in the end.
    pub fn run(machine: &Machine, arguments: &[&str]) -> (Self, String) {
        let configuration = machine.configuration();
        let arguments = [arguments, &["--config", configuration.to_str().expect("text")]].concat();
        let mut command = bywire(&arguments, &machine.runtime());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = machine.namespace.run(|| command.spawn()).expect("inside").expect("it starts");
        let mut printed = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.contains(" is up: ") {
            line.clear();
            if printed.read_line(&mut line).expect("read") == 0 {
                let mut said = String::new();
                let _closed = child.stderr.take().expect("piped").read_to_string(&mut said);
                panic!("it did not begin: {said}");
            }
        }
        (Self(Guarded(child)), line)
    }

    /// A program that was started otherwise.
    pub fn of(child: Child) -> Self {
        Self(Guarded(child))
    }

    pub fn signal(&self, signal: &str) {
        let done =
            Command::new("kill").args([signal, &self.0.id().to_string()]).status().expect("`kill` runs");
        assert!(done.success());
    }

    pub fn ended(mut self) -> ExitStatus {
        self.0.wait().expect("waited for")
    }
}

/// The JSON of `bywire status`.
pub fn status(machine: &Machine) -> Value {
    let done = inside(machine, &["status", "--json"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("JSON")
}
