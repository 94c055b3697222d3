//! `bywire report`: the report of a stored session, made again.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use bywire_lab::{csv, report, store};
use clap::Args;

/// Make the report of a stored session again.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The directory that `bywire bench` named: it holds session.json and cells.jsonl.
    session: PathBuf,
    /// Where to write the report [default: report.html in the session's directory]; with --csv or --json, standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the cells as comma-separated values instead.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Write the session with its cells as one JSON object instead.
    #[arg(long)]
    json: bool,
}

impl ReportArgs {
    /// Reads the session and writes what was asked for.
    ///
    /// # Errors
    /// When the directory holds no session of this version, or the output cannot be written.
    pub fn run(self) -> Result<()> {
        let session = store::read(&self.session)?;
        if self.csv || self.json {
            let text = match self.csv {
                true => csv::from_cells(&session.cells),
                false => whole_json(&session)?,
            };
            return match self.output {
                Some(path) => {
                    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
                }
                None => io::stdout().write_all(text.as_bytes()).context("cannot write to standard output"),
            };
        }
        let path = self.output.unwrap_or_else(|| self.session.join("report.html"));
        fs::write(&path, report::render(&session))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mut out = io::stdout();
        write!(out, "{}\nReport: {}\n", report::summary_text(&session), path.display())
            .context("cannot write to standard output")
    }
}

/// A stored session keeps its cells apart; here they belong inside.
fn whole_json(session: &bywire_lab::cell::Session) -> Result<String> {
    let mut whole = serde_json::to_value(session)?;
    whole["cells"] = serde_json::to_value(&session.cells)?;
    Ok(serde_json::to_string(&whole)? + "\n")
}
