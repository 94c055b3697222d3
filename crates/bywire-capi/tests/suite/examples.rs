//! Every C example, and the program in docs/c.md, compiles without a warning and runs.

use std::path::Path;

use bywire_testing::running::{self, Running};

use crate::installed::Installed;

struct Example {
    installed: Installed,
    program: std::path::PathBuf,
}

impl Example {
    fn new(name: &str) -> Self {
        let installed = Installed::new();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c").join(name);
        let program = installed.compile(&source, "c11");
        Self { installed, program }
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::start(self.installed.command(&self.program, arguments))
    }
}

#[test]
fn ping_pong_measures_and_its_other_end_leaves_with_it() {
    let example = Example::new("ping-pong.c");
    running::check_ping_pong(|arguments| example.start(arguments));
}

#[test]
fn requests_of_many_clients_are_answered_each_in_order() {
    let example = Example::new("requests.c");
    running::check_requests(|arguments| example.start(arguments));
}

#[test]
fn the_ring_example_passes_its_counter_around() {
    let example = Example::new("ring.c");
    running::check_ring(|arguments| example.start(arguments));
}

#[test]
fn two_chat_programs_exchange_lines_while_reading_the_keyboard() {
    let example = Example::new("chat.c");
    running::check_chat(|arguments| example.start(arguments));
}

#[test]
fn the_program_of_the_manual_builds_and_runs_by_the_printed_commands() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/c.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let text = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program");
    let installed = Installed::new();
    let source = installed.path().join("hello.c");
    std::fs::write(&source, text).expect("write");
    let program = installed.compile(&source, "c11");
    assert_eq!(installed.run(&program, &[]), "hello\n");

    // The page installs into `.bywire` at home, and for the static library into a directory of the machine.
    std::os::unix::fs::symlink(installed.path(), installed.path().join(".bywire")).expect("a link");
    let finds = page.lines().find(|line| line.starts_with("export ")).expect("where it is found");
    let compiles: Vec<&str> = page.lines().filter(|line| line.starts_with("cc ")).collect();
    assert_eq!(compiles.len(), 3, "{compiles:?}");
    for compile in compiles {
        let compile = compile.replace("/usr/local", "$HOME/.bywire");
        let script = format!("cd; {finds}\n{compile}\n./hello; rm hello");
        let mut shell = installed.command(Path::new("sh"), &["-ec", &script]);
        let output = shell.env("HOME", installed.path()).output().expect("run");
        assert!(output.status.success() && output.stdout == b"hello\n", "{compile}: {output:?}");
    }
}

#[test]
fn examples_that_fail_print_one_line() {
    let example = Example::new("ping-pong.c");
    let output = example.installed.command(&example.program, &["localhost/nobody"]).output().expect("run");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "ping-pong: nobody listens there: start the other end first, or check the address; a port is open to other machines only if its options say so\n"
    );
}
