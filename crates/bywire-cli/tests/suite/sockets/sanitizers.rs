//! Programs with AddressSanitizer start, however they are linked and started, are carried, and find the same faults.
//! ThreadSanitizer sees the order that carried bytes make. Needs gcc.

use std::path::PathBuf;
use std::process::{Command, Output};

use super::{Fabric, await_listener, ended, port, row, start};
use crate::packages::have;

/// gcc links a shared runtime by default, which must be the first library; clang links the runtime into the program.
const ADDRESS: [&[&str]; 2] = [&["-fsanitize=address"], &["-fsanitize=address", "-static-libasan"]];

/// `sanitized.c`, built with these options in its own directory; `None`, with a message: it cannot be built here.
fn built(fabric: &Fabric, options: &[&str]) -> Option<String> {
    if !have(&[("gcc", "gcc")]) {
        return None;
    }
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/suite/sockets/sanitized.c");
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

/// Serves with one process, started by `way`, the requests of another process in `role`. Returns that one's output, and
/// the number of carried connections.
fn run(way: &[&str], role: &[&str], is_carried: bool) -> (Output, u64) {
    let fabric = Fabric::new();
    let port = port();
    let number = port.to_string();
    let command = |words: &[&[&str]]| {
        if is_carried { fabric.carried(&words.concat()) } else { fabric.plain(&words.concat()) }
    };
    let mut server = start(&mut command(&[way, &["server", &number]]));
    await_listener(port);
    let [name, rest @ ..] = role else { panic!("a role has a name") };
    let client = ended(&mut command(&[way, &[name, &number], rest]));
    assert!(server.end("the server ends").success() || !client.status.success(), "{way:?}");
    (client, if is_carried { fabric.carried_ever() } else { 0 })
}

/// gcc's version, for the table row of these tests.
fn version() -> String {
    let told = ended(Command::new("gcc").arg("-dumpfullversion"));
    format!("gcc {}", String::from_utf8_lossy(&told.stdout).trim())
}

#[test]
fn address_sanitizer_programs_are_carried_however_they_are_linked_and_started() {
    let workshop = Fabric::new();
    for options in ADDRESS {
        let Some(program) = built(&workshop, options) else { return };
        // Directly, and through another program, which sets options for it.
        let by_shell = format!("ASAN_OPTIONS=detect_leaks=0 {program} \"$@\"; exit $?");
        for way in [&[program.as_str()][..], &["sh", "-c", &by_shell, "sh"]] {
            for is_carried in [false, true] {
                let (client, carried) = run(way, &["client"], is_carried);
                assert!(client.status.success() && client.stderr.is_empty(), "{way:?}: {client:?}");
                assert_eq!(carried, u64::from(is_carried), "{way:?}");
            }
            row(&version(), 1, 1);
        }
    }
}

#[test]
fn address_sanitizer_finds_a_buffer_too_small_for_carried_bytes() {
    let workshop = Fabric::new();
    for options in ADDRESS {
        let Some(program) = built(&workshop, options) else { return };
        for (role, is_carried) in
            ["overrun", "overread"].into_iter().flat_map(|role| [(role, false), (role, true)])
        {
            let (client, carried) = run(&[&program], &[role], is_carried);
            let said = String::from_utf8_lossy(&client.stderr);
            let is_found = said.contains("heap-buffer-overflow") && said.contains(" 100-byte region ");
            assert!(!client.status.success() && is_found, "{options:?}, {role}: {said}");
            assert_eq!(carried, u64::from(is_carried), "{options:?}, {role}");
            if is_carried {
                row(&version(), 1, carried);
            }
        }
    }
}

#[test]
fn thread_sanitizer_sees_the_order_of_carried_bytes() {
    let workshop = Fabric::new();
    let Some(program) = built(&workshop, &["-fsanitize=thread"]) else { return };
    let fabric = Fabric::new();
    for mut command in [fabric.plain(&[&program]), fabric.carried(&[&program])] {
        let output = ended(&mut command);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    assert_eq!(fabric.carried_ever(), 1);
    row(&version(), 1, 1);
}
