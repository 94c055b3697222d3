//! Every Rust example runs, in a runtime directory of its own, and prints what it should. docs/messages.md prints two
//! of them as they are, with their commands, output and dependencies.

use std::fs;
use std::path::Path;
use std::process::Command;

use bywire_testing::running::{self, Running};
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
fn the_ring_example_passes_its_counter_around() {
    running::check_ring(starter(env!("CARGO_BIN_EXE_ring")));
}

#[test]
fn the_asynchronous_port_is_server_and_client_on_one_thread() {
    let printed = starter(env!("CARGO_BIN_EXE_asynchronous"))(&[]).finish();
    assert_eq!(printed, "10 requests served, 10 answered, on one thread\n");
}

/// A page of this tree.
fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).expect(name)
}

/// The blocks of a page that are of this language, as they stand there.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let begins = format!("```{language}\n");
    page.split(&begins).skip(1).map(|rest| rest.split("```").next().unwrap_or(rest).to_owned()).collect()
}

#[test]
fn the_printed_commands_start_an_echo_server_that_outlives_its_clients() {
    let messages = page("docs/messages.md");
    // Built for release there, and here with the tests.
    let commands = |page: &str| {
        let lines = blocks(page, "sh").concat();
        let lines = lines
            .lines()
            .filter_map(|line| line.strip_prefix("cargo run --release -p bywire-examples --bin "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for name in ["README.md", "docs/messages.md"] {
        assert_eq!(commands(&page(name)), ["echo", "ask"], "{name}");
    }
    let [answers, serves] = &blocks(&messages, "text")[..] else { panic!("what both print") };
    let serves: Vec<&str> = serves.lines().collect();
    let [serving, comes, leaves, comes_again, vanishes] = serves[..] else { panic!("{serves:?}") };
    assert_eq!(comes, comes_again);

    let place = place();
    let mut server = start(&place, env!("CARGO_BIN_EXE_echo"), &[]);
    // The host's name is another one here.
    let address = server.line();
    assert_eq!(address.split('/').next_back(), serving.split('/').next_back());
    assert!(address.starts_with("serving "), "{address}");
    for _ in 0..2 {
        assert_eq!(start(&place, env!("CARGO_BIN_EXE_ask"), &[]).finish(), *answers);
        assert_eq!(server.line(), comes);
        assert_eq!(server.line(), leaves);
        // One that is killed in the middle of its messages.
        let vanishing = start(&place, env!("CARGO_BIN_EXE_ping-pong"), &["localhost/echo", "1000000000"]);
        assert_eq!(server.line(), comes);
        drop(vanishing);
        assert_eq!(server.line(), vanishes);
    }
}

/// A program beside the clone, with the page's lines in its manifest.
#[test]
fn the_printed_dependencies_are_found_beside_the_clone() {
    let place = place();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::os::unix::fs::symlink(root.canonicalize().expect("the tree"), place.path().join("bywire"))
        .expect("a link");
    let mine = place.path().join("mine");
    fs::create_dir_all(mine.join("src")).expect("made");
    let [dependencies] = &blocks(&page("docs/messages.md"), "toml")[..] else { panic!("the dependencies") };
    let manifest = format!("[package]\nname = \"mine\"\nedition = \"2024\"\n\n{dependencies}");
    fs::write(mine.join("Cargo.toml"), manifest).expect("written");
    fs::write(mine.join("src/main.rs"), "").expect("written");
    // The versions that are here, so that none is asked for elsewhere.
    fs::copy(root.join("Cargo.lock"), mine.join("Cargo.lock")).expect("copied");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let found = cargo.args(["tree", "--offline", "--depth", "1"]).current_dir(&mine).output().expect("run");
    let printed = String::from_utf8_lossy(&found.stdout);
    assert!(
        found.status.success() && printed.contains("bywire v") && printed.contains("anyhow v"),
        "{found:?}"
    );
}

/// So what a newcomer reads there is what these tests run.
#[test]
fn the_first_steps_print_the_programs_that_run_here() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let printed = blocks(&page("docs/messages.md"), "rust");
    let programs = ["ask", "echo"].map(|name| {
        let text = fs::read_to_string(root.join("examples/rust/src/bin").join(name).with_extension("rs"));
        let text = text.expect("a program");
        let lines = text.lines().skip_while(|line| line.starts_with("//!") || line.is_empty());
        lines.map(|line| format!("{line}\n")).collect::<String>()
    });
    assert_eq!(printed, programs);
}

#[test]
fn invalid_arguments_are_reported_in_one_line_without_a_panic() {
    for (program, argument) in [
        (env!("CARGO_BIN_EXE_ping-pong"), "no address"),
        (env!("CARGO_BIN_EXE_requests"), "localhost/nobody"),
        (env!("CARGO_BIN_EXE_ring"), "many"),
    ] {
        let place = place();
        let mut command = Command::new(program);
        let output =
            command.arg(argument).env("BYWIRE_RUNTIME_DIR", place.path()).env("RUST_BACKTRACE", "1").output();
        let output = output.expect("run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{program}: {said}");
        let name = program.rsplit('/').next().expect("a name");
        assert!(said.starts_with(&format!("{name}: ")) && said.lines().count() == 1, "{said}");
    }
}
