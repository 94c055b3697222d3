//! Measures UCX and Open MPI in turn with Bywire, in one run, and prints ratios.

use std::path::Path;
use std::process::ExitCode;

use bywire_command::exit_status;
use bywire_figures::contest::Contest;
use bywire_figures::program::Arguments;
use bywire_figures::rival_pair::Place;
use bywire_figures::table::{self, Show};
use bywire_figures::{lab, open_mpi, ucx};
use bywire_measure::measure::Request;
use bywire_measure::mpi;
use bywire_results::cell::DISTURBED;
use clap::Parser;

/// Bywire, UCX and Open MPI between two processes of this machine, in one run, as a Markdown table
#[derive(Parser)]
struct Rivals {
    #[command(flatten)]
    arguments: Arguments,
}

/// A comparison: what, and the series of Bywire, UCX and Open MPI.
struct Comparison {
    what: &'static str,
    series: [&'static str; 3],
    show: Show,
}

#[rustfmt::skip]
const COMPARISONS: [Comparison; 6] = [
    Comparison { what: "8 B half-RTT, median (less is better)", series: ["bywire latency", "ucx latency", "mpi latency"], show: table::ns },
    Comparison { what: "8 B half-RTT, mean (less is better)", series: ["bywire latency mean", "ucx latency mean", "mpi latency mean"], show: table::ns },
    Comparison { what: "8 B messages (more is better)", series: ["bywire 8 messages", "ucx 8 messages", "mpi stream 8 messages"], show: table::millions },
    Comparison { what: "1 KiB stream (more is better)", series: ["bywire 1024", "ucx 1024", "mpi stream 1024"], show: table::rate },
    Comparison { what: "64 KiB stream (more is better)", series: ["bywire 65536", "ucx 65536", "mpi stream 65536"], show: table::rate },
    Comparison { what: "1 MiB stream (more is better)", series: ["bywire 1048576", "ucx 1048576", "mpi stream 1048576"], show: table::rate },
];

/// What the laboratory's level `mpi` says, and what a small loop of the usual kind says in the same run.
const AGREEMENTS: [(&str, [&str; 2], Show); 4] = [
    ("8 B half-RTT, median", ["laboratory latency", "mpi latency"], table::ns),
    ("1 KiB stream", ["laboratory 1024", "mpi stream 1024"], table::rate),
    ("64 KiB stream", ["laboratory 65536", "mpi stream 65536"], table::rate),
    ("1 MiB stream", ["laboratory 1048576", "mpi stream 1048576"], table::rate),
];

/// Sizes of the streams with the messages that UCX sends at each.
const STREAMS: [(u64, u64); 4] = [(8, 4_000_000), (1024, 1_000_000), (65_536, 60_000), (1 << 20, 4_000)];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["__worker", ..] => return exit_status::of("rivals", bywire_measure::worker::run()),
        [mpi::COMMAND, socket, program] => {
            return exit_status::of("rivals", mpi::run_rank(Path::new(socket), Path::new(program)));
        }
        _ => {}
    }
    let arguments = Rivals::parse().arguments;
    exit_status::of(
        "rivals",
        tempfile::tempdir().map_err(Into::into).and_then(|directory| {
            arguments.run(|pair_seconds| contestants(pair_seconds, directory.path()), page)
        }),
    )
}

/// All contestants. `directory` is for compiled programs.
fn contestants(pair_seconds: f64, directory: &Path) -> Contest {
    let mut contest = Contest::default();
    let sized = |test, bytes| Request { size_bytes: Some(bytes), ..Request::new("msg", test) };
    contest.add("bywire latency", lab::contestant("bywire latency", sized("latency", 8), pair_seconds));
    contest.add("ucx latency", ucx::latency("ucx latency", &Place::Machine, 8, 1_000_000));
    for (bytes, messages) in STREAMS {
        let name = format!("bywire {bytes}");
        contest.add(&name, lab::contestant(&name, sized("stream", bytes), pair_seconds));
        let name = format!("ucx {bytes}");
        contest.add(&name, ucx::stream(&name, &Place::Machine, bytes, messages));
    }
    contest.add("mpi", open_mpi::contestant("mpi", directory));
    let of_mpi = |test, bytes| Request { level: "mpi".to_owned(), ..sized(test, bytes) };
    for (name, test, bytes) in [
        ("laboratory latency", "latency", 8),
        ("laboratory 1024", "stream", 1024),
        ("laboratory 65536", "stream", 65_536),
        ("laboratory 1048576", "stream", 1 << 20),
    ] {
        contest.add(name, lab::contestant(name, of_mpi(test, bytes), pair_seconds));
    }
    contest
}

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push_str(
        "UCX neither writes nor reads payloads; Bywire and Open MPI write and read every byte.\n\n",
    );
    page.push_str(&table::heading(&[
        "what",
        "Bywire",
        "UCX",
        "Bywire over UCX",
        "Open MPI",
        "Bywire over Open MPI",
    ]));
    for comparison in &COMPARISONS {
        let [own, ucx, mpi] = comparison.series;
        let absolute = |series| match contest.rounds().figure(series) {
            Some(figure) => (comparison.show)(figure.value),
            None => "not measured".to_owned(),
        };
        let over = |rival| match contest.rounds().ratio(own, rival) {
            Some(ratio) => table::figure(ratio, table::ratio),
            None => "not measured".to_owned(),
        };
        page.push_str(&table::row(&[
            comparison.what.to_owned(),
            absolute(own),
            absolute(ucx),
            over(ucx),
            absolute(mpi),
            over(mpi),
        ]));
    }
    page.push_str(
        "\nThe laboratory's level `mpi` beside a small loop of the usual kind, both by Open MPI:\n\n",
    );
    page.push_str(&table::heading(&["what", "level `mpi`", "small loop", "ratio"]));
    for (what, [own, other], show) in AGREEMENTS {
        let absolute = |series| {
            contest.rounds().figure(series).map_or("not measured".to_owned(), |figure| show(figure.value))
        };
        let ratio = contest.rounds().ratio(own, other);
        let ratio = ratio.map_or("not measured".to_owned(), |ratio| table::figure(ratio, table::ratio));
        page.push_str(&table::row(&[what.to_owned(), absolute(own), absolute(other), ratio]));
    }
    page.push_str(&format!("\nBehind them. {DISTURBED}\n\n"));
    page.push_str(&table::contestants(contest, show));
    page
}

/// How a series is written, by its name.
fn show(series: &str) -> Show {
    match series {
        _ if series.ends_with("messages") => table::millions,
        _ if series.contains("latency") => table::ns,
        _ => table::rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rivals_are_listed_with_the_reason() {
        let mut contest = Contest::default();
        contest.add("mpi", Err(anyhow::anyhow!("mpicc is not installed")));
        let page = page(&contest);
        assert!(page.contains("not measured") && page.contains("mpicc is not installed"), "{page}");
    }
}
