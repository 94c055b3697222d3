//! Programs that restrict their own system calls, or are started with restrictions, work as without the library, which
//! makes no call of its own from then on.

use bywire_pairing::filters;
use bywire_pairing::reason::Reason;

use crate::test_service::{Running, TestService, filters_here};

/// Runs the program in one variant beside an echo program, and checks that it succeeds. `filters` is the number of
/// filters that `bywire run` was behind. Returns the number of carried connections; `None`, with a message: there is no
/// compiler.
fn ends_well(way: &str, filters: u32) -> Option<u64> {
    let pairing = TestService::new();
    let program = pairing.compiled("sandbox.c", "sandbox", &["-pthread"])?;
    let mut server = Running::start(pairing.command(&program, Some(8)).arg("serve"));
    let port = server.hear();
    // Without the library it must succeed, or the test requires what is not supported here.
    let plain = pairing.command(&program, None).args([way, &port]).status().expect("it starts");
    assert!(plain.success(), "plain {way}: {plain}");
    let mut command = pairing.command(&program, Some(8));
    let mut running = Running::start(command.env(filters::VARIABLE, filters.to_string()).args([way, &port]));
    let end = running.end();
    assert!(end.success(), "{way}: {end}");
    let status = pairing.status();
    let told = status.not_carried.iter().find(|(reason, _)| *reason == Reason::Sandbox);
    assert_eq!(told.map(|(_, count)| *count), Some(1), "{way}: {status:?}");
    Some(status.carried_ever)
}

/// Runs a program that installs a filter while it has carried connections.
fn closes(way: &str) {
    let carried = ends_well(way, filters_here());
    assert!(carried.is_none_or(|carried| carried >= 1), "{way}: {carried:?}");
}

#[test]
fn strict_mode_leaves_reading_and_writing() {
    closes("strict");
}

#[test]
fn a_filter_that_kills_is_installed_by_prctl() {
    closes("kill");
}

#[test]
fn a_filter_that_refuses_is_installed_by_prctl() {
    closes("refuse");
}

#[test]
fn a_filter_is_installed_as_by_libseccomp() {
    closes("syscall");
}

#[test]
fn bytes_in_flight_both_ways_arrive_before_a_filter() {
    closes("full");
}

#[test]
fn epoll_sets_and_polls_work_behind_a_filter() {
    closes("waits");
}

#[test]
fn no_page_is_probed_behind_a_filter() {
    closes("fresh");
}

#[test]
fn handlers_and_children_make_no_library_calls_behind_a_filter() {
    closes("children");
}

#[test]
fn a_filter_for_all_threads_finds_them_in_their_own_calls() {
    closes("threads");
}

#[test]
fn a_program_started_behind_another_programs_filter_is_not_carried() {
    let carried = ends_well("behind", filters_here());
    assert!(carried.is_none_or(|carried| carried == 0), "{carried:?}");
}

#[test]
fn a_program_behind_the_filters_of_its_container_is_carried() {
    let carried = ends_well("tolerated", filters_here() + 1);
    assert!(carried.is_none_or(|carried| carried == 1), "{carried:?}");
}
