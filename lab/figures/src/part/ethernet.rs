//! Ethernet over the fabric, beside plain veth and other programs that carry Ethernet.

use std::rc::Rc;

use bywire_measure::ethernet::{FrameLink, Link};

use crate::contestant::{Contest, Contestant};
use crate::ethernet::{self, LONG_DATAGRAMS, idle, iperf3_datagrams, iperf3_stream, joined, sockperf};
use crate::figures::{Figures, Metric, by, value};
use crate::page::{self, Part};
use crate::tunnel::RIVALS;

pub const PART: Part = Part { name: "ethernet", contestants, added };

/// The laboratory's measurements over each link.
const LABORATORY: [(&str, &str); 4] = [
    ("stream {}", "stream --mtu 9000"),
    ("stream {} 1500", "stream --mtu 1500"),
    ("rr {}", "rr --mtu 9000"),
    ("udp rr {}", "rr --mtu 9000 --protocol udp"),
];

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for link in Link::WITHIN_MACHINE {
        let join = joined(FrameLink::of(link, 9000));
        for (name, words) in LABORATORY {
            let contestant = Contestant::fresh(&format!("eth {words} --link {link}"), pair_seconds);
            contest.add(name.replace("{}", link.name()), contestant);
        }
        contest.add(format!("iperf3 {link}"), Ok(iperf3_stream(Rc::clone(&join), "-t 1".to_owned())));
        for (what, count, both_ways) in FLOWS {
            let flows = ethernet::flows(Rc::clone(&join), count, both_ways);
            contest.add(format!("flows {what} {link}"), Ok(flows));
        }
        contest.add(format!("udp {link}"), Ok(iperf3_datagrams(Rc::clone(&join), LONG_DATAGRAMS)));
        contest.add(format!("sockperf {link}"), Ok(sockperf(Rc::clone(&join))));
        if link != Link::Veth {
            contest.add(format!("idle {link}"), Ok(idle(join)));
        }
    }
    for rival in &RIVALS {
        contest.add(format!("iperf3 {}", rival.name), Ok(iperf3_stream(rival.join(), "-t 1".to_owned())));
        contest.add(format!("sockperf {}", rival.name), Ok(sockperf(rival.join())));
    }
    contest
}

fn added(figures: &Figures) -> String {
    format!(
        "\nSeveral TCP connections at once, by iperf3. The CPU is that of who carries:\n\n{}\n\
         Beside other programs, none of which encrypts:\n\n{}\n\
         Who carries frames shares the two cores with both ends, which makes their blocks count as disturbed.\n",
        flows(figures),
        rivals(figures)
    )
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
        let told = |what: &str| page::told(figures, value(&format!("{what} {name}")));
        vec![name.to_owned(), mtu_bytes.to_string(), told("iperf3"), told("sockperf")]
    });
    page::table(1, ["carried by", "MTU", "iperf3, TCP", "sockperf, TCP half-RTT"], rows)
}
