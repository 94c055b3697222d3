//! Presets: the cells of a session, as data. Each source document has a preset that repeats its measurements.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail};
use bywire_command::exit_status::Misuse;
use bywire_results::cell::Absence;
use bywire_results::message_link::{self, Security};
use bywire_results::name::unknown;

use crate::ethernet::{self, Link, Protocol};
use crate::measure::{self, Request};
use crate::mpi::{self, Implementation};
use crate::registry;
use crate::registry::MEMORY;
use crate::web::{self, Rank, Server};

/// The cells of a session.
#[derive(Clone, Debug)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Ceilings, measured before and after everything else.
    pub ceilings: Vec<Request>,
    /// Groups of cells that are compared with each other. The pairs of one group are taken in turn.
    pub groups: Vec<Vec<Request>>,
    /// Cells that belong to the preset but that this version cannot measure.
    pub absent: Vec<Absence>,
}

/// All presets, with one line of help each.
pub const PRESETS: [(&str, &str); 7] = [
    ("quick", "what each level delivers and costs"),
    ("full", "every test of every level by size"),
    ("gm", "GM's rates and half-RTT by size, N½, CPU for each message, memory"),
    ("gm-ethernet", "GM's netperf set over Ethernet: TCP and UDP, CPU at both ends"),
    ("trapeze", "Duke's rates of TCP and UDP at both ends, half-RTT by size"),
    ("bip", "Lyon's ping-pong by size at two MTUs, streams, transactions"),
    ("toe", "two MTUs, segmentation offload, many connections, web servers"),
];

/// The default duration of each preset in minutes. [`crate::bench::expected`] computes it, but takes too long for a
/// help text.
const MINUTES: [(&str, u64); 7] =
    [("quick", 2), ("full", 29), ("gm", 13), ("gm-ethernet", 42), ("trapeze", 7), ("bip", 11), ("toe", 25)];

/// The default duration of the preset of that name.
pub fn usual(name: &str) -> Option<Duration> {
    let (_, minutes) = MINUTES.iter().find(|(known, _)| *known == name)?;
    Some(Duration::from_secs(60 * minutes))
}

/// A duration in words, as a reader expects it.
pub fn about(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 90.0 => format!("about {seconds:.0} s"),
        seconds => format!("about {:.0} min", seconds / 60.0),
    }
}

/// The levels that carry messages between any two processes, in the report's order.
const LEVELS: [&str; 5] = ["msg", "unix", "tcp", "sock", "udp"];

/// The levels whose ends may poll. The library of `sock` decides that itself.
const POLLING_LEVELS: [&str; 4] = ["msg", "unix", "tcp", "udp"];

const MPI: &str = "mpi";

/// The longest measuring time of a ceiling.
const CEILING_SECONDS: f64 = 0.2;

/// The power of two that the longest datagram stands for. The datagram is shorter by its headers.
const DATAGRAM_BOUND: u64 = 64 * KIB;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The preset of that name. `time_seconds` sets the time of each message cell and the longest time of a ceiling.
/// `levels` restricts the levels; ceilings stay.
///
/// # Errors
/// An unknown preset or level, with those that exist, or a time out of bounds.
pub fn named(name: &str, time_seconds: Option<f64>, levels: Option<&[String]>) -> Result<Preset> {
    let mut preset = match name {
        "quick" => quick(),
        "full" => full(),
        "gm" => gm(),
        "gm-ethernet" => gm_ethernet(),
        "trapeze" => trapeze(),
        "bip" => bip(),
        "toe" => toe(),
        _ => {
            bail!(Misuse(unknown("preset", name, &PRESETS.map(|(name, _)| name))))
        }
    };
    preset.absent.extend(left_out(&preset));
    measure::time(time_seconds, 1)?;
    for request in preset.groups.iter_mut().flatten() {
        // A sweep needs more time. A time that suffices for a cell may be too short for a sweep.
        let given = time_seconds.map(|time| time.max(measure::time_min_of(request)));
        request.time_seconds = given.or(request.time_seconds);
    }
    for request in &mut preset.ceilings {
        let shorter = time_seconds.filter(|&time| time < CEILING_SECONDS);
        request.time_seconds = shorter.or(request.time_seconds);
    }
    if let Some(levels) = levels {
        keep_levels(&mut preset, levels)?;
    }
    Ok(preset)
}

/// What the preset leaves out, with the reasons, for the report.
fn left_out(preset: &Preset) -> Vec<Absence> {
    let requests = || preset.groups.iter().flatten();
    let absent = |level: &str, reason: String| Absence { level: level.to_owned(), test: None, reason };
    let others = |level: &&str| !requests().any(|request| request.level == **level);
    let levels = registry::names().into_iter().filter(|level| *level != MEMORY);
    let mut left_out: Vec<Absence> = levels
        .filter(|level| others(level))
        .map(|level| {
            let instead = match level {
                web::LEVEL => "full and toe",
                MPI => "full, gm and toe",
                _ => "quick, full, gm and toe",
            };
            absent(level, format!("no part of the preset {}: {instead} measure it", preset.name))
        })
        .collect();
    let too_long: BTreeSet<&str> = requests()
        .filter(|request| {
            request.level == "msg" && request.size_bytes > Some(crate::plan::DATAGRAM_BYTES_MAX)
        })
        .map(|request| request.test.as_str())
        .collect();
    if !too_long.is_empty() {
        let tests = too_long.into_iter().collect::<Vec<_>>().join(" and ");
        let longest = crate::plan::DATAGRAM_BYTES_MAX;
        left_out.push(absent(
            "udp",
            format!("{tests} above {longest} bytes, the longest datagram, which stands for 64 KiB"),
        ));
    }
    left_out
}

fn keep_levels(preset: &mut Preset, levels: &[String]) -> Result<()> {
    for level in levels {
        registry::level(level)?;
    }
    for group in &mut preset.groups {
        group.retain(|request| levels.contains(&request.level));
    }
    preset.groups.retain(|group| !group.is_empty());
    if preset.groups.is_empty() && !levels.iter().any(|level| level == MEMORY) {
        let (name, chosen) = (preset.name, levels.join(", "));
        bail!(Misuse(format!(
            "the preset {name} has no cell of {chosen}: choose another preset or other --levels"
        )));
    }
    preset.absent.retain(|absence| levels.contains(&absence.level));
    Ok(())
}

/// Few cells, each with all its pairs.
fn quick() -> Preset {
    let mut groups = Vec::new();
    for size in [8, KIB] {
        groups.push(at_levels(&LEVELS, "latency", Some(size)));
    }
    // The cells above compare sleeping ends, and these compare polling ends.
    groups.push(polling(at_levels(&POLLING_LEVELS, "latency", Some(8))));
    for size in [KIB, 64 * KIB, MIB] {
        groups.push(at_levels(&LEVELS, "stream", Some(size)));
    }
    groups.push(at_levels(&LEVELS, "bidir", Some(64 * KIB)));
    groups.push(at_levels(&LEVELS, "rr", Some(1)));
    groups.push(unmodified("rr", 1));
    groups.push(at_levels(&LEVELS, "overhead", Some(8)));
    groups.push(Link::WITHIN_MACHINE.map(|link| over(link, "stream", 64 * KIB)).to_vec());
    groups.push(Link::WITHIN_MACHINE.map(|link| over(link, "rr", 1)).to_vec());
    groups.push(polling(on_a_wire("latency", 8)));
    groups.extend([("latency", 8), ("stream", 64 * KIB)].map(|(test, size)| on_a_wire(test, size)));
    Preset { name: "quick", ceilings: ceilings(&[KIB, 64 * KIB, MIB]), groups, absent: Vec::new() }
}

fn full() -> Preset {
    let mut groups = Vec::new();
    for size in with_neighbours(0, 16) {
        groups.push(at_levels(&LEVELS, "latency", Some(size)));
    }
    for size in [1, 8, 64, KIB, 4 * KIB] {
        groups.push(polling(at_levels(&POLLING_LEVELS, "latency", Some(size))));
    }
    for size in with_neighbours(3, 22) {
        groups.push(at_levels(&LEVELS, "stream", Some(size)));
    }
    for power in (6..=20).step_by(2) {
        groups.push(with_ethernet(at_levels(&LEVELS, "bidir", Some(1 << power)), "bidir", 1 << power));
    }
    for size in [1, KIB, 16 * KIB] {
        groups.push(with_ethernet(at_levels(&LEVELS, "rr", Some(size)), "rr", size));
    }
    for (test, size) in [("rr", 1), ("rr", KIB), ("stream", KIB), ("stream", 64 * KIB)] {
        groups.push(unmodified(test, size));
    }
    for size in [8, 64, KIB, 4 * KIB] {
        groups.push(with_ethernet(at_levels(&LEVELS, "overhead", Some(size)), "overhead", size));
    }
    for size in [8, KIB] {
        groups.push(with_ethernet(at_levels(&LEVELS, "interleave", Some(size)), "interleave", size));
    }
    for size in [1, 64, KIB, 8 * KIB, 64 * KIB] {
        groups.push(over_all("latency", size));
    }
    for size in [64, KIB, 8 * KIB, 64 * KIB, MIB] {
        groups.push(over_all("stream", size));
    }
    groups.push(polling(at_levels(&POLLING_LEVELS, "nhalf", None)));
    for size in [8, 8 * KIB] {
        groups.push(at_levels(&LEVELS, "breakdown", Some(size)));
        groups.push(over_all("breakdown", size));
    }
    for connections in [1, 4, 16] {
        groups.push(several(connections, at_levels(&LEVELS, "streams", None)));
        groups.push(several(connections, at_levels(&LEVELS, "hotspot", Some(1))));
    }
    let (shm, tcp, bywire) = (mpi::Link::Shm, mpi::Link::Tcp, mpi::Link::Bywire);
    for (test, size) in [("latency", 8), ("stream", 64 * KIB), ("stream", MIB)] {
        groups.push(ranks(&[shm, tcp, bywire], test, size));
    }
    groups.push(ranks(&[shm, tcp], "bidir", 64 * KIB));
    for (test, size) in [("latency", KIB), ("stream", 8), ("rr", 1)] {
        groups.push(ranks(&[shm], test, size));
    }
    for (test, size) in [("latency", 8), ("stream", 64 * KIB)] {
        groups.push(ranks(&[mpi::Link::Veth, mpi::Link::Eth], test, size));
    }
    for size in [8, KIB] {
        groups.push(on_a_wire("latency", size));
        groups.push(polling(on_a_wire("latency", size)));
    }
    for size in [64, KIB, 8 * KIB, 64 * KIB, MIB] {
        groups.push(on_a_wire("stream", size));
    }
    groups
        .extend([("bidir", 64 * KIB), ("rr", 1), ("overhead", 8)].map(|(test, size)| on_a_wire(test, size)));
    for test in ["fanin", "fanout"] {
        let nodes = |request| Request { nodes: Some(4), ..request };
        let around = over_all(test, 64 * KIB).into_iter().map(nodes).collect();
        groups.push(several(12, around));
    }
    groups.extend(served(&[KIB, 64 * KIB], &[0.9]));
    Preset {
        name: "full",
        ceilings: ceilings(&[8, 64, KIB, 8 * KIB, 64 * KIB, MIB, 16 * MIB]),
        groups,
        absent: Vec::new(),
    }
}

/// GM's graphs. The sizes include the edges of its 4,096-byte fragments.
fn gm() -> Preset {
    let mut groups = Vec::new();
    for size in with_fragment_edges(3, 20) {
        for test in ["stream", "bidir"] {
            let levels = at_levels(&LEVELS, test, Some(size));
            // Byte streams do not have the fragments of the message layer.
            groups.push(if size.is_power_of_two() { with_ethernet(levels, test, size) } else { levels });
        }
    }
    for power in 0..=14 {
        groups.push(with_ethernet(at_levels(&LEVELS, "latency", Some(1 << power)), "latency", 1 << power));
    }
    // Polling, as GM did and as docs/performance.md does.
    groups.push(polling(at_levels(&POLLING_LEVELS, "nhalf", None)));
    groups.push(with_ethernet(at_levels(&LEVELS, "overhead", Some(8)), "overhead", 8));
    // GM's fragment is 4 KiB.
    for size in [8, 4 * KIB] {
        groups.push(at_levels(&["msg", "unix", "tcp"], "breakdown", Some(size)));
    }
    // In place of MPICH over GM.
    for (test, size) in
        [("latency", 8), ("latency", KIB), ("stream", 4 * KIB), ("stream", MIB), ("bidir", MIB)]
    {
        groups.push(ranks(&[mpi::Link::Shm, mpi::Link::Bywire], test, size));
    }
    Preset { name: "gm", ceilings: ceilings(&[4 * KIB, 64 * KIB, MIB]), groups, absent: Vec::new() }
}

/// Netperf's four runs. A message of a stream is as long as in netperf: the granted send buffer. Each runs once more
/// without coalescing, because GM-1 had none, over the links within one machine.
fn gm_ethernet() -> Preset {
    let minute = |request| Request { time_seconds: Some(60.0), ..request };
    let mut groups = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let (stream_bytes, buffer_bytes) = match protocol {
            Protocol::Tcp => (262_142, Some(131_072)),
            Protocol::Udp => (8192, None),
        };
        let stream = ways(protocol, "stream", stream_bytes).into_iter();
        groups.push(
            stream
                .map(|way| Request { socket_buffer_bytes: buffer_bytes, ..minute(way) })
                .collect::<Vec<_>>(),
        );
        groups.push(ways(protocol, "rr", 1).into_iter().map(minute).collect());
    }
    for group in &mut groups {
        let without = [Link::Udp, Link::Veth].map(|link| Some(link.name()));
        let carried = group.clone().into_iter().filter(|way| !without.contains(&way.link.as_deref()));
        group.extend(carried.map(|way| Request { coalesce: Some(false), ..way }));
    }
    let others = |levels, test, size| at_levels(levels, test, Some(size)).into_iter().map(minute).collect();
    groups.push(buffered(131_072, others(&["msg", "unix", "tcp"], "stream", 262_142)));
    groups.push(others(&["msg", "unix", "udp"], "stream", 8192));
    groups.push(others(&LEVELS, "rr", 1));
    Preset { name: "gm-ethernet", ceilings: ceilings(&[64 * KIB]), groups, absent: Vec::new() }
}

fn trapeze() -> Preset {
    let both =
        |test, size| [Protocol::Tcp, Protocol::Udp].map(|protocol| ways(protocol, test, size)).concat();
    let mut groups = Vec::new();
    for size in [KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB] {
        groups.push(buffered(65_536, both("stream", size)));
        groups.push(buffered(65_536, at_levels(&LEVELS, "stream", Some(size))));
    }
    groups.push(buffered(65_536, ways(Protocol::Tcp, "stream", 64 * KIB)));
    groups.push(buffered(65_536, at_levels(&["msg", "unix", "tcp"], "stream", Some(64 * KIB))));
    for size in [1, 64, KIB, 2 * KIB, 4 * KIB, 8 * KIB] {
        groups.push(both("latency", size));
        groups.push(at_levels(&LEVELS, "latency", Some(size)));
    }
    // Duke's profiling found the cost in copies, link, checksums and byte order.
    groups.push([Protocol::Tcp, Protocol::Udp].map(|protocol| ways(protocol, "breakdown", 8 * KIB)).concat());
    // Three senders on nodes of their own around a switch.
    let three = ways(Protocol::Tcp, "fanin", 64 * KIB).into_iter();
    let three = three.map(|way| Request { nodes: Some(4), ..way }).collect();
    groups.push(buffered(65_536, several(3, three)));
    groups.push(buffered(65_536, several(3, at_levels(&["msg", "unix", "tcp"], "fanin", Some(64 * KIB)))));
    let absent = |test: Option<&str>, reason: &str| Absence {
        level: ethernet::LEVEL.to_owned(),
        test: test.map(str::to_owned),
        reason: reason.to_owned(),
    };
    Preset {
        name: "trapeze",
        ceilings: ceilings(&[64 * KIB]),
        groups,
        absent: vec![
            absent(
                None,
                "checksums on and off: they stay partial, and neither end of one machine computes them",
            ),
            absent(None, "copying and zero-copy: zero-copy sends come with a later version"),
        ],
    }
}

/// BIP asked for buffers of 65,500 bytes. The granted size is in the details.
fn bip() -> Preset {
    let both = |protocol, test: &str, size| -> Vec<Request> {
        let at = |mtu_bytes| {
            let ways = ways(protocol, test, size).into_iter();
            ways.map(move |way| Request {
                mtu_bytes: Some(mtu_bytes),
                socket_buffer_bytes: Some(65_500),
                ..way
            })
        };
        at(1500).chain(at(9000)).collect()
    };
    let mut groups = Vec::new();
    for power in 0..=20 {
        groups.push(both(Protocol::Tcp, "latency", 1 << power));
    }
    for size in [7872, 8192, 16_384, 65_536, 1_048_576] {
        groups.push(both(Protocol::Tcp, "stream", size));
    }
    for size in [7872, 8192, 16_384] {
        groups.push(both(Protocol::Udp, "stream", size));
    }
    groups.push([both(Protocol::Tcp, "rr", 1), both(Protocol::Udp, "rr", 1)].concat());
    let others = |levels, test, size| buffered(65_500, at_levels(levels, test, Some(size)));
    for power in 0..=20 {
        groups.push(others(&LEVELS, "latency", 1 << power));
    }
    for size in [7872, 8192, 16_384] {
        groups.push(others(&LEVELS, "stream", size));
    }
    for size in [65_536, 1_048_576] {
        groups.push(others(&["msg", "unix", "tcp"], "stream", size));
    }
    groups.push(others(&LEVELS, "rr", 1));
    Preset { name: "bip", ceilings: ceilings(&[64 * KIB]), groups, absent: Vec::new() }
}

/// The comparisons of a TOE: the kernel's own stack over every Ethernet link, and every other level.
fn toe() -> Preset {
    let at = |test: &str, size, mtu_bytes, segmentation| -> Vec<Request> {
        let ways = over_all(test, size).into_iter();
        // Not set if it is on, because all other cells have it on by default.
        let segmentation = if segmentation { None } else { Some(false) };
        ways.map(|way| Request { mtu_bytes: Some(mtu_bytes), segmentation, ..way }).collect()
    };
    let mut groups = Vec::new();
    for (test, sizes) in [("latency", [1, KIB, 16 * KIB]), ("stream", [KIB, 16 * KIB, 64 * KIB])] {
        for size in sizes {
            let mtus = [(1500, true), (1500, false), (9000, true), (9000, false)];
            groups.push(mtus.map(|(mtu, segmentation)| at(test, size, mtu, segmentation)).concat());
            groups.push(at_levels(&LEVELS, test, Some(size)));
        }
    }
    for connections in [1, 2, 4, 8] {
        let all = [at("streams", 64 * KIB, 9000, true), at_levels(&LEVELS, "streams", None)];
        groups.push(several(connections, all.concat()));
    }
    let around = |test, size| -> Vec<Request> {
        let ways = at(test, size, 9000, true).into_iter();
        ways.map(|way| Request { nodes: Some(4), ..way }).collect()
    };
    for connections in [1, 2, 4, 8, 12] {
        let all = [around("hotspot", 1), at_levels(&LEVELS, "hotspot", Some(1))];
        groups.push(several(connections, all.concat()));
    }
    for test in ["fanin", "fanout"] {
        for connections in [3, 12] {
            let all = [around(test, 64 * KIB), at_levels(&LEVELS, test, None)];
            groups.push(several(connections, all.concat()));
        }
    }
    for (test, size) in [("latency", 1), ("stream", 64 * KIB)] {
        for mtu_bytes in [1500, 9000] {
            let all =
                [ranks(&[mpi::Link::Veth, mpi::Link::Eth], test, size), ranks_on_nodes(test, size)].concat();
            let with_mtu = |way| Request { mtu_bytes: Some(mtu_bytes), ..way };
            groups.push(all.into_iter().map(with_mtu).collect());
        }
    }
    groups.extend(served(&[64, KIB, 16 * KIB, MIB], &[0.0, 0.5, 0.9, 1.2]));
    Preset { name: "toe", ceilings: ceilings(&[64 * KIB]), groups, absent: Vec::new() }
}

/// Both web servers, each over every link that it listens on: one file of each of `sizes`, then Zipf traces by α, with
/// ranks by size and, for α = 0.9, ranks independent of it.
fn served(sizes: &[u64], alphas: &[f64]) -> Vec<Vec<Request>> {
    let everywhere = |request: Request| -> Vec<Request> {
        let of = |server: Server, links: &[web::Link]| -> Vec<Request> {
            let on = |link: &web::Link| {
                let link = Some(link.name().to_owned());
                let server = Some(server.name().to_owned());
                Request { link, server, ..request.clone() }
            };
            links.iter().map(on).collect()
        };
        let (tcp, sock, unix, eth) = (web::Link::Tcp, web::Link::Sock, web::Link::Unix, web::Link::Eth);
        [of(Server::Nginx, &[tcp, sock, unix, eth]), of(Server::Apache, &[tcp, sock, eth])].concat()
    };
    let file = |&size| everywhere(Request { size_bytes: Some(size), ..Request::new(web::LEVEL, "web-file") });
    let zipf = |alpha: f64, rank: Rank| {
        let (alpha, rank) = (Some(alpha), Some(rank.name().to_owned()));
        everywhere(Request { alpha, rank, ..Request::new(web::LEVEL, "web-zipf") })
    };
    let small_first = alphas.iter().map(|&alpha| zipf(alpha, Rank::SmallFirst));
    let independent = zipf(0.9, Rank::Independent);
    sizes.iter().map(file).chain(small_first).chain([independent]).collect()
}

/// `group`, and the same over the fabric's Ethernet in one process.
fn with_ethernet(mut group: Vec<Request>, test: &str, size_bytes: u64) -> Vec<Request> {
    group.push(over(Link::OneProcess, test, size_bytes));
    group
}

/// The same requests with socket buffers of `bytes`, on levels with sockets.
fn buffered(bytes: u64, requests: Vec<Request>) -> Vec<Request> {
    let sized = |request: Request| {
        let socket_buffer_bytes = (request.level != "msg").then_some(bytes);
        Request { socket_buffer_bytes, ..request }
    };
    requests.into_iter().map(sized).collect()
}

/// The same messages over every Ethernet link, at MTU 9000.
fn ways(protocol: Protocol, test: &str, size_bytes: u64) -> Vec<Request> {
    let spoken = |way| Request { protocol: Some(protocol.name().to_owned()), ..way };
    over_all(test, size_bytes).into_iter().map(spoken).collect()
}

/// TCP over every Ethernet link, at MTU 9000: between nodes of a fabric both encrypted and plain.
fn over_all(test: &str, size_bytes: u64) -> Vec<Request> {
    let between_nodes = Security::ALL.iter().map(|security| Request {
        security: Some(security.name().to_owned()),
        ..over(Link::Udp, test, size_bytes)
    });
    Link::WITHIN_MACHINE.map(|link| over(link, test, size_bytes)).into_iter().chain(between_nodes).collect()
}

/// TCP over one Ethernet link, at MTU 9000.
fn over(link: Link, test: &str, size_bytes: u64) -> Request {
    Request {
        link: Some(link.name().to_owned()),
        mtu_bytes: Some(9000),
        size_bytes: Some(size_bytes),
        ..Request::new(ethernet::LEVEL, test)
    }
}

/// One group: the same test and size at several levels. The longest datagram stands for 64 KiB. Other sizes above it
/// leave `udp` out.
fn at_levels(levels: &[&str], test: &str, size_bytes: Option<u64>) -> Vec<Request> {
    let longest = crate::plan::DATAGRAM_BYTES_MAX;
    let at_level = |level: &&str| {
        let size_bytes = match size_bytes {
            Some(DATAGRAM_BOUND) if *level == "udp" => Some(longest),
            size => size,
        };
        let fits = *level != "udp" || size_bytes.is_none_or(|size| size <= longest);
        fits.then(|| Request { size_bytes, ..Request::new(level, test) })
    };
    levels.iter().filter_map(at_level).collect()
}

/// Messages between two nodes of a fabric, plain and encrypted, and the kernel's UDP and TCP on the same kind of wire.
fn on_a_wire(test: &str, size_bytes: u64) -> Vec<Request> {
    let between_nodes = Security::ALL.iter().map(|security| Request {
        link: Some(message_link::Link::Udp.name().to_owned()),
        security: Some(security.name().to_owned()),
        size_bytes: Some(size_bytes),
        ..Request::new("msg", test)
    });
    let kernels = at_levels(&["udp", "tcp"], test, Some(size_bytes)).into_iter();
    let kernels = kernels.map(|request| Request { between: Some("namespaces".to_owned()), ..request });
    between_nodes.chain(kernels).collect()
}

/// Both MPI implementations over each of `links`, at MTU 9000 if the link has one.
fn ranks(links: &[mpi::Link], test: &str, size_bytes: u64) -> Vec<Request> {
    let over = |implementation: &Implementation, link: &mpi::Link| Request {
        mpi: Some(implementation.name().to_owned()),
        link: Some(link.name().to_owned()),
        mtu_bytes: [mpi::Link::Veth, mpi::Link::Eth].contains(link).then_some(9000),
        size_bytes: Some(size_bytes),
        ..Request::new(MPI, test)
    };
    let each = links.iter().flat_map(|link| Implementation::ALL.iter().map(move |mpi| over(mpi, link)));
    each.collect()
}

/// Both MPI implementations over the fabric between two nodes, encrypted and plain, at MTU 9000.
fn ranks_on_nodes(test: &str, size_bytes: u64) -> Vec<Request> {
    let over = |way: Request, security: Security| Request {
        between: Some("namespaces".to_owned()),
        security: Some(security.name().to_owned()),
        mtu_bytes: Some(9000),
        ..way
    };
    let ways = ranks(&[mpi::Link::Bywire], test, size_bytes).into_iter();
    ways.flat_map(|way| Security::ALL.iter().map(move |security| over(way.clone(), *security))).collect()
}

/// The same requests with polling ends.
fn polling(requests: Vec<Request>) -> Vec<Request> {
    requests.into_iter().map(|request| Request { spin: Some(true), ..request }).collect()
}

/// TCP with and without the fabric, also with `epoll`, and with spinning disabled.
fn unmodified(test: &str, size_bytes: u64) -> Vec<Request> {
    let both = || at_levels(&["tcp", "sock"], test, Some(size_bytes)).into_iter();
    let asleep = both().filter(|request| request.level == "sock");
    let asleep = asleep.map(|request| Request { spin: Some(false), ..request });
    both().map(|request| Request { epoll: true, ..request }).chain(asleep).collect()
}

/// The same requests with several connections at once.
fn several(connections: u32, requests: Vec<Request>) -> Vec<Request> {
    requests.into_iter().map(|request| Request { connections: Some(connections), ..request }).collect()
}

/// The memory level's tests, with rates at each of `sizes`.
fn ceilings(sizes: &[u64]) -> Vec<Request> {
    let short = |test| Request { time_seconds: Some(CEILING_SECONDS), ..Request::new("memory", test) };
    let mut requests = ["cacheline", "syscall", "futex", "pipe"].map(short).to_vec();
    for &size in sizes {
        requests.extend(["memcpy", "touched"].map(|test| Request { size_bytes: Some(size), ..short(test) }));
    }
    requests.extend(["read", "write", "readwrite"].map(short));
    requests.push(Request { both_cores: true, ..short("memcpy") });
    requests
}

/// Powers of two between the exponents, some with their neighbours, and the edges of pages and frames.
fn with_neighbours(from: u32, to: u32) -> Vec<u64> {
    let mut sizes: Vec<u64> = (from..=to).map(|power| 1 << power).collect();
    let edges = [64, 1024, 1448, 1500, 4096, 8192, 8948, 9000, 65_536];
    for edge in edges.into_iter().filter(|&edge| edge > 1 << from && edge < 1 << to) {
        sizes.extend([edge - 3, edge, edge + 3]);
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Powers of two between the exponents, and the sizes around the ends of the first fragments.
fn with_fragment_edges(from: u32, to: u32) -> Vec<u64> {
    let mut sizes: Vec<u64> = (from..=to).map(|power| 1 << power).collect();
    for fragments in 1..=4 {
        sizes.extend([fragments * 4096 - 1, fragments * 4096, fragments * 4096 + 1]);
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Measurement, Topology};

    #[test]
    fn every_cell_of_every_preset_is_valid() {
        // The library is built with the command, but not with this test.
        let has_library = bywire_pairing::launch::find_library().is_ok();
        for (name, _) in PRESETS {
            let preset = named(name, None, None).unwrap();
            assert_eq!(preset.name, name);
            let requests = preset.groups.into_iter().flatten().chain(preset.ceilings);
            for request in requests.filter(|request| has_library || request.level != "sock") {
                let described = format!("{request:?}");
                // Namespaces need privileges. Whether a request is valid does not depend on them.
                let request = measure::anywhere(&request).expect(&described);
                assert!(Measurement::prepare(request, &mut Topology::default()).is_ok(), "{described}");
            }
        }
    }

    #[test]
    fn each_preset_takes_about_the_stated_time() {
        let of = |name: &str, time| {
            let preset = named(name, time, None).unwrap();
            crate::bench::expected(&preset, None).as_secs_f64() / 60.0
        };
        let told = PRESETS.map(|(name, _)| (name, usual(name).unwrap().as_secs_f64() / 60.0, of(name, None)));
        // Without the library of `sock` the session is shorter than the stated time.
        let is_whole = bywire_pairing::launch::find_library().is_ok();
        // Rounded as a reader would.
        let right = |&(_, said, expected): &(&str, f64, f64)| {
            let error = said - expected;
            (error <= 0.0 || is_whole) <= (error.abs() <= 0.6 + 0.25 * expected)
        };
        assert!(told.iter().all(right), "said and expected, in minutes: {told:?}");
        let short = of("full", Some(0.05));
        assert!(short < 10.0, "full with --time 0.05: {short:.1} min");
    }

    #[test]
    fn no_level_is_missing_without_a_reason() {
        for (name, _) in PRESETS {
            let preset = named(name, None, None).unwrap();
            for level in registry::names().into_iter().filter(|level| *level != MEMORY) {
                let measured = preset.groups.iter().flatten().any(|request| request.level == level);
                let told =
                    preset.absent.iter().any(|absence| absence.level == level && absence.test.is_none());
                assert!(measured || told, "{name} says nothing of {level}");
            }
        }
        let quick = named("quick", None, None).unwrap();
        let udp = quick.absent.iter().find(|absence| absence.level == "udp").unwrap();
        assert_eq!(
            udp.reason,
            "bidir and stream above 65507 bytes, the longest datagram, which stands for 64 KiB"
        );
        let streams =
            quick.groups.iter().flatten().filter(|cell| cell.level == "udp" && cell.test == "stream");
        let (on_a_wire, here): (Vec<_>, Vec<_>) =
            streams.partition(|cell| cell.between.as_deref() == Some("namespaces"));
        let sizes = |cells: &[&Request]| cells.iter().filter_map(|cell| cell.size_bytes).collect::<Vec<_>>();
        assert_eq!((sizes(&here), sizes(&on_a_wire)), (vec![KIB, 65_507], vec![65_507]));
        let chosen = ["unix".to_owned()];
        assert!(named("quick", None, Some(&chosen)).unwrap().absent.is_empty());
    }

    #[test]
    fn unknown_names_are_reported_with_valid_names() {
        let refused = named("fast", None, None).unwrap_err().to_string();
        assert!(refused.contains("quick, full, gm, gm-ethernet, trapeze, bip, toe"), "{refused}");
        let levels = ["tpc".to_owned()];
        assert!(
            named("quick", None, Some(&levels))
                .unwrap_err()
                .to_string()
                .contains("msg, unix, tcp, sock, udp, eth, mpi, web")
        );
        let nothing = named("gm-ethernet", None, Some(&["web".to_owned()])).unwrap_err().to_string();
        assert!(nothing.contains("has no cell of web"), "{nothing}");
    }

    #[test]
    fn selected_levels_are_kept_and_the_time_is_applied() {
        let levels = ["eth".to_owned()];
        let preset = named("gm-ethernet", Some(2.0), Some(&levels)).unwrap();
        let cells: Vec<_> = preset.groups.iter().flatten().collect();
        // Four runs over three links within one machine and two between nodes, and over two without coalescing.
        assert_eq!(cells.len(), 28);
        assert!(cells.iter().all(|cell| cell.level == "eth" && cell.time_seconds == Some(2.0)));
    }
}
