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
