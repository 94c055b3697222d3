//! CPython's own tests, where the interpreter brings them: what passes over plain sockets passes over carried ones.

use std::collections::BTreeSet;

use crate::packages::have;
use crate::{Fabric, ended};

/// Classes of CPython's tests that move bytes over TCP, and take seconds.
const SUITES: [(&str, &[&str]); 3] = [
    (
        "test_socket",
        &[
            "BasicTCPTest",
            "NonBlockingTCPTests",
            "*FileObject*ClassTestCase",
            "NetworkConnectionBehaviourTest",
            "TCPTimeoutTest",
            "Recvmsg*TCPTest",
            "SendmsgTCPTest",
            "InterruptedRecvTimeoutTest",
        ],
    ),
    (
        "test_asyncio",
        &["test_streams", "test_sock_lowlevel", "test_sendfile", "test_server", "test_buffered_proto"],
    ),
    ("test_socketserver", &[]),
];
/// The same in quick ones.
const WHOLE: [&str; 4] = ["test_httplib", "test_epoll", "test_select", "test_telnetlib"];

/// So often is run once more what was lost.
const AGAIN: usize = 3;

/// Tests of these that passed, and those that did not.
fn run(fabric: &Fabric, python: &str, words: &[&str], is_carried: bool) -> [BTreeSet<String>; 2] {
    let words = [&[python, "-m", "test", "-v", "-u", "network"], words].concat();
    let mut command = if is_carried { fabric.carried(&words) } else { fabric.plain(&words) };
    // As early as possible: most of these connections are short.
    command.env("BYWIRE_SOCKETS_CALLS", "0").current_dir(fabric.directory.path());
    let output = ended(&mut command);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let outcomes = |is_wanted: fn(&str) -> bool| {
        let lines = told.lines().filter_map(|line| line.split_once(" ... "));
        lines
            .filter(|(_, outcome)| is_wanted(outcome.trim()))
            .map(|(name, _)| name.trim().to_owned())
            .collect()
    };
    [outcomes(|outcome| outcome == "ok"), outcomes(|outcome| matches!(outcome, "FAIL" | "ERROR"))]
}

#[test]
fn pythons_own_tests_pass_over_carried_connections() {
    if !have(&[("python3", "python3")]) {
        return;
    }
    let fabric = Fabric::new();
    let interpreter = crate::said(fabric.plain(&["python3", "-c", "import sys; print(sys.executable)"]));
    let python = interpreter.trim();
    if !ended(&mut fabric.plain(&[python, "-c", "import test.test_socket"])).status.success() {
        println!("not run: python3 lacks its own tests: apt-get install libpython3-testsuite");
        return;
    }
    let chosen = SUITES.map(|(suite, classes)| {
        let classes = classes.iter().flat_map(|class| ["-m", class]);
        std::iter::once(suite).chain(classes).collect::<Vec<&str>>()
    });
    let mut compared = 0;
    for words in chosen.into_iter().chain([WHOLE.to_vec()]) {
        // In turn: tests that measure time fail beside others.
        let [passed_plain, failed_plain] = run(&fabric, python, &words, false);
        let [passed, failed] = run(&fabric, python, &words, true);
        let mut lost: BTreeSet<_> = passed_plain.difference(&passed).cloned().collect();
        // What fails by itself on a busy machine says nothing; the same test, lost each time, does.
        for _ in 0..AGAIN {
            if lost.is_empty() {
                break;
            }
            let [again, _] = run(&fabric, python, &words, true);
            lost.retain(|name| !again.contains(name));
        }
        assert!(lost.is_empty(), "{words:?}: passed plain, and not carried: {lost:?}");
        let new: Vec<_> = failed.difference(&failed_plain).collect();
        println!("{words:?}: {} passed, first failed: {new:?}", passed.len());
        compared += passed_plain.len();
    }
    assert!(compared > 200, "only {compared} tests ran plain");
    let status = fabric.status();
    assert!(status["carried_ever"].as_u64() >= Some(20), "{status}");
}
