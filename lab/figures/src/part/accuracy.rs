//! Other people's programs in turn with the laboratory, doing the same as far as each of them can.

use std::rc::Rc;

use anyhow::Result;
use bywire_measure::ethernet::{FrameLink, Link};
use clap::Parser;

use crate::contestant::{Contest, Contestant};
use crate::ethernet::{Join, iperf3_stream, joined, sockperf};
use crate::figures::Figures;
use crate::page;
use crate::process::Place;
use crate::run::Arguments;

/// The laboratory beside iperf3 and sockperf, in one run, as a Markdown table (needs root)
#[derive(Parser)]
pub struct Accuracy {
    #[command(flatten)]
    arguments: Arguments,
    /// Only over these: loopback, one-process, two-processes, veth
    #[arg(long, value_name = "WAY,…", value_delimiter = ',', value_parser = ways().into_iter().map(|way| way.0).collect::<Vec<_>>())]
    over: Option<Vec<String>>,
    /// In place of the comparison, what each difference between the laboratory's default and iperf3 is worth by itself
    #[arg(long)]
    knobs: bool,
}

const MTU_BYTES: u32 = 9000;
/// Congestion control that both choose if the system's own is not to matter: every Linux has it and lets everyone choose it.
const CONGESTION: &str = "reno";

/// One of the two programs' streams.
enum Stream {
    /// The laboratory's with these options.
    Laboratory(&'static str),
    /// That stream without its connection's first second.
    Settled(&'static str),
    /// iperf3's, by options of its client besides a block of 128 KiB and a second that is left out.
    Iperf3(&'static str),
}

use Stream::{Iperf3, Laboratory, Settled};

/// All contestants: the name, and the work. `like` has iperf3's block, touches nothing, asks before it calls, leaves Nagle's
/// algorithm off, and has [`CONGESTION`]. The others but `default` differ from it in one thing each.
const STREAMS: [(&str, Stream); 14] = [
    ("default", Laboratory("")),
    ("like Nagle", Settled("--size 128K --untouched --epoll --congestion reno --nagle on")),
    ("like", Settled("--size 128K --untouched --epoll --congestion reno")),
    ("system", Settled("--size 128K --untouched --epoll")),
    ("waiting", Settled("--size 128K --untouched --congestion reno")),
    ("touched", Settled("--size 128K --epoll --congestion reno")),
    ("64 KiB", Settled("--size 64K --untouched --epoll --congestion reno")),
    ("young", Laboratory("--size 128K --untouched --epoll --congestion reno")),
    ("buffers", Settled("--size 128K --untouched --epoll --congestion reno --socket-buffer 1MiB")),
    ("iperf3", Iperf3("")),
    ("iperf3 -N", Iperf3(" -N")),
    ("iperf3 -C", Iperf3(" -C reno")),
    ("iperf3 -C -N", Iperf3(" -C reno -N")),
    ("iperf3 -C -N -w", Iperf3(" -C reno -N -w 1M")),
];

/// Rows of the comparison: the laboratory's stream, iperf3's, and what they have in common.
const COMPARED: [(&str, &str, &str); 4] = [
    ("default", "iperf3", "each as it comes"),
    ("like Nagle", "iperf3 -C", "like with like, both with Nagle's algorithm"),
    ("like", "iperf3 -C -N", "like with like, both without"),
    ("system", "iperf3 -N", "the same, but for the system's congestion control"),
];

/// Rows of what a difference is worth: with it, without it, and what it is.
const KNOBS: [(&str, &str, &str); 10] = [
    ("system", "like", "the laboratory leaves congestion control to the system"),
    ("iperf3 -N", "iperf3 -C -N", "iperf3 leaves congestion control to the system"),
    ("waiting", "like", "the laboratory waits within its calls"),
    ("touched", "like", "the laboratory writes and reads the payload"),
    ("64 KiB", "like", "the laboratory sends 64 KiB at a time"),
    (
        "young",
        "like",
        "the laboratory takes the connection's beginning in, and the median of blocks of 20 ms",
    ),
    ("like Nagle", "like", "the laboratory leaves Nagle's algorithm on"),
    ("buffers", "like", "the laboratory asks for socket buffers of 1 MiB"),
    ("iperf3 -C", "iperf3 -C -N", "iperf3 leaves Nagle's algorithm on"),
    ("iperf3 -C -N -w", "iperf3 -C -N", "iperf3 asks for socket buffers of 1 MiB"),
];

impl Accuracy {
    pub fn run(self) -> Result<()> {
        let Self { arguments, over, knobs } = self;
        let mut ways = ways();
        ways.retain(|way| over.as_ref().is_none_or(|over| over.iter().any(|name| name == way.0)));
        arguments.run(
            "accuracy",
            |pair_seconds| contestants(&ways, knobs, pair_seconds),
            |figures| page(&ways, knobs, figures),
        )
    }
}

/// A way by its name, and by its link where it has one.
type Way = (&'static str, Option<Link>);

/// Loopback, then every way of carrying Ethernet.
pub fn ways() -> Vec<Way> {
    let links = Link::WITHIN_MACHINE.into_iter().map(|link| (link.name(), Some(link)));
    std::iter::once(("loopback", None)).chain(links).collect()
}

/// The rows of one of the two tables.
fn rows(knobs: bool) -> &'static [(&'static str, &'static str, &'static str)] {
    if knobs { &KNOBS } else { &COMPARED }
}

/// The contestants of one of the two tables.
pub fn contestants(ways: &[Way], knobs: bool, pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for (place, link) in ways {
        let (level, carried, join): (_, _, Join) = match *link {
            None => ("tcp", String::new(), Rc::new(|| Ok(Place::default()))),
            Some(link) => {
                ("eth", format!("--link {link} --mtu {MTU_BYTES}"), joined(FrameLink::of(link, MTU_BYTES)))
            }
        };
        let wanted = |name: &str| rows(knobs).iter().any(|row| row.0 == name || row.1 == name);
        for (name, stream) in STREAMS.iter().filter(|stream| wanted(stream.0)) {
            let words = |options| format!("{level} stream {carried} {options}");
            let contestant = match stream {
                Settled(options) => Contestant::settled(&words(options)),
                Laboratory(options) => Contestant::fresh(&words(options), pair_seconds),
                Iperf3(options) => {
                    Ok(iperf3_stream(Rc::clone(&join), format!("-l 131072 -O 1 -t 1{options}")))
                }
            };
            contest.add(format!("{name} {place}"), contestant);
        }
        if knobs {
            continue;
        }
        // Sockperf's shortest message. One pair may have another gait than the next; sockperf's single one runs for as long as all
        // of these.
        let latency = Contestant::whole(&format!("{level} latency {carried} --size 14"), pair_seconds);
        contest.add(format!("latency {place}"), latency);
        contest.add(format!("sockperf {place}"), Ok(sockperf(join)));
    }
    contest
}

/// One of the two tables, with everything behind it.
pub fn page(ways: &[Way], knobs: bool, figures: &Figures) -> String {
    let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let system = system.map_or_else(|_| "not known".to_owned(), |name| name.trim().to_owned());
    let (about, titles) = match knobs {
        true => (
            format!(
                "One TCP connection: what a difference is worth by itself. Where nothing else is said both programs send 128 KiB at a \
                 time, neither write nor read what is sent, ask before each call whether it would wait, leave Nagle's algorithm off and the connection's first second out, \
                 and have {CONGESTION} for congestion control; the system's own is {system}."
            ),
            ["over", "what is different", "rate with it", "without it", "ratio"],
        ),
        false => (
            format!(
                "One TCP connection, by rate; the ratio is the laboratory's over iperf3's. Congestion control: {system} where each is as it \
                 comes and where the system chooses, else {CONGESTION}."
            ),
            ["over", "what is compared", "laboratory", "iperf3", "ratio"],
        ),
    };
    let compared = |place: &str, about: &str, names: [&str; 2]| {
        page::versus(figures, &[place, about], names.map(|name| format!("{name} {place}")))
    };
    let streams = ways.iter().flat_map(|(place, _)| {
        rows(knobs).iter().map(move |(own, other, about)| compared(place, about, [own, other]))
    });
    let mut body = format!("{about}\n\n{}", page::table(2, titles, streams));
    if !knobs {
        let about = "ends that sleep, one blocking call each";
        let rows = ways.iter().map(|(place, _)| compared(place, about, ["latency", "sockperf"]));
        let titles = ["over", "what is compared", "laboratory", "sockperf", "ratio"];
        body += "\nPing-pong of 14 bytes over TCP, half-RTT, medians.\n\n";
        body += &page::table(2, titles, rows);
    }
    page::page(figures, &body)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_row_has_a_runner_and_a_distinct_text() {
        let commands = |contest: Contest| {
            let commands =
                contest.0.into_iter().map(|(name, contestant)| (name, contestant.unwrap().command));
            commands.collect::<BTreeMap<String, String>>()
        };
        for knobs in [false, true] {
            let commands = commands(contestants(&ways(), knobs, 0.1));
            for (place, _) in ways() {
                for (own, other, about) in rows(knobs) {
                    let [own, other] =
                        [own, other].map(|name| commands.get(&format!("{name} {place}")).expect(about));
                    assert_ne!(own, other, "{about}");
                }
            }
        }
        let commands = commands(contestants(&ways(), false, 0.1));
        let like = &commands["like loopback"];
        for option in ["--size 131072", "--congestion reno", "--epoll", "--untouched"] {
            assert!(like.contains(option), "{option}: {like}");
        }
        assert!(commands["iperf3 -N loopback"].ends_with("-l 131072 -O 1 -t 1 -N"));
    }
}
