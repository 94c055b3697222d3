//! The run of a part: its arguments, the session that it takes, and the output of its page.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bywire_command::output;
use bywire_measure::bench::{self, Progress};
use bywire_measure::interrupt;
use bywire_results::cell::{Absence, Cell, Session};
use bywire_results::store;

use crate::contestant::Contest;
use crate::figures::Figures;

/// The duration of a contest, and where its session and its tables go.
#[derive(clap::Args)]
pub struct Arguments {
    /// Fresh pairs of everything, in turn
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measuring time of one pair of Bywire's
    #[arg(long, default_value_t = 0.4, value_name = "SECONDS")]
    time: f64,
    /// Take only what has one of these in its name
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Directory for the session, which `bywire report` and `bywire compare` read [default: a new one in `sessions`]
    #[arg(long, value_name = "DIRECTORY")]
    session: Option<PathBuf>,
    /// Measure nothing: print the tables of a stored session
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["rounds", "time", "only", "session"])]
    from: Option<PathBuf>,
    /// Write the tables to a file as well
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Arguments {
    /// Runs the contest of `contestants`, which are given the measuring time of a pair, stores its session, and prints its `page`.
    /// Contestants that fail are on the page with the reason.
    pub fn run(
        self,
        name: &str,
        contestants: impl FnOnce(f64) -> Contest,
        page: impl FnOnce(&Figures) -> String,
    ) -> Result<()> {
        let session = match &self.from {
            Some(directory) => store::read(directory)?,
            None => {
                interrupt::arm()?;
                self.take(name, contestants)?
            }
        };
        let page = page(&Figures::of(&session));
        output::print(&page)?;
        match self.output {
            Some(path) => {
                std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
            }
            None => Ok(()),
        }
    }

    fn take(&self, name: &str, contestants: impl FnOnce(f64) -> Contest) -> Result<Session> {
        let mut contest = contestants(self.time);
        if !self.only.is_empty() {
            contest.0.retain(|(name, _)| self.only.iter().any(|part| name.contains(part)));
        }
        let directory = self.session.clone().unwrap_or_else(|| bench::default_directory(name));
        let mut lines = Lines { started: Instant::now(), told: 0 };
        let entries = contest.entries();
        let finished =
            bench::in_rounds(name, entries, self.rounds, &directory, bywire_report::files, &mut lines)?;
        if !finished.session.complete {
            eprintln!("interrupted: the tables hold what there is");
        }
        eprintln!("the session is in {}", finished.directory.display());
        Ok(finished.session)
    }
}

/// Every twentieth of the whole as a line on standard error, and whatever cannot be measured.
pub struct Lines {
    /// The beginning.
    pub started: Instant,
    /// The last twentieth that has its line.
    pub told: u32,
}

impl Progress for Lines {
    fn begins(&mut self, _cells: usize, _total: Duration) {
        self.started = Instant::now();
    }

    fn advanced(&mut self, done: Duration, total: Duration) {
        let share = done.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE);
        let twentieth = (share * 20.0) as u32;
        if twentieth > self.told {
            self.told = twentieth;
            let left = self.started.elapsed().as_secs_f64() * (1.0 / share - 1.0);
            eprintln!("{:.0} % done, {left:.0} s left", 100.0 * share);
        }
    }

    fn measured(&mut self, _cell: &Cell) {}

    fn absent(&mut self, absence: &Absence) {
        let names = [Some(&absence.level), absence.test.as_ref()];
        let names: Vec<&str> = names.into_iter().flatten().map(String::as_str).collect();
        eprintln!("{}: {}", names.join(" "), absence.reason);
    }
}

#[cfg(test)]
mod tests {
    use bywire_analysis::{Comparison, Rule, Side};
    use bywire_results::cell::Unit;

    use super::*;
    use crate::contestant::Contestant;
    use crate::page;

    fn contestants(value: f64) -> Contest {
        let mut contest = Contest::default();
        contest.add("steady", Ok(Contestant::of_value("a command", Unit::Nanoseconds, move || Ok(value))));
        let worn = || anyhow::bail!("worn\nout");
        contest.add("weak", Ok(Contestant::of_value("a command", Unit::Nanoseconds, worn)));
        contest.add("nowhere", Err(anyhow::anyhow!("not\ninstalled")));
        contest
    }

    fn arguments(session: Option<PathBuf>, from: Option<PathBuf>) -> Arguments {
        Arguments { rounds: 6, time: 0.01, only: Vec::new(), session, from, output: None }
    }

    #[test]
    fn a_run_is_a_session_that_can_be_reported_compared_and_printed_again() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        for (place, value) in [(&one, 100.0), (&other, 110.0)] {
            let arguments = arguments(Some(place.clone()), None);
            let session = arguments.take("test", |_pair_seconds| contestants(value)).unwrap();
            assert_eq!(session.cells.len(), 1);
            let report = std::fs::read_to_string(place.join("report.html")).unwrap();
            assert!(report.contains("a command") && report.contains("not installed"));
        }
        let [before, after] = [&one, &other].map(|place| Side::read(place).unwrap());
        let comparison = Comparison::of(&before, &after, Rule::default());
        let rows: Vec<_> = comparison.rows.iter().map(|row| (row.name(), row.values)).collect();
        assert_eq!(rows, [("figure steady".to_owned(), [100.0, 110.0])]);
        let mut printed = String::new();
        let page = |figures: &Figures| {
            printed = page::contestants(figures);
            printed.clone()
        };
        arguments(None, Some(one)).run("test", |_| Contest::default(), page).unwrap();
        for line in [
            "| steady | 100 ns (100 ns to 100 ns) | not known | `a command` |",
            "nowhere was given up: not installed",
            "weak was given up: weak, after 0 of 6 pairs: worn out",
        ] {
            assert!(printed.contains(line), "{printed}");
        }
    }
}
