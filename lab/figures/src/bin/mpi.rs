//! Takes every figure that MPI programs over Bywire must reach in one run, in turn with the implementations' own ways, and
//! prints tables.

use std::path::Path;
use std::process::ExitCode;

use bywire_command::exit_status;
use bywire_figures::contest::Contest;
use bywire_figures::lab;
use bywire_figures::libfabric::{self, Provider};
use bywire_figures::program::{self, Arguments};
use bywire_figures::quiet_connections;
use bywire_figures::requirement::Basis::{Less, Median, Over, OverLowest};
use bywire_figures::requirement::Bound::{AtLeast, AtMost};
use bywire_figures::requirement::{self, Requirement};
use bywire_figures::rival_pair::Place;
use bywire_figures::table::{self, Show};
use bywire_measure::measure::{Request, Topology};
use bywire_measure::mpi::{self, Implementation};
use bywire_results::cell::DISTURBED;
use clap::Parser;

/// Every figure of docs/performance.md on MPI in one run, as Markdown tables
#[derive(Parser)]
struct Mpi {
    #[command(flatten)]
    arguments: Arguments,
}

const RATIO: Show = table::ratio;

/// Round trips of libfabric's own ping-pong for each second of measuring.
const PING_PONGS_PER_SECOND: f64 = 1e6;

/// Receives that wait in the measurement of a long list of them.
const UNMATCHED: u32 = 1024;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 26] = [
    Requirement { measure: "8 B half-RTT, Open MPI over Bywire, less that of ports", bound: AtMost { required: 200.0, goal: 120.0 }, basis: Less("latency open-mpi bywire", "latency ports"), show: table::ns },
    Requirement { measure: "8 B mean half-RTT, libfabric without MPI over Bywire, less that of ports", bound: AtMost { required: 60.0, goal: 30.0 }, basis: Less("libfabric bywire", "latency ports mean"), show: table::ns },
    Requirement { measure: "8 B half-RTT, Open MPI over vader", bound: AtMost { required: 1.8, goal: 1.3 }, basis: Over("latency open-mpi bywire", "latency open-mpi shm"), show: RATIO },
    Requirement { measure: "the same, MPICH over its own shared memory", bound: AtMost { required: 1.0, goal: 0.7 }, basis: Over("latency mpich bywire", "latency mpich shm"), show: RATIO },
    Requirement { measure: "the same, MPICH over libfabric's shm", bound: AtMost { required: 0.7, goal: 0.5 }, basis: Over("latency mpich bywire", "latency mpich ofi-shm"), show: RATIO },
    Requirement { measure: "the same, MPICH over libfabric's sm2", bound: AtMost { required: 0.9, goal: 0.6 }, basis: Over("latency mpich bywire", "latency mpich ofi-sm2"), show: RATIO },
    Requirement { measure: "8 B messages, Open MPI over vader", bound: AtLeast { required: 0.35, goal: 0.6 }, basis: Over("short open-mpi bywire messages", "short open-mpi shm messages"), show: RATIO },
    Requirement { measure: "64 KiB rate, Open MPI over vader", bound: AtLeast { required: 1.2, goal: 1.8 }, basis: Over("64 KiB open-mpi bywire", "64 KiB open-mpi shm"), show: RATIO },
    Requirement { measure: "the same, MPICH over its own shared memory", bound: AtLeast { required: 1.0, goal: 1.5 }, basis: Over("64 KiB mpich bywire", "64 KiB mpich shm"), show: RATIO },
    Requirement { measure: "1 MiB rate, Open MPI over vader", bound: AtLeast { required: 1.2, goal: 1.8 }, basis: Over("1 MiB open-mpi bywire", "1 MiB open-mpi shm"), show: RATIO },
    Requirement { measure: "the same, MPICH over its own shared memory", bound: AtLeast { required: 1.0, goal: 1.5 }, basis: Over("1 MiB mpich bywire", "1 MiB mpich shm"), show: RATIO },
    Requirement { measure: "two nodes, encrypted: 8 B half-RTT, Open MPI over its TCP in clear", bound: AtMost { required: 0.8, goal: 0.6 }, basis: Over("latency open-mpi encrypted", "latency open-mpi veth"), show: RATIO },
    Requirement { measure: "the same, MPICH over libfabric's TCP in clear", bound: AtMost { required: 0.6, goal: 0.4 }, basis: Over("latency mpich encrypted", "latency mpich veth"), show: RATIO },
    Requirement { measure: "two nodes, plain: 1 MiB rate, Open MPI over its TCP", bound: AtLeast { required: 1.0, goal: 1.5 }, basis: Over("1 MiB open-mpi plain", "1 MiB open-mpi veth"), show: RATIO },
    Requirement { measure: "two nodes, encrypted: 1 MiB rate, Open MPI over its TCP in clear, MTU 1500", bound: AtLeast { required: 0.6, goal: 0.9 }, basis: Over("1 MiB open-mpi encrypted", "1 MiB open-mpi veth"), show: RATIO },
    Requirement { measure: "the same, MTU 9000", bound: AtLeast { required: 0.8, goal: 1.2 }, basis: Over("9000 open-mpi encrypted", "9000 open-mpi veth"), show: RATIO },
    Requirement { measure: "4 ranks on 2 cores: 8 B allreduce, time over the better stock MPI", bound: AtMost { required: 1.0, goal: 0.5 }, basis: OverLowest("allreduce 4 open-mpi bywire", &["allreduce 4 open-mpi shm", "allreduce 4 mpich shm"]), show: RATIO },
    Requirement { measure: "8 ranks on 2 cores: the same", bound: AtMost { required: 1.0, goal: 0.5 }, basis: OverLowest("allreduce 8 open-mpi bywire", &["allreduce 8 open-mpi shm", "allreduce 8 mpich shm"]), show: RATIO },
    Requirement { measure: "4 ranks on 2 cores: 1 KiB alltoall, time over the better stock MPI", bound: AtMost { required: 1.0, goal: 0.5 }, basis: OverLowest("alltoall 4 open-mpi bywire", &["alltoall 4 open-mpi shm", "alltoall 4 mpich shm"]), show: RATIO },
    Requirement { measure: "8 ranks on 2 cores: the same", bound: AtMost { required: 1.0, goal: 0.5 }, basis: OverLowest("alltoall 8 open-mpi bywire", &["alltoall 8 open-mpi shm", "alltoall 8 mpich shm"]), show: RATIO },
    Requirement { measure: "1,024 receives wait for other messages: 8 B half-RTT more, Open MPI over Bywire", bound: AtMost { required: 1000.0, goal: 50.0 }, basis: Less("unmatched open-mpi bywire", "latency open-mpi bywire"), show: table::ns },
    Requirement { measure: "quiet connection, memory of both ends", bound: AtMost { required: 131072.0, goal: 32768.0 }, basis: Median("quiet connection"), show: table::bytes },
    Requirement { measure: "8 B half-RTT, Open MPI over Bywire beside ports of their own (not required)", bound: AtMost { required: 3.0, goal: 2.0 }, basis: Over("latency open-mpi bywire", "latency ports"), show: RATIO },
    Requirement { measure: "8 B half-RTT, Open MPI over its TCP by loopback (not required)", bound: AtMost { required: 0.2, goal: 0.1 }, basis: Over("latency open-mpi bywire", "latency open-mpi tcp"), show: RATIO },
    Requirement { measure: "4 ranks on 2 cores: 8 B allreduce, MPICH alone over MPICH over Bywire, time (not required)", bound: AtLeast { required: 1.0, goal: 2.0 }, basis: Over("allreduce 4 mpich shm", "allreduce 4 mpich bywire"), show: RATIO },
    Requirement { measure: "4 ranks on 2 cores: 1 KiB alltoall, the same (not required)", bound: AtLeast { required: 1.0, goal: 2.0 }, basis: Over("alltoall 4 mpich shm", "alltoall 4 mpich bywire"), show: RATIO },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    exit_status::of(
        "mpi",
        match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["__worker", ..] => bywire_measure::worker::run(),
            [mpi::COMMAND, socket, program] => mpi::run_rank(Path::new(socket), Path::new(program)),
            ["up", ..] => program::become_bywire(&words),
            _ => Mpi::parse().arguments.run(contestants, page),
        },
    )
}

fn contestants(pair_seconds: f64) -> Contest {
    let mut topology = Topology::default();
    let mut contest = Contest::default();
    let mut requests = Vec::new();
    for implementation in Implementation::ALL {
        let name = implementation.name();
        let over = |link: &str, test: &str, bytes| Request {
            mpi: Some(name.to_owned()),
            link: Some(link.to_owned()),
            size_bytes: Some(bytes),
            ..Request::new("mpi", test)
        };
        let nodes = |security: &str, test: &str, bytes| Request {
            between: Some("namespaces".to_owned()),
            security: Some(security.to_owned()),
            ..over("bywire", test, bytes)
        };
        let mut add =
            |what: &str, way: &str, request| requests.push((format!("{what} {name} {way}"), request));
        for link in ["shm", "bywire"] {
            add("latency", link, over(link, "latency", 8));
            add("64 KiB", link, over(link, "stream", 64 << 10));
            add("1 MiB", link, over(link, "stream", 1 << 20));
            for ranks in [4, 8] {
                let of_all = |test: &str, bytes| Request { ranks: Some(ranks), ..over(link, test, bytes) };
                add(&format!("allreduce {ranks}"), link, of_all("allreduce", 8));
                add(&format!("alltoall {ranks}"), link, of_all("alltoall", 1024));
            }
        }
        add("latency", "veth", over("veth", "latency", 8));
        add("latency", "encrypted", nodes("encrypted", "latency", 8));
        if *implementation == Implementation::Mpich {
            for link in ["ofi-shm", "ofi-sm2"] {
                add("latency", link, over(link, "latency", 8));
            }
        }
        if *implementation == Implementation::OpenMpi {
            let waiting = Request { unmatched: Some(UNMATCHED), ..over("bywire", "latency", 8) };
            add("unmatched", "bywire", waiting);
            add("latency", "tcp", over("tcp", "latency", 8));
            let jumbo = |request: Request| Request { mtu_bytes: Some(9000), ..request };
            add("short", "shm", over("shm", "stream", 8));
            add("short", "bywire", over("bywire", "stream", 8));
            add("1 MiB", "veth", over("veth", "stream", 1 << 20));
            add("1 MiB", "plain", nodes("plain", "stream", 1 << 20));
            add("1 MiB", "encrypted", nodes("encrypted", "stream", 1 << 20));
            add("9000", "veth", jumbo(over("veth", "stream", 1 << 20)));
            add("9000", "encrypted", jumbo(nodes("encrypted", "stream", 1 << 20)));
        }
    }
    let ports = Request { size_bytes: Some(8), spin: Some(true), ..Request::new("msg", "latency") };
    requests.push(("latency ports".to_owned(), ports));
    for (name, request) in requests {
        contest.add(&name, lab::contestant_in(&mut topology, &name, request, pair_seconds));
    }
    let iterations = (pair_seconds * PING_PONGS_PER_SECOND) as u64;
    let bare = Provider::bywire().and_then(|provider| {
        libfabric::latency("libfabric bywire", provider, &Place::Machine, 8, iterations)
    });
    contest.add("libfabric bywire", bare);
    contest.add("quiet connection", quiet_connections::contestant("quiet connection"));
    contest
}

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push('\n');
    page.push_str(&requirement::table(&REQUIREMENTS, contest));
    page.push_str(&format!("\nBehind them. {DISTURBED}\n\n"));
    page.push_str(&table::contestants(contest, show));
    page
}

/// How a series is written, by its name.
fn show(series: &str) -> Show {
    let is_rate = ["64 KiB", "1 MiB", "9000", "short"].iter().any(|what| series.starts_with(what));
    match is_rate {
        _ if series == "quiet connection" => table::bytes,
        _ if series.ends_with("messages") => table::millions,
        true => table::rate,
        false => table::ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_belongs_to_a_measured_series() {
        let contest = contestants(0.1);
        requirement::assert_contestants(&REQUIREMENTS, &contest);
    }
}
