//! The examples between two machines: the same programs as on one machine, and only the address is another one. Each runs
//! over an encrypted and over a plain fabric.

mod running;
#[path = "../../../crates/bywire-node/tests/test_network/mod.rs"]
mod test_network;

use std::process::Command;

use running::Running;
use test_network::{Machine, TestNetwork};

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

#[test]
fn an_echo_server_outlives_its_clients() {
    between(|network| {
        let [here, there] = &network.machines[..] else { unreachable!() };
        let mut server = start(there, env!("CARGO_BIN_EXE_echo"), &["--fabric"]);
        assert_eq!(server.line(), "serving b/echo");
        for _ in 0..2 {
            let answers = start(here, env!("CARGO_BIN_EXE_ask"), &["b/echo"]).finish();
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
