//! `bywire compare` and `bywire report` from outside: a slow-down on purpose is found, and every file is what it should be.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bywire(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command.args(arguments).current_dir(directory).output().expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn session(directory: &Path, name: &str, more: &[&str]) {
    let all = ["bench", "quick", "--levels", "unix", "--rounds", "8", "--time", "0.02", "--output", name];
    let output = bywire(directory, &[&all[..], more].concat());
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_slow_down_is_found_and_equals_are_equal() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    session(at, "before", &[]);
    session(at, "slowed", &["--burden", "200"]);

    fs::create_dir(at.join("again")).unwrap();
    for file in ["session.json", "cells.jsonl"] {
        fs::copy(at.join("before").join(file), at.join("again").join(file)).unwrap();
    }
    let same = bywire(at, &["compare", "before", "again"]);
    assert_eq!(same.status.code(), Some(0), "{}", said(&same));
    assert!(said(&same).contains("No difference in 9 cells"), "{}", said(&same));

    for twice in [["compare", "before", "./before"], ["report", "before", "before/../before"]] {
        let output = bywire(at, &twice);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(" one ") && said(&output).lines().count() == 1, "{}", said(&output));
    }
    let stored = at.join("again/session.json");
    let text = fs::read_to_string(&stored).unwrap().replace("\"complete\":true", "\"complete\":false");
    fs::write(&stored, text).unwrap();
    let report = bywire(at, &["report", "before", "again", "--output", "cut.html"]);
    assert!(report.status.success(), "{}", said(&report));
    assert!(said(&report).contains("again was interrupted: "), "{}", said(&report));
    assert!(!said(&report).contains("before was interrupted"), "{}", said(&report));
    assert!(fs::read_to_string(at.join("cut.html")).unwrap().contains("This session was interrupted"));

    let files = ["--junit", "compare.xml", "--benchmark-action", "action"];
    let worse = bywire(at, &[&["compare", "before", "slowed", "--json"], &files[..]].concat());
    assert_eq!(worse.status.code(), Some(3), "{}", said(&worse));
    let comparison: Value = serde_json::from_slice(&worse.stdout).unwrap();
    assert!(comparison["worse"].as_u64() >= Some(1), "{comparison}");
    let xml = fs::read_to_string(at.join("compare.xml")).unwrap();
    assert!(xml.starts_with("<?xml") && xml.contains("<failure"), "{xml}");
    for name in ["smaller-is-better", "bigger-is-better"] {
        let entries = fs::read(at.join(format!("action/{name}.json"))).unwrap();
        let entries: Value = serde_json::from_slice(&entries).unwrap();
        assert!(entries.as_array().unwrap().iter().all(|entry| entry["value"].is_number()), "{entries}");
    }

    let files = ["--output", "both.html", "--svg", "plots", "--tables", "tables"];
    let report = bywire(at, &[&["report", "before", "slowed"], &files[..]].concat());
    assert!(report.status.success(), "{}", said(&report));
    let page = fs::read_to_string(at.join("both.html")).unwrap();
    assert!(page.contains("before") && page.contains("slowed"));
    let drawings: Vec<String> = fs::read_dir(at.join("plots"))
        .unwrap()
        .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    assert!(drawings.len() >= 4, "{}", drawings.len());
    for drawing in &drawings {
        assert!(drawing.starts_with("<svg xmlns=") && drawing.ends_with("</svg>"), "{drawing}");
        let count = |part: &str| drawing.matches(part).count();
        assert_eq!(
            count("<text") + count("<line"),
            count("</text>") + count("</line>"),
            "every one is closed"
        );
        assert!(!drawing.contains("NaN") && !drawing.contains("inf"), "{drawing}");
    }
    let cells = fs::read_to_string(at.join("tables/cells.csv")).unwrap();
    assert_eq!(cells.lines().count(), 1 + 2 * 9, "a heading and both machines' cells");
    let points = fs::read_to_string(at.join("tables/plot-half-rtt.csv")).unwrap();
    assert!(points.starts_with("series,") && points.lines().count() > 4, "{points}");
}

#[test]
fn what_is_no_session_is_said_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let output = bywire(directory.path(), &["compare", "nowhere", "neither"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("nowhere holds no session") && said.lines().count() == 1, "{said}");
    let output = bywire(directory.path(), &["compare", "a", "b", "--threshold", "-1"]);
    assert_eq!(output.status.code(), Some(2));
}
