//! Does `bywire compare` find real changes, and no others? Takes sessions of one build in turn, every third with a
//! deliberate slowdown, and counts how often a comparison of neighbours is right.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use bywire_analysis::side::Side;
use bywire_analysis::{Comparison, Rule, Verdict};
use bywire_command::exit_status;
use bywire_measure::measure::Request;
use bywire_measure::preset::Preset;
use bywire_measure::{bench, interrupt};
use bywire_results::store;
use clap::Parser;

use crate::page::table;
use crate::run::Lines;

/// Sessions that are joined to one side where sessions taken in turn are compared.
const JOINED: usize = 5;

/// How often a comparison tells the truth, as a Markdown table
#[derive(Parser)]
pub struct Agreement {
    /// Directory of the sessions; those that it holds already are counted in
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

/// Cells whose pace the source sets, so that what slows it down slows them down.
const REQUESTS: [&str; 6] = [
    "tcp latency --size 1",
    "tcp latency --size 1 --spin",
    "unix latency --size 1024 --spin",
    "unix rr --size 1 --spin",
    "udp rr --size 64 --spin",
    "msg latency --size 1024",
];

impl Agreement {
    /// Takes the sessions, and prints the page of all that there are.
    pub fn run(self) -> Result<()> {
        interrupt::arm()?;
        let taken = repetitions(&self.output);
        for repetition in taken..taken + self.repetitions {
            // Each kind comes first as often as last.
            let first = repetition as usize % KINDS.len();
            for kind in KINDS.iter().cycle().skip(first).take(KINDS.len()) {
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

    fn take(&self, repetition: u32, kind: &str) -> Result<()> {
        let directory = self.output.join(format!("{repetition:03}-{kind}"));
        // A session that was interrupted says nothing here.
        if directory.exists() {
            std::fs::remove_dir_all(&directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
        let slowdown_percent = (kind == "slowed").then_some(self.slowdown);
        let requests = REQUESTS.map(|words| -> Result<_> {
            Ok(vec![Request { slowdown_percent, time_seconds: Some(0.2), ..Request::of_words(words)? }])
        });
        let groups = requests.into_iter().collect::<Result<_>>()?;
        let preset = Preset { name: "comparison", ceilings: Vec::new(), groups, absent: Vec::new() };
        // No line about what is done.
        let mut lines = Lines { started: Instant::now(), told: u32::MAX };
        bench::run(preset, Some(self.rounds), &directory, bywire_report::files, &mut lines)?;
        Ok(())
    }
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
    let mut rows = Vec::new();
    let slowed = format!("slowed down by {slowdown} %");
    for (after, what) in [("other", "the same build"), ("slowed", &slowed)] {
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
            let sessions = match joined {
                1 => "two sessions".to_owned(),
                _ => format!("{joined} and {joined} sessions in turn"),
            };
            let counts = [comparisons, same, worse].map(|count| count.to_string());
            let cells = format!("{cells_worse} of {cells}");
            rows.push([vec![format!("{what}, {sessions}")], counts.to_vec(), vec![cells]].concat());
        }
    }
    Ok(table(1, ["comparison", "of", "no difference", "worse", "cells that are worse"], rows))
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

    #[test]
    fn every_request_is_one() {
        assert!(REQUESTS.iter().all(|words| Request::of_words(words).is_ok()));
    }
}
