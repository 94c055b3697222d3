//! `bywire measure`: one cell.

use std::path::PathBuf;

use anyhow::{Context, Result};
use bywire_command::chosen::Chosen;
use bywire_command::exit_status::{self, Misuse};
use bywire_command::suggested_values::SuggestedValues;
use bywire_measure::interrupt;
use bywire_measure::measure::{self, Request};
use bywire_measure::options::Credential;
use bywire_measure::registry;
use bywire_report::netperf::Netperf;
use clap::{ArgAction, Args, Command, ValueEnum};

use crate::progress::Progress;
use crate::{help, key, table};

/// What to measure, and how.
#[derive(Args, Debug)]
#[command(before_help = help::EXAMPLES, disable_help_flag = true)]
pub struct MeasureArgs {
    /// The level to measure: memory, msg, unix, tcp, sock, udp, eth, mpi, web
    #[arg(value_parser = SuggestedValues::of(registry::names()), hide_possible_values = true, required_unless_present = "help")]
    level: Option<String>,
    /// The test; `bywire measure LEVEL --help` lists the tests of a level
    #[arg(value_parser = tests(), hide_possible_values = true, required_unless_present = "help")]
    test: Option<String>,
    #[command(flatten)]
    options: Chosen<Request>,
    /// File with the key of the host's `bywire serve`; the help of `serve` says how to make one [default: no key]
    #[arg(long, value_name = "FILE", help_heading = "How the messages are carried")]
    key: Option<PathBuf>,
    /// HOST is a node of this machine's fabric, where `bywire serve --fabric` runs
    #[arg(long, conflicts_with = "key", help_heading = "How the messages are carried")]
    fabric: bool,
    /// Print one JSON object and nothing else
    #[arg(long, conflicts_with = "style", help_heading = "What is printed")]
    json: bool,
    /// Print in another program's form: netperf (stream and rr of tcp, sock, udp, eth) [default: our own text]
    #[arg(long, value_name = "STYLE", help_heading = "What is printed")]
    style: Option<Style>,
    /// Print help; with LEVEL its tests, links and options
    #[arg(short, long, action = ArgAction::SetTrue, help_heading = "What is printed")]
    help: bool,
}

fn tests() -> SuggestedValues {
    SuggestedValues::of(registry::all_tests().into_iter().map(|(name, _)| name))
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Style {
    /// Netperf 2.2's classic text with CPU at both ends
    Netperf,
}

impl MeasureArgs {
    /// Measures and prints.
    pub fn run(self, command: Command) -> Result<()> {
        if self.help {
            return help::print(command, self.level.as_deref());
        }
        interrupt::arm()?;
        let request = self.request()?;
        if self.style.is_some() {
            let level = if request.is_unix() { "unix" } else { request.level.as_str() };
            Netperf::check(level, &request.test).map_err(Misuse::of)?;
        }
        let bar = Progress::new();
        let measured = measure::run(request, &mut |share| bar.advance(share));
        bar.clear();
        let cell = match measured {
            Err(_) if interrupt::requested() => {
                eprintln!("bywire: interrupted before the cell was complete: nothing is printed");
                std::process::exit(exit_status::INTERRUPTED);
            }
            result => result?,
        };
        let text = if self.json {
            serde_json::to_string(&cell)? + "\n"
        } else if self.style.is_some() {
            Netperf::from_cell(&cell)?.to_string()
        } else {
            table::of_cell(&cell)
        };
        bywire_command::output::print(&text)?;
        if self.style.is_some() && cell.cpu.carriers.is_some() {
            bywire_command::output::print(
                "CPU of the processes that carry frames between both ends is not part of it: see --json\n",
            )?;
        }
        Ok(())
    }

    fn request(&self) -> Result<Request> {
        let word = |word: &Option<String>| word.clone().context("a level and a test");
        let mut request = Request::new(&word(&self.level)?, &word(&self.test)?);
        self.options.set_in(&mut request)?;
        let key = self.key.as_deref().map(key::read).transpose()?;
        request.credential = key.map(Credential::Key).or(self.fabric.then_some(Credential::Fabric));
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use bywire_command::chosen::listed;
    use bywire_command::option_row::OptionRow;
    use clap::FromArgMatches;

    use super::*;

    /// What the shell makes of a command line: its words after the program and its subcommand.
    fn words(line: &str) -> Vec<String> {
        let script = format!("printf '%s\\0' {line}");
        let done = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
        assert!(done.status.success(), "{line}");
        let text = String::from_utf8(done.stdout).expect("UTF-8");
        text.split_terminator('\0').skip(2).map(str::to_owned).collect()
    }

    fn asked(line: &str) -> Request {
        let command = MeasureArgs::augment_args(Command::new("measure").no_binary_name(true));
        let matches = command.try_get_matches_from(words(line)).expect("it is accepted");
        let args = MeasureArgs::from_arg_matches(&matches).expect("arguments");
        args.request().expect("a request")
    }

    /// Something that each option takes, and that is not its default.
    fn sample(row: &OptionRow<Request>) -> &'static str {
        match (row.name, (row.words)().first()) {
            ("between", _) => "host; echo `id` $HOME 'x' \"y\"",
            ("trace-out", _) => "a file's\nname",
            ("cores", _) => "3,1",
            ("time" | "alpha", _) => "0.30000000000000004",
            ("congestion", _) => "bbr",
            (_, Some(word)) => word,
            _ => "7",
        }
    }

    #[test]
    fn the_printed_command_repeats_the_measurement() {
        let mut all = Request::new("tcp", "stream");
        for row in listed::<Request>() {
            let mut request = Request::new("tcp", "stream");
            row.set(&mut request, sample(row)).expect(row.name);
            assert!(row.is_given(&request), "{}", row.name);
            assert_eq!(asked(&request.command()), request, "{}", request.command());
            if !["no-spin", "untouched"].contains(&row.name) {
                row.set(&mut all, sample(row)).expect(row.name);
            }
        }
        assert_eq!(asked(&all.command()), all, "{}", all.command());
    }
}
