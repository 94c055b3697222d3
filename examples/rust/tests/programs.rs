//! Every example runs, in a runtime directory of its own.

mod running;

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
