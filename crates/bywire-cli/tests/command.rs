//! The `bywire` command as a shell sees it.

use std::io::Read;
use std::process::{Command, Output, Stdio};

fn bywire(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bywire")).args(arguments).output().unwrap()
}

#[test]
fn doctor_finds_what_every_linux_has() {
    let output = bywire(&["doctor", "--json"]);
    assert!(output.status.success());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = said["findings"].as_array().unwrap();
    let works =
        |name: &str| findings.iter().any(|finding| finding["name"] == name && finding["works"] == true);
    for name in ["sealed memory", "peer process watch", "futex between cores", "message ports"] {
        assert!(works(name), "{name}: {said:#}");
    }
    for finding in findings.iter().filter(|finding| finding["works"] == false) {
        assert!(finding["remedy"].is_string() && finding["found"].is_string(), "{finding}");
    }
}

#[test]
fn doctor_speaks_plain_text_to_a_pipe() {
    let output = bywire(&["doctor"]);
    assert!(output.status.success() && !output.stdout.contains(&b'\x1b'));
    assert!(String::from_utf8(output.stdout).unwrap().contains("two cores"));
}

#[test]
fn unknown_words_are_usage_errors() {
    let output = bywire(&["frobnicate"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty() && !output.stderr.is_empty());
}

/// The one line that a command leaves on standard error, with its exit code.
fn complaint(arguments: &[&str]) -> (String, Option<i32>) {
    let output = bywire(arguments);
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("bywire: ") && said.lines().count() == 1, "{arguments:?}: {said}");
    (said, output.status.code())
}

#[test]
fn a_command_that_makes_no_sense_is_told_in_one_line_and_ends_with_2() {
    let misuses = [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'; see `bywire --help`"),
        (&["measure"], "<LEVEL> <TEST>; see `bywire measure --help`"),
        (&["measure", "tcp"], "<TEST>; see `bywire measure --help`"),
        (
            &["measure", "tcp", "latency", "--sise", "8"],
            "(a similar argument exists: '--size'); see `bywire measure --help`",
        ),
        (&["measure", "tcp", "latency", "--size", "1k"], "write it like 64, 1KiB or 1MiB"),
        (&["measure", "tcp", "latency", "--style", "nestat"], "[possible values: netperf]"),
        (&["measure", "tcp", "latency", "--size", "1GiB"], "give a --size of 1 to 67108864 bytes"),
        (&["measure", "memory", "memcpy", "--size", "100GiB"], "give a --size of 1 to 1073741824 bytes"),
        (&["measure", "tcp", "latency", "--time", "0"], "give more than 0 and up to 3600 seconds"),
        (&["measure", "tcp", "latency", "--time", "nan"], "give more than 0 and up to 3600 seconds"),
        (&["measure", "tcp", "latency", "--cores", "0,4000"], "choose from ["),
        (&["measure", "web", "latency"], "choose one of memory, msg, unix, tcp, udp"),
        (&["measure", "memory", "lag"], "choose one of cacheline"),
        (&["measure", "tcp", "lag"], "choose one of latency"),
        (&["measure", "unix", "latency", "--nagle", "on"], "--nagle means nothing"),
        (&["measure", "tcp", "latency", "--between", "namespaces", "--mtu", "1"], "give 68 to 65535"),
        (&["bench", "fast"], "choose one of quick"),
        (&["bench", "--time", "0"], "give more than 0"),
        (&["bench", "--levels", "web"], "choose from memory, msg, unix, tcp, udp"),
        (&["report", "/nowhere"], "holds no session"),
    ];
    for (arguments, part) in misuses {
        let (said, code) = complaint(arguments);
        assert!(said.contains(part) && code == Some(2), "{arguments:?}: {code:?}: {said}");
    }
}

#[test]
fn a_directory_without_a_session_is_answered_with_those_that_exist() {
    let place = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        std::fs::create_dir(place.path().join(name)).unwrap();
        std::fs::write(place.path().join(name).join("session.json"), "{}").unwrap();
    }
    for wrong in [place.path().to_owned(), place.path().join("three")] {
        let (said, _) = complaint(&["report", wrong.to_str().unwrap()]);
        assert!(said.contains("/one") && said.contains("/two"), "{said}");
    }
    let (said, code) = complaint(&["report", place.path().join("one").to_str().unwrap()]);
    assert!(said.contains("session.json") && code == Some(1), "a session that is there and torn: {said}");
}

#[test]
fn exit_codes_stand_in_the_help() {
    let help = String::from_utf8(bywire(&["--help"]).stdout).unwrap();
    assert!(help.contains("Exit codes: 0 success; 1 something failed; 2 "), "{help}");
}

#[test]
fn a_directory_that_cannot_be_written_is_one_line() {
    let output = bywire(&["man", "--output", "/proc/no/such"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("bywire: cannot write manual pages") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bywire"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(said, "");
}

#[test]
fn completions_and_manual_name_the_subcommands() {
    for arguments in [&["completions", "bash"][..], &["man"]] {
        let output = bywire(arguments);
        assert!(output.status.success() && String::from_utf8(output.stdout).unwrap().contains("doctor"));
    }
}
