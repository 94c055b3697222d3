//! Presets: the cells of a session, as data. Each source document has a preset that repeats its measurements.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail};
use bywire_command::exit_status::Misuse;
use bywire_results::cell::Absence;
use bywire_results::name::unknown;

use crate::measure::{self, Request};
use crate::plan::DATAGRAM_BYTES_MAX;
use crate::registry::{self, MEMORY};
use crate::{ethernet, size, web};

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

/// A preset by its name, before its cells are made.
pub struct Design {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line of help.
    pub about: &'static str,
    /// The default duration. [`crate::bench::expected`] computes it, but takes too long for a help text.
    minutes: u64,
    /// The sizes of the ceilings that copy.
    ceilings: &'static str,
    /// The cells, in the words of `bywire measure`. `[a,b]` makes a group for each word, `{a,b}` a cell for each in one
    /// group, and `1..8` stands for powers of two. A later option overrides an earlier one.
    cells: &'static [&'static str],
}

/// All presets.
pub const PRESETS: [Design; 7] = [
    Design {
        name: "quick",
        about: "what each level delivers and costs",
        minutes: 2,
        ceilings: "1K,64K,1M",
        cells: &[
            "LEVELS latency --size [8,1K]",
            // The cells above compare sleeping ends, and these compare polling ends.
            "POLLING latency --size 8 --spin",
            "LEVELS [stream --size [1K,64K,1M],bidir --size 64K,rr --size 1,overhead --size 8]",
            "UNMODIFIED rr --size 1",
            "WITHIN_MACHINE [stream --size 64K,rr --size 1]",
            "WIRE [latency --size 8 --spin,latency --size 8,stream --size 64K]",
        ],
    },
    Design {
        name: "full",
        about: "every test of every level by size",
        minutes: 29,
        ceilings: "8,64,1K,8K,64K,1M,16M",
        cells: &[
            "LEVELS latency --size 8",
            "ONE_DOMAIN latency --size [1..4,16..64K,EDGES]",
            "POLLING latency --size [1,8,64,1K,4K] --spin",
            "LEVELS stream --size 64K",
            "ONE_DOMAIN stream --size [8..32K,128K..4M,EDGES,65533,65539]",
            "{LEVELS,ONE_PROCESS} rr --size 1",
            "{ONE_DOMAIN,ONE_PROCESS} bidir --size [64,256,1K,4K,16K,64K,256K,1M]",
            "{ONE_DOMAIN,ONE_PROCESS} [rr --size [1K,16K],overhead --size [8,64,1K,4K],interleave --size [8,1K]]",
            "{OVER_TCP,sock --domain unix --no-spin} rr --size 1",
            "OVER_TCP [rr --size 1K,stream --size [1K,64K]]",
            "ETHERNET [latency --size [1,64,1K,8K,64K],stream --size [64,1K,8K,64K,1M]]",
            "POLLING nhalf --spin",
            "[ONE_DOMAIN,ETHERNET] breakdown --size [8,8K]",
            "ONE_DOMAIN [streams,hotspot --size 1] --connections [1,4,16]",
            "MPI --link {shm,tcp,bywire} [latency --size 8,stream --size [64K,1M]]",
            "MPI --link {shm,tcp} bidir --size 64K",
            "MPI --link shm [latency --size 1K,stream --size 8,rr --size 1]",
            "MPI --link {veth,eth} --mtu 9000 [latency --size 8,stream --size 64K]",
            "WIRE latency --size [8,1K] [,--spin]",
            "WIRE [stream --size [64,1K,8K,64K,1M],bidir --size 64K,rr --size 1,overhead --size 8]",
            "ETHERNET [fanin,fanout] --size 64K --nodes 4 --connections 12",
            "SERVERS [web-file --size [1K,64K],web-zipf --alpha 0.9 --rank [small-first,independent]]",
        ],
    },
    // GM's graphs. The sizes include the edges of its 4,096-byte fragments, which byte streams over Ethernet lack.
    Design {
        name: "gm",
        about: "GM's rates and half-RTT by size, N½, CPU for each message, memory",
        minutes: 14,
        ceilings: "4K,64K,1M",
        cells: &[
            "{LEVELS,ONE_PROCESS} [stream,bidir] --size 64K",
            "{ONE_DOMAIN,ONE_PROCESS} [stream,bidir] --size [8..32K,128K..1M]",
            "ONE_DOMAIN [stream,bidir] --size [4095,4097,8191,8193,12287,12288,12289,16383,16385]",
            "{LEVELS,ONE_PROCESS} [latency --size [1..16K],overhead --size 8]",
            // Polling, as GM did and as docs/performance.md does.
            "POLLING nhalf --spin",
            // GM's fragment is 4 KiB.
            "{msg,unix,tcp} breakdown --size [8,4K]",
            // In place of MPICH over GM.
            "MPI --link {shm,bywire} [latency --size [8,1K],stream --size [4K,1M],bidir --size 1M]",
        ],
    },
    // Netperf's four runs. A message of a stream is as long as in netperf: the granted send buffer. Each runs once more
    // without coalescing, because GM-1 had none, over the links within one machine.
    Design {
        name: "gm-ethernet",
        about: "GM's netperf set over Ethernet: TCP and UDP, CPU at both ends",
        minutes: 42,
        ceilings: "64K",
        cells: &[
            "{ETHERNET,CARRIED --coalesce off} --protocol tcp stream --size 262142 --socket-buffer 131072 --time 60",
            "{ETHERNET,CARRIED --coalesce off} --protocol udp stream --size 8192 --time 60",
            "{ETHERNET,CARRIED --coalesce off} --protocol [tcp,udp] rr --size 1 --time 60",
            "{msg,{unix,tcp} --socket-buffer 131072} stream --size 262142 --time 60",
            "[{msg,unix,udp} stream --size 8192,LEVELS rr --size 1] --time 60",
        ],
    },
    Design {
        name: "trapeze",
        about: "Duke's rates of TCP and UDP at both ends, half-RTT by size",
        minutes: 7,
        ceilings: "64K",
        cells: &[
            "ETHERNET --protocol {tcp,udp} stream --size [1K..32K] --socket-buffer 65536",
            "{msg,SOCKETS --socket-buffer 65536} stream --size [1K..32K]",
            // Three senders are on nodes of their own around a switch.
            "ETHERNET --protocol tcp [stream,fanin --nodes 4 --connections 3] --size 64K --socket-buffer 65536",
            "{msg,{unix,tcp} --socket-buffer 65536} [stream,fanin --connections 3] --size 64K",
            "[ETHERNET --protocol {tcp,udp},LEVELS] latency --size [1,64,1K,2K,4K,8K]",
            // Duke's profiling found the cost in copies, link, checksums and byte order.
            "ETHERNET --protocol {tcp,udp} breakdown --size 8K",
        ],
    },
    // BIP asked for buffers of 65,500 bytes. The granted size is in the details.
    Design {
        name: "bip",
        about: "Lyon's ping-pong by size at two MTUs, streams, transactions",
        minutes: 12,
        ceilings: "64K",
        cells: &[
            "BIP_ETHERNET --protocol tcp [latency --size [1..1M],stream --size [7872,8K,16K,64K,1M]]",
            "BIP_ETHERNET [--protocol udp stream --size [7872,8K,16K],--protocol {tcp,udp} rr --size 1]",
            "BIP_LEVELS [latency --size [1..1M],stream --size [7872,8K,16K],rr --size 1]",
            "{msg,{unix,tcp} --socket-buffer 65500} stream --size [64K,1M]",
        ],
    },
    // The comparisons of a TOE: the kernel's own stack over every Ethernet link, and every other level.
    Design {
        name: "toe",
        about: "two MTUs, segmentation offload, many connections, web servers",
        minutes: 25,
        ceilings: "64K",
        cells: &[
            "[ETHERNET --mtu {1500,9000} {,--segmentation off},LEVELS] latency --size [1,1K,16K]",
            "[ETHERNET --mtu {1500,9000} {,--segmentation off},LEVELS] stream --size [1K,16K,64K]",
            "{ETHERNET --size 64K,LEVELS} streams --connections [1,2,4,8]",
            "{ETHERNET --nodes 4,LEVELS} hotspot --size 1 --connections [1,2,4,8,12]",
            "{ETHERNET --nodes 4 --size 64K,LEVELS} [fanin,fanout] --connections [3,12]",
            "MPI {--link {veth,eth},--link bywire --between namespaces --security {encrypted,plain}} \
             --mtu [1500,9000] [latency --size 1,stream --size 64K]",
            "SERVERS web-file --size [64,1K,16K,1M]",
            "SERVERS web-zipf [--alpha [0,0.5,0.9,1.2] --rank small-first,--alpha 0.9 --rank independent]",
        ],
    },
];

/// Words of [`Design::cells`] that stand for others. A word may contain those below it.
const ABBREVIATIONS: [(&str, &str); 16] = [
    // BIP's two MTUs and its buffers.
    ("BIP_ETHERNET", "ETHERNET --mtu {1500,9000} --socket-buffer 65500"),
    ("BIP_LEVELS", "{msg,SOCKETS --socket-buffer 65500}"),
    // The levels that carry messages between any two processes, in the report's order.
    ("LEVELS", "{msg,SOCKETS}"),
    // The same without carried Unix sockets, which would make long presets longer.
    ("ONE_DOMAIN", "{msg,unix,tcp,sock,udp}"),
    ("SOCKETS", "{unix,tcp,sock {,--domain unix},udp}"),
    // The levels whose ends may poll. The library of `sock` decides that itself.
    ("POLLING", "{msg,unix,tcp,udp}"),
    // TCP and Unix sockets with and without the fabric, with `epoll`, and with spinning disabled.
    ("UNMODIFIED", "{OVER_TCP,{unix,sock --domain unix} --epoll,sock --domain unix --no-spin}"),
    ("OVER_TCP", "{{tcp,sock} --epoll,sock --no-spin}"),
    // Messages between two nodes of a fabric, and the kernel's UDP and TCP on the same kind of wire.
    ("WIRE", "{msg --link udp --security {encrypted,plain},{udp,tcp} --between namespaces}"),
    ("ETHERNET", "{WITHIN_MACHINE,eth --mtu 9000 --link udp --security {encrypted,plain}}"),
    ("WITHIN_MACHINE", "{CARRIED,eth --mtu 9000 --link veth}"),
    ("CARRIED", "{ONE_PROCESS,eth --mtu 9000 --link two-processes}"),
    ("ONE_PROCESS", "eth --mtu 9000 --link one-process"),
    ("MPI", "mpi --mpi {open-mpi,mpich}"),
    // Each server over every link that it listens on.
    ("SERVERS", "web {--server nginx --link {tcp,sock,unix,eth},--server apache --link {tcp,sock,eth}}"),
    // The neighbours of some powers of two, and the edges of pages and frames.
    (
        "EDGES",
        "61,67,1021,1027,1445,1448,1451,1497,1500,1503,4093,4099,8189,8195,8945,8948,8951,8997,9000,9003",
    ),
];

/// The parts of a document that Ethernet cannot repeat, by preset, with the reason.
const ABSENT: [(&str, &str); 2] = [
    ("trapeze", "checksums on and off: they stay partial, and neither end of one machine computes them"),
    ("trapeze", "copying and zero-copy: zero-copy sends come with a later version"),
];

/// The memory level's tests.
const CEILINGS: &str = "memory {cacheline,syscall,futex,pipe,{memcpy,touched} --size {SIZES},read,write,readwrite,\
                        memcpy --both-cores} --time 0.2";

/// The longest measuring time of a ceiling.
const CEILING_SECONDS: f64 = 0.2;

/// The power of two that the longest datagram stands for. The datagram is shorter by its headers.
const DATAGRAM_BOUND: u64 = 64 << 10;

impl Design {
    /// The default duration.
    pub fn usual(&self) -> Duration {
        Duration::from_secs(60 * self.minutes)
    }

    fn preset(&self) -> Result<Preset> {
        let absent = ABSENT.into_iter().filter(|(name, _)| *name == self.name);
        let lines: Vec<_> = self.cells.iter().map(|line| groups(line)).collect::<Result<_>>()?;
        Ok(Preset {
            name: self.name,
            ceilings: groups(&CEILINGS.replace("SIZES", self.ceilings))?.concat(),
            groups: lines.concat(),
            absent: absent.map(|(_, reason)| absence(ethernet::LEVEL, reason.to_owned())).collect(),
        })
    }
}

/// A duration in words, as a reader expects it.
pub fn about(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 90.0 => format!("about {seconds:.0} s"),
        seconds => format!("about {:.0} min", seconds / 60.0),
    }
}

/// The preset of that name. `time_seconds` sets the time of each message cell and the longest time of a ceiling.
/// `levels` restricts the levels; ceilings stay. Fails on an unknown preset or level, with those that exist, and on a
/// time out of bounds.
pub fn named(name: &str, time_seconds: Option<f64>, levels: Option<&[String]>) -> Result<Preset> {
    let design = PRESETS.into_iter().find(|design| design.name == name);
    let known = || Misuse(unknown("preset", name, &PRESETS.map(|design| design.name)));
    let mut preset = design.ok_or_else(known)?.preset()?;
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

/// The levels and lengths that the preset leaves out, with the reasons, for the report.
fn left_out(preset: &Preset) -> Vec<Absence> {
    let requests = || preset.groups.iter().flatten();
    let levels = registry::names().into_iter().filter(|level| *level != MEMORY);
    let others = levels.filter(|level| !requests().any(|request| request.level == *level));
    let of_level = |level: &str| {
        let instead = match level {
            web::LEVEL => "full and toe",
            "mpi" => "full, gm and toe",
            _ => "quick, full, gm and toe",
        };
        absence(level, format!("no part of the preset {}: {instead} measure it", preset.name))
    };
    let too_long =
        |request: &&Request| request.level == "msg" && request.size_bytes > Some(DATAGRAM_BYTES_MAX);
    let too_long: BTreeSet<&str> = requests().filter(too_long).map(|request| request.test.as_str()).collect();
    let tests = too_long.into_iter().collect::<Vec<_>>().join(" and ");
    let of_datagrams = (!tests.is_empty()).then(|| {
        let longest = format!("{DATAGRAM_BYTES_MAX} bytes, the longest datagram, which stands for 64 KiB");
        absence("udp", format!("{tests} above {longest}"))
    });
    others.map(of_level).chain(of_datagrams).collect()
}

fn absence(level: &str, reason: String) -> Absence {
    Absence { level: level.to_owned(), test: None, reason }
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
        let chosen = levels.join(", ");
        let advice = "choose another preset or other --levels";
        bail!(Misuse(format!("the preset {} has no cell of {chosen}: {advice}", preset.name)));
    }
    preset.absent.retain(|absence| levels.contains(&absence.level));
    Ok(())
}

/// The groups of one line of a [`Design`].
fn groups(line: &str) -> Result<Vec<Vec<Request>>> {
    let abbreviations = ABBREVIATIONS.iter();
    let line = abbreviations.fold(line.to_owned(), |line, (short, long)| line.replace(short, long));
    let group = |group: &String| -> Result<Vec<Request>> {
        let cells = expanded(group, ['{', '}']);
        cells.iter().filter_map(|cell| Request::of_words(cell).map(fitting).transpose()).collect()
    };
    expanded(&line, ['[', ']']).iter().map(group).collect()
}

/// The request itself, unless its messages fit into no datagram. The longest datagram stands for 64 KiB.
fn fitting(request: Request) -> Option<Request> {
    match request.size_bytes.filter(|_| request.level == "udp") {
        Some(DATAGRAM_BOUND) => Some(Request { size_bytes: Some(DATAGRAM_BYTES_MAX), ..request }),
        Some(size_bytes) if size_bytes > DATAGRAM_BYTES_MAX => None,
        _ => Some(request),
    }
}

/// The texts that `text` stands for: one for each combination of words in its lists between `open` and `close`.
fn expanded(text: &str, [open, close]: [char; 2]) -> Vec<String> {
    let Some((before, list)) = text.split_once(open) else { return vec![text.to_owned()] };
    let (mut depth, mut begin, mut words) = (0, 0, Vec::new());
    for (place, letter) in list.char_indices() {
        if depth == 0 && (letter == ',' || letter == close) {
            words.extend(powers(&list[begin..place]));
            begin = place + 1;
        }
        match letter {
            '[' | '{' => depth += 1,
            _ if depth == 0 && letter == close => break,
            ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    let with = |word: &String| expanded(&format!("{before}{word}{}", &list[begin..]), [open, close]);
    words.iter().flat_map(with).collect()
}

/// The powers of two from `8` to `64` if `word` is `8..64`, and otherwise the word.
fn powers(word: &str) -> Vec<String> {
    match word.split_once("..").map(|(from, to)| (size::parse(from), size::parse(to))) {
        Some((Ok(from), Ok(to))) => {
            let powers = std::iter::successors(Some(from), |power| Some(2 * power));
            powers.take_while(|power| *power <= to).map(|power| power.to_string()).collect()
        }
        _ => vec![word.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Measurement, Topology};

    /// Every preset as it is.
    fn all() -> impl Iterator<Item = Preset> {
        PRESETS.into_iter().map(|design| named(design.name, None, None).unwrap())
    }

    #[test]
    fn every_cell_of_every_preset_is_valid() {
        // The library is built with the command, but not with this test.
        let has_library = bywire_pairing::launch::find_library().is_ok();
        let requests = all().flat_map(|preset| preset.groups.into_iter().flatten().chain(preset.ceilings));
        for request in requests.filter(|request| has_library || request.level != "sock") {
            let described = format!("{request:?}");
            // Namespaces need privileges. Whether a request is valid does not depend on them.
            let request = measure::anywhere(&request).expect(&described);
            assert!(Measurement::prepare(request, &mut Topology::default()).is_ok(), "{described}");
        }
    }

    #[test]
    fn each_preset_takes_about_the_stated_time() {
        let minutes = |preset: &Preset| crate::bench::expected(preset, None).as_secs_f64() / 60.0;
        let told: Vec<_> = PRESETS
            .iter()
            .zip(all())
            .map(|(design, preset)| (design.name, design.minutes as f64, minutes(&preset)))
            .collect();
        // Without the library of `sock` the session is shorter than the stated time.
        let is_whole = bywire_pairing::launch::find_library().is_ok();
        // Rounded as a reader would.
        let right = |&(_, said, expected): &(&str, f64, f64)| {
            let error = said - expected;
            (error <= 0.0 || is_whole) <= (error.abs() <= 0.6 + 0.25 * expected)
        };
        assert!(told.iter().all(right), "said and expected, in minutes: {told:?}");
        let short = minutes(&named("full", Some(0.05), None).unwrap());
        assert!(short < 10.0, "full with --time 0.05: {short:.1} min");
    }

    #[test]
    fn no_level_is_missing_without_a_reason() {
        for preset in all() {
            for level in registry::names().into_iter().filter(|level| *level != MEMORY) {
                let measured = preset.groups.iter().flatten().any(|request| request.level == level);
                let mut absent = preset.absent.iter();
                let told = absent.any(|absence| absence.level == level && absence.test.is_none());
                assert!(measured || told, "{} says nothing of {level}", preset.name);
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
        let streams: Vec<_> = streams.map(|cell| (cell.between.as_deref(), cell.size_bytes)).collect();
        let on_a_wire = (Some("namespaces"), Some(65_507));
        assert_eq!(streams, [(None, Some(1024)), (None, Some(65_507)), on_a_wire]);
        let chosen = ["unix".to_owned()];
        assert!(named("quick", None, Some(&chosen)).unwrap().absent.is_empty());
    }

    #[test]
    fn what_carries_unix_sockets_is_measured_beside_the_kernels() {
        // The report compares the cells of both in how they receive, and those of the kernel with two of the library.
        let quick = named("quick", None, None).unwrap();
        let cells = |level: &str, is_unix: bool, epoll: bool| {
            let cells = quick.groups.iter().flatten().filter(|cell| cell.test == "rr");
            let such = cells.filter(|cell| cell.level == level && cell.is_unix() == is_unix);
            such.filter(|cell| cell.epoll == epoll).map(|cell| cell.spin).collect::<Vec<_>>()
        };
        for (kernel, is_unix) in [("tcp", false), ("unix", true)] {
            assert!(cells(kernel, false, false).contains(&None), "{kernel}");
            assert_eq!(cells(kernel, false, true), [None], "{kernel}");
            assert_eq!(cells("sock", is_unix, false), [None, Some(false)], "{kernel}");
            assert_eq!(cells("sock", is_unix, true), [None], "{kernel}");
        }
    }

    #[test]
    fn unknown_names_are_reported_with_valid_names() {
        for (name, level, part) in [
            ("fast", "tcp", "quick, full, gm, gm-ethernet, trapeze, bip, toe"),
            ("quick", "tpc", "msg, unix, tcp, sock, udp, eth, mpi, web"),
            ("gm-ethernet", "web", "has no cell of web"),
        ] {
            let refused = named(name, None, Some(&[level.to_owned()])).unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
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
