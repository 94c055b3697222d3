//! Programs that were built with a sanitizer start, are carried, and find the same faults.

use std::path::PathBuf;
use std::process::{Command, Output};

use super::packages::have;
use super::{Fabric, await_listener, ended, port, start};

/// What gcc links by default is a library that has to be the first one; clang links it into the program.
const ADDRESS: [&[&str]; 2] = [&["-fsanitize=address"], &["-fsanitize=address", "-static-libasan"]];

/// `sanitized.c`, built with these options in a place of its own; `None`, said: it cannot be built here.
fn built(fabric: &Fabric, options: &[&str]) -> Option<String> {
    if !have(&[("gcc", "gcc")]) {
        return None;
    }
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sockets/sanitized.c");
    let program = fabric.place(&format!("sanitized{}", options.concat()));
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-g", "-Wall", "-pthread"]).args(options).arg("-o").arg(&program).arg(source);
    let output = compiler.output().expect("gcc");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("cannot find") {
        println!("not run: gcc's sanitizers are not installed: {said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(program)
}

/// Serves with one process, started by `way`, what `role` asks in another: how that one ended, and what was carried.
fn run(way: &[&str], role: &[&str]) -> (Output, u64) {
    let fabric = Fabric::new();
    let port = port();
    let number = port.to_string();
    let mut server = start(&mut fabric.carried(&[way, &["server", &number]].concat()));
    await_listener(port);
    let [name, rest @ ..] = role else { panic!("a role has a name") };
    let client = ended(&mut fabric.carried(&[way, &[name, &number], rest].concat()));
    assert!(server.end("the server ends").success() || !client.status.success(), "{way:?}");
    (client, fabric.carried_ever())
}

#[test]
fn address_sanitizers_programs_are_carried_however_they_are_linked_and_started() {
    let workshop = Fabric::new();
    for options in ADDRESS {
        let Some(program) = built(&workshop, options) else { return };
        // Started by itself, and by another program, which has options of its own for it.
        let by_shell = format!("ASAN_OPTIONS=detect_leaks=0 {program} \"$@\"; exit $?");
        for way in [&[program.as_str()][..], &["sh", "-c", &by_shell, "sh"]] {
            let (client, carried) = run(way, &["client"]);
            assert!(client.status.success() && client.stderr.is_empty(), "{way:?}: {client:?}");
            assert_eq!(carried, 1, "{way:?}");
        }
    }
}

#[test]
fn address_sanitizer_finds_a_buffer_that_is_too_small_for_what_was_carried() {
    let workshop = Fabric::new();
    for options in ADDRESS {
        let Some(program) = built(&workshop, options) else { return };
        for role in ["overrun", "overread"] {
            let (client, carried) = run(&[&program], &[role]);
            let said = String::from_utf8_lossy(&client.stderr);
            let is_found = said.contains("heap-buffer-overflow") && said.contains(" 100-byte region ");
            assert!(!client.status.success() && is_found, "{options:?}, {role}: {said}");
            assert_eq!(carried, 1, "{options:?}, {role}");
        }
    }
}

#[test]
fn thread_sanitizer_sees_the_order_that_carried_bytes_make() {
    let workshop = Fabric::new();
    let Some(program) = built(&workshop, &["-fsanitize=thread"]) else { return };
    let fabric = Fabric::new();
    let output = ended(&mut fabric.carried(&[&program]));
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(fabric.carried_ever(), 1);
}
