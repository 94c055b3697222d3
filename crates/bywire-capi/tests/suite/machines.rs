//! C and C++ programs run between two machines in namespaces, encrypted and plain. They are the same programs as on one
//! machine, and only the address differs. Needs root.
//!
//! They are the contract's test between two ports (in C encrypted and in C++ plain, both of both in a soak), two
//! processes of which one is killed, and the examples in both. Lending is refused by its code.

use std::path::{Path, PathBuf};
use std::process::Command;

use bywire_testing::Tier;
use bywire_testing::running::{self, Running};
use bywire_testing::test_network::{Machine, TestNetwork, path};

use crate::installed::Installed;

const DIALECTS: [&str; 2] = ["c11", "c++17"];

/// Runs a test between two machines, encrypted and plain.
fn between(test: impl Fn(&TestNetwork)) {
    [true, false].iter().for_each(|is_encrypted| between_two(*is_encrypted, &test));
}

fn between_two(is_encrypted: bool, test: impl Fn(&TestNetwork)) {
    let Some(network) = TestNetwork::up_with(2, is_encrypted) else { return };
    test(&network);
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A program that is to run on a machine.
fn command(installed: &Installed, program: &Path, machine: &Machine, arguments: &[&str]) -> Command {
    let mut command = installed.command(program, arguments);
    command.env("BYWIRE_RUNTIME_DIR", machine.runtime());
    command
}

fn start(installed: &Installed, program: &Path, machine: &Machine, arguments: &[&str]) -> Running {
    let command = command(installed, program, machine, arguments);
    machine.namespace.run(|| Running::start(command)).expect("inside")
}

/// Starts an example on the second machine if it is to serve, and else on the first one.
fn starter<'a>(
    installed: &'a Installed,
    program: &'a Path,
    network: &'a TestNetwork,
) -> impl Fn(&[&str]) -> Running + 'a {
    move |arguments| match arguments {
        [] => start(installed, program, &network.machines[1], &["--fabric"]),
        asking => start(installed, program, &network.machines[0], asking),
    }
}

#[test]
fn two_ports_of_two_machines_pass_the_whole_contract() {
    let installed = Installed::new();
    // Each dialect and each kind of fabric once, or all pairs of them.
    let pairs = DIALECTS.iter().zip([[true, false], [false, true]]);
    for (dialect, encrypted) in pairs {
        let program = installed.compile(&source("tests/c/walk.c"), dialect);
        let count = Tier::current().pick([1, 1, 2]);
        encrypted.iter().take(count).for_each(|is_encrypted| {
            between_two(*is_encrypted, |network| {
                let places = network
                    .machines
                    .iter()
                    .flat_map(|machine| [path(&machine.namespace), machine.runtime().display().to_string()]);
                let places: Vec<String> = places.collect();
                let places: Vec<&str> = places.iter().map(String::as_str).collect();
                assert_eq!(installed.run(&program, &places), "walked\n");
            })
        });
    }
}

#[test]
fn two_processes_exchange_messages_and_one_detects_the_death_of_the_other() {
    let installed = Installed::new();
    let program = installed.compile(&source("tests/c/pair.c"), "c11");
    between(|network| {
        let [here, there] = &network.machines[..] else { unreachable!() };
        let mut server = start(&installed, &program, there, &["serve", "--fabric"]);
        let address = server.line();
        assert!(address.starts_with("b/"), "{address}");
        assert_eq!(start(&installed, &program, here, &["ask", &address]).finish(), "answered\n");
        assert_eq!(server.end().expect("it was killed"), 9);
    });
}

#[test]
fn ping_pong_measures_and_its_other_end_leaves_with_it() {
    let installed = Installed::new();
    let program = installed.compile(&source("../../examples/c/ping-pong.c"), "c11");
    between(|network| running::check_ping_pong(starter(&installed, &program, network)));
}

#[test]
fn requests_of_many_clients_are_answered_each_in_order() {
    let installed = Installed::new();
    let program = installed.compile(&source("../../examples/c/requests.c"), "c11");
    between(|network| running::check_requests(starter(&installed, &program, network)));
}

#[test]
fn two_chat_programs_exchange_lines_while_reading_the_keyboard() {
    let installed = Installed::new();
    let program = installed.compile(&source("../../examples/c/chat.c"), "c11");
    between(|network| running::check_chat(starter(&installed, &program, network)));
}

#[test]
fn an_echo_server_in_cpp_answers_clients_of_another_machine() {
    let installed = Installed::new();
    let program = |name: &str, words: &[&str], compiler: &str| {
        installed.build(compiler, words, &source("../../examples").join(name))
    };
    let server = program("cpp/echo.cpp", &["-std=c++20"], "g++");
    let clients = [program("cpp/ask.cpp", &["-std=c++20"], "g++"), program("c/ask.c", &["-std=c11"], "cc")];
    between(|network| {
        let [here, there] = &network.machines[..] else { unreachable!() };
        for client in &clients {
            running::check_echo(
                |_| start(&installed, &server, there, &["--fabric"]),
                |_| start(&installed, client, here, &["b/echo"]),
            );
        }
    });
}
