//! `docs/sources.md`: nothing in the five documents is left without a command or a reason.

use std::collections::BTreeSet;

use bywire_lab::history;

const SOURCES: &str = include_str!("../../../docs/sources.md");

#[test]
fn every_row_has_a_command_or_a_reason() {
    let rows = rows();
    assert!(rows.len() > 100, "only {} rows were read", rows.len());
    for row in &rows {
        assert!(!row.what.is_empty(), "{row:?}: what is in the document?");
        row.answer().unwrap_or_else(|why| panic!("{row:?}: {why}"));
    }
    let distinct: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(distinct.len(), rows.len(), "a row is listed twice");
}

#[test]
fn every_historic_figure_has_its_row() {
    let names: BTreeSet<_> = rows().iter().map(|row| row.name).collect();
    for (_, figure) in history::figures() {
        assert!(names.contains(figure.row.as_str()), "no row for {figure:?}");
    }
}

#[test]
fn every_document_has_its_section_and_its_preset() {
    for document in history::documents() {
        assert!(SOURCES.contains(&document.title), "{}", document.title);
        let preset = format!("{}/feature/preset", document.document);
        assert!(rows().iter().any(|row| row.name == preset), "{preset}");
    }
}

#[test]
fn a_row_with_neither_and_a_bad_command_are_refused() {
    for today in [
        "",
        "soon",
        "measured elsewhere, `--nagle off`",
        "`bywire measure tcp teleport`",
        "`bywire measure tap stream`",
        "`bywire measure tcp stream --size many`",
        "`bywire measure tcp stream --size`",
        "`bywire measure tcp stream --warp 9`",
        "`bywire measure tcp memcpy`",
        "`bywire measure memory rr`",
        "`bywire bench everything`",
        "`bywire teleport`",
        "comes with a later step: level tcp",
        "none:",
    ] {
        let row = Row { name: "a/b", what: "", today };
        assert!(row.answer().is_err(), "`{today}` was taken for an answer");
    }
}

/// One row of a table in `docs/sources.md`.
#[derive(Debug)]
struct Row {
    name: &'static str,
    what: &'static str,
    today: &'static str,
}

fn rows() -> Vec<Row> {
    SOURCES
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| ---"))
        .filter(|line| !line.starts_with("| row |"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [name, what, today] = cells[..] else {
                panic!("not three columns: {line}");
            };
            Row { name, what, today }
        })
        .collect()
}

impl Row {
    /// At least one command, all of which parse; or a reason.
    fn answer(&self) -> Result<(), String> {
        let commands: Vec<&str> =
            self.today.split('`').skip(1).step_by(2).filter(|quoted| quoted.starts_with("bywire ")).collect();
        commands.iter().try_for_each(|command| parse(command).map_err(|why| format!("{command}: {why}")))?;
        let later = self.today.split("later step: ").skip(1);
        let mut reasons = 0;
        for step in later {
            check_later(step)?;
            reasons += 1;
        }
        reasons += usize::from(self.today.strip_prefix("none: ").is_some_and(|why| why.len() > 8));
        match commands.len() + reasons {
            0 => Err("neither a command nor a reason".into()),
            _ => Ok(()),
        }
    }
}

const LEVELS: [&str; 5] = ["memory", "msg", "unix", "tcp", "udp"];
const TESTS: [&str; 7] = ["latency", "stream", "bidir", "rr", "overhead", "interleave", "nhalf"];
const MEMORY_TESTS: [&str; 9] =
    ["cacheline", "memcpy", "touched", "read", "write", "readwrite", "syscall", "futex", "pipe"];
const PRESETS: [&str; 6] = ["quick", "full", "gm", "gm-ethernet", "trapeze", "bip"];

/// What is still to come; a row must not promise what is here already.
const LATER: [&str; 12] = [
    "level eth",
    "level sock",
    "level mpi",
    "level web",
    "test streams",
    "test hotspot",
    "test fanin",
    "test fanout",
    "test breakdown",
    "preset toe",
    "several paths to a peer",
    "put and get on a connection",
];

fn check_later(step: &str) -> Result<(), String> {
    match LATER.iter().any(|later| step.starts_with(later)) {
        true => Ok(()),
        false => Err(format!("`{step}` is no later step")),
    }
}

fn parse(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split(' ').collect();
    match words[..] {
        ["bywire", "measure", level, test, ..] => {
            known(&LEVELS, level)?;
            let tests: &[&str] = match level {
                "memory" => &MEMORY_TESTS,
                _ => &TESTS,
            };
            known(tests, test)?;
            options(&words[4..])
        }
        ["bywire", "bench", preset, ..] => {
            known(&PRESETS, preset)?;
            options(&words[3..])
        }
        _ => Err("no known command".into()),
    }
}

fn known(words: &[&str], word: &str) -> Result<(), String> {
    match words.contains(&word) {
        true => Ok(()),
        false => Err(format!("`{word}` is none of {words:?}")),
    }
}

fn options(mut words: &[&str]) -> Result<(), String> {
    while let Some((option, rest)) = words.split_first() {
        let taken = match *option {
            "--spin" | "--no-spin" | "--json" | "--verify" | "--lent" => 0,
            "--link" | "--between" | "--cores" | "--style" | "--direction" => 1,
            "--size" | "--mtu" | "--nodes" | "--time" | "--socket-buffer" | "--response-size" => {
                let value = rest.first().ok_or_else(|| format!("{option} has no value"))?;
                value.parse::<u64>().map_err(|_| format!("{option} {value} is no number"))?;
                1
            }
            "--integrity" | "--nagle" => {
                known(&["on", "off"], rest.first().unwrap_or(&""))?;
                1
            }
            unknown => return Err(format!("unknown option {unknown}")),
        };
        words = rest.get(taken..).ok_or_else(|| format!("{option} has no value"))?;
    }
    Ok(())
}
