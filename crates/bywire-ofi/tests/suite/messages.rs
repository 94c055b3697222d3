//! Two endpoints make every call for messages and RMA over libfabric's own interface, as programs in C. Needs
//! libfabric-dev and valgrind.
//!
//! - Messages: order, data, pieces, peeks, claims, cancels, truncation, long messages, four formats of completions,
//!   sleep, a wrong ticket, a forked child, a removed address, an end. What is in use cannot be closed. Endpoints that
//!   connect to each other at once have one connection.
//! - RMA: they read and write each other's memory by every call: every length, both ways at once, counters, words for
//!   the target, pieces, keys, bounds and rights, regions that are closed under way or while a peer that reads them has
//!   stopped, more long writes than a peer's share, both ways of registration, an end.
//! - Event queues. An endpoint that does not answer. A connection that lacks descriptors is given up after 10 s. The
//!   first message to an endpoint that polls arrives without a further call of its sender.
//!
//! All that runs with the system's libfabric, and with the newer one of MPICH if that is there. valgrind finds no fault
//! in any of the calls.

use std::path::PathBuf;
use std::process::Command;

use crate::loaded::{Loaded, finish, libfabrics, run};

/// A command with another libfabric.
fn with(command: &mut Command, libfabric: Option<PathBuf>) -> &mut Command {
    if let Some(directory) = libfabric {
        command.env("LD_LIBRARY_PATH", directory);
    }
    command
}

/// Runs a test with each libfabric, all at once, as the programs mostly wait.
fn with_each(test: &(impl Fn(Option<PathBuf>) + Sync)) {
    std::thread::scope(|scope| {
        for libfabric in libfabrics() {
            scope.spawn(move || test(libfabric));
        }
    });
}

#[test]
fn two_endpoints_of_one_process_make_every_call_for_messages() {
    let Some((loaded, program)) = Loaded::with_program("messages.c") else { return };
    with_each(&|libfabric| {
        let mut command = loaded.command(&program);
        command.env("FI_LOG_LEVEL", "info").env("FI_LOG_PROV", "bywire");
        let output = finish(with(&mut command, libfabric));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout == b"matched\n", "{said}");
        let ends = said
            .lines()
            .filter_map(|line| line.split_once(" closes, connections: "))
            .map(|(_, counts)| counts);
        let counts: Vec<_> = ends.filter_map(|counts| counts.split_once(", messages taken: ")).collect();
        // Endpoints that have met have one connection, and what crossed it is counted.
        assert!(counts.len() > 40 && counts.iter().all(|(met, _)| ["0", "1"].contains(met)), "{counts:?}");
        let without_connection = counts.iter().filter(|(_, messages)| *messages == "0").count();
        assert!((1..counts.len()).contains(&without_connection), "{counts:?}");
    });
}

#[test]
fn the_first_message_to_a_peer_arrives_although_its_sender_makes_no_further_call() {
    let Some((loaded, program)) = Loaded::with_program("messages.c") else { return };
    assert_eq!(run(loaded.command(&program).arg("first message")), "matched\n");
}

#[test]
fn an_endpoint_meets_seventy_peers_at_once() {
    let Some((loaded, program)) = Loaded::with_program("messages.c") else { return };
    assert_eq!(run(loaded.command(&program).arg("many peers")), "matched\n");
}

#[test]
fn a_closed_endpoint_keeps_nobody_awake_although_a_forked_child_has_its_descriptors() {
    let Some((loaded, program)) = Loaded::with_program("messages.c") else { return };
    let mut command = loaded.command(&program);
    assert_eq!(run(command.env("FI_BYWIRE_IDLE", "sleep").arg("closed in a parent")), "matched\n");
}

#[test]
fn a_connection_that_lacks_descriptors_is_given_up_after_some_time() {
    let Some((loaded, program)) = Loaded::with_program("messages.c") else { return };
    let mut command = loaded.command(&program);
    command.env("FI_LOG_LEVEL", "warn").env("FI_LOG_PROV", "bywire");
    let output = finish(command.arg("few descriptors"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("too few descriptors"), "{said}");
}

#[test]
fn two_endpoints_of_one_process_make_every_call_for_rma() {
    let Some((loaded, program)) = Loaded::with_program("rma.c") else { return };
    with_each(&|libfabric| {
        assert_eq!(run(with(&mut loaded.command(&program), libfabric)), "accessed\n");
    });
}

#[test]
fn an_endpoint_that_does_not_answer_is_given_up_if_the_user_wants_that() {
    let Some((loaded, program)) = Loaded::with_program("rma.c") else { return };
    let mut command = loaded.command(&program);
    assert_eq!(run(command.env("FI_BYWIRE_CONNECT_TIMEOUT", "100").arg("no answer")), "accessed\n");
}

#[test]
fn a_region_can_be_closed_although_a_peer_that_reads_it_has_stopped() {
    let Some((loaded, program)) = Loaded::with_program("rma.c") else { return };
    assert_eq!(run(loaded.command(&program).arg("stopped")), "accessed\n");
}

#[test]
fn a_peer_that_writes_much_at_once_sends_the_rest_in_pieces() {
    let Some((loaded, program)) = Loaded::with_program("rma.c") else { return };
    let mut command = loaded.command(&program);
    command.arg("shares").env("FI_LOG_LEVEL", "info").env("FI_LOG_PROV", "bywire");
    let output = finish(&mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"accessed\n", "{said}");
    assert!(said.contains(" sends further writes in pieces for now"), "{said}");
}

/// valgrind does not know that the kernel looks at the last argument only if there is a mask of signals.
const SUPPRESSED: &str =
    "{\n   epoll without a mask\n   Memcheck:Param\n   epoll_pwait(sigsetsize)\n   obj:*bywire*\n}\n";

#[test]
fn valgrind_finds_no_fault_in_any_call() {
    let Some(loaded) = Loaded::new(&["cc", "valgrind"], "rdma/fabric.h") else { return };
    let suppressions = loaded.path("suppressions");
    std::fs::write(&suppressions, SUPPRESSED).expect("a file");
    std::thread::scope(|scope| {
        for (source, ends_with) in [("messages.c", "matched\n"), ("rma.c", "accessed\n")] {
            let program = loaded.compile("cc", source, &["-lfabric"]);
            let mut command = loaded.command("valgrind");
            command.args(["--quiet", "--error-exitcode=9"]);
            command.arg(format!("--suppressions={}", suppressions.display())).arg(program);
            scope.spawn(move || assert_eq!(run(&mut command), ends_with));
        }
    });
}
