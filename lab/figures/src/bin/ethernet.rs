//! Every figure that Ethernet over the fabric must reach in one run, beside plain veth and other programs that carry Ethernet.

use std::process::ExitCode;
use std::rc::Rc;

use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::ethernet::{self, Join};
use bywire_figures::figures::Figures;
use bywire_figures::requirement::Basis::{Median, Over};
use bywire_figures::requirement::{Requirement, at_least, at_most};
use bywire_figures::series::Metric;
use bywire_figures::series::Metric::{Again, Demand, HalfRtt};
use bywire_figures::series::{by, value};
use bywire_figures::tunnel::RIVALS;
use bywire_figures::{page, program};
use bywire_measure::ethernet::{FrameLink, Link};
use bywire_measure::measure::Request;
use bywire_results::cell::Unit;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 18] = [
    at_least("TCP stream over veth, one process", 0.5, 0.6, Over(value("stream one-process"), value("stream veth"))),
    at_least("the same by iperf3", 0.5, 0.6, Over(value("iperf3 one-process"), value("iperf3 veth"))),
    at_least("TCP stream over veth, two processes", 0.5, 0.6, Over(value("stream two-processes"), value("stream veth"))),
    at_least("the same by iperf3", 0.5, 0.6, Over(value("iperf3 two-processes"), value("iperf3 veth"))),
    at_most("TCP_RR half-RTT over veth, one process", 1.6, 1.2, Over(by("rr one-process", HalfRtt), by("rr veth", HalfRtt))),
    at_most("the same by sockperf", 1.6, 1.2, Over(value("sockperf one-process"), value("sockperf veth"))),
    at_most("TCP_RR half-RTT over veth, two processes", 2.5, 1.6, Over(by("rr two-processes", HalfRtt), by("rr veth", HalfRtt))),
    at_most("the same by sockperf", 2.5, 1.6, Over(value("sockperf two-processes"), value("sockperf veth"))),
    at_least("UDP at 8 KiB received at the best offered rate, over veth, one process (iperf3)", 0.25, 0.35, Over(value("udp one-process"), value("udp veth"))),
    at_least("the same, two processes", 0.25, 0.35, Over(value("udp two-processes"), value("udp veth"))),
    at_most("service demand of a TCP stream over veth, one process", 1.9, 1.6, Over(by("stream one-process", Demand), by("stream veth", Demand))),
    at_most("the same, two processes", 1.9, 1.6, Over(by("stream two-processes", Demand), by("stream veth", Demand))),
    at_least("TCP stream at MTU 1500 over MTU 9000, one process", 0.9, 0.97, Over(value("stream one-process 1500"), value("stream one-process"))),
    at_least("four TCP streams over one, two processes (iperf3)", 1.0, 1.2, Over(value("flows 4 two-processes"), value("flows 1 two-processes"))),
    at_most("segments of four TCP streams sent again, two processes over veth", 1.0, 0.1, Over(by("flows 4 two-processes", Again), by("flows 4 veth", Again))),
    at_most("the same, eight streams each way", 1.0, 0.1, Over(by("flows 8+8 two-processes", Again), by("flows 8+8 veth", Again))),
    at_most("idle, one process", 0.0, 0.0, Median(value("idle one-process"))).in_unit(Unit::NanosecondsPerSecond),
    at_most("idle, two processes", 0.0, 0.0, Median(value("idle two-processes"))).in_unit(Unit::NanosecondsPerSecond),
];

fn main() -> ExitCode {
    program::main("ethernet", contestants, |figures| {
        let added = format!(
            "\nSeveral TCP connections at once, by iperf3. The CPU is that of who carries:\n\n{}\n\
             Beside other programs, none of which encrypts:\n\n{}\n\
             Who carries frames shares the two cores with both ends, which makes their blocks count as disturbed.\n",
            flows(figures),
            rivals(figures)
        );
        page::page(&REQUIREMENTS, &added, figures)
    })
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
            contest.add(name, Ok(Contestant::fresh(request, pair_seconds)));
        }
        contest.add(name("iperf3"), Ok(ethernet::iperf3_stream(Rc::clone(&join))));
        for (what, count, both_ways) in FLOWS {
            let series = name(&format!("flows {what}"));
            contest.add(series, Ok(ethernet::flows(Rc::clone(&join), count, both_ways)));
        }
        contest.add(name("udp"), Ok(ethernet::iperf3_datagrams(Rc::clone(&join), ethernet::LONG_DATAGRAMS)));
        contest.add(name("sockperf"), Ok(ethernet::sockperf(join)));
        if link != Link::Veth {
            contest.add(name("idle"), Ok(ethernet::idle(frame_link)));
        }
    }
    for rival in &RIVALS {
        let name = |what: &str| format!("{what} {}", rival.name);
        contest.add(name("iperf3"), Ok(ethernet::iperf3_stream(rival.join())));
        contest.add(name("sockperf"), Ok(ethernet::sockperf(rival.join())));
    }
    contest
}

/// Several connections: their name, their number, and whether there are as many in the other direction.
const FLOWS: [(&str, u32, bool); 3] = [("1", 1, false), ("4", 4, false), ("8+8", 8, true)];

/// Several connections over each link, with what TCP sent again.
fn flows(figures: &Figures) -> String {
    let titles = ["connections", "carried by", "received", "segments sent again", "of all", "CPU"];
    let rows = FLOWS.into_iter().flat_map(|(what, ..)| Link::WITHIN_MACHINE.map(|link| (what, link)));
    let metrics = [Metric::Value, Metric::Again, Metric::AgainShare, Metric::Demand];
    let rows = rows.map(|(what, link)| {
        let told = |metric| page::told(figures, by(&format!("flows {what} {link}"), metric));
        [what.to_owned(), link.name().to_owned()].into_iter().chain(metrics.map(told)).collect()
    });
    page::table(2, titles, rows)
}

/// TCP by iperf3 and sockperf over everybody.
fn rivals(figures: &Figures) -> String {
    let ours = Link::WITHIN_MACHINE.into_iter().map(|link| (link.name(), 9000));
    let rivals = RIVALS.iter().map(|rival| (rival.name, rival.mtu_bytes));
    let rows = ours.chain(rivals).map(|(name, mtu_bytes)| {
        let told = |what: &str| page::told(figures, by(&format!("{what} {name}"), Metric::Value));
        vec![name.to_owned(), mtu_bytes.to_string(), told("iperf3"), told("sockperf")]
    });
    page::table(1, ["carried by", "MTU", "iperf3, TCP", "sockperf, TCP half-RTT"], rows)
}

#[cfg(test)]
mod tests {
    use bywire_figures::figures::without;
    use bywire_figures::requirement::assert_contestants;

    use super::*;

    #[test]
    fn every_figure_has_its_contestant() {
        assert_contestants(&REQUIREMENTS, &contestants(0.1));
    }

    #[test]
    fn a_contestant_that_did_not_run_has_a_reason() {
        let session = without("iperf3 vde", "not installed");
        let rivals = rivals(&Figures::of(&session));
        assert!(
            rivals.contains("| vde | 1500 | not run: not installed | not run: interrupted |"),
            "{rivals}"
        );
    }
}
