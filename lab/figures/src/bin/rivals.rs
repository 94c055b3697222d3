//! Bywire, UCX and Open MPI between two processes of this machine in one run, as ratios.

use std::path::Path;
use std::process::ExitCode;

use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::figures::Figures;
use bywire_figures::rival_pair::Place;
use bywire_figures::series::Metric::{Mean, Messages, Rate};
use bywire_figures::series::{Series, by, value};
use bywire_figures::{open_mpi, page, program, ucx};
use bywire_measure::measure::Request;
use bywire_results::cell::DISTURBED;

/// Comparisons: what, and the series of Bywire, UCX and Open MPI.
const COMPARISONS: [(&str, [Series<'static>; 3]); 6] = [
    ("8 B half-RTT, median (less is better)", [value("bywire latency"), value("ucx latency"), value("mpi")]),
    (
        "8 B half-RTT, mean (less is better)",
        [by("bywire latency", Mean), by("ucx latency", Mean), by("mpi", Mean)],
    ),
    ("8 B messages (more is better)", [by("bywire 8", Messages), by("ucx 8", Messages), by("mpi", Messages)]),
    ("1 KiB stream (more is better)", [value("bywire 1024"), value("ucx 1024"), by("mpi", Rate(1024))]),
    ("64 KiB stream (more is better)", [value("bywire 65536"), value("ucx 65536"), by("mpi", Rate(65_536))]),
    (
        "1 MiB stream (more is better)",
        [value("bywire 1048576"), value("ucx 1048576"), by("mpi", Rate(1 << 20))],
    ),
];

/// Series of the laboratory's level `mpi`, and of a small loop of the usual kind in the same run.
const AGREEMENTS: [(&str, [Series<'static>; 2]); 4] = [
    ("8 B half-RTT, median", [value("laboratory latency"), value("mpi")]),
    ("1 KiB stream", [value("laboratory 1024"), by("mpi", Rate(1024))]),
    ("64 KiB stream", [value("laboratory 65536"), by("mpi", Rate(65_536))]),
    ("1 MiB stream", [value("laboratory 1048576"), by("mpi", Rate(1 << 20))]),
];

/// Sizes of the streams with the messages that UCX sends at each.
const STREAMS: [(u64, u64); 4] = [(8, 4_000_000), (1024, 1_000_000), (65_536, 60_000), (1 << 20, 4_000)];

fn main() -> ExitCode {
    // For compiled programs, as long as this one runs.
    let directory = match tempfile::tempdir() {
        Ok(directory) => directory,
        Err(error) => return bywire_command::exit_status::of("rivals", Err(error.into())),
    };
    program::main("rivals", |pair_seconds| contestants(pair_seconds, directory.path()), page)
}

/// All contestants. `directory` is for compiled programs.
fn contestants(pair_seconds: f64, directory: &Path) -> Contest {
    let mut contest = Contest::default();
    let sized = |test: &str, bytes| Request { size_bytes: Some(bytes), ..Request::new("msg", test) };
    let laboratory = |request| Ok(Contestant::laboratory(request, pair_seconds));
    contest.add("bywire latency", laboratory(sized("latency", 8)));
    contest.add("ucx latency", ucx::latency(&Place::Machine, 8, 1_000_000));
    for (bytes, messages) in STREAMS {
        contest.add(format!("bywire {bytes}"), laboratory(sized("stream", bytes)));
        contest.add(format!("ucx {bytes}"), ucx::stream(&Place::Machine, bytes, messages));
    }
    contest.add("mpi", open_mpi::contestant(directory));
    let of_mpi = |test: &str, bytes| Request { level: "mpi".to_owned(), ..sized(test, bytes) };
    contest.add("laboratory latency", laboratory(of_mpi("latency", 8)));
    for (bytes, _) in &STREAMS[1..] {
        contest.add(format!("laboratory {bytes}"), laboratory(of_mpi("stream", *bytes)));
    }
    contest
}

fn page(figures: &Figures) -> String {
    let compared = COMPARISONS.into_iter().map(|(what, [own, ucx, mpi])| {
        let shown = |series| page::median(figures, series);
        let over = |rival| page::ratio(figures, own, rival);
        vec![what.to_owned(), shown(own), shown(ucx), over(ucx), shown(mpi), over(mpi)]
    });
    let agreements = AGREEMENTS.into_iter().map(|(what, [own, other])| {
        let shown = |series| page::median(figures, series);
        vec![what.to_owned(), shown(own), shown(other), page::ratio(figures, own, other)]
    });
    let titles = ["what", "Bywire", "UCX", "Bywire over UCX", "Open MPI", "Bywire over Open MPI"];
    format!(
        "{}UCX neither writes nor reads payloads; Bywire and Open MPI write and read every byte.\n\n{}\n\
         The laboratory's level `mpi` beside a small loop of the usual kind, both by Open MPI:\n\n{}\n\
         Behind them. {DISTURBED}\n\n{}",
        page::machine(figures),
        page::table(1, titles, compared),
        page::table(1, ["what", "level mpi", "small loop", "ratio"], agreements),
        page::contestants(figures)
    )
}

#[cfg(test)]
mod tests {
    use bywire_figures::figures::without;

    use super::*;

    #[test]
    fn missing_rivals_are_listed_with_the_reason() {
        let session = without("mpi", "mpicc is not installed");
        let page = page(&Figures::of(&session));
        assert!(page.contains("not measured") && page.contains("mpicc is not installed"), "{page}");
    }
}
