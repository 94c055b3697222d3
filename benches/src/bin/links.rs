//! Takes every figure that messages between machines must reach in one run, beside the kernel's UDP and TCP on the same
//! wire and beside bare loops, and prints tables.

use std::process::ExitCode;
use std::sync::Arc;

use bywire_benches::bare_udp::{self, What};
use bywire_benches::contest::Contest;
use bywire_benches::lab;
use bywire_benches::must::Basis::{Median, Over};
use bywire_benches::must::Bound::{AtLeast, AtMost};
use bywire_benches::must::{self, Must};
use bywire_benches::program::{self, Arguments};
use bywire_benches::table::{self, Show};
use bywire_measure::exit_status;
use bywire_measure::measure::{Request, Topology};
use bywire_measure::namespaces::Namespaces;
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
const MUSTS: [Must; 19] = [
    Must { measure: "8 B half-RTT over level `udp`, plain, polling", bound: AtMost { must: 1.25, aim: 1.15 }, basis: Over("latency plain", "latency udp"), show: RATIO },
    Must { measure: "the same, encrypted", bound: AtMost { must: 1.45, aim: 1.3 }, basis: Over("latency encrypted", "latency udp"), show: RATIO },
    Must { measure: "the same, plain, without spinning", bound: AtMost { must: 1.15, aim: 1.15 }, basis: Over("sleeping plain", "sleeping udp"), show: RATIO },
    Must { measure: "the same, encrypted, without spinning", bound: AtMost { must: 1.2, aim: 1.2 }, basis: Over("sleeping encrypted", "sleeping udp"), show: RATIO },
    Must { measure: "1 MiB plain over TCP by CUBIC", bound: AtLeast { must: 0.4, aim: 0.55 }, basis: Over("long plain", "long tcp"), show: RATIO },
    Must { measure: "1 MiB plain over the bare loop", bound: AtLeast { must: 0.7, aim: 0.85 }, basis: Over("long plain", "long bare"), show: RATIO },
    Must { measure: "1 MiB encrypted over the bare sealed loop", bound: AtLeast { must: 0.7, aim: 0.85 }, basis: Over("long encrypted", "long sealed"), show: RATIO },
    Must { measure: "64 B messages, one pair, plain", bound: AtLeast { must: 5e6, aim: 10e6 }, basis: Median("short plain messages"), show: table::millions },
    Must { measure: "64 B messages, one pair, encrypted", bound: AtLeast { must: 4e6, aim: 8e6 }, basis: Median("short encrypted messages"), show: table::millions },
    Must { measure: "8 B high half-RTT during a long low transfer, over without, plain", bound: AtMost { must: 4.0, aim: 2.0 }, basis: Over("interleaved plain", "latency plain"), show: RATIO },
    Must { measure: "the same, encrypted", bound: AtMost { must: 4.0, aim: 2.0 }, basis: Over("interleaved encrypted", "latency encrypted"), show: RATIO },
    Must { measure: "the bare loop's half-RTT over level `udp` (not a must)", bound: AtMost { must: 1.25, aim: 1.15 }, basis: Over("latency bare", "latency udp"), show: RATIO },
    Must { measure: "the bare sealed loop's half-RTT over level `udp` (not a must)", bound: AtMost { must: 1.45, aim: 1.3 }, basis: Over("latency sealed", "latency udp"), show: RATIO },
    Must { measure: "the bare loop's 1 MiB over TCP by CUBIC (not a must)", bound: AtLeast { must: 0.4, aim: 0.55 }, basis: Over("long bare", "long tcp"), show: RATIO },
    Must { measure: "1 MiB encrypted, MTU 9000, over MTU 1500 (not a must)", bound: AtLeast { must: 1.0, aim: 1.2 }, basis: Over("long encrypted 9000", "long encrypted"), show: RATIO },
    Must { measure: "host CPU per 8 B message, plain (not a must)", bound: AtMost { must: 2000.0, aim: 500.0 }, basis: Median("overhead plain"), show: table::ns },
    Must { measure: "host CPU per 8 B message, encrypted (not a must)", bound: AtMost { must: 2000.0, aim: 500.0 }, basis: Median("overhead encrypted"), show: table::ns },
    Must { measure: "1 MiB two-way over one-way, encrypted (not a must)", bound: AtLeast { must: 0.8, aim: 1.0 }, basis: Over("two-way encrypted", "long encrypted"), show: RATIO },
    Must { measure: "64 KiB encrypted over 1 MiB (not a must)", bound: AtLeast { must: 0.5, aim: 0.9 }, basis: Over("64 KiB encrypted", "long encrypted"), show: RATIO },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    exit_status::of(
        "links",
        match words.first().map(String::as_str) {
            Some("__worker") => bywire_measure::worker::run(),
            Some("up") => program::become_bywire(&words),
            Some(bare_udp::END) => bare_udp::play(&words[1..]),
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
    let cubic = Request { congestion: Some("cubic".to_owned()), ..wire(sized("tcp", "stream", 1 << 20)) };
    let mut requests = vec![
        ("latency udp".to_owned(), spinning(wire(sized("udp", "latency", 8)))),
        ("sleeping udp".to_owned(), sleeping(wire(sized("udp", "latency", 8)))),
        ("long tcp".to_owned(), cubic),
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
    }
    let jumbo = Request { mtu_bytes: Some(9000), ..fabric("encrypted", "stream", 1 << 20) };
    requests.push(("long encrypted 9000".to_owned(), jumbo));
    for (name, request) in requests {
        contest.add(&name, lab::contestant_in(&mut topology, &name, request, pair_seconds));
    }
    match Namespaces::veth_pair(1500).map(Arc::new) {
        Ok(namespaces) => {
            for (protection, is_sealed) in [("bare", false), ("sealed", true)] {
                for (name, what) in [("latency", What::Latency), ("long", What::Bulk)] {
                    let name = format!("{name} {protection}");
                    contest.add(
                        &name,
                        Ok(bare_udp::contestant(&name, &namespaces, what, is_sealed, pair_seconds)),
                    );
                }
            }
        }
        Err(error) => {
            let reason = format!("{error:#}");
            for name in ["latency bare", "latency sealed", "long bare", "long sealed"] {
                contest.add(name, Err(anyhow::anyhow!(reason.clone())));
            }
        }
    }
    contest
}

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push('\n');
    page.push_str(&must::table(&MUSTS, contest));
    page.push_str(&format!("\nBehind them. {DISTURBED}\n\n"));
    page.push_str(&table::contestants(contest, show));
    page
}

/// How a series is written, by its name.
fn show(series: &str) -> Show {
    let is_rate = ["long", "64 KiB", "two-way", "short"].iter().any(|what| series.contains(what));
    match is_rate {
        _ if series.ends_with("messages") => table::millions,
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
        must::assert_contestants(&MUSTS, &contest);
    }
}
