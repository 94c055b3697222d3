//! `bywire compare`: what became better or worse between two sessions, and a gate for CI.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bywire_analysis::side::Side;
use bywire_analysis::{Comparison, Rule, WORSE_EXIT_CODE, benchmark_action, junit};
use bywire_command::exit_status::Misuse;
use bywire_measure::bench;
use bywire_results::store::{self, StoreError};
use clap::Args;

/// Which sessions, and what counts.
#[derive(Args, Debug)]
#[command(
    before_help = "\
Examples:
  bywire compare sessions/before sessions/after
  bywire compare before after --threshold 3 --junit compare.xml
  bywire compare before after --json",
    after_help = "\
Take both sessions with `bywire bench --rounds 20`: five pairs a cell are too few to tell a difference from chance. It \
is best to take short sessions of both in turn, and to compare the two directories that hold them:

  for round in 1 2 3 4 5 6 7 8 9 10; do
    ./old/bywire bench --rounds 2 --output before/$round
    ./new/bywire bench --rounds 2 --output after/$round
  done

Exit code 3: a cell is worse by more than the threshold and outside the interval, or a cell that was measured before \
was not measured after, or failed. With --allow-missing a missing cell is reported and skipped."
)]
pub struct CompareArgs {
    /// The session's directory, or a directory with several sessions of one build
    before: PathBuf,
    /// The same for the side after
    after: PathBuf,
    /// The smallest change of cost, in percent, that counts as a difference: above 0, below 100
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    threshold: f64,
    /// How many of 100 comparisons of equal builds claim no difference in any cell: above 0, below 100
    #[arg(long, value_name = "PERCENT", default_value_t = 95.0, value_parser = percent)]
    confidence: f64,
    /// Accept cells that were measured before and not after [default: exit with status 3]
    #[arg(long)]
    allow_missing: bool,
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
    /// Also write the verdicts as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Also write the second session for github-action-benchmark, as smaller-is-better.json and bigger-is-better.json
    #[arg(long, value_name = "DIRECTORY")]
    benchmark_action: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if value > 0.0 && value < 100.0 {
        Ok(value)
    } else {
        Err("give more than 0 and less than 100".to_owned())
    }
}

impl CompareArgs {
    /// Compares, prints, and ends the program with [`WORSE_EXIT_CODE`] where something is worse or missing.
    ///
    /// # Errors
    /// One line: there is no session, it cannot be read, or the output cannot be written.
    pub fn run(self) -> Result<()> {
        if store::is_same(&self.before, &self.after) {
            let (before, after) = (self.before.display(), self.after.display());
            bail!(Misuse(format!(
                "{before} and {after} are the same session: name the one before the change and the one after it"
            )));
        }
        let (before, after) = (side(&self.before)?, side(&self.after)?);
        let rule = Rule {
            threshold_share: self.threshold / 100.0,
            error_share: 1.0 - self.confidence / 100.0,
            allow_missing: self.allow_missing,
        };
        let comparison = Comparison::of(&before, &after, rule);
        // Where one preset has none of its cells after, all of them broke.
        let presets = [&before, &after].map(|side| &side.sessions[0].preset);
        let unlike = comparison.missing.is_empty() || presets[0] != presets[1];
        if comparison.rows.is_empty() && unlike {
            bail!(Misuse(format!(
                "{} and {} have no cell in common: compare sessions of one preset",
                before.name, after.name
            )));
        }
        self.export(&comparison)?;
        bywire_command::output::print(&match self.json {
            true => format!("{}\n", comparison.json()),
            false => comparison.text(),
        })?;
        if comparison.fails() {
            std::process::exit(WORSE_EXIT_CODE);
        }
        Ok(())
    }

    fn export(&self, comparison: &Comparison) -> Result<()> {
        if let Some(path) = &self.junit {
            write(path, &junit::report(comparison)?)?;
        }
        if let Some(directory) = &self.benchmark_action {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
            let [smaller, bigger] = benchmark_action::entries(comparison);
            write(&directory.join("smaller-is-better.json"), &format!("{smaller}\n"))?;
            write(&directory.join("bigger-is-better.json"), &format!("{bigger}\n"))?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn side(path: &Path) -> Result<Side> {
    match Side::read(path) {
        Err(absent @ StoreError::Absent(_)) => {
            let found = store::newest_first(&[Path::new(bench::SESSIONS)]);
            let newest = found.first().map(|session| format!("; the newest is {}", session.display()));
            bail!(Misuse(format!("{absent}{}", newest.unwrap_or_default())))
        }
        side => Ok(side?),
    }
}
