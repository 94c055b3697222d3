//! Calls that never return, because a handler has jumped out of them or their process was killed: the connection ends
//! with its close, loses no byte and delays nobody.

use bywire_testing::Tier;

use crate::test_service::transcript::{same, same_beside};

#[test]
fn a_socket_ends_with_its_close_after_a_handler_has_jumped_out_of_a_call_on_it() {
    same("left.c", &[&["closed", "recv"], &["closed", "send"], &["closed_elsewhere"]]);
}

#[test]
fn a_socket_ends_with_its_close_if_the_thread_that_has_jumped_makes_no_call() {
    same("left.c", &[&["closed_meanwhile"]]);
}

#[test]
fn a_call_from_deeper_in_the_stack_does_not_wait_for_one_that_was_left() {
    same("left.c", &[&["deeper"]]);
}

#[test]
fn a_fault_handler_that_jumps_leaves_no_lock_behind_whatever_its_thread_does_next() {
    same("left.c", &[&["faulty_meanwhile"]]);
}

#[test]
fn signals_that_come_while_a_fault_is_repaired_in_a_copy_are_handled_and_none_stays_blocked() {
    same("left.c", &[&["faulty_twice", "alone"], &["faulty_twice", "sent"]]);
}

#[test]
fn a_fault_handler_that_jumps_out_of_a_wait_for_a_set_leaves_the_set_to_others() {
    same("left.c", &[&["faulty_wait"]]);
}

#[test]
fn a_fault_handler_that_jumps_out_of_sigaction_leaves_handlers_to_others() {
    same("left.c", &[&["faulty_handlers"]]);
}

#[test]
fn a_handler_during_the_release_after_a_jump_leaks_nothing() {
    if cfg!(not(target_arch = "x86_64")) {
        return println!("not run: programs are stepped by the registers of x86-64 only");
    }
    // So many instructions are between two moments at which the handler comes.
    same("left.c", &[&["stepped", Tier::current().pick(["7", "7", "3"])]]);
}

#[test]
fn a_family_receives_remaining_bytes_after_both_directions_have_ended() {
    same("left.c", &[&["ended_both_ways"]]);
}

#[test]
fn a_connection_is_carried_after_a_handler_has_jumped_out_of_a_call() {
    same("left.c", &[&["early"]]);
}

#[test]
fn a_call_left_by_a_jump_does_not_delay_a_filter() {
    same("left.c", &[&["filtered"]]);
}

#[test]
fn bytes_behind_those_taken_by_a_killed_process_are_received() {
    same_beside("left.c", Some("killed.c"), &[&["taken", "asleep"], &["taken", "late"]]);
}

#[test]
fn a_thread_sleeps_while_a_peer_announces_its_end() {
    same_beside("left.c", Some("lingering.c"), &[&["lingering"]]);
}

#[test]
fn a_fault_handler_that_jumps_out_of_a_copy_leaves_no_lock_and_no_signal_behind() {
    same("left.c", &[&["faulty", "recv"], &["faulty", "send"]]);
}
