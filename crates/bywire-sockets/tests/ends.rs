//! Bytes and ends are TCP's, whatever a program does with a connection: handed on, given back, closed, left.
//!
//! One program does the same thing without the library and with it, and writes down what happened.

mod world;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use world::{PATIENCE, World};

/// What the program wrote when it had done this; it must end well, and in time.
fn transcript(world: &World, program: &Path, words: &[&str], calls: Option<u64>) -> String {
    run(world.command(program, calls), words)
}

fn run(mut command: Command, words: &[&str]) -> String {
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().expect("it starts");
    let started = std::time::Instant::now();
    while child.try_wait().expect("ours").is_none() {
        if started.elapsed() > PATIENCE {
            // With its children, which have its output as well.
            // SAFETY: a group that this test has made, and that is not waited for yet.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().expect("ours");
    let (said, wrong) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{said}{wrong}");
    said.into_owned()
}

/// The same without the library and with it, in which it must have been carried.
fn same(things: &[&[&str]]) {
    let world = World::new();
    let Some(program) = world.compiled("ends.c", "ends", &["-pthread"]) else { return };
    for words in things {
        let before = world.status().carried_ever;
        let plain = transcript(&world, &program, words, None);
        let carried = transcript(&world, &program, words, Some(4));
        assert_eq!(carried, plain, "{words:?}: with the library, and without");
        assert!(!plain.is_empty(), "{words:?} says nothing");
        assert!(world.status().carried_ever > before, "{words:?}: {:?}", world.status());
    }
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
fn programs_end_their_connections_as_they_end() {
    let ways = ["return", "_exit", "quick_exit", "exit_group", "exit_thread", "exec", "exec_by_number"];
    same(&ways.map(|way| ["exits", way]).each_ref().map(|words| words.as_slice()));
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
fn a_child_by_clone3_shares_the_connection() {
    same(&[&["cloned"]]);
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
    let world = World::new();
    let Some(program) = world.compiled("ends.c", "ends", &["-pthread"]) else { return };
    for (how, way) in
        [("closed", "exec"), ("closed", "pass"), ("shut", "exec"), ("shut", "pass"), ("shut", "spawn")]
    {
        let said = transcript(&world, &program, &["ended", how, way, "4000000"], Some(4));
        let is_whole = said.contains(": 4000000 right, then the end");
        let is_error = said.contains("right, then Connection reset by peer");
        assert!(is_whole || is_error, "{how}, {way}: {said}");
    }
    assert!(world.status().carried_ever > 0, "{:?}", world.status());
}

#[test]
fn a_blocking_send_without_memory_for_its_ring_sleeps() {
    let world = World::new();
    let (Some(program), Some(starved)) = (
        world.compiled("ends.c", "ends", &["-pthread"]),
        world.compiled("starved.c", "starved.so", &["-shared", "-fPIC"]),
    ) else {
        return;
    };
    let mut command = world.command(&program, Some(4));
    command.env("LD_PRELOAD", format!("{} {}", World::library().display(), starved.display()));
    let plain = transcript(&world, &program, &["starved"], None);
    assert_eq!(run(command, &["starved"]), plain, "with the library, and without");
    assert!(world.status().carried_ever > 0, "{:?}", world.status());
}
