//! Common parts of the programs that run a contest: their arguments, and the output of the page.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use bywire_measure::interrupt;

use crate::contest::Contest;

/// The duration of a contest, and the file of its tables.
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
    /// Write the tables to a file as well
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Arguments {
    /// Runs the contest of `contestants`, which are given the measuring time of a pair, and prints its `page`.
    ///
    /// # Errors
    /// A file that cannot be written. Contestants that fail are on the page with the reason.
    pub fn run(
        self,
        contestants: impl FnOnce(f64) -> Contest,
        page: impl FnOnce(&Contest) -> String,
    ) -> Result<()> {
        interrupt::arm()?;
        let mut contest = contestants(self.time);
        if !self.only.is_empty() {
            contest.retain(|name| self.only.iter().any(|part| name.contains(part)));
        }
        contest.run(self.rounds);
        let page = page(&contest);
        print!("{page}");
        match self.output {
            Some(path) => {
                std::fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
            }
            None => Ok(()),
        }
    }
}

/// The laboratory carries frames by the program that it is part of, here by the one beside it.
///
/// # Errors
/// It is not where it should be.
pub fn become_bywire(words: &[String]) -> anyhow::Result<()> {
    let bywire = std::env::current_exe()?.with_file_name("bywire");
    Err(Command::new(&bywire).args(words).exec()).with_context(|| format!("cannot run {}", bywire.display()))
}
