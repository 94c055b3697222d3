//! C and C++ programs use the whole contract, run against the installed library. They survive invalid arguments, are
//! told of two threads in one port, and find a sentence for every code.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::installed::{Installed, finish};

const DIALECTS: [&str; 2] = ["c11", "c++17"];

fn source(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

#[test]
fn two_ports_of_one_process_pass_the_whole_contract() {
    let installed = Installed::new();
    for dialect in DIALECTS {
        let program = installed.compile(&source("walk.c"), dialect);
        assert_eq!(installed.run(&program, &[]), "walked\n");
    }
}

#[test]
fn two_processes_exchange_messages_and_one_detects_the_death_of_the_other() {
    let installed = Installed::new();
    for dialect in DIALECTS {
        let program = installed.compile(&source("pair.c"), dialect);
        let mut server = installed.start(&program, &["serve"]);
        let mut address = String::new();
        let output = server.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut address).expect("read");
        let client = installed.start(&program, &["ask", address.trim()]);
        assert_eq!(finish(client), "answered\n");
        let ended = server.wait().expect("wait");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
    }
}

#[test]
fn a_second_thread_in_one_port_gets_an_error() {
    if !cfg!(debug_assertions) {
        eprintln!("not run: without debug assertions the library notices most such calls, not every one");
        return;
    }
    let installed = Installed::new();
    let program = installed.compile(&source("threads.c"), "c11");
    assert_eq!(installed.run(&program, &[]), "turned away\n");
}

#[test]
fn null_and_invalid_arguments_are_errors() {
    let installed = Installed::new();
    for dialect in DIALECTS {
        let program = installed.compile(&source("garbage.c"), dialect);
        assert_eq!(installed.run(&program, &[]), "unharmed\n");
    }
}

#[test]
fn every_code_of_the_header_has_a_sentence() {
    let installed = Installed::new();
    let header = std::fs::read_to_string(installed.prefix().join("include/bywire.h")).expect("the header");
    let names: Vec<&str> =
        header.lines().filter_map(|line| line.trim().strip_prefix("BW_ERROR_")?.split(' ').next()).collect();
    assert!(names.len() > 40, "{names:?}");
    let mut text = String::from("#include <bywire.h>\n#include <stdio.h>\nint main(void) {\n");
    for name in &names {
        writeln!(text, "    puts(bw_error_text(BW_ERROR_{name}));").expect("a string grows");
    }
    text += "    puts(bw_error_text(12345));\n    return 0;\n}\n";
    let path = installed.path().join("codes.c");
    std::fs::write(&path, text).expect("write");
    let printed = installed.run(&installed.compile(&path, "c11"), &[]);
    let sentences: Vec<&str> = printed.lines().collect();
    assert_eq!(sentences.len(), names.len() + 1);
    let unknown = sentences[names.len()];
    for (name, sentence) in names.iter().zip(&sentences) {
        assert!(sentence.len() > 10 && *sentence != unknown, "BW_ERROR_{name}: {sentence:?}");
    }
}
