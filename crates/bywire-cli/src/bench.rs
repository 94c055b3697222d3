//! `bywire bench`: a session of a preset, with one report at its end.

use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use bywire_lab::bench::{self, Finished, Progress};
use bywire_lab::cell::{Absence, Cell};
use bywire_lab::{burden, interrupt, preset, report};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::table;

/// What to run and where to keep it.
#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub struct BenchArgs {
    /// Which cells are taken
    #[arg(default_value = "quick")]
    preset: String,
    /// Measuring time of each cell, over five fresh pairs
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
    /// Take one pair of every cell in each of so many rounds, for `bywire compare`, rather than cell after cell
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(bench::ROUNDS_MAX)))]
    rounds: Option<u32>,
    /// Slow every source down by so many percent: to see what `bywire compare` finds
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=i64::from(burden::PERCENT_MAX)))]
    burden: Option<u32>,
    /// Directory for the session and its report; by default a new one under `sessions`
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Only these levels
    #[arg(long, value_name = "LEVEL,…", value_delimiter = ',')]
    levels: Option<Vec<String>>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

fn after_help() -> String {
    let presets: Vec<String> =
        preset::PRESETS.iter().map(|(name, what)| format!("  {name:<12} {what}")).collect();
    format!(
        "Presets:\n{}\n\nExamples:\n  bywire bench\n  bywire bench full --levels unix,tcp\n  \
         bywire bench gm-ethernet --time 10 --output sessions/ethernet",
        presets.join("\n")
    )
}

impl BenchArgs {
    /// Runs the session and says where its report is.
    pub fn run(self) -> Result<()> {
        interrupt::arm()?;
        let mut preset = preset::named(&self.preset, self.time, self.levels.as_deref())?;
        for request in preset.groups.iter_mut().flatten() {
            request.burden_percent = self.burden;
        }
        let directory = self.output.clone().unwrap_or_else(|| bench::default_directory(preset.name));
        let mut lines = Lines::new(self.json);
        let finished = bench::run(preset, self.rounds, &directory, &mut lines)?;
        lines.bar.finish_and_clear();
        self.print(&finished)?;
        if !finished.session.complete {
            eprintln!("bywire: interrupted: what was measured is kept in {}", finished.directory.display());
            std::process::exit(interrupt::EXIT_CODE);
        }
        Ok(())
    }

    fn print(&self, finished: &Finished) -> Result<()> {
        if self.json {
            let mut whole = serde_json::to_value(&finished.session)?;
            whole["cells"] = serde_json::to_value(&finished.session.cells)?;
            whole["directory"] = json!(finished.directory);
            whole["report"] = json!(finished.report);
            return crate::print(&format!("{whole}\n"));
        }
        let summary = report::summary_text(&finished.session);
        crate::print(&format!("\n{}\n\nreport: {}\n", summary.trim_end(), finished.report.display()))
    }
}

/// A bar with the time left on a terminal, plain lines elsewhere.
struct Lines {
    bar: ProgressBar,
    quiet: bool,
    headed: bool,
    started: Instant,
}

impl Lines {
    fn new(quiet: bool) -> Self {
        let bar = ProgressBar::new(1000).with_style(
            ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}").expect("a template that parses"),
        );
        if !stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, quiet, headed: false, started: Instant::now() }
    }

    fn line(&self, text: &str) {
        if self.bar.is_hidden() {
            if !self.quiet {
                let _closed = crate::print(&format!("{text}\n"));
            }
        } else {
            self.bar.println(text);
        }
    }
}

impl Progress for Lines {
    fn advanced(&mut self, done: Duration, total: Duration) {
        let share = (done.as_secs_f64() / total.as_secs_f64()).clamp(0.001, 1.0);
        // What was expected is corrected by how long it has really taken so far.
        let left = self.started.elapsed().as_secs_f64() * (1.0 / share - 1.0);
        self.bar.set_position((1000.0 * share) as u64);
        self.bar.set_message(format!("{} left", minutes(left)));
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

fn minutes(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
