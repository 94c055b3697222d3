//! Messages between machines, beside the kernel's UDP and TCP on the same wire and beside bare loops.

use anyhow::{Context, Result, anyhow, ensure};
use bywire_measure::measure::{Measurement, PAIRS, Request, Topology};
use bywire_results::cell::{Block, Unit};

use crate::bare_udp::{self, What};
use crate::contestant::{Contest, Contestant, mean_block};
use crate::figures::{Figures, value};
use crate::page::{self, Part};
use crate::ports::{self, Measure};
use crate::process::Place;
use crate::quic;
use crate::rivals::{libfabric_latency, ucx_latency, ucx_stream};

pub const PART: Part = Part { name: "links", contestants, added: layers };

/// Two streams take this long until their windows have settled.
const SHARE_SECONDS: f64 = 3.0;
/// About as many as rivals do that count instead of looking at the clock.
const PING_PONGS_PER_SECOND: f64 = 50_000.0;
const MIB_PER_SECOND: f64 = 2_500.0;
const CUBIC: &str = "tcp stream --size 1MiB --between namespaces --congestion cubic";
/// Measured both plain and encrypted between two nodes. Superframes of 64 KiB would be lost whole.
const EITHER: [(&str, &str); 10] = [
    ("latency", "latency --size 8 --spin"),
    ("sleeping", "latency --size 8 --no-spin"),
    ("long", "stream --size 1MiB"),
    ("64 KiB", "stream --size 64KiB"),
    ("two-way", "bidir --size 1MiB"),
    ("short", "stream --size 64"),
    ("overhead", "overhead --size 8"),
    ("interleaved", "interleave --size 8 --spin"),
    ("lossy latency", "latency --size 8 --spin --loss 1 --segmentation off"),
    ("lossy long", "stream --size 1MiB --loss 1 --segmentation off"),
];

const NODES: [(&str, Measure); 6] = [
    ("connect", ports::connect),
    ("death", ports::death),
    ("outage", ports::outage),
    ("idle", ports::idle_connections),
    ("local alone", |nodes, seconds| ports::local(nodes, 0, seconds)),
    ("local beside", |nodes, seconds| ports::local(nodes, 8, seconds)),
];

const BARE: [(&str, What, bool); 6] = [
    ("latency bare", What::Latency, false),
    ("latency sealed", What::Latency, true),
    ("long bare", What::Bulk, false),
    ("long sealed", What::Bulk, true),
    ("packets", What::Packets, false),
    ("packets one by one", What::OneByOne, false),
];

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

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    let nodes = |security: &str, words: &str| {
        format!("msg {words} --link udp --security {security} --between namespaces")
    };
    let mut add = |name: &str, words: &str| contest.add(name, Contestant::laboratory(words, pair_seconds));
    add("latency udp", "udp latency --size 8 --between namespaces --spin");
    add("sleeping udp", "udp latency --size 8 --between namespaces --no-spin");
    add("long tcp", CUBIC);
    add("lossy long tcp", &format!("{CUBIC} --loss 1 --segmentation off"));
    add("long encrypted 9000", &nodes("encrypted", "stream --size 1MiB --mtu 9000"));
    for security in ["plain", "encrypted"] {
        for (what, words) in EITHER {
            add(&format!("{what} {security}"), &nodes(security, words));
        }
    }
    let mut topology = Topology::default();
    let seconds = pair_seconds.max(SHARE_SECONDS);
    let streams =
        ["plain", "encrypted"].map(|security| (security, nodes(security, "stream --size 1MiB --no-spin")));
    for (name, words) in streams.into_iter().chain([("tcp", CUBIC.to_owned())]) {
        contest.add(format!("share {name}"), sharing(&mut topology, [&words, CUBIC], seconds));
    }
    for (name, measure) in NODES {
        contest.add(name, Ok(ports::between_nodes(measure, pair_seconds)));
    }
    add_on_wire(&mut contest, &Place::wire(), pair_seconds);
    contest
}

/// Bare loops and other people's programs.
fn add_on_wire(contest: &mut Contest, place: &Result<Place>, seconds: f64) {
    let mut add = |name: &str, contestant: &dyn Fn(&Place) -> Result<Contestant>| match place {
        Ok(place) => contest.add(name, contestant(place)),
        Err(error) => contest.add(name, Err(anyhow!("{error:#}"))),
    };
    for (name, what, is_sealed) in BARE {
        add(name, &|place| Ok(bare_udp::contestant(place, what, is_sealed, seconds)));
    }
    let ping_pongs = (seconds * PING_PONGS_PER_SECOND) as u64;
    add("latency quinn", &|place| Ok(quic::contestant(place, What::Latency, seconds)));
    add("long quinn", &|place| Ok(quic::contestant(place, What::Bulk, seconds)));
    add("latency ucx", &|place| ucx_latency(place, 8, ping_pongs));
    add("long ucx", &|place| ucx_stream(place, 1 << 20, (seconds * MIB_PER_SECOND) as u64));
    add("latency libfabric", &|place| libfabric_latency("tcp", place, 8, ping_pongs));
}

/// Two streams at the same time through 1 Gb/s: the lesser of their shares of what both carry in `seconds`.
fn sharing(topology: &mut Topology, words: [&str; 2], seconds: f64) -> Result<Contestant> {
    let request = |words: &str| -> Result<Request> {
        let request = Request::of_words(&format!("{words} --rate 1000 --segmentation off"))?;
        Ok(Request { time_seconds: Some(seconds * f64::from(PAIRS)), ..request })
    };
    let requests = [request(words[0])?, request(words[1])?];
    let command = requests.each_ref().map(Request::command).join(" beside ");
    let [first, second] = requests;
    let mut pair = [Measurement::prepare(first, topology)?, Measurement::prepare(second, topology)?];
    Ok(Contestant::of_value(&command, Unit::Share, move || {
        let [first, second] = &mut pair;
        let rates = std::thread::scope(|scope| -> Result<[f64; 2]> {
            let beside = scope.spawn(|| mean_of_pair(second));
            let own = mean_of_pair(first)?;
            Ok([own, beside.join().ok().context("a measurement has died")??])
        })?;
        Ok(rates[0].min(rates[1]) / (rates[0] + rates[1]))
    }))
}

/// The mean rate of a fresh pair over all of its time.
fn mean_of_pair(measurement: &mut Measurement) -> Result<f64> {
    let pair = measurement.pairs_taken();
    measurement.take_pair()?;
    let blocks = measurement.cell()?.blocks.into_iter();
    let blocks: Vec<Block> = blocks.filter(|block| block.pair == pair).collect();
    ensure!(!blocks.is_empty(), "this pair has no value");
    Ok(mean_block(&blocks).value)
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
    let table = page::table(1, ["layer", "a packet with it", "the layer alone"], rows);
    format!(
        "\nWhat a packet with 1,440 bytes of payload costs, by the rate of both ends together:\n\n{table}"
    )
}
