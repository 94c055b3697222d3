//! Every row of the five source documents in docs/sources.md has a counterpart or a reason.

use std::collections::BTreeSet;

use bywire_measure::measure::{Measurement, Request, Topology, anywhere};
use bywire_measure::options::OPTIONS;
use bywire_measure::plan::{Level, Test};
use bywire_measure::preset::{self, PRESETS};
use bywire_measure::web;

const SOURCES: &str = include_str!("../../../../docs/sources.md");

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
    assert!(bywire_history::figures().count() > 10, "few figures are known");
    for (_, figure) in bywire_history::figures() {
        assert!(names.contains(figure.row.as_str()), "no row for {figure:?}");
    }
}

#[test]
fn every_document_has_its_section_and_its_preset() {
    assert_eq!(bywire_history::documents().len(), 5);
    for document in bywire_history::documents() {
        assert!(SOURCES.contains(&document.title), "{}", document.title);
        let preset = format!("{}/feature/preset", document.document);
        assert!(rows().iter().any(|row| row.name == preset), "{preset}");
    }
}

#[test]
fn a_row_without_command_and_reason_and_an_invalid_command_are_refused() {
    for today in [
        "",
        "soon",
        "measured elsewhere, `--nagle off`",
        "`bywire measure tcp teleport`",
        "`bywire measure tap stream`",
        "`bywire measure tcp stream --size many`",
        "`bywire measure tcp stream --size`",
        "`bywire measure tcp stream --warp 9`",
        "`bywire measure tcp stream --integrity off`",
        "`bywire measure udp stream --size 1048576`",
        "`bywire measure tcp stream --mtu 9000`",
        "`bywire measure tcp memcpy`",
        "`bywire measure memory rr`",
        "`bywire bench everything`",
        "`bywire measure mpi latency --link loopback`",
        "`bywire measure mpi overhead`",
        "`bywire measure mpi latency --mpi lam`",
        "`bywire measure tcp latency --mpi mpich`",
        "`bywire historic everything`",
        "comes with a later step: level mpi",
        "`bywire teleport`",
        "comes with a later step: level tcp",
        "comes with a later step: level web",
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

/// What is still to come; a row must not promise what is here already.
const LATER: [&str; 3] =
    ["datagrams between carried programs", "several paths to a peer", "put and get on a connection"];

fn check_later(step: &str) -> Result<(), String> {
    if !LATER.iter().any(|later| step.starts_with(later)) {
        return Err(format!("`{step}` is no later step"));
    }
    let here = match step.split([' ', ',', ';', '.']).collect::<Vec<_>>()[..] {
        ["level", level, ..] => level == web::LEVEL || level.parse::<Level>().is_ok(),
        ["test", test, ..] => test.parse::<Test>().is_ok(),
        ["preset", preset, ..] => PRESETS.iter().any(|known| known.name == preset),
        _ => false,
    };
    if here { Err(format!("`{step}` is here already")) } else { Ok(()) }
}

/// The engine itself says whether a command makes sense.
fn parse(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split(' ').collect();
    match words[..] {
        ["bywire", "measure", level, test, ..] => {
            let request = request(Request::new(level, test), &words[4..])?;
            let has_one = level == "eth" || matches!(request.link.as_deref(), Some("veth" | "eth"));
            if !has_one && request.mtu_bytes.is_some() && request.between.as_deref() != Some("namespaces") {
                return Err("only a link between namespaces takes an MTU".into());
            }
            // Namespaces need privileges to open, not to make sense.
            let prepared = anywhere(&request)
                .and_then(|request| Measurement::prepare(request, &mut Topology::default()));
            prepared.map(drop).map_err(|error| error.to_string())
        }
        ["bywire", "historic"] | ["bywire", "historic", "--json"] => Ok(()),
        ["bywire", "bench", preset] => bench(preset, None),
        ["bywire", "bench", preset, "--time", seconds] => bench(preset, Some(number(seconds)?)),
        _ => Err("no known command".into()),
    }
}

fn bench(preset: &str, time_seconds: Option<f64>) -> Result<(), String> {
    let named = preset::named(preset, time_seconds, None);
    named.map(drop).map_err(|error| error.to_string())
}

fn request(mut request: Request, mut words: &[&str]) -> Result<Request, String> {
    while let Some((option, rest)) = words.split_first() {
        words = rest;
        let name = option.trim_start_matches("--");
        let Some(row) = OPTIONS.iter().find(|row| row.name == name) else {
            match (*option, rest) {
                ("--json", _) => continue,
                ("--style", ["netperf", rest @ ..]) => words = rest,
                _ => return Err(format!("unknown option {option}")),
            }
            continue;
        };
        let value = rest.first().filter(|_| row.takes_value());
        words = &rest[value.iter().count()..];
        let text = value.copied().unwrap_or_default();
        row.set(&mut request, text).map_err(|error| format!("{option} {text}: {error:#}"))?;
    }
    Ok(request)
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value} is not a number"))
}
