//! Every figure that MPI programs over Bywire must reach in one run, in turn with the implementations' own ways.

use std::process::ExitCode;

use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::libfabric::{self, Provider};
use bywire_figures::requirement::Basis::{Less, Median, Over, OverLowest};
use bywire_figures::requirement::{Requirement, at_least, at_most};
use bywire_figures::rival_pair::Place;
use bywire_figures::series::Metric::{Mean, Messages};
use bywire_figures::series::{by, value};
use bywire_figures::{page, program, quiet_connections};
use bywire_measure::measure::Request;
use bywire_measure::mpi::Implementation;
use bywire_results::cell::Unit;

/// Round trips of libfabric's own ping-pong for each second of measuring.
const PING_PONGS_PER_SECOND: f64 = 1e6;

/// Receives that wait in the measurement of a long list of them.
const UNMATCHED: u32 = 1024;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 26] = [
    at_most("8 B half-RTT, Open MPI over Bywire, less that of ports", 200.0, 120.0, Less(value("latency open-mpi bywire"), value("latency ports"))).in_unit(Unit::Nanoseconds),
    at_most("8 B mean half-RTT, libfabric without MPI over Bywire, less that of ports", 60.0, 30.0, Less(value("libfabric bywire"), by("latency ports", Mean))).in_unit(Unit::Nanoseconds),
    at_most("8 B half-RTT, Open MPI over vader", 1.8, 1.3, Over(value("latency open-mpi bywire"), value("latency open-mpi shm"))),
    at_most("the same, MPICH over its own shared memory", 1.0, 0.7, Over(value("latency mpich bywire"), value("latency mpich shm"))),
    at_most("the same, MPICH over libfabric's shm", 0.7, 0.5, Over(value("latency mpich bywire"), value("latency mpich ofi-shm"))),
    at_most("the same, MPICH over libfabric's sm2", 0.9, 0.6, Over(value("latency mpich bywire"), value("latency mpich ofi-sm2"))),
    at_least("8 B messages, Open MPI over vader", 0.35, 0.6, Over(by("short open-mpi bywire", Messages), by("short open-mpi shm", Messages))),
    at_least("64 KiB rate, Open MPI over vader", 1.2, 1.8, Over(value("64 KiB open-mpi bywire"), value("64 KiB open-mpi shm"))),
    at_least("the same, MPICH over its own shared memory", 1.0, 1.5, Over(value("64 KiB mpich bywire"), value("64 KiB mpich shm"))),
    at_least("1 MiB rate, Open MPI over vader", 1.2, 1.8, Over(value("1 MiB open-mpi bywire"), value("1 MiB open-mpi shm"))),
    at_least("the same, MPICH over its own shared memory", 1.0, 1.5, Over(value("1 MiB mpich bywire"), value("1 MiB mpich shm"))),
    at_most("two nodes, encrypted: 8 B half-RTT, Open MPI over its TCP in clear", 0.8, 0.6, Over(value("latency open-mpi encrypted"), value("latency open-mpi veth"))),
    at_most("the same, MPICH over libfabric's TCP in clear", 0.6, 0.4, Over(value("latency mpich encrypted"), value("latency mpich veth"))),
    at_least("two nodes, plain: 1 MiB rate, Open MPI over its TCP", 1.0, 1.5, Over(value("1 MiB open-mpi plain"), value("1 MiB open-mpi veth"))),
    at_least("two nodes, encrypted: 1 MiB rate, Open MPI over its TCP in clear, MTU 1500", 0.6, 0.9, Over(value("1 MiB open-mpi encrypted"), value("1 MiB open-mpi veth"))),
    at_least("the same, MTU 9000", 0.8, 1.2, Over(value("9000 open-mpi encrypted"), value("9000 open-mpi veth"))),
    at_most("4 ranks on 2 cores: 8 B allreduce, time over the better stock MPI", 1.0, 0.5, OverLowest(value("allreduce 4 open-mpi bywire"), &[value("allreduce 4 open-mpi shm"), value("allreduce 4 mpich shm")])),
    at_most("8 ranks on 2 cores: the same", 1.0, 0.5, OverLowest(value("allreduce 8 open-mpi bywire"), &[value("allreduce 8 open-mpi shm"), value("allreduce 8 mpich shm")])),
    at_most("4 ranks on 2 cores: 1 KiB alltoall, time over the better stock MPI", 1.0, 0.5, OverLowest(value("alltoall 4 open-mpi bywire"), &[value("alltoall 4 open-mpi shm"), value("alltoall 4 mpich shm")])),
    at_most("8 ranks on 2 cores: the same", 1.0, 0.5, OverLowest(value("alltoall 8 open-mpi bywire"), &[value("alltoall 8 open-mpi shm"), value("alltoall 8 mpich shm")])),
    at_most("1,024 receives wait for other messages: 8 B half-RTT more, Open MPI over Bywire", 1000.0, 50.0, Less(value("unmatched open-mpi bywire"), value("latency open-mpi bywire"))).in_unit(Unit::Nanoseconds),
    at_most("quiet connection, memory of both ends", 131072.0, 32768.0, Median(value("quiet connection"))).in_unit(Unit::Bytes),
    at_most("8 B half-RTT, Open MPI over Bywire beside ports of their own (not required)", 3.0, 2.0, Over(value("latency open-mpi bywire"), value("latency ports"))),
    at_most("8 B half-RTT, Open MPI over its TCP by loopback (not required)", 0.2, 0.1, Over(value("latency open-mpi bywire"), value("latency open-mpi tcp"))),
    at_least("4 ranks on 2 cores: 8 B allreduce, MPICH alone over MPICH over Bywire, time (not required)", 1.0, 2.0, Over(value("allreduce 4 mpich shm"), value("allreduce 4 mpich bywire"))),
    at_least("4 ranks on 2 cores: 1 KiB alltoall, the same (not required)", 1.0, 2.0, Over(value("alltoall 4 mpich shm"), value("alltoall 4 mpich bywire"))),
];

fn main() -> ExitCode {
    program::main("mpi", contestants, |figures| page::page(&REQUIREMENTS, "", figures))
}

fn contestants(pair_seconds: f64) -> Contest {
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
        contest.add(name, Ok(Contestant::laboratory(request, pair_seconds)));
    }
    let iterations = (pair_seconds * PING_PONGS_PER_SECOND) as u64;
    let bare =
        Provider::bywire().and_then(|provider| libfabric::latency(provider, &Place::Machine, 8, iterations));
    contest.add("libfabric bywire", bare);
    contest.add("quiet connection", quiet_connections::contestant());
    contest
}

#[cfg(test)]
mod tests {
    use bywire_figures::requirement::assert_contestants;

    use super::*;

    #[test]
    fn every_figure_has_its_contestant() {
        assert_contestants(&REQUIREMENTS, &contestants(0.1));
    }
}
