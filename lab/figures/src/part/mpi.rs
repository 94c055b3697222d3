//! MPI programs over Bywire, in turn with the implementations' own ways.

use crate::contestant::{Contest, Contestant};
use crate::page::Part;
use crate::process::Place;
use crate::rivals::{libfabric_latency, quiet_connections};

pub const PART: Part = Part { name: "mpi", contestants, added: |_| String::new() };

/// Round trips of libfabric's own ping-pong for each second of measuring.
const PING_PONGS_PER_SECOND: f64 = 1e6;

/// Both implementations over their own shared memory and over Bywire.
const ON_ONE_MACHINE: [(&str, &str); 7] = [
    ("latency", "latency --size 8"),
    ("64 KiB", "stream --size 64KiB"),
    ("1 MiB", "stream --size 1MiB"),
    ("allreduce 4", "allreduce --size 8 --ranks 4"),
    ("alltoall 4", "alltoall --size 1KiB --ranks 4"),
    ("allreduce 8", "allreduce --size 8 --ranks 8"),
    ("alltoall 8", "alltoall --size 1KiB --ranks 8"),
];

/// Between two nodes of a fabric.
const PLAIN: &str = "--link bywire --between namespaces --security plain";
const ENCRYPTED: &str = "--link bywire --between namespaces --security encrypted";

/// All else: the name, what is measured, and the way.
const OTHERS: [(&str, &str, &str); 16] = [
    ("latency open-mpi veth", "mpi latency --mpi open-mpi --size 8", "--link veth"),
    ("latency open-mpi encrypted", "mpi latency --mpi open-mpi --size 8", ENCRYPTED),
    ("latency open-mpi tcp", "mpi latency --mpi open-mpi --size 8", "--link tcp"),
    ("unmatched open-mpi bywire", "mpi latency --mpi open-mpi --size 8", "--link bywire --unmatched 1024"),
    ("short open-mpi shm", "mpi stream --mpi open-mpi --size 8", "--link shm"),
    ("short open-mpi bywire", "mpi stream --mpi open-mpi --size 8", "--link bywire"),
    ("1 MiB open-mpi veth", "mpi stream --mpi open-mpi --size 1MiB", "--link veth"),
    ("1 MiB open-mpi plain", "mpi stream --mpi open-mpi --size 1MiB", PLAIN),
    ("1 MiB open-mpi encrypted", "mpi stream --mpi open-mpi --size 1MiB", ENCRYPTED),
    ("9000 open-mpi veth", "mpi stream --mpi open-mpi --size 1MiB --mtu 9000", "--link veth"),
    ("9000 open-mpi encrypted", "mpi stream --mpi open-mpi --size 1MiB --mtu 9000", ENCRYPTED),
    ("latency mpich veth", "mpi latency --mpi mpich --size 8", "--link veth"),
    ("latency mpich encrypted", "mpi latency --mpi mpich --size 8", ENCRYPTED),
    ("latency mpich ofi-shm", "mpi latency --mpi mpich --size 8", "--link ofi-shm"),
    ("latency mpich ofi-sm2", "mpi latency --mpi mpich --size 8", "--link ofi-sm2"),
    ("latency ports", "msg latency --size 8", "--spin"),
];

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    let mut add = |name: &str, words: String| contest.add(name, Contestant::laboratory(&words, pair_seconds));
    for implementation in ["open-mpi", "mpich"] {
        for link in ["shm", "bywire"] {
            for (what, words) in ON_ONE_MACHINE {
                let words = format!("mpi {words} --mpi {implementation} --link {link}");
                add(&format!("{what} {implementation} {link}"), words);
            }
        }
    }
    for (name, words, way) in OTHERS {
        add(name, format!("{words} {way}"));
    }
    let iterations = (pair_seconds * PING_PONGS_PER_SECOND) as u64;
    contest.add("libfabric bywire", libfabric_latency("bywire", &Place::default(), 8, iterations));
    contest.add("quiet connection", quiet_connections());
    contest
}
