//! Bywire, UCX and Open MPI between two processes of this machine, as ratios.

use crate::contestant::{Contest, Contestant};
use crate::figures::Metric::{Mean, Messages, Rate};
use crate::figures::{Figures, Series, by, value};
use crate::page;
use crate::process::Place;
use crate::rivals::{open_mpi, ucx_latency, ucx_stream};

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

pub fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    let place = Place::default();
    let laboratory = |words: String| Contestant::laboratory(&words, pair_seconds);
    contest.add("bywire latency", laboratory("msg latency --size 8".to_owned()));
    contest.add("ucx latency", ucx_latency(&place, 8, 1_000_000));
    contest.add("laboratory latency", laboratory("mpi latency --size 8".to_owned()));
    for (bytes, messages) in STREAMS {
        contest.add(format!("bywire {bytes}"), laboratory(format!("msg stream --size {bytes}")));
        contest.add(format!("ucx {bytes}"), ucx_stream(&place, bytes, messages));
        if bytes > 8 {
            contest.add(format!("laboratory {bytes}"), laboratory(format!("mpi stream --size {bytes}")));
        }
    }
    contest.add("mpi", open_mpi());
    contest
}

pub fn page(figures: &Figures) -> String {
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
    let body = format!(
        "UCX neither writes nor reads payloads; Bywire and Open MPI write and read every byte.\n\n{}\n\
         The laboratory's level `mpi` beside a small loop of the usual kind, both by Open MPI:\n\n{}",
        page::table(1, titles, compared),
        page::table(1, ["what", "level mpi", "small loop", "ratio"], agreements)
    );
    page::page(figures, &body)
}
