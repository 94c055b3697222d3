//! What a call leaves behind that never returns: a handler has jumped out of it, or its process was killed.

mod test_service;

use test_service::transcript::{same, same_beside};

#[test]
fn a_socket_ends_with_its_close_though_a_handler_has_jumped_out_of_a_call_on_it() {
    same("left.c", &[&["closed", "recv"], &["closed", "send"], &["closed_elsewhere"]]);
}

#[test]
fn a_socket_ends_with_its_close_though_the_thread_that_has_jumped_makes_no_call() {
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
    same("left.c", &[&["faulty_twice"], &["faulty_twice", "sent"]]);
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
fn a_handler_that_comes_while_a_jump_gives_back_what_was_taken_leaves_none_of_it() {
    same("left.c", &[&["stepped"]]);
}

#[test]
fn what_a_family_has_not_received_by_the_end_of_both_ways_it_receives() {
    same("left.c", &[&["ended_both_ways"]]);
}

#[test]
fn a_connection_is_carried_though_a_handler_has_jumped_out_of_a_call_before() {
    same("left.c", &[&["early"]]);
}

#[test]
fn a_filter_is_not_held_up_by_a_call_that_a_handler_has_jumped_out_of() {
    same("left.c", &[&["filtered"]]);
}

#[test]
fn what_follows_the_bytes_that_a_killed_process_took_is_received() {
    same_beside("left.c", Some("killed.c"), &[&["taken", "asleep"], &["taken", "late"]]);
}

#[test]
fn a_peer_that_announces_its_end_is_slept_for() {
    same_beside("left.c", Some("lingering.c"), &[&["lingering"]]);
}

#[test]
fn a_fault_handler_that_jumps_out_of_a_copy_leaves_no_lock_and_no_signal_behind() {
    same("left.c", &[&["faulty", "recv"], &["faulty", "send"]]);
}
