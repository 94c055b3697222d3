//! Takes every figure that messages between machines must reach in one run, beside the kernel's UDP and TCP on the same
//! wire and beside bare loops, and prints tables.

use std::process::ExitCode;

use bywire_command::exit_status;
use bywire_figures::bare_udp::{self, What};
use bywire_figures::contest::Contest;
use bywire_figures::fabric;
use bywire_figures::libfabric::{self, Provider};
use bywire_figures::program::{self, Arguments};
use bywire_figures::requirement::Basis::{Median, Over};
use bywire_figures::requirement::Bound::{AtLeast, AtMost};
use bywire_figures::requirement::{self, Requirement};
use bywire_figures::rival_pair::Place;
use bywire_figures::table::{self, Show};
use bywire_figures::{lab, quic, ucx};
use bywire_measure::measure::{Request, Topology};
use bywire_results::cell::DISTURBED;
use clap::Parser;

/// Every figure of docs/performance.md on messages between machines in one run, as Markdown tables
#[derive(Parser)]
struct Links {
    #[command(flatten)]
    arguments: Arguments,
}

const RATIO: Show = table::ratio;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 38] = [
    Requirement { measure: "8 B half-RTT over level `udp`, plain, polling", bound: AtMost { required: 1.25, goal: 1.15 }, basis: Over("latency plain", "latency udp"), show: RATIO },
    Requirement { measure: "the same, encrypted", bound: AtMost { required: 1.45, goal: 1.3 }, basis: Over("latency encrypted", "latency udp"), show: RATIO },
    Requirement { measure: "the same, plain, without spinning", bound: AtMost { required: 1.15, goal: 1.15 }, basis: Over("sleeping plain", "sleeping udp"), show: RATIO },
    Requirement { measure: "the same, encrypted, without spinning", bound: AtMost { required: 1.2, goal: 1.2 }, basis: Over("sleeping encrypted", "sleeping udp"), show: RATIO },
    Requirement { measure: "1 MiB plain over TCP by CUBIC", bound: AtLeast { required: 0.4, goal: 0.55 }, basis: Over("long plain", "long tcp"), show: RATIO },
    Requirement { measure: "1 MiB plain over the bare loop", bound: AtLeast { required: 0.7, goal: 0.85 }, basis: Over("long plain", "long bare"), show: RATIO },
    Requirement { measure: "1 MiB encrypted over the bare sealed loop", bound: AtLeast { required: 0.7, goal: 0.85 }, basis: Over("long encrypted", "long sealed"), show: RATIO },
    Requirement { measure: "64 B messages, one pair, plain", bound: AtLeast { required: 5e6, goal: 10e6 }, basis: Median("short plain messages"), show: table::millions },
    Requirement { measure: "64 B messages, one pair, encrypted", bound: AtLeast { required: 4e6, goal: 8e6 }, basis: Median("short encrypted messages"), show: table::millions },
    Requirement { measure: "8 B high half-RTT during a long low transfer, over without, plain", bound: AtMost { required: 4.0, goal: 2.0 }, basis: Over("interleaved plain", "latency plain"), show: RATIO },
    Requirement { measure: "the same, encrypted", bound: AtMost { required: 4.0, goal: 2.0 }, basis: Over("interleaved encrypted", "latency encrypted"), show: RATIO },
    Requirement { measure: "1 MiB encrypted over `quinn`", bound: AtLeast { required: 2.5, goal: 3.0 }, basis: Over("long encrypted", "long quinn"), show: RATIO },
    Requirement { measure: "1 % lost: 8 B half-RTT, p99.9, plain", bound: AtMost { required: 1.5e6, goal: 0.75e6 }, basis: Median("lossy latency plain p99.9"), show: table::ns },
    Requirement { measure: "the same, encrypted", bound: AtMost { required: 1.5e6, goal: 0.75e6 }, basis: Median("lossy latency encrypted p99.9"), show: table::ns },
    Requirement { measure: "1 % lost: 1 MiB plain over TCP by CUBIC", bound: AtLeast { required: 1.0, goal: 1.2 }, basis: Over("lossy long plain", "lossy long tcp"), show: RATIO },
    Requirement { measure: "the same, encrypted", bound: AtLeast { required: 1.0, goal: 1.2 }, basis: Over("lossy long encrypted", "lossy long tcp"), show: RATIO },
    Requirement { measure: "beside a CUBIC stream through 1 Gb/s: the lesser share, plain", bound: AtLeast { required: 0.35, goal: 0.42 }, basis: Median("share plain"), show: RATIO },
    Requirement { measure: "the same, encrypted", bound: AtLeast { required: 0.35, goal: 0.42 }, basis: Median("share encrypted"), show: RATIO },
    Requirement { measure: "far process killed: noticed", bound: AtMost { required: 10.0, goal: 2.0 }, basis: Median("death"), show: table::ms },
    Requirement { measure: "nothing crosses for 5 s: answered again after", bound: AtMost { required: 1000.0, goal: 200.0 }, basis: Median("outage"), show: table::ms },
    Requirement { measure: "connect, services connected", bound: AtMost { required: 2.0, goal: 0.5 }, basis: Median("connect warm"), show: table::ms },
    Requirement { measure: "idle connection: memory of one end and its service", bound: AtMost { required: 16384.0, goal: 8192.0 }, basis: Median("idle memory"), show: table::bytes },
    Requirement { measure: "64 idle connections: CPU of both services", bound: AtMost { required: 50e3, goal: 10e3 }, basis: Median("idle CPU"), show: table::cpu },
    Requirement { measure: "`shm` half-RTT beside 8 idle peers on the other node, over without", bound: AtMost { required: 1.1, goal: 1.03 }, basis: Over("local beside", "local alone"), show: RATIO },
    Requirement { measure: "connect, services not connected yet (not required)", bound: AtMost { required: 10.0, goal: 5.0 }, basis: Median("connect cold"), show: table::ms },
    Requirement { measure: "two CUBIC streams through 1 Gb/s: the lesser share (not required)", bound: AtLeast { required: 0.35, goal: 0.42 }, basis: Median("share tcp"), show: RATIO },
    Requirement { measure: "8 B half-RTT encrypted, without spinning, over `quinn` (not required)", bound: AtMost { required: 1.0, goal: 0.7 }, basis: Over("sleeping encrypted", "latency quinn"), show: RATIO },
    Requirement { measure: "8 B half-RTT plain, polling, over UCX's by TCP (not required)", bound: AtMost { required: 1.0, goal: 0.7 }, basis: Over("latency plain", "latency ucx"), show: RATIO },
    Requirement { measure: "1 MiB plain over UCX's by TCP (not required)", bound: AtLeast { required: 0.4, goal: 0.55 }, basis: Over("long plain", "long ucx"), show: RATIO },
    Requirement { measure: "8 B mean half-RTT plain, polling, over libfabric's by TCP (not required)", bound: AtMost { required: 1.0, goal: 0.7 }, basis: Over("latency plain mean", "latency libfabric"), show: RATIO },
    Requirement { measure: "the bare loop's half-RTT over level `udp` (not required)", bound: AtMost { required: 1.25, goal: 1.15 }, basis: Over("latency bare", "latency udp"), show: RATIO },
    Requirement { measure: "the bare sealed loop's half-RTT over level `udp` (not required)", bound: AtMost { required: 1.45, goal: 1.3 }, basis: Over("latency sealed", "latency udp"), show: RATIO },
    Requirement { measure: "the bare loop's 1 MiB over TCP by CUBIC (not required)", bound: AtLeast { required: 0.4, goal: 0.55 }, basis: Over("long bare", "long tcp"), show: RATIO },
    Requirement { measure: "1 MiB encrypted, MTU 9000, over MTU 1500 (not required)", bound: AtLeast { required: 1.0, goal: 1.2 }, basis: Over("long encrypted 9000", "long encrypted"), show: RATIO },
    Requirement { measure: "host CPU per 8 B message, plain (not required)", bound: AtMost { required: 2000.0, goal: 500.0 }, basis: Median("overhead plain"), show: table::ns },
    Requirement { measure: "host CPU per 8 B message, encrypted (not required)", bound: AtMost { required: 2000.0, goal: 500.0 }, basis: Median("overhead encrypted"), show: table::ns },
    Requirement { measure: "1 MiB two-way over one-way, encrypted (not required)", bound: AtLeast { required: 0.8, goal: 1.0 }, basis: Over("two-way encrypted", "long encrypted"), show: RATIO },
    Requirement { measure: "64 KiB encrypted over 1 MiB (not required)", bound: AtLeast { required: 0.5, goal: 0.9 }, basis: Over("64 KiB encrypted", "long encrypted"), show: RATIO },
];

/// Two streams take this long until their windows have settled.
const SHARE_SECONDS: f64 = 3.0;

/// About as many as rivals do that count instead of looking at the clock.
const PING_PONGS_PER_SECOND: f64 = 50_000.0;
const MIB_PER_SECOND: f64 = 2_500.0;

const NODES: [(&str, fabric::What); 6] = [
    ("connect", fabric::What::Connect),
    ("death", fabric::What::Death),
    ("outage", fabric::What::Outage),
    ("idle", fabric::What::Idle),
    ("local alone", fabric::What::Local(0)),
    ("local beside", fabric::What::BESIDE),
];

const BARE: [(&str, What, bool); 6] = [
    ("latency bare", What::Latency, false),
    ("latency sealed", What::Latency, true),
    ("long bare", What::Bulk, false),
    ("long sealed", What::Bulk, true),
    ("packets", What::Packets, false),
    ("packets one by one", What::OneByOne, false),
];

const RIVALS: [&str; 5] = ["latency quinn", "long quinn", "latency ucx", "long ucx", "latency libfabric"];

/// The cost of a packet: each layer, the series with it, and the one without it.
const LAYERS: [(&str, &str, Option<&str>); 6] = [
    ("packets, a system call for each", "packets one by one", None),
    ("packets, sent in batches that the kernel cuts", "packets", Some("packets one by one")),
    ("payload written, copied into and out of packets, and read", "long bare", Some("packets")),
    ("encryption", "long sealed", Some("long bare")),
    ("protocol, plain", "long plain", Some("long bare")),
    ("protocol, encrypted", "long encrypted", Some("long sealed")),
];

/// The payload of an encrypted packet at an MTU of 1500, or a little more.
const PAYLOAD_BYTES: f64 = 1440.0;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    exit_status::of(
        "links",
        match words.first().map(String::as_str) {
            Some("__worker") => bywire_measure::worker::run(),
            Some("up") => program::become_bywire(&words),
            Some(bare_udp::END) => bare_udp::play(&words[1..]),
            Some(fabric::END) => fabric::play(&words[1..]),
            Some(quic::END) => quic::play(&words[1..]),
            _ => Links::parse().arguments.run(contestants, page),
        },
    )
}

fn contestants(pair_seconds: f64) -> Contest {
    let mut topology = Topology::default();
    let mut contest = Contest::default();
    let sized =
        |level: &str, test: &str, bytes| Request { size_bytes: Some(bytes), ..Request::new(level, test) };
    let wire = |request: Request| Request { between: Some("namespaces".to_owned()), ..request };
    let fabric = |security: &str, test: &str, bytes| {
        let (link, security) = (Some("udp".to_owned()), Some(security.to_owned()));
        wire(Request { link, security, ..sized("msg", test, bytes) })
    };
    let spinning = |request: Request| Request { spin: Some(true), ..request };
    let sleeping = |request: Request| Request { spin: Some(false), ..request };
    // Superframes of 64 KiB would be lost whole.
    let lossy = |request: Request| Request { loss_percent: Some(1.0), segmentation: Some(false), ..request };
    let shaped = |request: Request| Request { rate_mbits: Some(1000), segmentation: Some(false), ..request };
    let cubic = Request { congestion: Some("cubic".to_owned()), ..wire(sized("tcp", "stream", 1 << 20)) };
    let mut requests = vec![
        ("latency udp".to_owned(), spinning(wire(sized("udp", "latency", 8)))),
        ("sleeping udp".to_owned(), sleeping(wire(sized("udp", "latency", 8)))),
        ("long tcp".to_owned(), cubic.clone()),
        ("lossy long tcp".to_owned(), lossy(cubic.clone())),
    ];
    for security in ["plain", "encrypted"] {
        let mut add = |what: &str, request| requests.push((format!("{what} {security}"), request));
        add("latency", spinning(fabric(security, "latency", 8)));
        add("sleeping", sleeping(fabric(security, "latency", 8)));
        add("long", fabric(security, "stream", 1 << 20));
        add("64 KiB", fabric(security, "stream", 64 << 10));
        add("two-way", fabric(security, "bidir", 1 << 20));
        add("short", fabric(security, "stream", 64));
        add("overhead", fabric(security, "overhead", 8));
        add("interleaved", spinning(fabric(security, "interleave", 8)));
        add("lossy latency", lossy(spinning(fabric(security, "latency", 8))));
        add("lossy long", lossy(fabric(security, "stream", 1 << 20)));
    }
    let jumbo = Request { mtu_bytes: Some(9000), ..fabric("encrypted", "stream", 1 << 20) };
    requests.push(("long encrypted 9000".to_owned(), jumbo));
    for (name, request) in requests {
        contest.add(&name, lab::contestant_in(&mut topology, &name, request, pair_seconds));
    }
    let longer = |security| sleeping(fabric(security, "stream", 1 << 20));
    for (name, request) in [
        ("share plain", longer("plain")),
        ("share encrypted", longer("encrypted")),
        ("share tcp", cubic.clone()),
    ] {
        let both = [request, cubic.clone()].map(shaped);
        contest.add(name, lab::share_in(&mut topology, name, both, pair_seconds.max(SHARE_SECONDS)));
    }
    for (name, what) in NODES {
        contest.add(name, Ok(fabric::contestant(name, what, pair_seconds)));
    }
    match Place::wire() {
        Ok(place) => add_on_wire(&mut contest, &place, pair_seconds),
        Err(error) => {
            let reason = format!("{error:#}");
            let names = BARE.iter().map(|(name, ..)| *name).chain(RIVALS);
            names.for_each(|name| contest.add(name, Err(anyhow::anyhow!(reason.clone()))));
        }
    }
    contest
}

/// Bare loops and other people's programs.
fn add_on_wire(contest: &mut Contest, place: &Place, seconds: f64) {
    let Place::Wire(namespaces) = place else { return };
    for (name, what, is_sealed) in BARE {
        contest.add(name, Ok(bare_udp::contestant(name, namespaces, what, is_sealed, seconds)));
    }
    let rivals = [
        Ok(quic::contestant("latency quinn", namespaces, What::Latency, seconds)),
        Ok(quic::contestant("long quinn", namespaces, What::Bulk, seconds)),
        ucx::latency("latency ucx", place, 8, (seconds * PING_PONGS_PER_SECOND) as u64),
        ucx::stream("long ucx", place, 1 << 20, (seconds * MIB_PER_SECOND) as u64),
        libfabric::latency(
            "latency libfabric",
            Provider::of_libfabric("tcp"),
            place,
            8,
            (seconds * PING_PONGS_PER_SECOND) as u64,
        ),
    ];
    RIVALS.into_iter().zip(rivals).for_each(|(name, rival)| contest.add(name, rival));
}

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push('\n');
    page.push_str(&requirement::table(&REQUIREMENTS, contest));
    page.push_str(
        "\nWhat a packet with 1,440 bytes of payload costs, by the rate of both ends together:\n\n",
    );
    page.push_str(&layers(contest));
    page.push_str(&format!("\nBehind them. {DISTURBED}\n\n"));
    page.push_str(&table::contestants(contest, show));
    page
}

fn layers(contest: &Contest) -> String {
    let mut page = table::heading(&["layer", "a packet with it", "the layer alone"]);
    let cost = |series| Some(1e9 * PAYLOAD_BYTES / contest.rounds().figure(series)?.value);
    let shown = |ns: Option<f64>| ns.map_or("not measured".to_owned(), |ns| format!("{ns:.0} ns"));
    for (layer, with, without) in LAYERS {
        let alone = match without {
            Some(without) => shown(cost(with).zip(cost(without)).map(|(with, without)| with - without)),
            None => shown(cost(with)),
        };
        page.push_str(&table::row(&[layer.to_owned(), shown(cost(with)), alone]));
    }
    page
}

/// How a series is written, by its name.
fn show(series: &str) -> Show {
    let is_rate = ["long", "64 KiB", "two-way", "short", "packets"].iter().any(|what| series.contains(what));
    match is_rate {
        _ if series.ends_with("messages") => table::millions,
        _ if series.starts_with("share") => table::ratio,
        _ if ["connect", "death", "outage"].iter().any(|what| series.starts_with(what)) => table::ms,
        _ if series == "idle memory" => table::bytes,
        _ if series == "idle CPU" => table::cpu,
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
