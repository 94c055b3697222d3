//! Programs in C with a library in Go, and programs in Go with functions in C, use one connection by both, although Go
//! makes its system calls by itself. `--explain` names the reason. Needs Go.

use std::path::Path;

use super::languages::{serve, source};
use super::{Fabric, ended, said};
use crate::packages::{have, kept};

const BECAUSE: &str =
    "a program or library in Go calls the kernel by itself, and all of its connections are the kernel's";

/// Builds from a source in the directory of Go's.
fn build(fabric: &Fabric, words: &[&str], made: &str, from: &str) -> String {
    let place = fabric.place(made);
    let mut command = fabric.plain(&[words, &["-o", &place, from]].concat());
    command.current_dir(source("golang")).env("CGO_ENABLED", "1");
    // Go builds its own library the first time, which takes minutes on a busy machine.
    command.env("GOCACHE", kept("go-build"));
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{words:?}: {output:?}");
    place
}

#[test]
fn go_and_c_in_one_program_see_the_same_bytes() {
    if !have(&[("go", "golang-go"), ("gcc", "gcc"), ("python3", "python3")]) {
        return;
    }
    let fabric = &Fabric::new();
    let library = build(fabric, &["go", "build", "-buildmode=c-shared"], "libplugin.so", "plugin.go");
    let directory = Path::new(&library).parent().expect("a directory").display().to_string();
    let host = build(fabric, &["gcc"], "host", "host.c");
    let mut linked = vec!["gcc", "-DLINKED", "-L", &directory, "-Wl,--no-as-needed"];
    linked.extend([library.as_str()]);
    let linked = build(fabric, &linked, "linked", "host.c");
    let whole = build(fabric, &["go", "build"], "whole", "plugin.go");
    let echo = source("echo.py");
    for (program, guilty, carried) in [(&host, &library, 1), (&linked, &library, 0), (&whole, &whole, 0)] {
        for is_carried in [false, true] {
            let fabric = &Fabric::new();
            let (_server, port) =
                serve(fabric, &["python3", &echo, "serve", "ThreadingTCPServer", "echo"], is_carried);
            let words = [program.as_str(), &port, &library];
            let library_path = |command: &mut std::process::Command| {
                command.env("LD_LIBRARY_PATH", &directory);
            };
            let mut plain = fabric.plain(&words);
            library_path(&mut plain);
            assert_eq!(said(plain).trim(), "fine", "{words:?}");
            let mut command = fabric.explained(&words);
            library_path(&mut command);
            let output = ended(&mut command);
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "fine", "{words:?}: {told}");
            assert!(
                output.status.success() && told.contains(BECAUSE) && told.contains(guilty.as_str()),
                "{told}"
            );
            assert_eq!(fabric.carried_ever(), if is_carried { carried } else { 0 }, "{words:?}");
            // Once for the program, and for a connection that it had by then.
            let counted = fabric.status()["not_carried"]["Go"].as_u64();
            assert!(counted.is_some_and(|counted| counted >= 1), "{words:?}: {}", fabric.status());
        }
    }
}
