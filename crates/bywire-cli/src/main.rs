//! The `bywire` command.

mod background;
mod bench;
mod breakdown;
mod capture;
mod carried_units;
mod compare;
mod count;
mod doctor;
mod engine;
mod eth;
mod explain;
mod help;
mod historic;
mod join;
mod key;
mod manual;
mod measure;
mod mpi;
mod mpi_loading;
mod node;
mod node_metrics;
mod node_status;
mod nodes;
mod pair;
mod ping;
mod preload_check;
mod preload_diagnosis;
mod progress;
mod reachability;
mod report;
mod run;
mod run_status;
mod serve;
mod service;
mod status;
#[cfg(test)]
mod status_fixture;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bywire_command::exit_status;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(name = "bywire", version, about = "A user-level message fabric for Linux, and its laboratory")]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 success; 1 something failed; 2 the command line is invalid or names something that does not exist; \
                  3 a comparison found something worse; 130 interrupted."
)]
struct Bywire {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Measure this machine level by level and write one report
    Bench(bench::BenchArgs),
    /// Take one measurement
    Measure(Box<measure::MeasureArgs>),
    /// Be the far end of measurements that other machines start
    Serve(serve::ServeArgs),
    /// Make the report of a stored session again
    #[command(
        before_help = "Examples:\n  bywire report SESSION\n  bywire report SESSION --output page.html\n  bywire report SESSION --csv > cells.csv\n  bywire report sessions/one sessions/two --output both.html --svg plots --tables tables"
    )]
    Report(report::ReportArgs),
    /// Compare two sessions: what became better or worse, and with what certainty
    Compare(compare::CompareArgs),
    /// Show models of the source documents' machines: fitted values, predictions, and their deviations
    #[command(
        before_help = "Examples:\n  bywire historic\n  bywire historic --json",
        after_help = "Nothing is measured: each model is made of the figures that its document prints, of Myrinet and of the first \
                      10-Gigabit TCP offload engine. The fitted figures are met by construction. The predicted ones show how \
                      good a model is. The graphs are in the report of a session."
    )]
    Historic(historic::HistoricArgs),
    /// Show what works on this machine and how to enable the rest, or why another node cannot be reached
    #[command(
        before_help = "Examples:\n  bywire doctor\n  bywire doctor --all\n  bywire doctor --json\n  bywire doctor web2\n  bywire doctor --fabric",
        after_help = "`off` marks what is not set up, and may not be wanted. With NODE or --fabric it exits with status 1 if a node cannot be reached. It pings the node over the channel of \
                      `bywire up`, and sends UDP packets to its addresses, to its UDP port and to port 9. Clocks of two machines \
                      need not agree."
    )]
    Doctor(doctor::DoctorArgs),
    /// Print a completion script for a shell
    #[command(before_help = "Examples:\n  bywire completions bash > /etc/bash_completion.d/bywire")]
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write one per subcommand
    #[command(
        before_help = "Examples:\n  bywire man | man -l -\n  bywire man --output /usr/local/share/man/man1"
    )]
    Man(manual::ManArgs),
    /// Run a program so that its connections to other such programs, by TCP or Unix sockets, are carried in memory
    Run(run::RunArgs),
    /// Have services of systemd started by `bywire run`, as their packages ship them
    Service(service::ServiceArgs),
    /// Relay what programs of `bywire run` send to other machines in small pieces
    Engine(engine::EngineArgs),
    /// Pair the connections of `bywire run` of all users, instead of one service for each user
    Pair(pair::PairArgs),
    /// Make this machine's key and a fabric file, to send messages to other machines
    Init(node::InitArgs),
    /// Serve this machine's ports: connections to other machines, until Ctrl-C
    Up(node::UpArgs),
    /// Print an invitation, by which another machine becomes a node of the fabric
    Invite(join::InviteArgs),
    /// Make this machine a node of a fabric by an invitation
    Join(join::JoinArgs),
    /// Show or change the nodes of the fabric
    Node(nodes::NodeArgs),
    /// Print this machine's public key
    Key(nodes::KeyArgs),
    /// Measure the round trip to other nodes, and how many packets are lost
    Ping(ping::PingArgs),
    /// Show this machine's node, and which connections of `bywire run` are carried, which are not, and why
    Status(status::StatusArgs),
    /// Make MPI programs use the fabric
    Mpi(mpi::MpiArgs),
    /// Give namespaces and containers Ethernet interfaces whose frames cross the fabric
    Eth(eth::EthArgs),
    /// Record the frames of a running `bywire eth up`
    Capture(capture::CaptureArgs),
    /// Carries frames, started by `eth up`
    #[command(name = eth::CARRIER, hide = true)]
    Carrier(eth::CarrierArgs),
    /// Pairs connections, started by `run`
    #[command(name = bywire_pairing::launch::SERVICE, hide = true)]
    Pairing(run::ServiceArgs),
    /// Relays beside a measurement
    #[command(name = bywire_pairing::launch::ENGINE, hide = true)]
    Relaying { service: PathBuf },
    /// Makes the library's system calls, started by `run` behind filters
    #[command(name = preload_check::PROBE, hide = true)]
    Calls,
    /// One end of a pair, started by the commands above
    #[command(name = "__worker", hide = true)]
    Worker,
    /// Beside one rank of an MPI job, started by its launcher
    #[command(name = bywire_measure::mpi::COMMAND, hide = true)]
    MpiRank { socket: PathBuf, program: PathBuf },
}

fn main() -> ExitCode {
    bywire_command::output::quiet_when_closed();
    let parsed = command().try_get_matches().and_then(|matches| Bywire::from_arg_matches(&matches));
    match parsed {
        Ok(bywire) => exit_status::of("bywire", bywire.action.run()),
        Err(error)
            if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            let _closed = error.print();
            ExitCode::from(error.exit_code() as u8)
        }
        Err(error) => {
            let words: Vec<String> = std::env::args().skip(1).collect();
            let said = usage_error(&error.render().to_string(), &named(&command(), &words));
            exit_status::complain("bywire", said);
            ExitCode::from(exit_status::MISUSE)
        }
    }
}

/// The command line, with the examples of each subcommand above its options.
fn command() -> clap::Command {
    let template = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";
    Bywire::command().mut_subcommands(|subcommand| subcommand.help_template(template))
}

/// The parser's message of several paragraphs on one line: what is wrong, what may have been meant, and where to look.
fn usage_error(said: &str, command: &str) -> String {
    let paragraphs: Vec<&str> = said.split("\n\n").map(str::trim).collect();
    let wrong = paragraphs[0].trim_start_matches("error: ").trim_end_matches('.');
    let tips = paragraphs.iter().filter(|paragraph| paragraph.starts_with("tip: "));
    let tips: String = tips.map(|tip| format!(" ({})", tip.trim_start_matches("tip: "))).collect();
    format!("{wrong}{tips}; see `{command} --help`")
}

/// The command and the subcommands that `words` begin with.
fn named(command: &clap::Command, words: &[String]) -> String {
    let inner = words.split_first().and_then(|(word, rest)| Some((command.find_subcommand(word)?, rest)));
    match inner {
        Some((inner, rest)) => format!("{} {}", command.get_name(), named(inner, rest)),
        None => command.get_name().to_owned(),
    }
}

impl Action {
    fn run(self) -> Result<()> {
        match self {
            Self::Bench(arguments) => arguments.run(),
            Self::Measure(arguments) => arguments.run(command()),
            Self::Serve(arguments) => arguments.run(),
            Self::Report(arguments) => arguments.run(),
            Self::Run(arguments) => arguments.run(),
            Self::Service(arguments) => arguments.run(),
            Self::Engine(arguments) => arguments.run(),
            Self::Init(arguments) => arguments.run(),
            Self::Up(arguments) => arguments.run(),
            Self::Invite(arguments) => arguments.run(),
            Self::Join(arguments) => arguments.run(),
            Self::Node(arguments) => arguments.run(),
            Self::Key(arguments) => arguments.run(),
            Self::Ping(arguments) => arguments.run(),
            Self::Status(arguments) => arguments.run(),
            Self::Pair(arguments) => arguments.run(),
            Self::Pairing(arguments) => arguments.run(),
            Self::Relaying { service } => engine::relay_beside(&service),
            Self::Calls => preload_check::probe(),
            Self::Compare(arguments) => arguments.run(),
            Self::Eth(arguments) => arguments.run(),
            Self::Mpi(arguments) => arguments.run(),
            Self::Capture(arguments) => arguments.run(),
            Self::Carrier(arguments) => arguments.run(),
            Self::Worker => bywire_measure::worker::run(),
            Self::MpiRank { socket, program } => bywire_measure::mpi::run_rank(&socket, &program),
            Self::Historic(arguments) => arguments.run(),
            Self::Doctor(arguments) => arguments.run(),
            Self::Completions(arguments) => arguments.run(command()),
            Self::Man(arguments) => arguments.run(command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Parses an example as the shell would pass it, up to where the shell interprets more.
    fn accept(example: &str) {
        let ours = example.split(&['|', '>', '(', '#', '&', ';'][..]).next().unwrap();
        let words: Vec<&str> = ours.split_whitespace().collect();
        if let Err(error) = Bywire::try_parse_from(&words) {
            assert!(!error.use_stderr(), "{example}\n{error}");
        }
    }

    fn examples(help: &str) -> impl Iterator<Item = &str> {
        help.lines().map(str::trim).filter(|line| line.starts_with("bywire "))
    }

    #[test]
    fn every_subcommand_has_examples_and_they_are_accepted() {
        let command = command();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            let help = subcommand.get_before_help().map(ToString::to_string).unwrap_or_default();
            let prefix = format!("bywire {}", subcommand.get_name());
            assert!(examples(&help).any(|example| example.starts_with(&prefix)), "{prefix} has no example");
            examples(&help).for_each(accept);
            // Only here, so that they are above the options.
            let after = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert_eq!(examples(&after).next(), None, "{prefix} has an example below its options");
        }
    }

    #[test]
    fn every_option_has_a_line_of_help() {
        fn check(command: &clap::Command) {
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(arg.get_help().is_some(), "{} {arg} has no help", command.get_name());
            }
            command.get_subcommands().filter(|inner| !inner.is_hide_set()).for_each(check);
        }
        check(&command());
    }

    #[test]
    fn the_command_accepts_every_command_of_the_pages() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let directories = [root.clone(), root.join("docs"), root.join("docs/notebook")];
        let files = directories.iter().flat_map(|directory| fs::read_dir(directory).unwrap().flatten());
        let pages =
            files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "md"));
        for page in pages {
            let text = fs::read_to_string(page).unwrap();
            // Every second part between fences is a block of code.
            text.split("```").skip(1).step_by(2).for_each(|block| examples(block).for_each(accept));
        }
    }

    #[test]
    fn the_command_accepts_every_command_of_the_sources_page() {
        let page =
            fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sources.md")).unwrap();
        let commands: Vec<&str> =
            page.split('`').skip(1).step_by(2).filter(|quoted| quoted.starts_with("bywire ")).collect();
        assert!(commands.len() > 200, "only {} commands were read", commands.len());
        commands.into_iter().for_each(accept);
    }

    #[test]
    #[should_panic(expected = "unexpected argument")]
    fn a_wrong_example_is_found() {
        accept("bywire doctor --frobnicate");
    }
}
