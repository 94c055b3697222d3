//! Does `bywire compare` find real changes, and no others? Takes sessions of one build in turn, every third with a
//! deliberate slowdown, and counts how often a comparison of neighbours is right.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bywire_analysis::side::Side;
use bywire_analysis::{Comparison, Rule, Verdict};
use bywire_command::exit_status;
use bywire_measure::bench::{self, Progress};
use bywire_measure::interrupt;
use bywire_measure::measure::Request;
use bywire_measure::preset::Preset;
use bywire_results::cell::{Absence, Cell};
use bywire_results::store;
use clap::Parser;

/// Sessions that are joined to one side where sessions taken in turn are compared.
const JOINED: usize = 5;

/// How often a comparison tells the truth, as a Markdown table
#[derive(Parser)]
struct Arguments {
    /// Where sessions are kept; those that it holds already are counted in
    #[arg(long, value_name = "DIRECTORY")]
    output: PathBuf,
    /// Sessions of each kind to take: as they are, once more, and slowed down
    #[arg(long, default_value_t = 4)]
    repetitions: u32,
    /// Rounds of each session
    #[arg(long, default_value_t = 12)]
    rounds: u32,
    /// The slow-down, in percent
    #[arg(long, default_value_t = 10)]
    slowdown: u32,
}

const KINDS: [&str; 3] = ["one", "other", "slowed"];

fn main() -> ExitCode {
    let is_worker = std::env::args().nth(1).is_some_and(|word| word == "__worker");
    exit_status::of(
        "comparison",
        if is_worker { bywire_measure::worker::run() } else { Arguments::parse().run() },
    )
}

impl Arguments {
    fn run(self) -> Result<()> {
        interrupt::arm()?;
        let taken = repetitions(&self.output);
        for repetition in taken..taken + self.repetitions {
            // Each kind comes first as often as last.
            for turn in 0..KINDS.len() {
                let kind = (turn + repetition as usize) % KINDS.len();
                self.take(repetition, kind)?;
                if interrupt::requested() {
                    std::process::exit(exit_status::INTERRUPTED);
                }
            }
            eprintln!("repetition {repetition} done");
        }
        print!("{}", page(&self.output, self.slowdown)?);
        Ok(())
    }

    fn take(&self, repetition: u32, kind: usize) -> Result<()> {
        let directory = self.output.join(format!("{repetition:03}-{}", KINDS[kind]));
        // A session that was interrupted says nothing here.
        if directory.exists() {
            std::fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        let slowdown_percent = (KINDS[kind] == "slowed").then_some(self.slowdown);
        let groups = requests().map(|request| vec![Request { slowdown_percent, ..request }]).to_vec();
        let preset = Preset { name: "comparison", ceilings: Vec::new(), groups, absent: Vec::new() };
        bench::run(preset, Some(self.rounds), &directory, bywire_report::files, &mut Quiet)?;
        Ok(())
    }
}

/// Cells whose pace the source sets, so that what slows it down slows them down.
fn requests() -> [Request; 6] {
    let sized = |level, test, bytes| Request {
        size_bytes: Some(bytes),
        time_seconds: Some(0.2),
        ..Request::new(level, test)
    };
    let polling = |request| Request { spin: Some(true), ..request };
    [
        sized("tcp", "latency", 1),
        polling(sized("tcp", "latency", 1)),
        polling(sized("unix", "latency", 1024)),
        polling(sized("unix", "rr", 1)),
        polling(sized("udp", "rr", 64)),
        sized("msg", "latency", 1024),
    ]
}

/// Repetitions that were taken whole.
fn repetitions(directory: &Path) -> u32 {
    let whole = |repetition: &u32| {
        KINDS.iter().all(|kind| {
            let session = store::read(&directory.join(format!("{repetition:03}-{kind}")));
            session.is_ok_and(|session| session.complete)
        })
    };
    (0..).take_while(whole).count() as u32
}

fn page(directory: &Path, slowdown: u32) -> Result<String> {
    let count = repetitions(directory) as usize;
    let side = |kind: &str, repetitions: std::ops::Range<usize>| -> Result<Side> {
        let sessions = repetitions.map(|repetition| {
            let path = directory.join(format!("{repetition:03}-{kind}"));
            store::read(&path).with_context(|| format!("cannot read {}", path.display()))
        });
        Ok(Side { name: kind.to_owned(), sessions: sessions.collect::<Result<_>>()? })
    };
    let mut page = "| comparison | of | no difference | worse | cells that are worse |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for (after, what) in
        [("other", "the same build".to_owned()), ("slowed", format!("slowed down by {slowdown} %"))]
    {
        for joined in [1, JOINED] {
            let (mut same, mut worse, mut cells_worse, mut cells) = (0, 0, 0, 0);
            let comparisons = count / joined;
            for first in (0..comparisons).map(|index| index * joined) {
                let before = side("one", first..first + joined)?;
                let after = side(after, first..first + joined)?;
                let comparison = Comparison::of(&before, &after, Rule::default());
                let better = comparison.count(Verdict::Better);
                same += usize::from(!comparison.is_worse() && better == 0);
                worse += usize::from(comparison.is_worse());
                cells_worse += comparison.count(Verdict::Worse);
                cells += comparison.rows.len();
            }
            let sessions = if joined == 1 {
                "two sessions".to_owned()
            } else {
                format!("{joined} and {joined} sessions in turn")
            };
            page += &format!(
                "| {what}, {sessions} | {comparisons} | {same} | {worse} | {cells_worse} of {cells} |\n"
            );
        }
    }
    Ok(page)
}

/// Says nothing but what cannot be measured.
struct Quiet;

impl Progress for Quiet {
    fn begins(&mut self, _cells: usize, _total: Duration) {}
    fn advanced(&mut self, _done: Duration, _total: Duration) {}
    fn measured(&mut self, _cell: &Cell) {}
    fn absent(&mut self, absence: &Absence) {
        eprintln!("not measured: {} {:?}: {}", absence.level, absence.test, absence.reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_holds_no_repetition() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(repetitions(directory.path()), 0);
        assert_eq!(page(directory.path(), 10).unwrap().lines().count(), 6);
    }
}
