//! Unmodified programs of other projects under `bywire run`: they start, serve under load, reload, stop and are killed,
//! and every byte is right. `bywire status` shows whether their connections were carried. Needs root, which installs
//! them.
//!
//! The programs are Redis, nginx, PostgreSQL, iperf3, curl, Python (also by ctypes), PHP, PHP's workers behind nginx,
//! LuaJIT, Node, a current Node, Erlang and Java (also by JNA).

mod chromium;
mod engine;
mod filters;
mod golang;
mod groups;
mod iperf3;
mod laboratory;
mod languages;
mod nginx;
mod openssh;
mod php_fpm;
mod postgresql;
mod redis;
mod report;
mod rust;
mod sanitizers;
mod service;
mod suites;
mod systemd;
mod units;

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bywire_testing::eventually;
use serde_json::Value;

use groups::Group;

/// Generous: a program that takes longer hangs, even if others want the cores.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A process with all its descendants, which end when this is dropped.
struct Running {
    child: Child,
    group: Group,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group first: its number is valid until its first process is reaped.
        self.group.end();
        self.group.await_end();
        let _gone = self.child.wait();
    }
}

impl Running {
    fn new(child: Child) -> Self {
        Self { group: Group::of(&child), child }
    }

    /// Sends a signal to the whole group.
    fn signal(&self, signal: &str) {
        self.group.signal(signal);
    }

    fn end(&mut self, what: &str) -> ExitStatus {
        eventually(what, || self.child.try_wait().expect("ours"))
    }

    /// Interrupts the program until it ends. It may ignore that until it has begun to work.
    fn interrupt(&mut self, what: &str) -> ExitStatus {
        eventually(what, || {
            self.signal("INT");
            self.child.try_wait().expect("ours")
        })
    }
}

/// A directory with its own pairing service: programs of a test meet nobody else.
struct Fabric {
    directory: tempfile::TempDir,
}

impl Fabric {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory") }
    }

    fn place(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// A plain program in its own process group. It is killed with the thread that starts it.
    fn plain(&self, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(words).process_group(0).stdin(Stdio::null());
        command.env("BYWIRE_RUNTIME_DIR", self.directory.path()).env("BYWIRE_SOCKETS_LIBRARY", library());
        command
    }

    /// The same under `bywire run`.
    fn carried(&self, words: &[&str]) -> Command {
        self.bywire(&[&["run", "--"], words].concat())
    }

    /// Runs it with a report of its connections.
    fn explained(&self, words: &[&str]) -> Command {
        self.bywire(&[&["run", "--explain", "--"], words].concat())
    }

    /// `bywire` itself.
    fn bywire(&self, words: &[&str]) -> Command {
        self.plain(&[&[env!("CARGO_BIN_EXE_bywire")], words].concat())
    }

    fn status(&self) -> Value {
        let output = self.bywire(&["status", "--json"]).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The number of connections that were ever carried.
    fn carried_ever(&self) -> u64 {
        self.status()["carried_ever"].as_u64().expect("a number")
    }

    /// Starts a program that makes load, and waits until a connection of it is carried.
    fn start_load(&self, load: &mut Command) -> Running {
        let before = self.carried_ever();
        let running = start(load);
        eventually("load that is carried", || self.carried_ever() > before);
        running
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // The pairing service has no parent here and would stay for half a minute. Any other process here is a fault.
        let left = groups::end_processes_of(self.directory.path());
        assert!(left.is_empty() || std::thread::panicking(), "still there: {left:?}");
    }
}

/// The library that was built for this test. Nothing of `bywire_sockets::` may be used here: a program that links it
/// has its own calls hooked.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    test.with_file_name("libbywire_sockets.so")
}

fn start(command: &mut Command) -> Running {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    Running::new(command.spawn().expect("it starts"))
}

/// The output of a program that succeeds in time.
fn said(mut command: Command) -> String {
    let output = ended(&mut command);
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ended(command: &mut Command) -> Output {
    ended_within(TIMEOUT, command)
}

/// The output of a program that ends within this time.
fn ended_within(time: Duration, command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let group = Group::of(&child);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(time) {
        Ok(output) => output.expect("its output"),
        Err(_) => {
            group.end();
            panic!("{command:?} hangs");
        }
    }
}

/// A slow HTTP server with persistent connections. The pairing service may be slow, and twenty quick answers would be over
/// before it has paired the ends.
const SLOW_SERVER: &str = "import http.server, os, sys, time
class SlowServer(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        time.sleep(0.15)
        super().do_GET()
os.chdir(sys.argv[2])
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), SlowServer).serve_forever()";

/// A port without a listener, outside the kernel's range for connecting sockets.
fn port() -> u16 {
    static NEXT: Mutex<u32> = Mutex::new(0);
    // Tests run in processes of their own at the same time: each has a range of its own.
    let own = std::process::id() * 16;
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        *next += 1;
        let port = 21_000 + ((own + *next) % 11_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Reads the kernel's list: a test connection would be served, and iperf3 then ends to listen again.
fn await_listener(port: u16) {
    // Any remote address, and the state for it.
    let line = format!(" 0100007F:{port:04X} 00000000:0000 0A ");
    eventually("somebody listens", || fs::read_to_string("/proc/net/tcp").expect("a list").contains(&line));
}

/// For `conformance/suites`, which makes a table of them: this many steps had the same outcome plain and carried.
fn row(version: &str, steps: usize, carried: u64) {
    println!("row: {}", serde_json::json!({"version": version, "tests": steps, "carried": carried}));
}

/// Printable bytes that differ from each other wherever they are cut.
fn text(seed: u64, length_bytes: usize) -> Vec<u8> {
    let mut state = seed | 1 << 40;
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'a' + (state >> 20) as u8 % 26
    });
    bytes.take(length_bytes).collect()
}

fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    fs::write(path, bytes).expect("written");
}
