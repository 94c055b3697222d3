//! MPI by size of the messages: half-RTT, rate and collective operations over Bywire, in turn with the implementations' own ways.

use crate::contestant::{Contest, Contestant};
use crate::figures::{Figures, value};
use crate::page;

/// Sizes of messages.
const SIZES: [&str; 10] = ["8", "64", "256", "1KiB", "4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB"];
/// Longer messages take a collective operation of several ranks most of a second.
const COLLECTIVE_SIZES: usize = 7;
/// Ranks of a collective operation.
const RANKS: u32 = 4;

/// What two ranks measure.
const TESTS: [&str; 2] = ["latency", "stream"];
const COLLECTIVE_TESTS: [&str; 2] = ["allreduce", "alltoall"];

/// A way of messages: its name, its implementation, the options that choose it, and the way that it is divided by.
type Way = (&'static str, &'static str, &'static str, Option<&'static str>);

const OWN: &str = "--link shm";
const PROVIDER: &str = "--link bywire";
const TCP: &str = "--link veth";
const PLAIN: &str = "--link bywire --between namespaces --security plain";
const ENCRYPTED: &str = "--link bywire --between namespaces --security encrypted";

/// Between two ranks.
const WAYS: [Way; 10] = [
    ("Open MPI, encrypted / its TCP", "open-mpi", ENCRYPTED, Some(TCP)),
    ("the same, plain", "open-mpi", PLAIN, Some(TCP)),
    ("", "open-mpi", TCP, None),
    ("MPICH, encrypted / libfabric's TCP", "mpich", ENCRYPTED, Some(TCP)),
    ("the same, plain", "mpich", PLAIN, Some(TCP)),
    ("", "mpich", TCP, None),
    ("one machine: Open MPI / `vader`", "open-mpi", PROVIDER, Some(OWN)),
    ("", "open-mpi", OWN, None),
    ("one machine: MPICH / its own", "mpich", PROVIDER, Some(OWN)),
    ("", "mpich", OWN, None),
];

/// Collective operations are those of one machine.
fn collective_ways() -> impl Iterator<Item = &'static Way> {
    WAYS.iter().filter(|(_, _, options, _)| [PROVIDER, OWN].contains(options))
}

fn name(test: &str, size: &str, implementation: &str, options: &str) -> String {
    format!("{test} {size} {implementation} {options}")
}

pub fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    let mut add = |test: &str, size: &str, ranks: &str, way: &Way| {
        let (_, implementation, options, _) = way;
        let words = format!("mpi {test} --mpi {implementation} --size {size}{ranks} {options}");
        contest.add(name(test, size, implementation, options), Contestant::laboratory(&words, pair_seconds));
    };
    for size in SIZES {
        for test in TESTS {
            WAYS.iter().for_each(|way| add(test, size, "", way));
        }
    }
    for size in &SIZES[..COLLECTIVE_SIZES] {
        for test in COLLECTIVE_TESTS {
            collective_ways().for_each(|way| add(test, size, &format!(" --ranks {RANKS}"), way));
        }
    }
    contest
}

/// Each way over the one beside it, by size.
fn table<'a>(figures: &Figures, test: &str, sizes: &[&str], ways: impl Iterator<Item = &'a Way>) -> String {
    let compared: Vec<_> = ways
        .filter_map(|(title, implementation, options, over)| {
            Some((*title, *implementation, *options, (*over)?))
        })
        .collect();
    let rows = sizes.iter().map(|size| {
        let ratios = compared.iter().map(|(_, implementation, options, over)| {
            let [own, other] = [options, over].map(|options| name(test, size, implementation, options));
            page::ratio(figures, value(&own), value(&other))
        });
        std::iter::once((*size).to_owned()).chain(ratios).collect()
    });
    let titles = std::iter::once("size").chain(compared.iter().map(|(title, ..)| *title));
    page::table(1, titles, rows)
}

pub fn page(figures: &Figures) -> String {
    let between = |test| table(figures, test, &SIZES, WAYS.iter());
    let collective = |test| table(figures, test, &SIZES[..COLLECTIVE_SIZES], collective_ways());
    let body = format!(
        "Half-RTT (less is better):\n\n{}\nRate (more is better):\n\n{}\n`allreduce` of {RANKS} ranks on two cores (less is \
         better):\n\n{}\n`alltoall` of {RANKS} ranks on two cores (less is better):\n\n{}",
        between("latency"),
        between("stream"),
        collective("allreduce"),
        collective("alltoall"),
    );
    page::page(figures, &body)
}
