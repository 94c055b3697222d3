//! Connections end as over TCP, and their bytes are the same, whatever a program does with a connection: passed on,
//! returned, closed, left.
//!
//! - After descriptors were passed on, in a kernel without room, for every kind of exit and `exec`, with surviving
//!   children, for a close during a receive, for processes killed while they return bytes, by alias names and numbers
//!   of calls, while a sandbox is installed, after a failed shutdown, with bad addresses, small stacks and no memory.
//! - inetd-like servers, and one with standard error alone, answer by the C library's streams. Streams and terminals
//!   that replace a connection are not taken for it.
//! - Children in their parent's memory (`vfork`, `clone`) change that memory and not its descriptors and handlers. A
//!   thread that unshares its descriptors closes them for itself.
//! - Resets with bytes unread and without `TCP_NODELAY`, after each number of rounds around the cut-over, lose no
//!   answer. Unread bytes reset it after a failed `exec`, too.
//! - `TCP_USER_TIMEOUT` passes with peers that read nothing, and its error is the program's, whoever takes it from the
//!   kernel.
//! - Connections that are dissolved at each moment of their way into memory leave usable sockets.
//!
//! One program does the same thing without the library and with it, and records what happens.

use bywire_pairing::reason::Reason;

use crate::test_service::transcript::{run, same_at_once, same_beside, transcript};
use crate::test_service::{self, TestService};

fn same(things: &[&[&str]]) {
    test_service::transcript::same("ends.c", things);
}

#[test]
fn bytes_sent_before_the_end_reach_the_next_holder_of_the_socket() {
    let ways = ["spawn", "inherit", "exec", "fork", "pass"];
    let things: Vec<_> = ["closed", "shut"]
        .into_iter()
        .flat_map(|how| ways.map(|way| ["ended", how, way, "10240"]))
        .chain(["closed", "shut"].map(|how| ["ended", how, "exec", "1000000"]))
        .collect();
    same(&things.iter().map(|words| words.as_slice()).collect::<Vec<_>>());
}

#[test]
fn connections_passed_in_one_message_are_waited_for_together() {
    same(&[&["passed"]]);
}

#[test]
fn a_registration_reports_nothing_of_another_file_with_its_number() {
    same(&[&["renumbered"]]);
}

#[test]
fn a_spawned_program_with_a_copy_of_the_socket_continues() {
    same(&[&["echoed"]]);
}

#[test]
fn returned_bytes_are_sent_while_their_sender_runs() {
    let ways = ["poll", "epoll", "recv", "send", "close", "elsewhere"].map(|way| ["owing", way]);
    same_at_once("ends.c", None, &ways.each_ref().map(|words| words.as_slice()));
}

#[test]
fn bytes_returned_by_a_killed_process_are_not_sent_twice() {
    same_beside("ends.c", Some("killed.c"), &[&["owing", "killed"]]);
}

#[test]
fn an_end_that_a_killed_process_was_about_to_send_is_sent() {
    same_beside("ends.c", Some("killed.c"), &[&["shut_by_killed"]]);
}

#[test]
fn programs_end_their_connections_as_they_end() {
    let ways = ["return", "_exit", "quick_exit", "exit_group", "exit_thread", "exec", "exec_by_number"];
    same(&ways.map(|way| ["exits", way]).each_ref().map(|words| words.as_slice()));
}

#[test]
fn a_program_outlived_by_its_helper_ends_its_connections_in_order() {
    same(&[&["survived"]]);
}

#[test]
fn exec_ends_a_connection_whose_sending_was_shut_down() {
    same(&[&["become", "half"]]);
}

#[test]
fn unread_bytes_reset_a_connection_after_a_failed_exec() {
    let things: Vec<_> = ["closed", "inherited"]
        .into_iter()
        .flat_map(|how| ["some", "exit", "none", "passed"].map(|what| ["failed", what, how]))
        .collect();
    same_at_once("ends.c", None, &things.iter().map(|words| words.as_slice()).collect::<Vec<_>>());
}

#[test]
fn bytes_sent_before_an_exec_reach_the_next_holder_of_the_other_end() {
    // Only root makes room for it in the kernel.
    if test_service::is_root() {
        same(&[&["become", "much"]]);
    }
}

#[test]
fn a_receive_continues_when_its_socket_is_closed() {
    same(&[&["closed", "close"], &["closed", "dup2"]]);
}

#[test]
fn calls_by_alias_names_and_by_number_behave_the_same() {
    same(&[&["others"], &["asynchronous"]]);
}

#[test]
fn a_failed_shutdown_has_no_effect() {
    same(&[&["shut_late"]]);
}

#[test]
fn message_lists_continue_while_a_sandbox_is_installed() {
    same_beside("ends.c", Some("slow.c"), &[&["closing"]]);
}

#[test]
fn a_walk_over_descriptors_visits_only_existing_ones() {
    // The library's own descriptors start at seven eighths of the limit. The table has a page for each thousand.
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
fn formatted_output_of_the_c_library_arrives_in_order() {
    same(&[&["printed"]]);
}

#[test]
fn a_server_with_a_connection_as_standard_input_and_output_answers_by_streams() {
    same(&[&["as_inetd", "dup2"], &["as_inetd", "dup3"], &["as_inetd", "dup"], &["as_inetd", "fcntl"]]);
}

#[test]
fn a_server_with_a_connection_as_standard_error_answers_by_that_stream() {
    same(&[&["by_errors"]]);
}

#[test]
fn a_terminal_as_standard_input_is_no_connection() {
    same(&[&["terminal", "login_tty"], &["terminal", "forkpty"]]);
}

#[test]
fn a_file_with_the_number_of_a_closed_stream_is_no_connection() {
    same(&[&["reused", "fclose"], &["reused", "freopen"]]);
}

#[test]
fn a_child_in_its_parents_memory_changes_that_and_not_its_parents_descriptors_and_handlers() {
    let things: Vec<_> = ["vfork", "clone"]
        .into_iter()
        .flat_map(|way| ["changes", "sends", "forks", "becomes"].map(|what| ["vforked", way, what]))
        .collect();
    same(&things.iter().map(|words| words.as_slice()).collect::<Vec<_>>());
    if !test_service::is_root() {
        return;
    }
    // A container's first process has the number 1.
    let Some((pairing, program)) = TestService::with_program("ends.c") else { return };
    let mut command = pairing.command("unshare", Some(4));
    command.args(["--pid", "--fork", "--kill-child"]).arg(&program);
    let words = ["vforked", "vfork", "changes"];
    assert_eq!(run(command, &words), transcript(&pairing, &program, &words, None));
    assert_eq!(pairing.status().carried_ever, 1, "{:?}", pairing.status());
}

#[test]
fn a_thread_with_descriptors_of_its_own_closes_them_for_itself() {
    let ways = ["call", "number", "range", "clone"];
    same(&ways.map(|way| ["unshared", way]).each_ref().map(|words| words.as_slice()));
    let Some((pairing, program)) = TestService::with_program("ends.c") else { return };
    transcript(&pairing, &program, &["unshared", "call"], Some(4));
    let status = pairing.status();
    assert!(status.not_carried.contains(&(Reason::Unshared, 1)), "{status:?}");
}

#[test]
fn a_file_is_sent_by_a_thread_with_the_smallest_stack() {
    same(&[&["small"]]);
}

#[test]
fn an_invalid_address_is_an_error_and_not_a_fault() {
    same(&[&["nowhere", "carried"], &["nowhere", "plain"]]);
}

#[test]
fn one_shot_handlers_and_handlers_without_a_stack_behave_as_in_the_kernel() {
    same(&[&["handlers"], &["unwritable", "handled"], &["unwritable", "not"]]);
}

#[test]
fn an_answer_is_read_before_the_reset_that_follows_it() {
    let Some((pairing, program)) = TestService::with_program("ends.c") else { return };
    for how in ["close", "exit", "exec", "linger"] {
        // The number of calls by default, and from the first byte on.
        std::thread::scope(|scope| {
            for calls in [None, Some(8), Some(0)] {
                let (pairing, program) = (&pairing, &program);
                scope.spawn(move || {
                    let said = transcript(pairing, program, &["answered", how], calls);
                    assert_eq!(said, "0 tries differ\n", "{how}, {calls:?}");
                });
            }
        });
    }
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

#[test]
fn the_last_bytes_in_the_kernel_are_not_held_back() {
    let Some((pairing, program)) = TestService::with_program("ends.c") else { return };
    assert_eq!(transcript(&pairing, &program, &["cut_over"], Some(4)), "0 tries were held back\n");
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

#[test]
fn a_sender_whose_peer_reads_nothing_ends_after_tcp_user_timeout() {
    let ways = ["send", "poll", "epoll", "edges"].map(|way| ["timed_out", way]);
    same_at_once("ends.c", None, &ways.each_ref().map(|words| words.as_slice()));
}

#[test]
fn the_error_of_tcp_user_timeout_is_the_programs() {
    let things = ["send", "recv", "option"].map(|way| ["timed_out_owing", way]);
    let things = things.each_ref().map(|words| words.as_slice());
    same_at_once("ends.c", None, &things);
    same_at_once("ends.c", Some("late.c"), &things);
}

#[test]
fn tcp_user_timeout_and_keep_alive_end_nothing_else() {
    same_at_once("ends.c", None, &[&["kept", "slow"], &["kept", "alive"]]);
}

#[test]
fn a_dissolved_connection_leaves_a_socket_that_connects_or_listens() {
    let ways = ["plain", "refused", "listen", "child"];
    same(&ways.map(|way| ["connected_again", way]).each_ref().map(|words| words.as_slice()));
    same(&[&["connected_early"]]);
}

#[test]
fn a_socket_that_was_refused_or_has_listened_connects() {
    same(&[&["connected_late"]]);
}

/// When the sender shuts down, the ring holds more than the kernel has room for. The bytes are received, or there is an
/// error.
#[test]
fn lost_bytes_never_look_like_an_orderly_end() {
    let Some((pairing, program)) = TestService::with_program("ends.c") else { return };
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

/// A child that executes another program, or closes its copy, does not remove what makes a killed sender's end a reset.
#[test]
fn a_killed_sender_whose_child_has_closed_resets_the_connection() {
    let Some((pairing, program)) = TestService::with_program("ends.c") else { return };
    for way in ["exec", "close"] {
        let said = transcript(&pairing, &program, &["helped", way], Some(4));
        let is_whole = said.contains(": 1000 right, then the end");
        assert!(is_whole || said.contains("right, then Connection reset by peer"), "{way}: {said}");
    }
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

/// A child that exits does not remove the guard of a half-closed end: only the guard would tell the peer of its
/// parent's death.
#[test]
fn a_killed_half_closed_end_resets_after_its_child_has_ended() {
    let Some((pairing, program)) = TestService::with_program("ends.c") else { return };
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
