//! Peers in processes of their own: the test program starts itself again in a role.
//!
//! A program of tests lists its roles in one ignored test named `actor`. Both sides exchange lines over a socket, which is
//! the actor's standard input, so nothing waits by the clock.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bywire::PortOptions;
use rustix::process::{Pid, Signal};

use crate::Guarded;

const ROLE: &str = "BYWIRE_TEST_ROLE";

/// The test's end of an actor. Dropping it kills the actor.
pub struct Actor {
    child: Guarded,
    control: BufReader<UnixStream>,
}

/// A role of an actor: its name and its program.
pub type Role<'a> = (&'a str, fn(&mut Context));

/// The actor's end.
pub struct Context {
    /// The directory of the ports.
    pub directory: PathBuf,
    pub arguments: Vec<String>,
    control: BufReader<UnixStream>,
}

impl Actor {
    pub fn start(role: &str, directory: &Path, arguments: &[&str]) -> Self {
        Self::start_under(&[], role, directory, arguments)
    }

    /// Starts it through another command, which must run the words after its own.
    pub fn start_under(command: &[&str], role: &str, directory: &Path, arguments: &[&str]) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let words = [&[role, directory.to_str().expect("a path of text")], arguments].concat();
        let program = std::env::current_exe().expect("this program");
        let program = program.to_str().expect("a path of text");
        let line = [command, &[program]].concat();
        let child = Command::new(line[0])
            .args(&line[1..])
            .args(["actor", "--exact", "--ignored", "--test-threads=1", "--nocapture"])
            .env(ROLE, words.join("\n"))
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("this program once more");
        Self { child: Guarded(child), control: BufReader::new(ours) }
    }

    /// The next line from the actor; `None` if it has ended.
    pub fn hear(&mut self) -> Option<String> {
        hear(&mut self.control)
    }

    /// Expects that the next line begins with `word`, and returns the rest of it.
    pub fn expect(&mut self, word: &str) -> String {
        let line = self.hear().unwrap_or_else(|| panic!("the actor ended instead of saying `{word}`"));
        let rest = line.strip_prefix(word);
        rest.unwrap_or_else(|| panic!("the actor said `{line}` instead of `{word}`")).trim().to_owned()
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.control.get_mut(), "{line}").expect("the actor listens");
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("our child");
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("our child");
    }

    /// Waits until it ends by itself, with success.
    pub fn finish(mut self) {
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "the actor ended with {status}");
    }

    /// Waits for its end of any kind.
    pub fn end(mut self) -> std::process::ExitStatus {
        self.child.wait().expect("our child")
    }

    /// The socket, for a test that waits for the actor's next line and for other things at once.
    pub fn control(&self) -> impl AsFd + '_ {
        self.control.get_ref()
    }
}

impl Context {
    pub fn hear(&mut self) -> Option<String> {
        hear(&mut self.control)
    }

    /// The next line, if it has come already.
    pub fn heard(&mut self) -> Option<String> {
        self.control.get_ref().set_nonblocking(true).expect("a socket");
        let line = hear(&mut self.control);
        self.control.get_ref().set_nonblocking(false).expect("a socket");
        line
    }

    pub fn tell(&mut self, line: impl std::fmt::Display) {
        // A test that has ended needs no answer.
        let _ = writeln!(self.control.get_mut(), "{line}");
    }

    pub fn argument<T: std::str::FromStr>(&self, place: usize) -> T {
        let text = self.arguments.get(place).unwrap_or_else(|| panic!("argument {place} is missing"));
        text.parse().unwrap_or_else(|_| panic!("argument {place} is `{text}`"))
    }

    pub fn options(&self) -> PortOptions {
        PortOptions { runtime_directory: Some(self.directory.clone()), ..PortOptions::default() }
    }
}

fn hear(control: &mut BufReader<UnixStream>) -> Option<String> {
    let mut line = String::new();
    let length = control.read_line(&mut line).unwrap_or(0);
    (length > 0).then(|| line.trim_end().to_owned())
}

/// Runs the role for which this process was started.
pub fn run_role(roles: &[Role]) {
    let Ok(words) = std::env::var(ROLE) else {
        eprintln!("not run: a role for the other tests of this program, which start it themselves");
        return;
    };
    // Nothing else ends an actor whose test was killed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("prctl");
    let mut words = words.lines().map(str::to_owned);
    let role = words.next().expect("a role");
    let directory = PathBuf::from(words.next().expect("a directory"));
    let input = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input");
    let control = BufReader::new(UnixStream::from(input));
    let (_, run) = roles.iter().find(|(name, _)| *name == role).unwrap_or_else(|| panic!("no role {role}"));
    run(&mut Context { directory, arguments: words.collect(), control });
}
