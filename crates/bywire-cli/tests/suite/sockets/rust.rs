//! Programs in Rust on async-io, as smol has it, whose loop of events makes its system calls by its own instructions,
//! talk with a slow peer and time out: plain, with inline system calls (with or without optimization, and in a soak
//! both) and by the C library. `--explain` names the reason. Needs a network for cargo.

use std::path::PathBuf;
use std::process::Command;

use bywire_testing::draw::one_or_all;

use super::languages::{meet, serve, source};
use super::{Fabric, ended, said};
use crate::packages::kept;

/// How a program is built, and what becomes of its connections.
#[derive(Clone, Debug)]
struct Build {
    options: &'static [&'static str],
    /// At least so many are carried if both ends run by `bywire run`.
    carried: u64,
}

/// System calls by instructions of functions of their own, and by those of their callers.
const INLINE: [Build; 2] =
    [Build { options: &[], carried: 0 }, Build { options: &["--release"], carried: 0 }];
const BY_LIBRARY: Build = Build { options: &["--features", "use-libc"], carried: 4 };
const BECAUSE: &str = "the program calls the kernel by itself for some of its calls";

/// The programs, built outside of the workspace, whose features of rustix would be theirs as well.
fn built(options: &[&str]) -> Option<PathBuf> {
    let manifest = source("async_io/Cargo.toml");
    let target = kept("async-echo").join(options.concat());
    let cargo = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(words).args(["--locked", "--quiet", "--manifest-path", &manifest]);
        command.output().expect("cargo runs")
    };
    if !cargo(&["fetch"]).status.success() {
        println!("not run: async-io and what it needs cannot be had here: cargo fetch");
        return None;
    }
    let place = target.display().to_string();
    let output = cargo(&[&["build", "--target-dir", &place], options].concat());
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    let profile = if options.contains(&"--release") { "release" } else { "debug" };
    Some(target.join(profile).join("async-echo"))
}

#[test]
fn programs_on_async_io_are_right_and_named() {
    // A build takes longer than all that is done with it.
    for Build { options, carried } in one_or_all(&INLINE).into_iter().chain([BY_LIBRARY]) {
        let Some(program) = built(options) else { return };
        let program = program.display().to_string();
        let client = |port: &str| vec![program.clone(), port.to_owned()];
        is_right_without_bywire(&program);
        for is_run in [[true, true], [true, false], [false, true]] {
            let fabric = Fabric::new();
            meet(&fabric, &[&program], &client, carried, is_run);
            let has_carried = fabric.carried_ever() > 0;
            assert_eq!(
                has_carried,
                carried > 0 && is_run == [true, true],
                "{options:?}: {}",
                fabric.status()
            );
        }
        is_explained(&program, carried > 0);
    }
}

fn is_right_without_bywire(program: &str) {
    let fabric = Fabric::new();
    let (_server, port) = serve(&fabric, &[program], false);
    assert_eq!(said(fabric.plain(&[program, &port])).trim(), "fine");
}

/// `--explain` names the program and the reason, or shows the bytes in memory.
fn is_explained(program: &str, is_carried: bool) {
    let fabric = Fabric::new();
    let (_server, port) = serve(&fabric, &[program], true);
    let output = ended(&mut fabric.explained(&[program, &port]));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert_eq!(told.contains(BECAUSE), !is_carried, "{told}");
    assert_eq!(told.contains(program), !is_carried, "{told}");
}
