//! Presets: which cells a session takes, as data. Each source document has one that repeats what it did.

use anyhow::{Result, bail};

use crate::cell::Absence;
use crate::ending::Misuse;
use crate::measure::{self, Request};

/// What a session takes.
#[derive(Clone, Debug)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Ceilings, taken before and after everything else.
    pub ceilings: Vec<Request>,
    /// Cells to be compared with each other stand in one group and are taken pair by pair in turn.
    pub groups: Vec<Vec<Request>>,
    /// What the preset would take but this version cannot.
    pub absent: Vec<Absence>,
}

/// All presets with one line each.
pub const PRESETS: [(&str, &str); 6] = [
    ("quick", "what each level delivers and costs, in under three minutes"),
    ("full", "every test of every level by size"),
    ("gm", "GM's own measurements: rates and half-RTT by size, N½, host CPU per message, memory"),
    (
        "gm-ethernet",
        "GM's netperf set over Ethernet: TCP and UDP stream and request/response, CPU at both ends",
    ),
    ("trapeze", "Duke's TCP and UDP rates at sender and receiver, and half-RTT by size"),
    ("bip", "Lyon's ping-pong by size at two MTUs, streams, and transactions per second"),
];

/// The levels that carry messages, in the report's order.
const LEVELS: [&str; 4] = ["msg", "unix", "tcp", "udp"];

/// Measuring time of a ceiling, at most.
const CEILING_SECONDS: f64 = 0.2;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The preset of that name, each of its message cells taking `time_seconds` where given (and no ceiling longer than
/// that), with only `levels` where given (ceilings stay).
///
/// # Errors
/// An unknown preset or level, with those that exist; a time out of bounds.
pub fn named(name: &str, time_seconds: Option<f64>, levels: Option<&[String]>) -> Result<Preset> {
    let mut preset = match name {
        "quick" => quick(),
        "full" => full(),
        "gm" => gm(),
        "gm-ethernet" => gm_ethernet(),
        "trapeze" => trapeze(),
        "bip" => bip(),
        _ => {
            let names = PRESETS.map(|(name, _)| name).join(", ");
            bail!(Misuse(format!("unknown preset `{name}`: choose one of {names}")))
        }
    };
    measure::time(time_seconds)?;
    for request in preset.groups.iter_mut().flatten() {
        request.time_seconds = time_seconds.or(request.time_seconds);
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

fn keep_levels(preset: &mut Preset, levels: &[String]) -> Result<()> {
    if let Some(unknown) = levels.iter().find(|level| *level != "memory" && !LEVELS.contains(&level.as_str()))
    {
        bail!(Misuse(format!("unknown level `{unknown}`: choose from memory, {}", LEVELS.join(", "))));
    }
    for group in &mut preset.groups {
        group.retain(|request| levels.contains(&request.level));
    }
    preset.groups.retain(|group| !group.is_empty());
    preset.absent.retain(|absence| levels.contains(&absence.level));
    Ok(())
}

/// Few cells, none of them thinned.
fn quick() -> Preset {
    let mut groups = Vec::new();
    for size in [8, KIB] {
        groups.push(at_levels(&LEVELS, "latency", Some(size)));
    }
    // Sleeping is compared with sleeping above, and polling with polling here.
    groups.push(polling(at_levels(&LEVELS, "latency", Some(8))));
    for size in [KIB, 64 * KIB, MIB] {
        groups.push(at_levels(&LEVELS, "stream", Some(size)));
    }
    groups.push(at_levels(&LEVELS, "bidir", Some(64 * KIB)));
    groups.push(at_levels(&LEVELS, "rr", Some(1)));
    groups.push(at_levels(&LEVELS, "overhead", Some(8)));
    Preset { name: "quick", ceilings: ceilings(&[KIB, 64 * KIB, MIB]), groups, absent: Vec::new() }
}

fn full() -> Preset {
    let mut groups = Vec::new();
    for size in with_neighbours(0, 16) {
        groups.push(at_levels(&LEVELS, "latency", Some(size)));
    }
    for size in [1, 8, 64, KIB, 4 * KIB] {
        groups.push(polling(at_levels(&LEVELS, "latency", Some(size))));
    }
    for size in with_neighbours(3, 22) {
        groups.push(at_levels(&LEVELS, "stream", Some(size)));
    }
    for power in (6..=20).step_by(2) {
        groups.push(at_levels(&LEVELS, "bidir", Some(1 << power)));
    }
    for size in [1, KIB, 16 * KIB] {
        groups.push(at_levels(&LEVELS, "rr", Some(size)));
    }
    for size in [8, 64, KIB, 4 * KIB] {
        groups.push(at_levels(&LEVELS, "overhead", Some(size)));
    }
    for size in [8, KIB] {
        groups.push(at_levels(&LEVELS, "interleave", Some(size)));
    }
    groups.push(at_levels(&LEVELS, "nhalf", None));
    Preset {
        name: "full",
        ceilings: ceilings(&[8, 64, KIB, 8 * KIB, 64 * KIB, MIB, 16 * MIB]),
        groups,
        absent: Vec::new(),
    }
}

/// GM's graphs with the edges of its 4,096-byte fragments among the sizes.
fn gm() -> Preset {
    let mut groups = Vec::new();
    for size in with_fragment_edges(3, 20) {
        groups.push(at_levels(&LEVELS, "stream", Some(size)));
        groups.push(at_levels(&LEVELS, "bidir", Some(size)));
    }
    for power in 0..=14 {
        groups.push(at_levels(&LEVELS, "latency", Some(1 << power)));
    }
    groups.push(at_levels(&LEVELS, "nhalf", None));
    groups.push(at_levels(&LEVELS, "overhead", Some(8)));
    Preset { name: "gm", ceilings: ceilings(&[4 * KIB, 64 * KIB, MIB]), groups, absent: Vec::new() }
}

/// Netperf's four runs; a stream's message is as long as netperf made it, the send buffer that was granted.
fn gm_ethernet() -> Preset {
    let over_ethernet = |level, test, size_bytes| Request {
        between: Some("namespaces".to_owned()),
        mtu_bytes: Some(9000),
        time_seconds: Some(60.0),
        size_bytes: Some(size_bytes),
        ..Request::new(level, test)
    };
    let tcp_stream =
        Request { socket_buffer_bytes: Some(131_072), ..over_ethernet("tcp", "stream", 262_142) };
    Preset {
        name: "gm-ethernet",
        ceilings: ceilings(&[64 * KIB]),
        groups: vec![
            vec![tcp_stream],
            vec![over_ethernet("udp", "stream", 8192)],
            vec![over_ethernet("tcp", "rr", 1), over_ethernet("udp", "rr", 1)],
        ],
        absent: vec![emulated_ethernet("coalescing off (as GM-1) and on (as GM-2)")],
    }
}

fn trapeze() -> Preset {
    let over_ethernet = |level, test, size_bytes| Request {
        between: Some("namespaces".to_owned()),
        mtu_bytes: Some(9000),
        size_bytes: Some(size_bytes),
        ..Request::new(level, test)
    };
    let buffered = |level, size_bytes| Request {
        socket_buffer_bytes: Some(65_536),
        ..over_ethernet(level, "stream", size_bytes)
    };
    let mut groups = Vec::new();
    for size in [KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB] {
        groups.push(vec![buffered("tcp", size), buffered("udp", size)]);
    }
    groups.push(vec![buffered("tcp", 64 * KIB)]);
    for size in [1, 64, KIB, 2 * KIB, 4 * KIB, 8 * KIB] {
        groups.push(["tcp", "udp"].map(|level| over_ethernet(level, "latency", size)).to_vec());
    }
    Preset {
        name: "trapeze",
        ceilings: ceilings(&[64 * KIB]),
        groups,
        absent: vec![
            emulated_ethernet("checksums on and off, copying and zero-copy"),
            Absence {
                level: "tcp".to_owned(),
                test: Some("streams".to_owned()),
                reason: "three senders at once come with a later version".to_owned(),
            },
        ],
    }
}

/// BIP asked for 65,500-byte buffers; what was granted stands in the details.
fn bip() -> Preset {
    let over_ethernet = |level, test, mtu_bytes, size_bytes| Request {
        between: Some("namespaces".to_owned()),
        mtu_bytes: Some(mtu_bytes),
        socket_buffer_bytes: Some(65_500),
        size_bytes: Some(size_bytes),
        ..Request::new(level, test)
    };
    let both = |level: &'static str, test: &'static str, size| {
        [1500, 9000].map(|mtu| over_ethernet(level, test, mtu, size)).to_vec()
    };
    let mut groups = Vec::new();
    for power in 0..=20 {
        groups.push(both("tcp", "latency", 1 << power));
    }
    for size in [7872, 8192, 16_384, 65_536, 1_048_576] {
        groups.push(both("tcp", "stream", size));
    }
    for size in [7872, 8192, 16_384] {
        groups.push(both("udp", "stream", size));
    }
    groups.push([both("tcp", "rr", 1), both("udp", "rr", 1)].concat());
    Preset {
        name: "bip",
        ceilings: ceilings(&[64 * KIB]),
        groups,
        absent: vec![emulated_ethernet("the second way of carrying")],
    }
}

/// One group: the same test and size at several levels. Sizes that no datagram holds leave `udp` out.
fn at_levels(levels: &[&str], test: &str, size_bytes: Option<u64>) -> Vec<Request> {
    let fits = |level: &&&str| {
        **level != "udp" || size_bytes.is_none_or(|size| size <= crate::plan::DATAGRAM_BYTES_MAX)
    };
    levels.iter().filter(fits).map(|level| Request { size_bytes, ..Request::new(level, test) }).collect()
}

/// The same requests with ends that poll.
fn polling(requests: Vec<Request>) -> Vec<Request> {
    requests.into_iter().map(|request| Request { spin: Some(true), ..request }).collect()
}

/// The memory level's tests; rates at each of `sizes`.
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

/// Powers of two between the exponents, with their neighbours at some and the edges of pages and frames.
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

/// Powers of two between the exponents, and both sides of the first fragments' ends.
fn with_fragment_edges(from: u32, to: u32) -> Vec<u64> {
    let mut sizes: Vec<u64> = (from..=to).map(|power| 1 << power).collect();
    for fragments in 1..=4 {
        sizes.extend([fragments * 4096 - 1, fragments * 4096, fragments * 4096 + 1]);
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn emulated_ethernet(what: &str) -> Absence {
    Absence {
        level: "eth".to_owned(),
        test: None,
        reason: format!("{what}: the level comes with emulated Ethernet, in a later version"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Measurement, Places};

    #[test]
    fn every_cell_of_every_preset_makes_sense() {
        for (name, _) in PRESETS {
            let preset = named(name, None, None).unwrap();
            assert_eq!(preset.name, name);
            for request in preset.groups.into_iter().flatten().chain(preset.ceilings) {
                let described = format!("{request:?}");
                // Namespaces need privileges, which a request's sense does not.
                let request = request.anywhere().expect(&described);
                assert!(Measurement::prepare(request, &mut Places::default()).is_ok(), "{described}");
            }
        }
    }

    #[test]
    fn unknown_names_are_answered_with_those_that_exist() {
        let refused = named("fast", None, None).unwrap_err().to_string();
        assert!(refused.contains("quick, full, gm, gm-ethernet, trapeze, bip"), "{refused}");
        let levels = ["tpc".to_owned()];
        assert!(named("quick", None, Some(&levels)).unwrap_err().to_string().contains("msg, unix, tcp, udp"));
    }

    #[test]
    fn chosen_levels_are_kept_and_time_is_set() {
        let levels = ["tcp".to_owned()];
        let preset = named("gm-ethernet", Some(2.0), Some(&levels)).unwrap();
        let cells: Vec<_> = preset.groups.iter().flatten().collect();
        assert_eq!(cells.len(), 2);
        assert!(cells.iter().all(|cell| cell.level == "tcp" && cell.time_seconds == Some(2.0)));
    }
}
