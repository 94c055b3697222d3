//! Takes every figure that Ethernet over the fabric must reach in one run, beside plain veth and other programs that
//! carry Ethernet, and prints tables.

use std::process::ExitCode;
use std::rc::Rc;

use bywire_command::exit_status;
use bywire_figures::contest::Contest;
use bywire_figures::ethernet::{self, Join};
use bywire_figures::program::{self, Arguments};
use bywire_figures::requirement::Basis::{Median, Over};
use bywire_figures::requirement::Bound::{AtLeast, AtMost};
use bywire_figures::requirement::{self, Requirement};
use bywire_figures::table::{self, Show};
use bywire_figures::tunnel::RIVALS;
use bywire_measure::ethernet::{FrameLink, Link};
use bywire_measure::measure::Request;
use clap::Parser;

/// Every figure of docs/performance.md on Ethernet in one run, as Markdown tables
#[derive(Parser)]
struct Ethernet {
    #[command(flatten)]
    arguments: Arguments,
}

const RATIO: Show = table::ratio;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 18] = [
    Requirement { measure: "TCP stream over veth, one process", bound: AtLeast { required: 0.5, goal: 0.6 }, basis: Over("stream one-process", "stream veth"), show: RATIO },
    Requirement { measure: "the same by iperf3", bound: AtLeast { required: 0.5, goal: 0.6 }, basis: Over("iperf3 one-process", "iperf3 veth"), show: RATIO },
    Requirement { measure: "TCP stream over veth, two processes", bound: AtLeast { required: 0.5, goal: 0.6 }, basis: Over("stream two-processes", "stream veth"), show: RATIO },
    Requirement { measure: "the same by iperf3", bound: AtLeast { required: 0.5, goal: 0.6 }, basis: Over("iperf3 two-processes", "iperf3 veth"), show: RATIO },
    Requirement { measure: "TCP_RR half-RTT over veth, one process", bound: AtMost { required: 1.6, goal: 1.2 }, basis: Over("rr one-process", "rr veth"), show: RATIO },
    Requirement { measure: "the same by sockperf", bound: AtMost { required: 1.6, goal: 1.2 }, basis: Over("sockperf one-process", "sockperf veth"), show: RATIO },
    Requirement { measure: "TCP_RR half-RTT over veth, two processes", bound: AtMost { required: 2.5, goal: 1.6 }, basis: Over("rr two-processes", "rr veth"), show: RATIO },
    Requirement { measure: "the same by sockperf", bound: AtMost { required: 2.5, goal: 1.6 }, basis: Over("sockperf two-processes", "sockperf veth"), show: RATIO },
    Requirement { measure: "UDP at 8 KiB received at the best offered rate, over veth, one process (iperf3)", bound: AtLeast { required: 0.25, goal: 0.35 }, basis: Over("udp one-process", "udp veth"), show: RATIO },
    Requirement { measure: "the same, two processes", bound: AtLeast { required: 0.25, goal: 0.35 }, basis: Over("udp two-processes", "udp veth"), show: RATIO },
    Requirement { measure: "service demand of a TCP stream over veth, one process", bound: AtMost { required: 1.9, goal: 1.6 }, basis: Over("stream one-process demand", "stream veth demand"), show: RATIO },
    Requirement { measure: "the same, two processes", bound: AtMost { required: 1.9, goal: 1.6 }, basis: Over("stream two-processes demand", "stream veth demand"), show: RATIO },
    Requirement { measure: "TCP stream at MTU 1500 over MTU 9000, one process", bound: AtLeast { required: 0.9, goal: 0.97 }, basis: Over("stream one-process 1500", "stream one-process"), show: RATIO },
    Requirement { measure: "four TCP streams over one, two processes (iperf3)", bound: AtLeast { required: 1.0, goal: 1.2 }, basis: Over("flows 4 two-processes", "flows 1 two-processes"), show: RATIO },
    Requirement { measure: "segments of four TCP streams sent again, two processes over veth", bound: AtMost { required: 1.0, goal: 0.1 }, basis: Over("flows 4 two-processes again", "flows 4 veth again"), show: RATIO },
    Requirement { measure: "the same, eight streams each way", bound: AtMost { required: 1.0, goal: 0.1 }, basis: Over("flows 8+8 two-processes again", "flows 8+8 veth again"), show: RATIO },
    Requirement { measure: "idle, one process", bound: AtMost { required: 0.0, goal: 0.0 }, basis: Median("idle one-process"), show: table::cpu },
    Requirement { measure: "idle, two processes", bound: AtMost { required: 0.0, goal: 0.0 }, basis: Median("idle two-processes"), show: table::cpu },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    exit_status::of(
        "ethernet",
        match words.first().map(String::as_str) {
            Some("__worker") => bywire_measure::worker::run(),
            Some("eth") => program::become_bywire(&words),
            _ => Ethernet::parse().arguments.run(contestants, page),
        },
    )
}

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    let over = |link: Link, test: &str, mtu_bytes| Request {
        link: Some(link.name().to_owned()),
        mtu_bytes: Some(mtu_bytes),
        ..Request::new("eth", test)
    };
    for link in Link::WITHIN_MACHINE {
        let frame_link = FrameLink::of(link, 9000);
        let join: Join = Rc::new(move || Ok(Rc::new(frame_link.open()?)));
        let name = |what: &str| format!("{what} {link}");
        let laboratory = [
            (name("stream"), over(link, "stream", 9000)),
            (name("stream") + " 1500", over(link, "stream", 1500)),
            (name("rr"), over(link, "rr", 9000)),
            (name("udp rr"), Request { protocol: Some("udp".to_owned()), ..over(link, "rr", 9000) }),
        ];
        for (name, request) in laboratory {
            contest.add(&name, Ok(ethernet::laboratory(&name, request, pair_seconds)));
        }
        contest.add(&name("iperf3"), Ok(ethernet::iperf3_stream(&name("iperf3"), Rc::clone(&join))));
        for (what, count, both_ways) in FLOWS {
            let series = name(&format!("flows {what}"));
            contest.add(&series, Ok(ethernet::flows(&series, Rc::clone(&join), count, both_ways)));
        }
        contest.add(
            &name("udp"),
            Ok(ethernet::iperf3_datagrams(&name("udp"), Rc::clone(&join), ethernet::LONG_DATAGRAMS)),
        );
        contest.add(&name("sockperf"), Ok(ethernet::sockperf(&name("sockperf"), join)));
        if link != Link::Veth {
            contest.add(&name("idle"), Ok(ethernet::idle(&name("idle"), frame_link)));
        }
    }
    for rival in &RIVALS {
        let name = |what: &str| format!("{what} {}", rival.name);
        contest.add(&name("iperf3"), Ok(ethernet::iperf3_stream(&name("iperf3"), rival.join())));
        contest.add(&name("sockperf"), Ok(ethernet::sockperf(&name("sockperf"), rival.join())));
    }
    contest
}

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push('\n');
    page.push_str(&requirement::table(&REQUIREMENTS, contest));
    page.push_str("\nSeveral TCP connections at once, by iperf3. The CPU is that of who carries:\n\n");
    page.push_str(&flows(contest));
    page.push_str("\nBeside other programs, none of which encrypts:\n\n");
    page.push_str(&rivals(contest));
    page.push_str("\nBehind them. Who carries frames shares the two cores with both ends, which makes their blocks count as disturbed.\n\n");
    page.push_str(&table::contestants(contest, show));
    page
}

/// Several connections: their name, their number, and whether there are as many in the other direction.
const FLOWS: [(&str, u32, bool); 3] = [("1", 1, false), ("4", 4, false), ("8+8", 8, true)];

/// Several connections over each link, with what TCP sent again.
fn flows(contest: &Contest) -> String {
    let mut rows =
        table::heading(&["connections", "carried by", "received", "segments sent again", "of all", "CPU"]);
    for (what, ..) in FLOWS {
        for link in Link::WITHIN_MACHINE {
            let series = format!("flows {what} {link}");
            let shown = |which: &str| match contest.rounds().figure(&format!("{series}{which}")) {
                Some(figure) => table::figure(figure, show(&format!("{series}{which}"))),
                None => format!("not run: {}", contest.reason(&series).unwrap_or("interrupted")),
            };
            rows.push_str(&table::row(&[
                what.to_owned(),
                link.name().to_owned(),
                shown(""),
                shown(" again"),
                shown(" share"),
                shown(" demand"),
            ]));
        }
    }
    rows
}

/// TCP by iperf3 and sockperf over everybody.
fn rivals(contest: &Contest) -> String {
    let mut rows = table::heading(&["carried by", "MTU", "iperf3, TCP", "sockperf, TCP half-RTT"]);
    let ours = Link::WITHIN_MACHINE.into_iter().map(|link| (link.name(), 9000));
    for (name, mtu_bytes) in ours.chain(RIVALS.iter().map(|rival| (rival.name, rival.mtu_bytes))) {
        let shown = |what: &str| {
            let series = format!("{what} {name}");
            match contest.rounds().figure(&series) {
                Some(figure) => table::figure(figure, show(&series)),
                None => format!("not run: {}", contest.reason(&series).unwrap_or("interrupted")),
            }
        };
        rows.push_str(&table::row(&[
            name.to_owned(),
            mtu_bytes.to_string(),
            shown("iperf3"),
            shown("sockperf"),
        ]));
    }
    rows
}

/// How a series is written, by its name.
fn show(series: &str) -> Show {
    match series {
        _ if series.ends_with("demand") => table::us_per_kb,
        _ if series.ends_with("again") => |count| format!("{count:.0}"),
        _ if series.ends_with("share") => |share| format!("{:.3} %", 100.0 * share),
        _ if series.starts_with("idle") => table::cpu,
        _ if series.starts_with("rr") || series.starts_with("sockperf") || series.starts_with("udp rr") => {
            table::ns
        }
        _ => table::rate,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_its_contestant() {
        let contest = contestants(0.1);
        requirement::assert_contestants(&REQUIREMENTS, &contest);
    }

    #[test]
    fn a_contestant_that_did_not_run_has_a_reason() {
        let mut contest = Contest::default();
        contest.add("iperf3 vde", Err(anyhow::anyhow!("not installed")));
        assert!(page(&contest).contains("| vde | 1500 | not run: not installed | not run: interrupted |"));
    }
}
