//! Tests of CPython, uvloop, tornado, pyzmq and gevent that pass over plain sockets pass over carried ones, test by
//! test. `./x test` installs packages and a current Node in the cache.
//!
//! A soak adds those of asyncio and of timeouts, three in four of uvloop's tests of TCP, and streams over TLS.
//! `conformance/suites` runs all of them: docs/notebook/conformance.md has the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use bywire_testing::Tier;

use super::{Fabric, ended};
use crate::packages::{cached, have};

/// A suite of CPython, and classes or modules of it; none stand for all.
type Chosen = (&'static str, &'static [&'static str]);

/// Classes that move bytes over TCP, in seconds.
const SUITES: [Chosen; 2] = [
    (
        "test_socket",
        &[
            "BasicTCPTest",
            "NonBlockingTCPTests",
            "UnbufferedFileObjectClassTestCase",
            "Recvmsg*TCPTest",
            "SendmsgTCPTest",
            "InterruptedRecvTimeoutTest",
        ],
    ),
    ("test_socketserver", &[]),
];
/// Those that take longer, mostly as they wait.
const LONG_SUITES: [Chosen; 2] = [
    ("test_socket", &["*FileObject*ClassTestCase", "NetworkConnectionBehaviourTest", "TCPTimeoutTest"]),
    (
        "test_asyncio",
        &["test_streams", "test_sock_lowlevel", "test_sendfile", "test_server", "test_buffered_proto"],
    ),
];
/// Modules that run quickly as a whole.
const WHOLE: [&str; 4] = ["test_httplib", "test_epoll", "test_select", "test_telnetlib"];

/// How often a lost test is repeated.
const AGAIN: usize = 3;

/// The tests of these that passed, and those that did not.
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
    let interpreter = super::said(fabric.plain(&["python3", "-c", "import sys; print(sys.executable)"]));
    let python = interpreter.trim();
    if !ended(&mut fabric.plain(&[python, "-c", "import test.test_socket"])).status.success() {
        println!("not run: python3 lacks its own tests: apt-get install libpython3-testsuite");
        return;
    }
    let long = LONG_SUITES.iter().filter(|_| Tier::current() == Tier::Soak);
    let chosen = SUITES.iter().chain(long).map(|(suite, classes)| {
        let classes = classes.iter().flat_map(|class| ["-m", class]);
        std::iter::once(*suite).chain(classes).collect::<Vec<&str>>()
    });
    let mut compared = 0;
    for words in chosen.chain([WHOLE.to_vec()]) {
        // One after the other: tests that measure time fail beside others.
        let [passed_plain, failed_plain] = run(&fabric, python, &words, false);
        let [passed, failed] = run(&fabric, python, &words, true);
        let mut lost: BTreeSet<_> = passed_plain.difference(&passed).cloned().collect();
        // A single failure on a busy machine means nothing. A test that fails each time counts.
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

/// The suite of a Python package, reduced to tests that move bytes over TCP and take seconds. `conformance/suites` runs all
/// of it.
struct Suite {
    name: &'static str,
    /// Its directory, below the packages of `./x test`.
    place: &'static str,
    /// The module that runs it, and its arguments.
    words: Vec<&'static str>,
    /// The minimum number of tests that pass.
    passed_min: usize,
    /// The minimum number of carried connections.
    carried_min: u64,
}

const PYTEST: [&str; 5] = ["pytest", "-q", "-p", "no:cacheprovider", "--timeout=60"];

/// The outcomes of a suite's tests, by name.
fn outcomes(fabric: &Fabric, suite: &Suite, packages: &Path, is_carried: bool) -> BTreeMap<String, String> {
    let python = packages.join("bin/python").display().to_string();
    let runner = format!("{}/tests/suite/sockets/outcomes.py", env!("CARGO_MANIFEST_DIR"));
    let found = fabric.place("outcomes");
    let _absent = fs::remove_file(&found);
    let mut words = vec![python.as_str(), &runner, &found];
    words.extend(&suite.words);
    let mut command = if is_carried { fabric.carried(&words) } else { fabric.plain(&words) };
    // As early as possible: most of these connections are short.
    command.env("BYWIRE_SOCKETS_CALLS", "0").current_dir(packages.join(suite.place));
    let output = ended(&mut command);
    let told = fs::read_to_string(&found)
        .unwrap_or_else(|error| panic!("{} told nothing: {error}: {output:?}", suite.name));
    let mut outcomes = BTreeMap::new();
    for (outcome, name) in told.lines().filter_map(|line| line.split_once(' ')) {
        // A test with several parts has failed if one of them has.
        let known = outcomes.entry(name.to_owned()).or_insert_with(|| outcome.to_owned());
        if outcome == "failed" {
            outcome.clone_into(known);
        }
    }
    outcomes
}

/// Tests that passed plain and failed carried.
fn lost(plain: &BTreeMap<String, String>, carried: &BTreeMap<String, String>) -> Vec<String> {
    let is_lost =
        |(name, outcome): &(&String, &String)| *outcome == "passed" && carried.get(*name) != Some(*outcome);
    plain.iter().filter(is_lost).map(|(name, _)| name.clone()).collect()
}

fn passes_carried(suite: &Suite) {
    let Some(packages) = cached("python/complete").and_then(|mark| mark.parent().map(Path::to_path_buf))
    else {
        println!("not run: {}: its package is not there: ./x test installs it", suite.name);
        return;
    };
    let fabric = Fabric::new();
    let plain = outcomes(&fabric, suite, &packages, false);
    let mut carried = outcomes(&fabric, suite, &packages, true);
    let passed = plain.values().filter(|outcome| *outcome == "passed").count();
    // A single failure on a busy machine means nothing. A test that fails each time counts.
    for _ in 0..AGAIN {
        if lost(&plain, &carried).is_empty() {
            break;
        }
        carried.extend(
            outcomes(&fabric, suite, &packages, true).into_iter().filter(|(_, outcome)| outcome == "passed"),
        );
    }
    let lost = lost(&plain, &carried);
    let count = fabric.carried_ever();
    println!(
        "{}: {passed} passed plain, {} of them not carried; {count} connections were carried",
        suite.name,
        lost.len()
    );
    assert!(lost.is_empty(), "{}: passed plain, and not carried: {lost:?}", suite.name);
    assert!(passed >= suite.passed_min, "{}: only {passed} tests passed plain: {plain:?}", suite.name);
    assert!(count >= suite.carried_min, "{}: {}", suite.name, fabric.status());
}

#[test]
fn uvloops_own_tests_pass_over_carried_connections() {
    const FEW: &str = "(Test_UV_TCP and not TCPSSL and (create_server or accepted_socket)) \
                       or (TestUVSockets and (accept_recv or recv_and_close or add_reader_or))";
    const ALL: &str = "(Test_UV_TCP and not TCPSSL and not many_small_writes) or TestUVSockets";
    let few = (FEW, 18, 20);
    let (chosen, passed_min, carried_min) = Tier::current().pick([few, few, (ALL, 50, 20)]);
    let chosen = ["-k", chosen, "tests/test_tcp.py", "tests/test_sockets.py"];
    let words = [&PYTEST[..], &chosen].concat();
    passes_carried(&Suite { name: "uvloop", place: "uvloop", words, passed_min, carried_min });
}

#[test]
fn tornados_own_tests_pass_over_carried_connections() {
    // Its streams over TLS run the same tests for longer.
    let few = ("tornado.test.iostream_test.TestIOStream", 100, 40);
    let all = ("tornado.test.iostream_test", 150, 100);
    let (streams, passed_min, carried_min) = Tier::current().pick([few, few, all]);
    let words = vec!["tornado.test", streams, "tornado.test.tcpserver_test", "tornado.test.websocket_test"];
    passes_carried(&Suite { name: "tornado", place: "", words, passed_min, carried_min });
}

#[test]
fn pyzmqs_own_tests_pass_over_carried_connections() {
    let chosen = [
        "-m",
        "not large",
        "tests/test_reqrep.py",
        "tests/test_asyncio.py",
        "tests/test_security.py",
        "tests/test_monitor.py",
    ];
    let words = [&PYTEST[..], &chosen].concat();
    passes_carried(&Suite { name: "pyzmq", place: "pyzmq", words, passed_min: 40, carried_min: 10 });
}

#[test]
fn gevents_own_tests_pass_over_carried_connections() {
    for module in ["gevent.tests.test__socket", "gevent.tests.test__server"] {
        passes_carried(&Suite {
            name: module,
            place: "",
            words: vec![module],
            passed_min: 20,
            carried_min: 5,
        });
    }
}
