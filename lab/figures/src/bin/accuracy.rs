//! Other people's programs in turn with the laboratory, doing the same as far as each of them can.

use std::process::ExitCode;
use std::rc::Rc;

use bywire_command::exit_status;
use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::figures::Figures;
use bywire_figures::page;
use bywire_figures::program::{self, Arguments};
use bywire_figures::reference::{self, Network};
use bywire_figures::series::value;
use bywire_measure::ethernet::{FrameLink, Link};
use bywire_measure::measure::Request;
use bywire_results::cell::DISTURBED;
use clap::Parser;

/// The laboratory beside iperf3 and sockperf, in one run, as a Markdown table (needs root)
#[derive(Parser)]
struct Accuracy {
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

/// A fixed socket buffer, as iperf3's `-w` asks for.
const BUFFER: &str = "1M";
const BUFFER_BYTES: u64 = 1 << 20;

/// What both choose where the system's own choice is not to matter: every Linux has it and lets everyone choose it.
const CONGESTION: &str = "reno";

/// One of the two programs' streams.
enum Stream {
    /// The laboratory's, as a change of one that has iperf3's block, touches nothing, asks before it calls, leaves Nagle's
    /// algorithm off, and has [`CONGESTION`]; and whether the connection's first second is left out.
    Laboratory(fn(Request) -> Request, bool),
    /// iperf3's, by options of its client.
    Iperf3(&'static [&'static str]),
}

use Stream::{Iperf3, Laboratory};

/// All contestants: the name, and the work.
const STREAMS: [(&str, Stream); 14] = [
    (
        "default",
        Laboratory(
            |request| Request {
                size_bytes: None,
                untouched: false,
                epoll: false,
                congestion: None,
                ..request
            },
            false,
        ),
    ),
    ("like Nagle", Laboratory(|request| Request { nagle: Some(true), ..request }, true)),
    ("like", Laboratory(|request| request, true)),
    ("system", Laboratory(|request| Request { congestion: None, ..request }, true)),
    ("waiting", Laboratory(|request| Request { epoll: false, ..request }, true)),
    ("touched", Laboratory(|request| Request { untouched: false, ..request }, true)),
    ("64 KiB", Laboratory(|request| Request { size_bytes: Some(64 << 10), ..request }, true)),
    ("young", Laboratory(|request| request, false)),
    ("buffers", Laboratory(|request| Request { socket_buffer_bytes: Some(BUFFER_BYTES), ..request }, true)),
    ("iperf3", Iperf3(&[])),
    ("iperf3 -N", Iperf3(&["-N"])),
    ("iperf3 -C", Iperf3(&["-C", CONGESTION])),
    ("iperf3 -C -N", Iperf3(&["-C", CONGESTION, "-N"])),
    ("iperf3 -C -N -w", Iperf3(&["-C", CONGESTION, "-N", "-w", BUFFER])),
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

fn main() -> ExitCode {
    let run = || {
        let Accuracy { arguments, over, knobs } = Accuracy::parse();
        let mut ways = ways();
        ways.retain(|way| over.as_ref().is_none_or(|over| over.iter().any(|name| name == way.0)));
        arguments.run(
            "accuracy",
            |pair_seconds| contestants(&ways, knobs, pair_seconds),
            |figures| page(&ways, knobs, figures),
        )
    };
    exit_status::of("accuracy", program::play().unwrap_or_else(run))
}

/// A way by its name, and by its link where it has one.
type Joined = (&'static str, Option<Link>);

/// Loopback, then every way of carrying Ethernet.
fn ways() -> Vec<Joined> {
    let links = Link::WITHIN_MACHINE.into_iter().map(|link| (link.name(), Some(link)));
    std::iter::once(("loopback", None)).chain(links).collect()
}

/// The rows of one of the two tables.
fn rows(knobs: bool) -> &'static [(&'static str, &'static str, &'static str)] {
    if knobs { &KNOBS } else { &COMPARED }
}

fn contestants(ways: &[Joined], knobs: bool, pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for (place, link) in ways {
        let over = |test: &str, size_bytes: u64| {
            let request = match link {
                None => Request::new("tcp", test),
                Some(link) => Request {
                    link: Some(link.name().to_owned()),
                    mtu_bytes: Some(MTU_BYTES),
                    ..Request::new("eth", test)
                },
            };
            Request { size_bytes: Some(size_bytes), ..request }
        };
        let way = match *link {
            None => Network::Loopback,
            Some(link) => {
                let frame_link = FrameLink::of(link, MTU_BYTES);
                Network::Joined(Rc::new(move || Ok(Rc::new(frame_link.open()?))))
            }
        };
        let like = Request {
            untouched: true,
            epoll: true,
            congestion: Some(CONGESTION.to_owned()),
            ..over("stream", reference::IPERF3_BLOCK_BYTES)
        };
        let wanted = |name: &str| rows(knobs).iter().any(|row| row.0 == name || row.1 == name);
        for (name, stream) in STREAMS.iter().filter(|stream| wanted(stream.0)) {
            let name = format!("{name} {place}");
            let contestant = match stream {
                Laboratory(change, true) => Contestant::settled(change(like.clone())),
                Laboratory(change, false) => Contestant::fresh(change(like.clone()), pair_seconds),
                Iperf3(options) => reference::iperf3(way.clone(), options),
            };
            contest.add(name, Ok(contestant));
        }
        if knobs {
            continue;
        }
        let latency = over("latency", reference::SOCKPERF_BYTES);
        // One pair may have another gait than the next; sockperf's single one runs for as long as all of these.
        contest.add(format!("latency {place}"), Ok(Contestant::whole(latency, pair_seconds)));
        contest.add(format!("sockperf {place}"), Ok(reference::sockperf(way)));
    }
    contest
}

fn page(ways: &[Joined], knobs: bool, figures: &Figures) -> String {
    let (about, titles) = match knobs {
        true => (
            format!(
                "One TCP connection: what a difference is worth by itself. Where nothing else is said both programs send 128 KiB at a \
                 time, neither write nor read what is sent, ask before each call whether it would wait, leave Nagle's algorithm off and the connection's first second out, \
                 and have {CONGESTION} for congestion control; the system's own is {}.",
                system_congestion()
            ),
            ["over", "what is different", "rate with it", "without it", "ratio"],
        ),
        false => (
            format!(
                "One TCP connection, by rate; the ratio is the laboratory's over iperf3's. Congestion control: {} where each is as it \
                 comes and where the system chooses, else {CONGESTION}.",
                system_congestion()
            ),
            ["over", "what is compared", "laboratory", "iperf3", "ratio"],
        ),
    };
    let compared = |place: &str, about: &str, [own, other]: [&str; 2]| {
        let names = [own, other].map(|name| format!("{name} {place}"));
        let [own, other] = names.each_ref().map(|name| value(name));
        let ratio = figures.rounds().ratio(own, other).map(|_| page::ratio(figures, own, other));
        let told = |series| page::told(figures, series);
        vec![place.to_owned(), about.to_owned(), told(own), told(other), ratio.unwrap_or_default()]
    };
    let streams = ways.iter().flat_map(|(place, _)| {
        rows(knobs).iter().map(move |(own, other, about)| compared(place, about, [own, other]))
    });
    let mut page = format!("{}\n{about}\n\n{}", page::machine(figures), page::table(2, titles, streams));
    if !knobs {
        let about = "ends that sleep, one blocking call each";
        let rows = ways.iter().map(|(place, _)| compared(place, about, ["latency", "sockperf"]));
        let titles = ["over", "what is compared", "laboratory", "sockperf", "ratio"];
        page += "\nPing-pong of 14 bytes over TCP, half-RTT, medians.\n\n";
        page += &page::table(2, titles, rows);
    }
    page + &format!("\nBehind them. {DISTURBED}\n\n{}", page::contestants(figures))
}

/// The kernel's default for a connection.
fn system_congestion() -> String {
    let found = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    found.map_or_else(|_| "not known".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bywire_figures::figures::without;

    use super::*;

    #[test]
    fn a_rival_that_did_not_run_has_a_reason_and_the_others_have_results() {
        let session = without("iperf3 veth", "not installed");
        let page = page(&ways(), false, &Figures::of(&session));
        assert!(page.contains("not run: not installed") && page.contains("| loopback |"), "{page}");
    }

    #[test]
    fn every_row_has_a_runner_and_a_distinct_text() {
        let commands = |contest: &Contest| {
            let commands = contest.entrants().map(|(name, contestant)| {
                let command = contestant.as_ref().map(Contestant::command).unwrap_or_default();
                (name.to_owned(), command)
            });
            commands.collect::<BTreeMap<String, String>>()
        };
        for knobs in [false, true] {
            let commands = commands(&contestants(&ways(), knobs, 0.1));
            for (place, _) in ways() {
                for (own, other, about) in rows(knobs) {
                    let [own, other] =
                        [own, other].map(|name| commands.get(&format!("{name} {place}")).expect(about));
                    assert_ne!(own, other, "{about}");
                }
            }
        }
        let commands = commands(&contestants(&ways(), false, 0.1));
        let like = &commands["like loopback"];
        for option in ["--size 131072", "--congestion reno", "--epoll", "--untouched"] {
            assert!(like.contains(option), "{option}: {like}");
        }
        assert!(commands["iperf3 -N loopback"].ends_with("-l 131072 -O 1 -t 1 -N"));
    }
}
