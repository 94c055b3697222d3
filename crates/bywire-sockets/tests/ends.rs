//! Bytes and ends are TCP's, whatever a program does with a connection: handed on, given back, closed, left.
//!
//! One program does the same thing without the library and with it, and writes down what happened.

mod test_service;

use test_service::TestService;
use test_service::transcript::{run, same_beside, transcript};

fn same(things: &[&[&str]]) {
    test_service::transcript::same("ends.c", things);
}

#[test]
fn what_was_sent_before_the_end_is_had_by_whoever_has_the_socket_next() {
    let ways = ["spawn", "inherit", "exec", "fork", "pass"];
    let things: Vec<_> = ["closed", "shut"]
        .into_iter()
        .flat_map(|how| ways.map(|way| ["ended", how, way, "10240"]))
        .chain(["closed", "shut"].map(|how| ["ended", how, "exec", "1000000"]))
        .collect();
    same(&things.iter().map(|words| words.as_slice()).collect::<Vec<_>>());
}

#[test]
fn descriptors_that_go_in_one_message_are_waited_for_together() {
    same(&[&["passed"]]);
}

#[test]
fn a_registration_whose_number_is_another_files_hears_nothing_of_it() {
    same(&[&["renumbered"]]);
}

#[test]
fn a_program_that_was_spawned_with_a_copy_of_the_socket_talks_on() {
    same(&[&["echoed"]]);
}

#[test]
fn what_is_given_back_goes_on_while_its_sender_does() {
    same(
        &["poll", "epoll", "recv", "send", "close", "elsewhere"]
            .map(|way| ["owing", way])
            .each_ref()
            .map(|words| words.as_slice()),
    );
}

#[test]
fn what_a_killed_process_has_given_back_is_not_given_twice() {
    same_beside("ends.c", Some("killed.c"), &[&["owing", "killed"]]);
}

#[test]
fn an_end_that_a_killed_process_was_about_to_tell_is_told() {
    same_beside("ends.c", Some("killed.c"), &[&["shut_by_killed"]]);
}

#[test]
fn programs_end_their_connections_as_they_end() {
    let ways = ["return", "_exit", "quick_exit", "exit_group", "exit_thread", "exec", "exec_by_number"];
    same(&ways.map(|way| ["exits", way]).each_ref().map(|words| words.as_slice()));
}

#[test]
fn a_program_that_a_helper_outlives_ends_its_connections_in_order() {
    same(&[&["survived"]]);
}

#[test]
fn a_program_that_becomes_another_one_ends_what_it_had_shut_down() {
    same(&[&["become", "half"]]);
}

#[test]
fn what_a_program_that_becomes_another_one_has_sent_is_had_by_whoever_has_the_other_end_next() {
    // Only root makes room for it in the kernel.
    if test_service::is_root() {
        same(&[&["become", "much"]]);
    }
}

#[test]
fn a_receive_goes_on_whose_socket_is_closed_meanwhile() {
    same(&[&["closed", "close"], &["closed", "dup2"]]);
}

#[test]
fn calls_by_other_names_and_by_numbers_do_what_they_do() {
    same(&[&["others"], &["asynchronous"]]);
}

#[test]
fn a_shutdown_that_fails_is_none() {
    same(&[&["shut_late"]]);
}

#[test]
fn lists_of_messages_go_on_while_a_sandbox_closes() {
    same_beside("ends.c", Some("slow.c"), &[&["closing"]]);
}

#[test]
fn a_walk_over_descriptors_looks_at_those_that_there_are() {
    // The library's own have numbers from seven eighths of the limit on: the table has a page for each thousand.
    let limit = test_service::raise_descriptor_limit();
    if limit < 16_384 {
        return println!("not run: only {limit} descriptors are allowed");
    }
    same(&[&["walked"]]);
}

#[test]
fn a_child_by_clone3_shares_the_connection() {
    same(&[&["cloned"], &["cloned_late"]]);
}

#[test]
fn texts_that_the_c_library_writes_come_in_their_order() {
    same(&[&["printed"]]);
}

#[test]
fn a_file_is_sent_by_a_thread_with_the_smallest_stack() {
    same(&[&["small"]]);
}

#[test]
fn what_is_nowhere_is_an_error_and_no_fault() {
    same(&[&["nowhere", "carried"], &["nowhere", "plain"]]);
}

#[test]
fn a_handler_of_one_time_leaves_its_flags_and_one_without_a_stack_does_what_it_does() {
    same(&[&["handlers"], &["unwritable", "handled"], &["unwritable", "not"]]);
}

/// More than the kernel has room for lies in the ring when its sender has told the end: it is had, or an error is.
#[test]
fn what_is_lost_never_looks_like_an_end() {
    let pairing = TestService::new();
    let Some(program) = pairing.compiled("ends.c", "ends", &["-pthread"]) else { return };
    for (how, way) in
        [("closed", "exec"), ("closed", "pass"), ("shut", "exec"), ("shut", "pass"), ("shut", "spawn")]
    {
        let said = transcript(&pairing, &program, &["ended", how, way, "4000000"], Some(4));
        let is_whole = said.contains(": 4000000 right, then the end");
        let is_error = said.contains("right, then Connection reset by peer");
        assert!(is_whole || is_error, "{how}, {way}: {said}");
    }
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

/// A child that becomes another program, or closes its copy, does not take away what makes a killed sender's end a reset.
#[test]
fn what_is_lost_with_a_killed_sender_whose_child_has_left_the_connection_is_no_end() {
    let pairing = TestService::new();
    let Some(program) = pairing.compiled("ends.c", "ends", &["-pthread"]) else { return };
    for way in ["exec", "close"] {
        let said = transcript(&pairing, &program, &["helped", way], Some(4));
        let is_whole = said.contains(": 1000 right, then the end");
        assert!(is_whole || said.contains("right, then Connection reset by peer"), "{way}: {said}");
    }
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

/// A child that ends takes no guard off a half-closed end: only that would tell the peer of its parent's death.
#[test]
fn a_half_closed_end_that_is_killed_after_a_child_of_it_has_ended_answers_by_a_reset() {
    let pairing = TestService::new();
    let Some(program) = pairing.compiled("ends.c", "ends", &["-pthread"]) else { return };
    let said = transcript(&pairing, &program, &["outlived"], Some(4));
    assert_eq!(said, transcript(&pairing, &program, &["outlived"], None), "with the library, and without");
    assert!(said.contains("a send ends with a reset"), "{said}");
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

#[test]
fn a_blocking_send_without_memory_for_its_ring_sleeps() {
    let pairing = TestService::new();
    let (Some(program), Some(starved)) = (
        pairing.compiled("ends.c", "ends", &["-pthread"]),
        pairing.compiled("starved.c", "starved.so", &["-shared", "-fPIC"]),
    ) else {
        return;
    };
    let mut command = pairing.command(&program, Some(4));
    command.env("LD_PRELOAD", format!("{} {}", TestService::library().display(), starved.display()));
    let plain = transcript(&pairing, &program, &["starved"], None);
    assert_eq!(run(command, &["starved"]), plain, "with the library, and without");
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}
