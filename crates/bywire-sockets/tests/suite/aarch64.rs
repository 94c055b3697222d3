//! The library for aarch64, in emulated programs: a server and a client of these tests' own are carried, and do the same with
//! the library and without it.
//!
//! - Event loops of each kind, single calls, sockets that are passed on, replaced and closed, streams, forks, cancelled
//!   threads, jumps out of a receive, faults.
//! - Inline system calls are found in a program's code.
//!
//! qemu emulates one program, and answers some calls in its own way: docs/notebook/aarch64.md says which. It passes only
//! four bytes of the kernel's answers about a socket on, so a pair of small libraries asks for the rest. `./x test all`
//! builds the library and says where it is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bywire_pairing::reason::Reason;

use crate::test_service::transcript::run;
use crate::test_service::{self, Running, TestService};

/// The variable with the path of the library for aarch64.
const LIBRARY: &str = "BYWIRE_AARCH64_LIBRARY";
const EMULATOR: &str = "qemu-aarch64";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// Where Debian's cross compiler has the C library.
const ROOT: &str = "/usr/aarch64-linux-gnu";

/// A service, and what emulated programs need.
struct Emulated {
    service: TestService,
    library: PathBuf,
}

impl Emulated {
    /// `None`, with a message: something is missing.
    fn new() -> Option<Self> {
        let Some(library) = std::env::var_os(LIBRARY) else {
            println!("not run: {LIBRARY} names no library for aarch64, as `./x test all` does");
            return None;
        };
        let emulated = Self { service: TestService::new(), library: library.into() };
        assert!(emulated.library.exists(), "{} is missing", emulated.library.display());
        emulated.compiled("cc", "emulator.c", "emulator.so", &["-shared", "-fPIC"])?;
        emulated.compiled(COMPILER, "emulated.c", "emulated.so", &["-shared", "-fPIC"])?;
        Some(emulated)
    }

    /// Compiles a C file beside these tests; `None`, with a message: there is no compiler.
    fn compiled(&self, compiler: &str, source: &str, name: &str, words: &[&str]) -> Option<PathBuf> {
        let program = self.service.path(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
        let words = [&["-O1", "-Wall", "-Werror", "-pthread"], words].concat();
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
        match bywire_testing::compile(kept, compiler, &source, &words, &program) {
            Ok(()) => Some(program),
            Err(error) => {
                println!("not run: {compiler} is needed: {error}");
                None
            }
        }
    }

    /// A program of a C file.
    fn program(&self, source: &str, words: &[&str]) -> Option<PathBuf> {
        self.compiled(COMPILER, source, "program", words)
    }

    /// An emulated program with the library or without.
    fn command(&self, program: &Path, calls: Option<u64>) -> Command {
        let mut command = self.service.command(EMULATOR, calls);
        let emulated = self.service.path("emulated.so");
        let preloaded = match calls {
            Some(_) => format!("{}:{}", self.library.display(), emulated.display()),
            None => emulated.display().to_string(),
        };
        command.env("LD_PRELOAD", self.service.path("emulator.so"));
        command.args(["-L", ROOT, "-E", &format!("LD_PRELOAD={preloaded}")]).arg(program);
        command
    }

    /// Compares what a program writes with the library and without it. Its connections must be carried.
    fn compare(&self, program: &Path, words: &[&str]) {
        let before = self.service.status().carried_ever;
        let [carried, plain] = [Some(4), None].map(|calls| run(self.command(program, calls), words));
        assert_eq!(carried, plain, "{words:?}: with the library, and without");
        let status = self.service.status();
        assert!(status.carried_ever > before, "{words:?}: {status:?}");
    }
}

/// Actions of a C program, the same without the library and with it.
fn same(source: &str, things: &[&[&str]]) {
    let Some(emulated) = Emulated::new() else { return };
    let Some(program) = emulated.program(source, &[]) else { return };
    things.iter().for_each(|words| emulated.compare(&program, words));
}

#[test]
fn event_loops_of_every_kind_are_carried() {
    let Some(emulated) = Emulated::new() else { return };
    let Some(program) = emulated.program("loops.c", &[]) else { return };
    for (number, kind) in ["level", "edge", "once", "once-edge"].into_iter().enumerate() {
        let mut running = Running::start(emulated.command(&program, Some(4)).args([kind, "2", "awaited"]));
        assert!(running.end().success(), "{kind}: {}", running.rest());
        assert_eq!(emulated.service.status().carried_ever, 6 * (number as u64 + 1), "{kind}");
    }
}

#[test]
fn the_receive_after_a_jump_gets_the_bytes() {
    let Some(emulated) = Emulated::new() else { return };
    let Some(program) = emulated.program("jumps.c", &[]) else { return };
    let mut running = Running::start(emulated.command(&program, Some(8)).stdin(Stdio::piped()));
    test_service::eventually("it is carried", || emulated.service.status().carried_ever == 1);
    drop(running.child.stdin.take());
    assert!(running.end().success());
}

#[test]
fn single_calls_return_what_they_return_over_tcp() {
    same("calls.c", &[&["on_ends", "peeks"], &["under_way"], &["times"]]);
}

#[test]
fn connections_end_as_over_tcp() {
    same(
        "ends.c",
        &[
            &["ended", "closed", "fork", "10240"],
            &["ended", "shut", "pass", "10240"],
            &["passed"],
            &["shut_late"],
            &["printed"],
            &["closed", "close"],
            &["reused", "fclose"],
        ],
    );
}

#[test]
fn calls_that_are_left_hold_nothing() {
    same("left.c", &[&["closed", "recv"], &["deeper"], &["faulty", "recv"], &["ended_both_ways"]]);
}

#[test]
fn inline_system_calls_make_a_program_tcp() {
    let Some(emulated) = Emulated::new() else { return };
    for (options, way, carried) in
        [(&[][..], "carry", 1), (&["-DINLINE"], "talk", 0), (&["-DRING"], "talk", 0)]
    {
        let Some(program) = emulated.program("lives.c", options) else { return };
        let before = emulated.service.status().carried_ever;
        assert!(Running::start(emulated.command(&program, Some(8)).arg(way)).end().success(), "{options:?}");
        let status = emulated.service.status();
        assert_eq!(status.carried_ever - before, carried, "{options:?}: {status:?}");
    }
    let status = emulated.service.status();
    assert!(status.not_carried.contains(&(Reason::Inline, 2)), "{status:?}");
}

#[test]
fn lives_of_programs_keep_their_connections() {
    let Some(emulated) = Emulated::new() else { return };
    let Some(program) = emulated.program("lives.c", &[]) else { return };
    for words in [&["cancel"][..], &["symbols", "versioned"], &["stack"], &["handlers"]] {
        assert!(Running::start(emulated.command(&program, Some(8)).args(words)).end().success(), "{words:?}");
    }
    let Some(program) = emulated.program("lives.c", &["-DFLAGS"]) else { return };
    assert!(Running::start(emulated.command(&program, Some(8)).arg("flags")).end().success());
    assert!(emulated.service.status().carried_ever > 0);
}
