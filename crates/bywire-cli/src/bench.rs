//! `bywire bench`: a session of a preset, with one report at its end.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use bywire_command::exit_status::{self, Misuse};
use bywire_command::suggested_values::SuggestedValues;
use bywire_measure::bench::{self, Finished};
use bywire_measure::{interrupt, preset, registry, slowdown};
use bywire_report as report;
use bywire_results::cell::{Absence, Cell};
use bywire_results::store::StoreError;
use clap::Args;
use serde_json::json;

use crate::progress::Progress;
use crate::table;

/// What to run and where to keep it.
#[derive(Args, Debug)]
#[command(before_help = "\
Examples:
  bywire bench
  bywire bench full --levels unix,tcp
  bywire bench gm-ethernet --time 10 --output sessions/ethernet", after_help = after_help())]
pub struct BenchArgs {
    /// The preset, which names the cells
    #[arg(default_value = "quick", value_parser = SuggestedValues::of(preset::PRESETS.map(|preset| preset.name)), hide_possible_values = true)]
    preset: String,
    /// Measuring time of each cell, in all of its five pairs: at least 0.005, N½ 0.09 [default: 1, N½ 5; gm-ethernet 60]
    #[arg(long, value_name = "SECONDS", value_parser = bywire_measure::measure::parse_time, allow_negative_numbers = true)]
    time: Option<f64>,
    /// Take one pair of every cell in each of N rounds, for `bywire compare` [default: cell after cell]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(bench::ROUNDS_MAX)))]
    rounds: Option<u32>,
    /// Slow every source down by this percentage, to see what `bywire compare` finds [default: none]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=i64::from(slowdown::PERCENT_MAX)))]
    slowdown: Option<u32>,
    /// Directory for the session and its report [default: a new one in `sessions`]
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Only these levels: memory, msg, unix, tcp, sock, udp, eth, mpi, web [default: those of the preset]
    #[arg(long, value_name = "LEVEL,…", value_delimiter = ',', value_parser = levels(), hide_possible_values = true)]
    levels: Option<Vec<String>>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

fn levels() -> SuggestedValues {
    SuggestedValues::of(registry::names())
}

fn after_help() -> String {
    let line = |preset: preset::Design| {
        format!("  {:<12} {:<14} {}", preset.name, preset::about(preset.usual()), preset.about)
    };
    let presets = preset::PRESETS.map(line);
    format!("Presets, and how long each takes with every level and its usual --time:\n{}", presets.join("\n"))
}

impl BenchArgs {
    /// Runs the session and says where its report is.
    pub fn run(self) -> Result<()> {
        interrupt::arm()?;
        let mut preset = preset::named(&self.preset, self.time, self.levels.as_deref())?;
        for request in preset.groups.iter_mut().flatten() {
            request.slowdown_percent = self.slowdown;
        }
        let directory = self.output.clone().unwrap_or_else(|| bench::default_directory(preset.name));
        let mut lines = Lines::new(self.json);
        let finished =
            bench::run(preset, self.rounds, &directory, report::files, &mut lines).map_err(elsewhere)?;
        lines.progress.clear();
        self.print(&finished)?;
        if !finished.session.complete {
            eprintln!("bywire: interrupted: what was measured is kept in {}", finished.directory.display());
            std::process::exit(exit_status::INTERRUPTED);
        }
        Ok(())
    }

    fn print(&self, finished: &Finished) -> Result<()> {
        if self.json {
            let mut whole = serde_json::to_value(&finished.session)?;
            whole["cells"] = serde_json::to_value(&finished.session.cells)?;
            whole["directory"] = json!(finished.directory);
            whole["report"] = json!(finished.report);
            return bywire_command::output::print(&format!("{whole}\n"));
        }
        let summary = report::summary_text(&finished.session);
        let said = crate::report::where_it_is(&finished.report);
        bywire_command::output::print(&format!("\n{}\n\n{said}", summary.trim_end()))
    }
}

/// A directory that cannot be had is named by another --output; a disk that is full while running is a failure.
fn elsewhere(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<StoreError>() {
        Some(StoreError::File { action: "make", .. }) => {
            Misuse(format!("{error}; name another directory by --output")).into()
        }
        Some(StoreError::Occupied(_)) => Misuse(format!("{error} by --output")).into(),
        _ => error,
    }
}

/// A bar with the time left on a terminal, plain lines elsewhere.
struct Lines {
    progress: Progress,
    quiet: bool,
    headed: bool,
}

impl Lines {
    fn new(quiet: bool) -> Self {
        Self { progress: Progress::new(), quiet, headed: false }
    }

    fn line(&self, text: &str) {
        if !self.progress.print(text) && !self.quiet {
            let _closed = bywire_command::output::print(&format!("{text}\n"));
        }
    }
}

impl bench::Progress for Lines {
    fn begins(&mut self, cells: usize, total: Duration) {
        self.line(&format!("{cells} cells, {}", preset::about(total)));
    }

    fn advanced(&mut self, done: Duration, total: Duration) {
        self.progress.advance(done.as_secs_f64() / total.as_secs_f64());
    }

    fn measured(&mut self, cell: &Cell) {
        if !std::mem::replace(&mut self.headed, true) {
            self.line(&table::line_heading());
        }
        self.line(&table::line(cell));
    }

    fn absent(&mut self, absence: &Absence) {
        let test = absence.test.as_deref().unwrap_or("");
        self.line(&format!("{:<7} {test:<10} not measured: {}", absence.level, absence.reason));
    }
}
