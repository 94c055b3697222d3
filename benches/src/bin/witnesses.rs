//! Measures other people's programs in turn with the laboratory, doing the same as far as each of them can.

use std::process::ExitCode;
use std::rc::Rc;

use bywire_benches::contest::Contest;
use bywire_benches::ethernet;
use bywire_benches::program::{self, Arguments};
use bywire_benches::table;
use bywire_benches::witness::{self, Way};
use bywire_lab::cpu::DISTURBED;
use bywire_lab::ending;
use bywire_lab::ethernet::{Carriage, Link};
use bywire_lab::measure::Request;
use clap::Parser;

/// The laboratory beside iperf3 and sockperf, in one run, as a Markdown table (needs root)
#[derive(Parser)]
struct Witnesses {
    #[command(flatten)]
    arguments: Arguments,
}

const MTU_BYTES: u32 = 9000;

/// How the laboratory's variants come nearer to the witness, step by step: a name, and what is changed.
const STREAMS: [(&str, &str); 3] = [
    ("stream", "64 KiB, written and read: the laboratory's default"),
    ("stream long", "128 KiB, written and read: iperf3's own block"),
    ("stream long untouched", "128 KiB, neither written nor read, as iperf3 does"),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    ending::of(
        "witnesses",
        match words.first().map(String::as_str) {
            Some("__worker") => bywire_lab::worker::run(),
            Some("eth") => program::become_bywire(&words),
            _ => Witnesses::parse().arguments.run(contestants, page),
        },
    )
}

/// Loopback, then every way of carrying Ethernet.
fn ways() -> Vec<(String, Option<Link>)> {
    let links = Link::ALL.iter().map(|&link| (link.to_string(), Some(link)));
    std::iter::once(("loopback".to_owned(), None)).chain(links).collect()
}

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for (place, link) in ways() {
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
        let long = || over("stream", witness::IPERF3_BLOCK_BYTES);
        let untouched = Request { untouched: true, ..long() };
        let requests = [over("stream", 64 << 10), long(), untouched];
        for ((name, _), request) in STREAMS.iter().zip(requests) {
            let name = format!("{name} {place}");
            contest.add(&name, Ok(ethernet::laboratory(&name, request, pair_seconds)));
        }
        let name = format!("latency {place}");
        let latency = over("latency", witness::SOCKPERF_BYTES);
        contest.add(&name, Ok(ethernet::laboratory(&name, latency, pair_seconds)));
        let way = match link {
            None => Way::Loopback,
            Some(link) => {
                let carriage = Carriage { link, mtu_bytes: MTU_BYTES, coalesce: true, segmentation: true };
                Way::Joined(Rc::new(move || carriage.open()))
            }
        };
        let name = format!("iperf3 {place}");
        contest.add(&name, Ok(witness::iperf3(&name, way.clone())));
        let name = format!("sockperf {place}");
        contest.add(&name, Ok(witness::sockperf(&name, way)));
    }
    contest
}

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push_str("\nOne TCP connection, by rate; the ratio is the laboratory's over the witness's.\n\n");
    page.push_str(&table::heading(&["over", "what the laboratory does", "laboratory", "iperf3", "ratio"]));
    for (place, _) in ways() {
        for (name, about) in STREAMS {
            page.push_str(&compared(
                contest,
                &place,
                about,
                &format!("{name} {place}"),
                "iperf3",
                table::rate,
            ));
        }
    }
    page.push_str("\nPing-pong of 14 bytes over TCP, half-RTT, medians.\n\n");
    page.push_str(&table::heading(&["over", "what the laboratory does", "laboratory", "sockperf", "ratio"]));
    for (place, _) in ways() {
        let own = format!("latency {place}");
        page.push_str(&compared(
            contest,
            &place,
            "ends that sleep, one blocking call each",
            &own,
            "sockperf",
            table::ns,
        ));
    }
    page.push_str(&format!("\nBehind them. {DISTURBED}\n\n"));
    page.push_str(&table::contestants(contest, |series| match series {
        _ if series.ends_with("demand") => table::us_per_kb,
        _ if series.starts_with("latency") || series.starts_with("sockperf") => table::ns,
        _ => table::rate,
    }));
    page
}

fn compared(
    contest: &Contest,
    place: &str,
    about: &str,
    own: &str,
    witness: &str,
    show: table::Show,
) -> String {
    let witness = format!("{witness} {place}");
    let shown = |series: &str| match contest.figure(series) {
        Some(figure) => table::figure(figure, show),
        None => format!("not run: {}", contest.reason(series).unwrap_or("interrupted")),
    };
    let ratio =
        contest.ratio(own, &witness).map_or_else(String::new, |ratio| table::figure(ratio, table::ratio));
    table::row(&[place.to_owned(), about.to_owned(), shown(own), shown(&witness), ratio])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_did_not_run_says_why_and_the_others_stand() {
        let mut contest = Contest::default();
        contest.add("iperf3 veth", Err(anyhow::anyhow!("not installed")));
        let page = page(&contest);
        assert!(page.contains("not run: not installed") && page.contains("| loopback |"), "{page}");
    }
}
