//! Measures other people's programs in turn with the laboratory, doing the same as far as each of them can.

use std::process::ExitCode;
use std::rc::Rc;

use bywire_command::exit_status;
use bywire_figures::contest::Contest;
use bywire_figures::ethernet;
use bywire_figures::program::{self, Arguments};
use bywire_figures::reference::{self, Network};
use bywire_figures::table;
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
    let words: Vec<String> = std::env::args().skip(1).collect();
    exit_status::of(
        "accuracy",
        match words.first().map(String::as_str) {
            Some("__worker") => bywire_measure::worker::run(),
            Some("eth") => program::become_bywire(&words),
            _ => {
                let Accuracy { arguments, over, knobs } = Accuracy::parse();
                let mut ways = ways();
                ways.retain(|way| over.as_ref().is_none_or(|over| over.iter().any(|name| name == way.0)));
                arguments.run(
                    |pair_seconds| contestants(&ways, knobs, pair_seconds),
                    |contest| page(&ways, knobs, contest),
                )
            }
        },
    )
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
                Laboratory(change, true) => ethernet::settled(&name, change(like.clone())),
                Laboratory(change, false) => ethernet::laboratory(&name, change(like.clone()), pair_seconds),
                Iperf3(options) => reference::iperf3(&name, way.clone(), options),
            };
            contest.add(&name, Ok(contestant));
        }
        if knobs {
            continue;
        }
        let name = format!("latency {place}");
        let latency = over("latency", reference::SOCKPERF_BYTES);
        // One pair may have another gait than the next; sockperf's single one runs for as long as all of these.
        contest.add(&name, Ok(ethernet::whole(&name, latency, pair_seconds)));
        let name = format!("sockperf {place}");
        contest.add(&name, Ok(reference::sockperf(&name, way)));
    }
    contest
}

fn page(ways: &[Joined], knobs: bool, contest: &Contest) -> String {
    let mut page = table::machine();
    let titles = match knobs {
        true => {
            page.push_str(&format!(
                "\nOne TCP connection: what a difference is worth by itself. Where nothing else is said both programs send 128 KiB at a \
                 time, neither write nor read what is sent, ask before each call whether it would wait, leave Nagle's algorithm off and the connection's first second out, \
                 and have {CONGESTION} for congestion control; the system's own is {}.\n\n",
                system_congestion()
            ));
            ["over", "what is different", "rate with it", "without it", "ratio"]
        }
        false => {
            page.push_str(&format!(
                "\nOne TCP connection, by rate; the ratio is the laboratory's over iperf3's. Congestion control: {} where each is as it \
                 comes and where the system chooses, else {CONGESTION}.\n\n",
                system_congestion()
            ));
            ["over", "what is compared", "laboratory", "iperf3", "ratio"]
        }
    };
    page.push_str(&table::heading(&titles));
    for (place, _) in ways {
        for (own, other, about) in rows(knobs) {
            let [own, other] = [own, other].map(|name| format!("{name} {place}"));
            page.push_str(&compared(contest, place, about, [&own, &other], table::rate));
        }
    }
    if !knobs {
        page.push_str("\nPing-pong of 14 bytes over TCP, half-RTT, medians.\n\n");
        let titles = ["over", "what is compared", "laboratory", "sockperf", "ratio"];
        page.push_str(&table::heading(&titles));
        for (place, _) in ways {
            let [own, other] = ["latency", "sockperf"].map(|name| format!("{name} {place}"));
            let about = "ends that sleep, one blocking call each";
            page.push_str(&compared(contest, place, about, [&own, &other], table::ns));
        }
    }
    page.push_str(&format!("\nBehind them. {DISTURBED}\n\n"));
    page.push_str(&table::contestants(contest, |series| match series {
        _ if series.ends_with("demand") => table::us_per_kb,
        _ if series.starts_with("latency") || series.starts_with("sockperf") => table::ns,
        _ => table::rate,
    }));
    page
}

/// The kernel's default for a connection.
fn system_congestion() -> String {
    let found = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    found.map_or_else(|_| "not known".to_owned(), |name| name.trim().to_owned())
}

fn compared(
    contest: &Contest,
    place: &str,
    about: &str,
    [own, other]: [&str; 2],
    show: table::Show,
) -> String {
    let shown = |series: &str| match contest.rounds().figure(series) {
        Some(figure) => table::figure(figure, show),
        None => format!("not run: {}", contest.reason(series).unwrap_or("interrupted")),
    };
    let ratio = contest
        .rounds()
        .ratio(own, other)
        .map_or_else(String::new, |ratio| table::figure(ratio, table::ratio));
    table::row(&[place.to_owned(), about.to_owned(), shown(own), shown(other), ratio])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rival_that_did_not_run_has_a_reason_and_the_others_have_results() {
        let mut contest = Contest::default();
        contest.add("iperf3 veth", Err(anyhow::anyhow!("not installed")));
        let page = page(&ways(), false, &contest);
        assert!(page.contains("not run: not installed") && page.contains("| loopback |"), "{page}");
    }

    #[test]
    fn every_row_has_a_runner_and_a_distinct_text() {
        for knobs in [false, true] {
            let contest = contestants(&ways(), knobs, 0.1);
            let runs = |name: &str| contest.entries().iter().find(|entry| entry.contestant.name == name);
            for (place, _) in ways() {
                for (own, other, about) in rows(knobs) {
                    let [own, other] =
                        [own, other].map(|name| runs(&format!("{name} {place}")).expect(about));
                    assert_ne!(own.contestant.command, other.contestant.command, "{about}");
                }
            }
        }
        let contest = contestants(&ways(), false, 0.1);
        let of = |name: &str| contest.entries().iter().find(|entry| entry.contestant.name == name).unwrap();
        let like = &of("like loopback").contestant.command;
        for option in ["--size 131072", "--congestion reno", "--epoll", "--untouched"] {
            assert!(like.contains(option), "{option}: {like}");
        }
        assert!(of("iperf3 -N loopback").contestant.command.ends_with("-l 131072 -O 1 -t 1 -N"));
    }
}
