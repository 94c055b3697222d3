//! Programs that a test starts: itself once more, in a role.

use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use bywire_testing::alone;

use super::{Running, TestService, role, say, told};

/// The name of the test that this thread runs.
pub fn this_test() -> String {
    std::thread::current().name().expect("the thread of a test").to_owned()
}

/// Plays the role for which this process was started. Returns whether it was started for one.
pub fn plays(roles: &[(&str, fn())]) -> bool {
    let Some(role) = role() else { return false };
    let found = roles.iter().find(|(name, _)| *name == role);
    found.unwrap_or_else(|| panic!("nothing to do as {role}")).1();
    true
}

/// Makes a command start this test alone, in a role.
pub fn in_role<'a>(command: &'a mut Command, test: &str, role: &str) -> &'a mut Command {
    command.args(alone(test)).arg("--test-threads=1").env("BYWIRE_TEST_ROLE", role).stdin(Stdio::piped())
}

impl TestService {
    /// This test as a program in a role, with the library if it carries after so many calls.
    pub fn program(&self, role: &str, calls: Option<u64>) -> Command {
        let mut command = self.command(std::env::current_exe().expect("this test"), calls);
        in_role(&mut command, &this_test(), role);
        command
    }

    /// Runs this test as a program in the role `driver`, which must succeed.
    pub fn drive(&self, calls: u64) {
        assert!(Running::start(&mut self.program("driver", Some(calls))).end().success());
    }
}

/// A listener whose port the test is told.
pub fn announced() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    say(&listener.local_addr().expect("an address").port().to_string());
    listener
}

/// The first caller of an announced listener.
pub fn first_caller() -> TcpStream {
    announced().accept().expect("accept").0
}

/// The port that this role was told.
pub fn told_port() -> u16 {
    told("BYWIRE_TEST_PORT").parse().expect("a number")
}

/// A connection to the port that this role was told.
pub fn connected() -> TcpStream {
    TcpStream::connect(("127.0.0.1", told_port())).expect("connect")
}

/// A connected pair, both of whose ends wait.
pub fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    (client, listener.accept().expect("accept").0)
}
