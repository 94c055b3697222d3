//! `bywire report`: a new report of a stored session.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bywire_command::exit_status::{self, Misuse};
use bywire_measure::bench;
use bywire_report as report;
use bywire_report::merged::{by_preset, merged, together};
use bywire_results::cell::Session;
use bywire_results::store::StoreError;
use bywire_results::{csv, store};
use clap::Args;

/// The sessions that an error lists when the requested one does not exist.
const SHOWN_MAX: usize = 5;

/// Make the report of a stored session again.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Directories that `bywire bench` wrote: each holds session.json and cells.jsonl. Several become one report, with a page
    /// for each preset. Sessions of several machines, of several starts of one, or of one preset are labelled by their
    /// directories' names
    #[arg(required = true, value_name = "SESSION")]
    sessions: Vec<PathBuf>,
    /// Where to write the report [default: report.html in the first session's directory], with a picture and a summary in
    /// Markdown beside it; with --csv or --json, standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the cells as comma-separated values instead.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Write the session with its cells as one JSON object instead.
    #[arg(long)]
    json: bool,
    /// Write every plot as an SVG file into this directory too.
    #[arg(long, value_name = "DIRECTORY")]
    svg: Option<PathBuf>,
    /// Write every table, and the points of every plot, as CSV files into this directory too.
    #[arg(long, value_name = "DIRECTORY")]
    tables: Option<PathBuf>,
}

impl ReportArgs {
    /// Reads the session and writes the requested files.
    ///
    /// # Errors
    /// When the directory holds no session of this version, or the output cannot be written.
    pub fn run(self) -> Result<()> {
        let presets = self.read()?;
        let session = whole(&presets)?;
        if let Some(directory) = &self.svg {
            write_all(directory, report::drawings(&session))?;
        }
        if let Some(directory) = &self.tables {
            write_all(directory, report::tables(&session))?;
        }
        if self.csv || self.json {
            let text = match self.csv {
                true => csv::from_cells(&session.cells),
                false => whole_json(&session)?,
            };
            return match self.output {
                Some(path) => {
                    fs::write(&path, text).map_err(|error| elsewhere(&path, &error))?;
                    bywire_command::output::print(&format!("cells: {}\n", path.display()))
                }
                None => bywire_command::output::print(&text),
            };
        }
        let path = self.output.unwrap_or_else(|| self.sessions[0].join("report.html"));
        let presets = by_preset(presets);
        let whole = together(&presets);
        for (ending, text) in report::files_of_presets(&presets, &whole) {
            let path = if ending == "html" { path.clone() } else { beside(&path, &ending) };
            fs::write(&path, text).map_err(|error| elsewhere(&path, &error))?;
        }
        let summary = report::summary_text(&whole);
        bywire_command::output::print(&format!("{summary}\n{}", where_it_is(&path)))
    }

    fn read(&self) -> Result<Vec<(String, Session)>> {
        let mut sessions: Vec<(String, Session)> = Vec::new();
        for (index, path) in self.sessions.iter().enumerate() {
            if let Some(known) = self.sessions[..index].iter().find(|known| store::is_same(known, path)) {
                bail!(Misuse(format!(
                    "{} and {} are the same session: name each once",
                    known.display(),
                    path.display()
                )));
            }
            let session = match store::read(path) {
                Err(absent @ StoreError::Absent(_)) => bail!(Misuse(format!("{absent}{}", there_are(path)))),
                session => session?,
            };
            if let Some(line) = store::cut_off(path, session.cells.len())? {
                exit_status::complain("bywire", line);
            }
            // Of a single one the summary says so.
            if !session.complete && self.sessions.len() > 1 {
                let path = path.display();
                exit_status::complain(
                    "bywire",
                    format!("{path} was interrupted: it holds what had been measured by then"),
                );
            }
            let name = path.file_name().map_or_else(|| "session".into(), |name| name.to_string_lossy());
            let known = sessions.iter().filter(|(known, _)| known.split(' ').next() == Some(&*name)).count();
            let name = if known == 0 { name.into_owned() } else { format!("{name} {}", known + 1) };
            sessions.push((name, session));
        }
        Ok(sessions)
    }
}

/// A file beside the page, whatever that is called: it never takes the page's own name.
fn beside(page: &Path, ending: &str) -> PathBuf {
    match page.extension().is_some_and(|own| own == "html" || own == "htm") {
        true => page.with_extension(ending),
        false => PathBuf::from(format!("{}.{ending}", page.display())),
    }
}

/// The lines that say where the page is, and what to share of it.
pub fn where_it_is(page: &Path) -> String {
    let [picture, summary] = ["svg", "md"].map(|ending| beside(page, ending));
    format!("report: {}\nto share: {}, {}\n", page.display(), picture.display(), summary.display())
}

/// Everything that was named as one session.
fn whole(sessions: &[(String, Session)]) -> Result<Session> {
    merged(sessions.to_vec()).context("no session was named")
}

fn write_all(directory: &Path, files: Vec<(String, String)>) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for (name, text) in files {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The newest sessions in the directory that was named, beside it, and where `bywire bench` puts them.
fn there_are(named: &Path) -> String {
    let beside = named.parent().filter(|parent| !parent.as_os_str().is_empty());
    let beside = beside.unwrap_or(Path::new("."));
    let found = store::newest_first(&[named, beside, Path::new(bench::SESSIONS)]);
    let shown: Vec<String> =
        found.iter().take(SHOWN_MAX).map(|session| session.display().to_string()).collect();
    let more = found.len().saturating_sub(SHOWN_MAX);
    match (shown.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("; there are {}", shown.join(", ")),
        (false, more) => format!("; there are {}, and {more} older", shown.join(", ")),
    }
}

fn elsewhere(path: &Path, error: &std::io::Error) -> Misuse {
    Misuse(format!("cannot write {}: {error}; name another file by --output", path.display()))
}

/// A stored session keeps its cells apart; here they belong inside.
fn whole_json(session: &bywire_results::cell::Session) -> Result<String> {
    let mut whole = serde_json::to_value(session)?;
    whole["cells"] = serde_json::to_value(&session.cells)?;
    Ok(serde_json::to_string(&whole)? + "\n")
}
