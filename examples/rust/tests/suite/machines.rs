//! The Rust examples run between two machines in namespaces, encrypted and plain: `ask` and `echo` by the commands of
//! README.md and docs/messages.md, `ping-pong`, `requests`. They are the same programs as on one machine, and only the
//! address differs. Needs root.

use std::fs;
use std::path::Path;
use std::process::Command;

use bywire_testing::running::{self, Running};
use bywire_testing::test_network::{Machine, TestNetwork};

/// Runs a test between two machines, encrypted and plain.
fn between(test: impl Fn(&TestNetwork)) {
    for is_encrypted in [true, false] {
        let Some(network) = TestNetwork::up_with(2, is_encrypted) else { return };
        test(&network);
    }
}

fn start(machine: &Machine, program: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new(program);
    command.args(arguments).env("BYWIRE_RUNTIME_DIR", machine.runtime());
    machine.namespace.run(|| Running::start(command)).expect("inside")
}

/// Starts an example on the second machine if it is to serve, and else on the first one.
fn starter(program: &'static str, network: &TestNetwork) -> impl Fn(&[&str]) -> Running {
    move |arguments| match arguments {
        [] => start(&network.machines[1], program, &["--fabric"]),
        asking => start(&network.machines[0], program, asking),
    }
}

#[test]
fn ping_pong_measures_and_its_other_end_leaves_with_it() {
    between(|network| running::check_ping_pong(starter(env!("CARGO_BIN_EXE_ping-pong"), network)));
}

#[test]
fn requests_of_many_clients_are_answered_each_in_order() {
    between(|network| running::check_requests(starter(env!("CARGO_BIN_EXE_requests"), network)));
}

/// What a page prints for two machines: the arguments of `echo` on one, and of `ask` on the other.
fn printed(page: &str) -> [String; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = fs::read_to_string(path).expect(page);
    ["echo", "ask"].map(|program| {
        let begin = format!("cargo run --release -p bywire-examples --bin {program} -- ");
        let mut arguments = text.lines().filter_map(|line| line.strip_prefix(&begin));
        let line = arguments.next().expect("a command");
        assert_eq!(arguments.next(), None, "{begin}");
        line.split(" #").next().unwrap_or(line).to_owned()
    })
}

#[test]
fn an_echo_server_outlives_its_clients() {
    let [serving, asking] = printed("docs/messages.md");
    assert_eq!(printed("README.md"), [&*serving, &*asking]);
    // The node of the pages has another name here.
    let asking = asking.replace("web2/", "b/");
    between(|network| {
        let [here, there] = &network.machines[..] else { unreachable!() };
        let mut server = start(there, env!("CARGO_BIN_EXE_echo"), &[&*serving]);
        assert_eq!(server.line(), "serving b/echo");
        for _ in 0..2 {
            let answers = start(here, env!("CARGO_BIN_EXE_ask"), &[&*asking]).finish();
            assert_eq!(answers, "5 bytes back\n5000 bytes back\n");
            assert_eq!(server.line(), "a client has come");
            assert_eq!(server.line(), "a client has left: the peer closed its port");
            // One that is killed in the middle of its messages.
            let vanishing = start(here, env!("CARGO_BIN_EXE_ping-pong"), &["b/echo", "1000000000"]);
            assert_eq!(server.line(), "a client has come");
            drop(vanishing);
            assert_eq!(server.line(), "a client has left: the peer's process ended");
        }
    });
}
