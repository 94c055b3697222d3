//! Every example in C and C++, and the programs in docs/c.md, compile without a warning and run. Those in C++ do so with
//! exceptions and without.

use std::path::{Path, PathBuf};

use bywire_testing::running::{self, Running};

use crate::installed::{Installed, has, succeed};

struct Example {
    installed: Installed,
    program: PathBuf,
}

/// An example, by its path below `examples`.
fn example(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path)
}

impl Example {
    fn new(name: &str) -> Self {
        let installed = Installed::new();
        let program = installed.compile(&example("c").join(name), "c11");
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

/// How each compiler is asked for C++, with exceptions and without.
const WAYS: [&[&str]; 3] =
    [&["-std=c++20"], &["-std=c++20", "-O2", "-fno-exceptions", "-fno-rtti"], &["-std=c++23", "-O2"]];

/// Builds a server and a client, and lets the client ask.
fn check_echo(compiler: &str, words: &[&str], [server, client]: [&str; 2]) {
    let installed = Installed::new();
    let [server, client] = [server, client].map(|name| installed.build(compiler, words, &example(name)));
    let start = |program: &Path, arguments: &[&str]| Running::start(installed.command(program, arguments));
    running::check_echo(|arguments| start(&server, arguments), |arguments| start(&client, arguments));
}

#[test]
fn a_client_in_c_asks_an_echo_server_in_c() {
    check_echo("cc", &["-std=c11"], ["c/echo.c", "c/ask.c"]);
    if has("clang") {
        check_echo("clang", &["-std=c11"], ["c/echo.c", "c/ask.c"]);
    }
}

#[test]
fn a_client_in_cpp_asks_an_echo_server_in_cpp_with_exceptions_and_without() {
    for words in WAYS {
        check_echo("g++", words, ["cpp/echo.cpp", "cpp/ask.cpp"]);
    }
    if has("clang++") {
        for words in &WAYS[..2] {
            check_echo("clang++", words, ["cpp/echo.cpp", "cpp/ask.cpp"]);
        }
    }
}

/// A client that is killed, and one that does not read its long answers, which is disconnected.
#[test]
fn echo_servers_outlive_clients_that_die_or_do_not_read() {
    let installed = Installed::new();
    let unread = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpp/unread.cpp");
    let unread = installed.build("g++", &["-std=c++20"], &unread);
    let vanishing = installed.build("cc", &["-std=c11", "-D_GNU_SOURCE"], &example("c/ping-pong.c"));
    for (compiler, standard, server, client) in
        [("cc", "-std=c11", "c/echo.c", "c/ask.c"), ("g++", "-std=c++20", "cpp/echo.cpp", "cpp/ask.cpp")]
    {
        let [server, client] =
            [server, client].map(|name| installed.build(compiler, &[standard], &example(name)));
        let start =
            |program: &Path, arguments: &[&str]| Running::start(installed.command(program, arguments));
        let mut server = start(&server, &[]);
        assert!(server.line().ends_with("/echo"));
        let vanishing = start(&vanishing, &["localhost/echo", "1000000000"]);
        assert_eq!(server.line(), "a client has come");
        drop(vanishing);
        assert!(server.line().starts_with("a client has left: the peer's process ended"));
        assert_eq!(start(&unread, &[]).finish(), "disconnected\n");
        assert_eq!(server.line(), "a client has come");
        assert!(server.line().starts_with("a client has left: the connection was ended on this side"));
        assert_eq!(start(&client, &[]).finish(), "5 bytes back\n5000 bytes back\n");
    }
}

/// The text of docs/c.md.
fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/c.md");
    std::fs::read_to_string(path).expect("the page")
}

/// The only block of the page in this language.
fn block(page: &str, language: &str) -> String {
    let blocks: Vec<&str> = page.split(&format!("```{language}\n")).skip(1).collect();
    assert_eq!(blocks.len(), 1, "{language}");
    blocks[0].split("```").next().expect("a block").to_owned()
}

#[test]
fn the_program_of_the_manual_builds_and_runs_by_the_printed_commands() {
    let page = page();
    let installed = Installed::new();
    for (language, name, dialect) in [("c", "hello.c", "c11"), ("cpp", "hello.cpp", "c++20")] {
        let source = installed.path().join(name);
        std::fs::write(&source, block(&page, language)).expect("write");
        let program = installed.compile(&source, dialect);
        assert_eq!(installed.run(&program, &[]), "hello\n");
    }

    // The page installs into `.bywire` at home, and for the static library into a directory of the machine.
    std::os::unix::fs::symlink(installed.prefix(), installed.path().join(".bywire")).expect("a link");
    let finds = page.lines().find(|line| line.starts_with("export ")).expect("where it is found");
    let compiles = page.lines().filter(|line| line.starts_with("cc ") || line.starts_with("c++ "));
    let compiles: Vec<&str> = compiles.collect();
    assert_eq!(compiles.len(), 4, "{compiles:?}");
    for compile in compiles {
        let compile = compile.replace("/usr/local", "$HOME/.bywire");
        let script = format!("cd; {finds}\n{compile}\n./hello; rm hello");
        let mut shell = installed.command(Path::new("sh"), &["-ec", &script]);
        let output = shell.env("HOME", installed.path()).output().expect("run");
        assert!(output.status.success() && output.stdout == b"hello\n", "{compile}: {output:?}");
    }
}

/// The commands that build the examples by CMake run as printed, and so does the project that the page prints.
#[test]
fn the_printed_cmake_project_builds_by_the_printed_commands() {
    if !has("cmake") {
        return;
    }
    let page = page();
    let installed = Installed::new();
    std::os::unix::fs::symlink(installed.prefix(), installed.path().join("bywire")).expect("a link");
    let commands: Vec<&str> = page.lines().filter(|line| line.starts_with("cmake ")).collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    let root = example("..").canonicalize().expect("the tree");
    let place = installed.path().join("place");
    std::fs::create_dir(&place).expect("made");
    std::os::unix::fs::symlink(root.join("examples"), place.join("examples")).expect("a link");
    let script = format!("cd {}; {}", place.display(), commands.join("\n"));
    succeed(installed.command(Path::new("sh"), &["-ec", &script]).env("HOME", installed.path()));
    let start = |name: &str, arguments: &[&str]| {
        Running::start(installed.command(&place.join("build").join(name), arguments))
    };
    running::check_echo(|arguments| start("echo", arguments), |arguments| start("ask", arguments));

    let mine = installed.path().join("mine");
    std::fs::create_dir(&mine).expect("made");
    std::fs::write(mine.join("CMakeLists.txt"), block(&page, "cmake")).expect("written");
    std::fs::write(mine.join("hello.cpp"), block(&page, "cpp")).expect("written");
    let script = format!("cd {}; {}", mine.display(), commands.join("\n").replace("examples/cpp", "."));
    succeed(installed.command(Path::new("sh"), &["-ec", &script]).env("HOME", installed.path()));
    assert_eq!(installed.run(&mine.join("build/hello"), &[]), "hello\n");
}

#[test]
fn examples_that_fail_print_one_line() {
    let reason = "nobody listens there: start the other end first, or check the address; a port is open to other \
                  machines only if its options say so";
    let installed = Installed::new();
    for (compiler, words, name, address, said) in [
        ("cc", "-D_GNU_SOURCE", "c/ping-pong.c", "localhost/nobody", format!("ping-pong: {reason}\n")),
        ("cc", "-std=c11", "c/ask.c", "localhost/nobody", format!("ask: {reason}\n")),
        ("g++", "-std=c++20", "cpp/ask.cpp", "localhost/nobody", format!("ask: {reason}\n")),
    ] {
        let program = installed.build(compiler, &[words], &example(name));
        let output = installed.command(&program, &[address]).output().expect("run");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stderr), said);
    }
}
