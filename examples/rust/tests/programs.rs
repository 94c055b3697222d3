//! Every example runs, in a runtime directory of its own.

mod running;

use std::fs;
use std::path::Path;
use std::process::Command;

use running::Running;
use tempfile::TempDir;

fn start(place: &TempDir, program: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new(program);
    command.args(arguments).env("BYWIRE_RUNTIME_DIR", place.path().join("run"));
    Running::start(command)
}

fn place() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Starts one program any number of times, all in one place.
fn starter(program: &'static str) -> impl Fn(&[&str]) -> Running {
    let place = place();
    move |arguments| start(&place, program, arguments)
}

#[test]
fn ping_pong_measures_and_its_other_end_leaves_with_it() {
    running::check_ping_pong(starter(env!("CARGO_BIN_EXE_ping-pong")));
}

#[test]
fn requests_of_many_clients_are_answered_each_in_order() {
    running::check_requests(starter(env!("CARGO_BIN_EXE_requests")));
}

#[test]
fn the_ring_passes_its_counter_round() {
    running::check_ring(starter(env!("CARGO_BIN_EXE_ring")));
}

#[test]
fn the_asynchronous_port_serves_and_asks_on_one_thread() {
    let printed = starter(env!("CARGO_BIN_EXE_asynchronous"))(&[]).finish();
    assert_eq!(printed, "10 requests served, 10 answered, on one thread\n");
}

#[test]
fn the_echo_server_answers_long_messages_and_outlives_its_clients() {
    let place = place();
    let mut server = start(&place, env!("CARGO_BIN_EXE_echo"), &[]);
    assert!(server.line().ends_with("/echo"));
    for _ in 0..2 {
        assert_eq!(start(&place, env!("CARGO_BIN_EXE_ask"), &[]).finish(), "5 bytes back\n5000 bytes back\n");
        assert_eq!(server.line(), "a client has come");
        assert_eq!(server.line(), "a client has left: the peer closed its port");
        // One that is killed in the middle of its messages.
        let vanishing = start(&place, env!("CARGO_BIN_EXE_ping-pong"), &["localhost/echo", "1000000000"]);
        assert_eq!(server.line(), "a client has come");
        drop(vanishing);
        assert_eq!(server.line(), "a client has left: the peer's process ended");
    }
}

/// So what a newcomer reads there is what these tests run.
#[test]
fn the_first_steps_print_the_programs_that_run_here() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/messages.md")).expect("the page");
    let printed: Vec<&str> =
        page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let programs = ["ask", "echo"].map(|name| {
        let text = fs::read_to_string(root.join("examples/rust/src/bin").join(name).with_extension("rs"));
        let text = text.expect("a program");
        let lines = text.lines().skip_while(|line| line.starts_with("//!") || line.is_empty());
        lines.map(|line| format!("{line}\n")).collect::<String>()
    });
    assert_eq!(printed, programs);
}

#[test]
fn bad_arguments_end_with_one_line_and_no_panic() {
    for (program, argument) in [
        (env!("CARGO_BIN_EXE_ping-pong"), "no address"),
        (env!("CARGO_BIN_EXE_requests"), "localhost/nobody"),
        (env!("CARGO_BIN_EXE_ring"), "many"),
    ] {
        let place = place();
        let mut command = Command::new(program);
        let output =
            command.arg(argument).env("BYWIRE_RUNTIME_DIR", place.path()).env("RUST_BACKTRACE", "0").output();
        let output = output.expect("run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{program}: {said}");
        assert!(said.starts_with("Error: ") && !said.contains("panicked"), "{said}");
    }
}
