//! `bywire compare` and `bywire report` as commands: a slow-down on purpose ends with 3, and so does a cell that
//! vanished. Every output format and the files of a report are correct, whatever figures a session holds.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn bywire(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bywire"));
    command.args(arguments).current_dir(directory).output().expect("it runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A copy of the session that was measured first.
fn copy(directory: &Path, name: &str) {
    fs::create_dir(directory.join(name)).unwrap();
    for file in FILES {
        fs::copy(directory.join(MEASURED).join(file), directory.join(name).join(file)).unwrap();
    }
}

const MEASURED: &str = "before";
const FILES: [&str; 2] = ["session.json", "cells.jsonl"];

/// The cells of the session that all comparisons begin with.
const CELLS: usize = 10;

fn session(directory: &Path, name: &str, more: &[&str]) {
    let all = ["bench", "quick", "--levels", "unix", "--rounds", "8", "--time", "0.02", "--output", name];
    let output = bywire(directory, &[&all[..], more].concat());
    assert!(output.status.success(), "{}", said(&output));
    // Pairs from a busy moment have no counterpart, and how many those are is left to chance.
    edit_cells(&directory.join(name), |cells| {
        for cell in cells {
            cell["moments"] = json!([]);
        }
    });
}

fn edit_cells(session: &Path, edit: impl FnOnce(&mut Vec<Value>)) {
    let path = session.join("cells.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let mut cells: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    edit(&mut cells);
    fs::write(&path, cells.iter().map(|cell| format!("{cell}\n")).collect::<String>()).unwrap();
}

fn edit_session(session: &Path, edit: impl FnOnce(&mut Value)) {
    let path = session.join("session.json");
    let mut stored: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut stored);
    fs::write(&path, stored.to_string()).unwrap();
}

/// One test, since each test is a process of its own, and the session that all of them begin with takes most of their time.
#[test]
fn a_slowdown_and_missing_cells_are_found_and_equal_sessions_are_equal() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    session(at, MEASURED, &[]);
    a_missing_cell_fails_the_comparison(at);
    a_session_file_with_any_content_is_handled(at);
    a_slowdown_is_found(at);
}

fn a_slowdown_is_found(at: &Path) {
    copy(at, "again");
    session(at, "slowed", &["--slowdown", "200"]);

    let same = bywire(at, &["compare", "before", "again", "--json"]);
    assert_eq!(same.status.code(), Some(0), "{}", said(&same));
    let comparison: Value = serde_json::from_slice(&same.stdout).unwrap();
    let found = ["worse", "better", "missing"].map(|found| comparison[found].as_u64());
    assert_eq!(found, [Some(0); 3], "{comparison}");
    assert_eq!(comparison["cells"].as_array().unwrap().len(), CELLS, "{comparison}");

    for twice in [["compare", "before", "./before"], ["report", "before", "before/../before"]] {
        let output = bywire(at, &twice);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(
            said(&output).contains(" are the same session: name ") && said(&output).lines().count() == 1,
            "{}",
            said(&output)
        );
    }
    edit_session(&at.join("again"), |session| session["complete"] = false.into());
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
        let entries = entries.as_array().unwrap();
        assert!(!entries.is_empty() && entries.iter().all(|entry| entry["value"].is_number()), "{entries:?}");
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
    assert_eq!(cells.lines().count(), 1 + 2 * CELLS, "a heading and both machines' cells");
    let points = fs::read_to_string(at.join("tables/plot-half-rtt.csv")).unwrap();
    assert!(points.starts_with("series,") && points.lines().count() > 4, "{points}");
}

fn a_missing_cell_fails_the_comparison(at: &Path) {
    copy(at, "after");
    let failure = json!({ "level": "unix", "test": null, "reason": "payload corrupted" });
    edit_session(&at.join("after"), |session| session["absent"] = json!([failure]));
    let levels = |cells: &Vec<Value>| cells.iter().filter(|cell| cell["level"] == "unix").count();
    for left in [1, 0] {
        edit_cells(&at.join("after"), |cells| {
            let mut kept = 0;
            cells.retain(|cell| {
                kept += usize::from(cell["level"] == "unix");
                cell["level"] != "unix" || kept <= left
            });
            assert_eq!(levels(cells), left);
        });
        let compared = bywire(at, &["compare", "before", "after", "--threshold", "99", "--junit", "it.xml"]);
        assert_eq!(compared.status.code(), Some(3), "{}", said(&compared));
        assert!(said(&compared).contains("missing after: payload corrupted"), "{}", said(&compared));
        let xml = fs::read_to_string(at.join("it.xml")).unwrap();
        assert!(xml.contains(&format!("errors=\"{}\"", CELLS - left)), "{xml}");
    }
    let allowed = bywire(at, &["compare", "before", "after", "--allow-missing"]);
    assert_eq!(allowed.status.code(), Some(0), "{}", said(&allowed));
    copy(at, "other");
    edit_cells(&at.join("other"), |cells| {
        cells.truncate(1);
        cells[0]["size_bytes"] = 77.into();
    });
    let replaced = bywire(at, &["compare", "before", "other"]);
    assert_eq!(replaced.status.code(), Some(3), "a new cell stands for none of them: {}", said(&replaced));
    let unlike = bywire(at, &["compare", "after", "before"]);
    assert_eq!(unlike.status.code(), Some(2), "{}", said(&unlike));
}

fn a_session_file_with_any_content_is_handled(at: &Path) {
    copy(at, "hostile");
    edit_cells(&at.join("hostile"), |cells| {
        for (cell, value) in cells.iter_mut().zip([1.7e308, 5e-324].into_iter().cycle()) {
            cell["value"] = value.into();
            cell["ci95"] = json!([5e-324, 1.7e308]);
            if !cell["histogram"].as_array().unwrap().is_empty() {
                cell["histogram"] = json!([[5e-324, u64::MAX], [1.7e308, u64::MAX]]);
            }
        }
    });
    let files = ["--output", "it.html", "--svg", "hostile-plots", "--tables", "hostile-tables"];
    let report = bywire(at, &[&["report", "hostile"], &files[..]].concat());
    assert!(report.status.success(), "{}", said(&report));
    let drawings: Vec<_> = fs::read_dir(at.join("hostile-plots")).unwrap().collect();
    assert!(drawings.len() >= 4, "{drawings:?}");
    for entry in drawings {
        let drawing = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(!drawing.contains("NaN") && !drawing.contains("\"inf"), "{drawing}");
    }
}

#[test]
fn a_directory_without_a_session_is_reported_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let output = bywire(directory.path(), &["compare", "nowhere", "neither"]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("nowhere holds no session") && said.lines().count() == 1, "{said}");
    let output = bywire(directory.path(), &["compare", "a", "b", "--threshold", "-1"]);
    assert_eq!(output.status.code(), Some(2));
}
