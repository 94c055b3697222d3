//! Every figure that messages between machines must reach in one run, beside the kernel's UDP and TCP on the same wire and beside
//! bare loops.

use std::process::ExitCode;

use bywire_figures::bare_udp::{self, What};
use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::figures::Figures;
use bywire_figures::libfabric::{self, Provider};
use bywire_figures::requirement::Basis::{Median, Over};
use bywire_figures::requirement::{Requirement, at_least, at_most};
use bywire_figures::rival_pair::Place;
use bywire_figures::series::Metric::{Cold, Cpu, Mean, Memory, Messages, P999, Warm};
use bywire_figures::series::{by, value};
use bywire_figures::{fabric, page, program, quic, sharing, ucx};
use bywire_measure::measure::{Request, Topology};
use bywire_results::cell::Unit;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 38] = [
    at_most("8 B half-RTT over level `udp`, plain, polling", 1.25, 1.15, Over(value("latency plain"), value("latency udp"))),
    at_most("the same, encrypted", 1.45, 1.3, Over(value("latency encrypted"), value("latency udp"))),
    at_most("the same, plain, without spinning", 1.15, 1.15, Over(value("sleeping plain"), value("sleeping udp"))),
    at_most("the same, encrypted, without spinning", 1.2, 1.2, Over(value("sleeping encrypted"), value("sleeping udp"))),
    at_least("1 MiB plain over TCP by CUBIC", 0.4, 0.55, Over(value("long plain"), value("long tcp"))),
    at_least("1 MiB plain over the bare loop", 0.7, 0.85, Over(value("long plain"), value("long bare"))),
    at_least("1 MiB encrypted over the bare sealed loop", 0.7, 0.85, Over(value("long encrypted"), value("long sealed"))),
    at_least("64 B messages, one pair, plain", 5e6, 10e6, Median(by("short plain", Messages))).in_unit(Unit::MessagesPerSecond),
    at_least("64 B messages, one pair, encrypted", 4e6, 8e6, Median(by("short encrypted", Messages))).in_unit(Unit::MessagesPerSecond),
    at_most("8 B high half-RTT during a long low transfer, over without, plain", 4.0, 2.0, Over(value("interleaved plain"), value("latency plain"))),
    at_most("the same, encrypted", 4.0, 2.0, Over(value("interleaved encrypted"), value("latency encrypted"))),
    at_least("1 MiB encrypted over `quinn`", 2.5, 3.0, Over(value("long encrypted"), value("long quinn"))),
    at_most("1 % lost: 8 B half-RTT, p99.9, plain", 1.5e6, 0.75e6, Median(by("lossy latency plain", P999))).in_unit(Unit::Nanoseconds),
    at_most("the same, encrypted", 1.5e6, 0.75e6, Median(by("lossy latency encrypted", P999))).in_unit(Unit::Nanoseconds),
    at_least("1 % lost: 1 MiB plain over TCP by CUBIC", 1.0, 1.2, Over(value("lossy long plain"), value("lossy long tcp"))),
    at_least("the same, encrypted", 1.0, 1.2, Over(value("lossy long encrypted"), value("lossy long tcp"))),
    at_least("beside a CUBIC stream through 1 Gb/s: the lesser share, plain", 0.35, 0.42, Median(value("share plain"))),
    at_least("the same, encrypted", 0.35, 0.42, Median(value("share encrypted"))),
    at_most("far process killed: noticed", 10e6, 2e6, Median(value("death"))).in_unit(Unit::Nanoseconds),
    at_most("nothing crosses for 5 s: answered again after", 1000e6, 200e6, Median(value("outage"))).in_unit(Unit::Nanoseconds),
    at_most("connect, services connected", 2e6, 500e3, Median(by("connect", Warm))).in_unit(Unit::Nanoseconds),
    at_most("idle connection: memory of one end and its service", 16384.0, 8192.0, Median(by("idle", Memory))).in_unit(Unit::Bytes),
    at_most("64 idle connections: CPU of both services", 50e3, 10e3, Median(by("idle", Cpu))).in_unit(Unit::NanosecondsPerSecond),
    at_most("`shm` half-RTT beside 8 idle peers on the other node, over without", 1.1, 1.03, Over(value("local beside"), value("local alone"))),
    at_most("connect, services not connected yet (not required)", 10e6, 5e6, Median(by("connect", Cold))).in_unit(Unit::Nanoseconds),
    at_least("two CUBIC streams through 1 Gb/s: the lesser share (not required)", 0.35, 0.42, Median(value("share tcp"))),
    at_most("8 B half-RTT encrypted, without spinning, over `quinn` (not required)", 1.0, 0.7, Over(value("sleeping encrypted"), value("latency quinn"))),
    at_most("8 B half-RTT plain, polling, over UCX's by TCP (not required)", 1.0, 0.7, Over(value("latency plain"), value("latency ucx"))),
    at_least("1 MiB plain over UCX's by TCP (not required)", 0.4, 0.55, Over(value("long plain"), value("long ucx"))),
    at_most("8 B mean half-RTT plain, polling, over libfabric's by TCP (not required)", 1.0, 0.7, Over(by("latency plain", Mean), value("latency libfabric"))),
    at_most("the bare loop's half-RTT over level `udp` (not required)", 1.25, 1.15, Over(value("latency bare"), value("latency udp"))),
    at_most("the bare sealed loop's half-RTT over level `udp` (not required)", 1.45, 1.3, Over(value("latency sealed"), value("latency udp"))),
    at_least("the bare loop's 1 MiB over TCP by CUBIC (not required)", 0.4, 0.55, Over(value("long bare"), value("long tcp"))),
    at_least("1 MiB encrypted, MTU 9000, over MTU 1500 (not required)", 1.0, 1.2, Over(value("long encrypted 9000"), value("long encrypted"))),
    at_most("host CPU per 8 B message, plain (not required)", 2000.0, 500.0, Median(value("overhead plain"))).in_unit(Unit::Nanoseconds),
    at_most("host CPU per 8 B message, encrypted (not required)", 2000.0, 500.0, Median(value("overhead encrypted"))).in_unit(Unit::Nanoseconds),
    at_least("1 MiB two-way over one-way, encrypted (not required)", 0.8, 1.0, Over(value("two-way encrypted"), value("long encrypted"))),
    at_least("64 KiB encrypted over 1 MiB (not required)", 0.5, 0.9, Over(value("64 KiB encrypted"), value("long encrypted"))),
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
    program::main("links", contestants, |figures| {
        let layers = format!(
            "\nWhat a packet with 1,440 bytes of payload costs, by the rate of both ends together:\n\n{}",
            layers(figures)
        );
        page::page(&REQUIREMENTS, &layers, figures)
    })
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
        contest.add(name, Ok(Contestant::laboratory(request, pair_seconds)));
    }
    let longer = |security| sleeping(fabric(security, "stream", 1 << 20));
    for (name, request) in [
        ("share plain", longer("plain")),
        ("share encrypted", longer("encrypted")),
        ("share tcp", cubic.clone()),
    ] {
        let both = [request, cubic.clone()].map(shaped);
        contest.add(name, sharing::contestant(&mut topology, both, pair_seconds.max(SHARE_SECONDS)));
    }
    for (name, what) in NODES {
        contest.add(name, Ok(fabric::contestant(what, pair_seconds)));
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
        contest.add(name, Ok(bare_udp::contestant(namespaces, what, is_sealed, seconds)));
    }
    let rivals = [
        Ok(quic::contestant(namespaces, What::Latency, seconds)),
        Ok(quic::contestant(namespaces, What::Bulk, seconds)),
        ucx::latency(place, 8, (seconds * PING_PONGS_PER_SECOND) as u64),
        ucx::stream(place, 1 << 20, (seconds * MIB_PER_SECOND) as u64),
        libfabric::latency(Provider::of_libfabric("tcp"), place, 8, (seconds * PING_PONGS_PER_SECOND) as u64),
    ];
    RIVALS.into_iter().zip(rivals).for_each(|(name, rival)| contest.add(name, rival));
}

/// The cost of each layer of a packet.
fn layers(figures: &Figures) -> String {
    let cost = |name| Some(1e9 * PAYLOAD_BYTES / figures.rounds().figure(value(name))?.value);
    let shown = |ns: Option<f64>| ns.map_or("not measured".to_owned(), |ns| format!("{ns:.0} ns"));
    let rows = LAYERS.map(|(layer, with, without)| {
        let alone = match without {
            Some(without) => cost(with).zip(cost(without)).map(|(with, without)| with - without),
            None => cost(with),
        };
        vec![layer.to_owned(), shown(cost(with)), shown(alone)]
    });
    page::table(1, ["layer", "a packet with it", "the layer alone"], rows)
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
