//! Connections that are quiet in a large epoll set, so that no look at the set examines them, report whatever happens to them as
//! the kernel does: bytes in their order, ends, kills, changes of the registration, room, sleepers, sets within sets and forks.

use crate::test_service::transcript::same_at_once;

const MODES: [&str; 4] = ["level", "edge", "room", "once"];

fn same(action: &str) {
    let things = MODES.map(|mode| [action, mode]);
    let things: Vec<&[&str]> = things.iter().map(|thing| thing.as_slice()).collect();
    same_at_once("quiet.c", None, &things);
}

#[test]
fn a_quiet_connection_reports_bytes_in_their_order() {
    same("bytes");
}

#[test]
fn a_quiet_connection_reports_the_end_of_its_peer() {
    same("ends");
}

#[test]
fn quiet_connections_report_a_killed_peer() {
    same("killed");
}

#[test]
fn a_quiet_registration_is_changed_and_removed() {
    same("changed");
}

#[test]
fn a_quiet_registration_stays_with_another_descriptor() {
    same("duplicated");
}

#[test]
fn a_quiet_connection_wakes_a_sleeper_in_its_set() {
    same("asleep");
}

#[test]
fn bytes_of_a_quiet_connection_that_another_thread_takes_are_reported_as_by_the_kernel() {
    same("taken");
}

#[test]
fn a_set_with_quiet_registrations_is_watched_by_a_set_and_by_poll() {
    same("watched");
}

#[test]
fn a_child_waits_for_quiet_connections_of_its_parent() {
    same("forked");
}

#[test]
fn a_quiet_connection_reports_room_after_its_ring_was_full() {
    same("filled");
}
