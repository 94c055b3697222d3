//! Threads, handlers, children and libraries of a program work as without the library.
//!
//! - Threads, handlers, children, `vfork`, children in their parent's memory, argument lists, cancellation, small
//!   stacks and `dlopen` work as without it. Resources of dead children are released.
//! - Single calls with every odd flag, length, time and address return what they return over TCP.
//! - Options of a listener, or set while bytes wait, hold. Messages with any room for control data say what is left
//!   behind them (`TCP_INQ`), around the cut-over and at ends.
//! - A program whose own clock stands still is carried like others.
//! - Plug-ins that are loaded with `RTLD_DEEPBIND` (lazily, at once, without a PLT) and calls by way of `dlsym` and
//!   `dlvsym` are carried, and a number that they have closed is another file's. A plug-in that is loaded by its name
//!   and registers its functions by itself is carried.
//! - With a library in a namespace of its own, or with inline calls on connections or rings, the program is TCP.
//!   Whether calls block is right although only inline calls change it.

use bywire_pairing::reason::Reason;
use bywire_pairing::status::Status;
use bywire_testing::{eventually, repetitions};

use crate::test_service::transcript::{run, same, transcript};
use crate::test_service::{Running, TestService};

/// Runs the program until it exits, which must be with success.
fn lives(words: &[&str]) -> Option<Status> {
    let (pairing, program) = TestService::with_program("lives.c")?;
    let mut running = Running::start(pairing.command(program, Some(8)).args(words));
    assert!(running.end().success(), "{words:?}");
    Some(pairing.status())
}

#[test]
fn a_child_forked_while_a_thread_sets_handlers_can_set_handlers() {
    lives(&["handlers"]);
}

#[test]
fn a_handler_opens_and_closes_while_its_thread_forks() {
    lives(&["forks", &repetitions("BYWIRE_ROUNDS", [300, 300, 10_000]).to_string()]);
}

#[test]
fn a_thread_with_the_smallest_stack_polls_and_selects() {
    if let Some(status) = lives(&["stack"]) {
        assert_eq!(status.carried_ever, 1, "{status:?}");
    }
}

#[test]
fn a_constructor_of_a_loaded_library_can_wait_for_a_thread_that_makes_calls() {
    let pairing = TestService::new();
    let (Some(program), Some(library)) = (
        pairing.compiled("lives.c", "lives", &["-pthread"]),
        pairing.compiled("lives.c", "loaded.so", &["-pthread", "-shared", "-fPIC", "-DLOADED"]),
    ) else {
        return;
    };
    let mut running = Running::start(pairing.command(program, Some(8)).arg("load").arg(library));
    assert!(running.end().success());
}

/// Runs the program with a library that it loads in this way, and that was linked with these options. It writes the same as over
/// TCP.
fn plugged(how: &str, options: &[&str], is_named: bool) -> Option<Status> {
    let (pairing, program) = TestService::with_program("lives.c")?;
    let words = [&["-shared", "-fPIC", "-DPLUGIN"], options].concat();
    let plugin = pairing.compiled("lives.c", "plugin.so", &words)?;
    let path = if is_named { "plugin.so" } else { plugin.to_str()? };
    let [plain, carried] = [None, Some(8)].map(|calls| {
        let mut command = pairing.command(&program, calls);
        if is_named {
            command.env("LD_LIBRARY_PATH", plugin.parent().expect("a directory"));
        }
        run(command, &["plugin", how, path])
    });
    assert_eq!(carried, plain, "{how} {options:?} {is_named}: with the library, and without");
    assert!(plain.contains("the pipe has 2 bytes"), "{how} {options:?} {is_named}: {plain}");
    Some(pairing.status())
}

#[test]
fn libraries_loaded_with_deep_binding_are_carried() {
    for (how, option) in [("lazy", "-Wl,-z,lazy"), ("now", "-Wl,-z,now"), ("now", "-fno-plt")] {
        for is_named in [false, true] {
            let options = [option, "-Wl,-z,relro"];
            if let Some(status) = plugged(how, &options, is_named) {
                assert_eq!(status.carried_ever, 4, "{how} {option} {is_named}: {status:?}");
            }
        }
    }
}

#[test]
fn a_library_in_a_namespace_of_its_own_makes_its_program_tcp() {
    if let Some(status) = plugged("apart", &[], false) {
        assert_eq!(status.carried_ever, 1, "{status:?}");
        assert!(status.not_carried.contains(&(Reason::Loaded, 1)), "{status:?}");
    }
}

#[test]
fn a_library_with_inline_system_calls_makes_its_program_tcp() {
    for is_named in [false, true] {
        if let Some(status) = plugged("inline", &["-DINLINE"], is_named) {
            assert_eq!(status.carried_ever, 1, "{is_named}: {status:?}");
            assert!(status.not_carried.contains(&(Reason::Inline, 1)), "{is_named}: {status:?}");
        }
    }
}

/// The program looks nothing up after it has loaded the library.
#[test]
fn a_library_that_registers_its_functions_when_it_is_loaded_is_carried() {
    let pairing = TestService::new();
    let options = ["-shared", "-fPIC", "-DPLUGIN", "-DREGISTERED"];
    let (Some(program), Some(plugin)) = (
        pairing.compiled("lives.c", "lives", &["-pthread", "-rdynamic"]),
        pairing.compiled("lives.c", "plugin.so", &options),
    ) else {
        return;
    };
    for name in [plugin.to_str().expect("text"), "plugin.so"] {
        let before = pairing.status().carried_ever;
        let mut command = pairing.command(&program, Some(8));
        command.env("LD_LIBRARY_PATH", plugin.parent().expect("a directory"));
        assert!(Running::start(command.args(["plugin", "now", name])).end().success(), "{name}");
        assert_eq!(pairing.status().carried_ever - before, 4, "{name}");
    }
}

#[test]
fn a_library_is_found_in_the_directories_of_its_program() {
    for tags in ["--enable-new-dtags", "--disable-new-dtags"] {
        let pairing = TestService::new();
        let options = ["-shared", "-fPIC", "-DPLUGIN"];
        let Some(plugin) = pairing.compiled("lives.c", "plugin.so", &options) else { return };
        let search = format!("-Wl,{tags},-rpath,{}", plugin.parent().expect("a directory").display());
        let Some(program) = pairing.compiled("lives.c", "lives", &["-pthread", &search]) else { return };
        let mut command = pairing.command(program, Some(8));
        assert!(Running::start(command.args(["plugin", "now", "plugin.so"])).end().success(), "{tags}");
        assert_eq!(pairing.status().carried_ever, 4, "{tags}: {:?}", pairing.status());
    }
}

#[test]
fn flags_that_inline_system_calls_change_hold_for_carried_connections() {
    let pairing = TestService::new();
    let Some(program) = pairing.compiled("lives.c", "lives", &["-pthread", "-DFLAGS"]) else { return };
    assert!(Running::start(pairing.command(program, Some(8)).arg("flags")).end().success());
    let status = pairing.status();
    assert_eq!(status.carried_ever, 1, "{status:?}");
    assert!(status.not_carried.iter().all(|(reason, _)| *reason != Reason::Inline), "{status:?}");
}

#[test]
fn a_program_without_connections_is_not_examined() {
    let pairing = TestService::new();
    let Some(program) = pairing.compiled("lives.c", "lives", &["-pthread", "-DINLINE"]) else { return };
    assert!(Running::start(pairing.command(&program, Some(8)).arg("handlers")).end().success());
    assert_eq!(pairing.status().not_carried, []);
    // A file of lines names the reason of each program that cannot be carried.
    let log = pairing.path("log");
    let mut command = pairing.command(&program, Some(8));
    assert!(Running::start(command.arg("handlers").env("BYWIRE_LOG", &log)).end().success());
    let told = std::fs::read_to_string(&log).expect("a log");
    assert!(told.contains(" Inline - - 0 0 0 0 "), "{told}");
}

#[test]
fn a_program_with_inline_system_calls_is_tcp() {
    let pairing = TestService::new();
    let cases = [
        (&["-pthread"][..], "carry", 1),
        (&["-pthread", "-DINLINE"], "talk", 0),
        (&["-pthread", "-DRING"], "talk", 0),
    ];
    for (number, (options, way, carried)) in cases.into_iter().enumerate() {
        let Some(program) = pairing.compiled("lives.c", "lives", options) else { return };
        let before = pairing.status().carried_ever;
        let log = pairing.path(&format!("log{number}"));
        let mut command = pairing.command(&program, Some(8));
        assert!(Running::start(command.arg(way).env("BYWIRE_LOG", &log)).end().success(), "{options:?}");
        let status = pairing.status();
        assert_eq!(status.carried_ever - before, carried, "{options:?}: {status:?}");
        let told = std::fs::read_to_string(&log).expect("a log");
        let named = format!(" Inline - - 0 0 0 0 {}\n", program.display());
        assert_eq!(told.contains(&named), carried == 0, "{options:?}: {told}");
    }
    assert!(pairing.status().not_carried.contains(&(Reason::Inline, 2)), "{:?}", pairing.status());
}

#[test]
fn functions_looked_up_by_the_c_librarys_handle_are_carried() {
    for how in ["handle", "versioned", "default"] {
        if let Some(status) = lives(&["symbols", how]) {
            assert_eq!(status.carried_ever, 1, "{how}: {status:?}");
        }
    }
}

#[test]
fn threads_are_cancelled_where_they_sleep() {
    if let Some(status) = lives(&["cancel"]) {
        assert_eq!(status.carried_ever, 1, "{status:?}");
    }
}

#[test]
fn vfork_waits_for_its_own_child_alone() {
    lives(&["vforks"]);
}

#[test]
fn a_child_in_its_parents_memory_closes_files_without_thread_local_variables() {
    lives(&["bare"]);
}

#[test]
fn connections_of_dead_children_are_released() {
    let Some((pairing, program)) = TestService::with_program("lives.c") else { return };
    let mut running = Running::start(pairing.command(program, Some(8)).arg("children"));
    assert_eq!(running.hear(), "closed");
    eventually("it ends for the service", || pairing.status().carried == 0);
    assert_eq!(pairing.status().carried_ever, 1);
}

#[test]
fn a_connection_continues_in_a_program_started_by_execl() {
    for way in ["l", "p", "e"] {
        if let Some(status) = lives(&["lists", way]) {
            assert_eq!(status.carried_ever, 1, "{way}: {status:?}");
        }
    }
}

#[test]
fn a_connection_with_options_of_its_listener_stays_in_the_kernel() {
    let Some((pairing, program)) = TestService::with_program("calls.c") else { return };
    let options = [
        "low",
        "stamp",
        "stamp_ns",
        "new_stamp",
        "new_stamp_ns",
        "stamping",
        "filter",
        "extended",
        "pace",
        "delay",
        "clamp",
    ];
    for option in options {
        let [plain, beside] =
            [None, Some(4)].map(|calls| transcript(&pairing, &program, &["inherited", option], calls));
        assert_eq!(beside, plain, "{option}: with the library, and without");
    }
    let status = pairing.status();
    assert_eq!(status.carried_ever, 0, "{status:?}");
    let counted = status.not_carried.iter().find(|(reason, _)| *reason == Reason::Option);
    assert!(counted.is_some(), "{status:?}");
}

#[test]
fn a_message_says_what_is_left_in_the_kernel_and_in_memory() {
    same("calls.c", &[&["left"], &["inherited", "waiting"], &["changed", "waiting"]]);
}

#[test]
fn options_that_are_set_while_bytes_wait_hold_for_these_bytes() {
    same(
        "calls.c",
        &[&["changed", "stamp"], &["changed", "low"], &["changed", "pages"], &["changed", "pace"]],
    );
}

/// The library's own times are the kernel's, as are those of the program's calls.
#[test]
fn a_program_whose_own_clock_stands_still_is_carried_like_others() {
    let pairing = TestService::new();
    let [Some(usual), Some(still)] = [&["-pthread"][..], &["-pthread", "-rdynamic", "-DCLOCK"]]
        .map(|words| pairing.compiled("calls.c", &format!("calls{}", words.len()), words))
    else {
        return;
    };
    let plain = transcript(&pairing, &usual, &["times"], None);
    assert_eq!(transcript(&pairing, &still, &["times"], None), plain, "the kernel's calls need no clock");
    assert_eq!(transcript(&pairing, &still, &["times"], Some(4)), plain, "with the library, and without");
    assert!(pairing.status().carried_ever > 0, "{:?}", pairing.status());
}

/// Such a program was TCP from `io_setup` on once, and MariaDB is one.
#[test]
fn asynchronous_file_io_of_the_kernel_leaves_connections_carried_and_that_of_sockets_does_not() {
    let pairing = TestService::new();
    let Some(program) = pairing.compiled("native_aio.c", "native_aio", &["-pthread"]) else { return };
    let [plain, beside] = [None, Some(4)].map(|calls| transcript(&pairing, &program, &[], calls));
    assert_eq!(beside, plain, "with the library, and without");
    let status = pairing.status();
    assert_eq!(status.carried_ever, 1, "{status:?}");
}

#[test]
fn single_calls_return_what_they_return_over_tcp() {
    same(
        "calls.c",
        &[
            &["on_ends", "peeks"],
            &["on_ends", "no_times"],
            &["inherit_no_time"],
            &["on_ends", "long_times"],
            &["under_way"],
            &["on_ends", "lengths"],
            &["on_ends", "messages"],
            &["on_ends", "nothing"],
            &["on_ends", "waits"],
        ],
    );
}
