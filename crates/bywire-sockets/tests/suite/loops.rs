//! Event loops of every kind, level-triggered, edge-triggered and one-shot, of one thread and of several, are carried,
//! and get each event as from the kernel.

use bywire_pairing::reason::Reason;

use crate::test_service::{self, Running, TestService};

/// Ends of which most bytes have left the kernel, both of each connection in one program.
const ENDS: u64 = 6;
/// The exit status of a loop whose bytes went through the kernel.
const BY_TCP: i32 = 3;

/// Runs a loop, with the library or without. Returns its status and output.
fn runs(words: &[&str], is_carried: bool, keeps_rings: bool) -> Option<(Option<i32>, String, TestService)> {
    let (pairing, program) = TestService::with_program("loops.c")?;
    let mut command = pairing.command(program, is_carried.then_some(4));
    if keeps_rings {
        command.env("BYWIRE_SOCKETS_IO_URING", "1");
    }
    let mut running = Running::start(command.args(words));
    let code = running.end().code();
    Some((code, running.rest(), pairing))
}

fn is_carried(words: &[&str]) {
    let Some((code, said, _)) = runs(words, false, false) else { return };
    assert_eq!(code, Some(BY_TCP), "{words:?} without the library: {said}");
    if said == "absent\n" {
        println!("not run: {words:?} needs liburing.so.2");
        return;
    }
    let awaited = [words, &["awaited"]].concat();
    let Some((code, said, pairing)) = runs(&awaited, true, false) else { return };
    assert_eq!((code, said.as_str()), (Some(0), ""), "{words:?}: {:?}", pairing.status());
    assert_eq!(pairing.status().carried_ever, ENDS, "{words:?}: {:?}", pairing.status());
    // For `conformance/suites`, which makes a table of them.
    println!("row: {{\"version\": \"tests/loops.c\", \"tests\": 1, \"carried\": {ENDS}}}");
}

#[test]
fn level_triggered_loops_are_carried() {
    is_carried(&["level", "1"]);
    is_carried(&["level", "4"]);
}

#[test]
fn edge_triggered_loops_are_carried() {
    is_carried(&["edge", "1"]);
    is_carried(&["edge", "4"]);
}

#[test]
fn one_shot_loops_are_carried() {
    is_carried(&["once", "1"]);
    is_carried(&["once", "4"]);
}

#[test]
fn one_shot_edge_triggered_loops_are_carried() {
    is_carried(&["once-edge", "1"]);
    is_carried(&["once-edge", "4"]);
}

#[test]
fn a_loop_that_requests_io_uring_is_refused_it_and_carried() {
    is_carried(&["uring", "1"]);
    is_carried(&["liburing", "1"]);
}

#[test]
fn a_loop_with_io_uring_stays_in_tcp_and_is_reported() {
    for kind in ["uring", "liburing"] {
        let Some((code, said, pairing)) = runs(&[kind, "1"], true, true) else { return };
        if said != "ring\n" {
            println!("not run: this kernel refuses io_uring itself, or there is no liburing.so.2");
            continue;
        }
        assert_eq!(code, Some(BY_TCP), "{kind}: {:?}", pairing.status());
        // The service counts the connections of an exited program as soon as it has noticed the exit.
        test_service::eventually("each end is counted", || {
            pairing.status().not_carried == [(Reason::IoUring, 2 * ENDS)]
        });
    }
}
