//! The echo servers in C, C++, Rust and Python answer the clients in each of these languages: `echo` and `ask` of examples.
//! Programs in Rust and Python are those that cargo has built beside these tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bywire_testing::running::{self, Running};

use crate::installed::Installed;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A language, with `echo` and `ask` in it: each a program, or an interpreter and a script.
struct Language {
    name: &'static str,
    programs: [Vec<PathBuf>; 2],
}

fn native(
    installed: &Installed,
    name: &'static str,
    compiler: &str,
    standard: &str,
    paths: [&str; 2],
) -> Language {
    let programs =
        paths.map(|path| vec![installed.build(compiler, &[standard], &root().join("examples").join(path))]);
    Language { name, programs }
}

/// The programs of `bywire-examples`, if cargo has built them: `cargo test -p bywire-capi` alone does not.
fn rust() -> Option<Language> {
    let test = std::env::current_exe().expect("this program");
    let built = test.ancestors().nth(2).expect("a directory that cargo built");
    let programs = ["echo", "ask"].map(|name| built.join(name));
    if !programs.iter().all(|program| program.exists()) {
        println!("not run: the examples in Rust were not built: cargo test --workspace builds them");
        return None;
    }
    Some(Language { name: "Rust", programs: programs.map(|program| vec![program]) })
}

/// The package as a wheel installs it, below the place of this test.
fn python(installed: &Installed) -> Option<Language> {
    let module = std::env::current_exe().expect("this program").with_file_name("libbywire_python.so");
    if !module.exists() {
        println!("not run: the module of Python was not built: cargo test --workspace builds it");
        return None;
    }
    let version = "import sys; sys.exit(sys.version_info < (3, 9))";
    if !Command::new("python3").args(["-c", version]).status().is_ok_and(|status| status.success()) {
        println!("not run: no python3 of version 3.9 or newer");
        return None;
    }
    let package = installed.path().join("bywire");
    fs::create_dir(&package).expect("made");
    for entry in fs::read_dir(root().join("crates/bywire-python/python/bywire")).expect("the package") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            fs::copy(&path, package.join(path.file_name().expect("a name"))).expect("copied");
        }
    }
    fs::copy(module, package.join("_bywire.abi3.so")).expect("copied");
    let programs =
        ["echo", "ask"].map(|name| vec!["python3".into(), root().join(format!("examples/python/{name}.py"))]);
    Some(Language { name: "Python", programs })
}

fn start(installed: &Installed, program: &[PathBuf], arguments: &[&str]) -> Running {
    let mut command = installed.command(&program[0], arguments);
    if let [interpreter, script] = program {
        command = installed.command(interpreter, &[]);
        command.arg(script).args(arguments).env("PYTHONPATH", installed.path());
        command.env("PYTHONDONTWRITEBYTECODE", "1");
    }
    Running::start(command)
}

#[test]
fn servers_and_clients_of_all_languages_talk_to_each_other() {
    let installed = Installed::new();
    let mut languages = vec![
        native(&installed, "C", "cc", "-std=c11", ["c/echo.c", "c/ask.c"]),
        native(&installed, "C++", "g++", "-std=c++20", ["cpp/echo.cpp", "cpp/ask.cpp"]),
    ];
    languages.extend(rust());
    languages.extend(python(&installed));
    for server in &languages {
        for client in &languages {
            println!("a client in {} asks a server in {}", client.name, server.name);
            let [serving, asking] = [&server.programs[0], &client.programs[1]];
            running::check_echo(
                |arguments| start(&installed, serving, arguments),
                |arguments| start(&installed, asking, arguments),
            );
        }
    }
}
