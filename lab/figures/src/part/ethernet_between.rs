//! Ethernet between two nodes of a fabric, beside a veth pair, one machine's Ethernet, and other networks over the same wire.

use std::rc::Rc;

use bywire_measure::ethernet::{FrameLink, Link, Wire};
use bywire_results::message_link::Security;

use crate::contestant::{Contest, Contestant};
use crate::ethernet::{Join, SHORT_DATAGRAMS, costed_stream, iperf3_datagrams, joined, reused, sockperf};
use crate::figures::{Figures, Metric, by};
use crate::page::{self, Part};
use crate::tunnel::{RIVALS_BETWEEN_MACHINES, WIRE_MTU_BYTES};

pub const PART: Part = Part { name: "ethernet-between", contestants, added };

/// A network between two namespaces, by its name in the tables.
struct Network {
    name: &'static str,
    /// The MTU of its interfaces.
    mtu_bytes: u32,
    is_encrypted: bool,
    join: Join,
}

/// The measurements of each network. One joining of two namespaces serves all of them.
const MEASUREMENTS: u32 = 4;

fn added(figures: &Figures) -> String {
    format!(
        "\nTwo namespaces on a veth pair of MTU {WIRE_MTU_BYTES}. `shm` is one machine's Ethernet of two processes, `plain` and \
         `encrypted` are two nodes of a fabric. Who carries frames shares the two cores with both ends, which makes their \
         blocks count as disturbed.\n\nEverybody. The CPU is that of the TCP stream, in µs for each KB:\n\n{}",
        everybody(figures)
    )
}

/// Everybody, ours first.
fn networks() -> Vec<Network> {
    let between_nodes = |security| FrameLink::between_nodes(Wire { mtu_bytes: WIRE_MTU_BYTES, security });
    let of_mtu = |frame_link| FrameLink { mtu_bytes: WIRE_MTU_BYTES, ..frame_link };
    let (plain, encrypted) = (between_nodes(Security::Plain), between_nodes(Security::Encrypted));
    let ours = [
        ("veth", FrameLink::of(Link::Veth, WIRE_MTU_BYTES)),
        ("bywire shm", FrameLink::of(Link::TwoProcesses, WIRE_MTU_BYTES)),
        ("bywire plain", plain),
        ("bywire encrypted", encrypted),
        ("bywire plain 1500", of_mtu(plain)),
        ("bywire encrypted 1500", of_mtu(encrypted)),
    ];
    let ours = ours.map(|(name, frame_link)| Network {
        name,
        mtu_bytes: frame_link.mtu_bytes,
        is_encrypted: frame_link.wire.is_some_and(|wire| wire.security == Security::Encrypted),
        join: joined(frame_link),
    });
    let rivals = RIVALS_BETWEEN_MACHINES.iter().map(|rival| Network {
        name: rival.name,
        mtu_bytes: rival.mtu_bytes,
        is_encrypted: rival.is_encrypted,
        join: rival.join(),
    });
    ours.into_iter().chain(rivals).collect()
}

fn contestants(pair_seconds: f64) -> Contest {
    let mut contest = Contest::default();
    for Network { name, join, .. } in networks() {
        let join = reused(join, MEASUREMENTS);
        contest.add(format!("tcp {name}"), Ok(costed_stream(Rc::clone(&join), false)));
        contest.add(format!("back {name}"), Ok(costed_stream(Rc::clone(&join), true)));
        contest.add(format!("udp {name}"), Ok(iperf3_datagrams(Rc::clone(&join), SHORT_DATAGRAMS)));
        contest.add(format!("rtt {name}"), Ok(sockperf(join)));
    }
    for (name, link) in LABORATORY {
        for test in ["stream", "rr"] {
            let words = format!("eth {test} --mtu {WIRE_MTU_BYTES} --link {link}");
            contest.add(format!("laboratory {test} {name}"), Contestant::fresh(&words, pair_seconds));
        }
    }
    contest
}

/// Networks that the laboratory measures too, with its link.
const LABORATORY: [(&str, &str); 4] = [
    ("veth", "veth"),
    ("shm", "two-processes"),
    ("plain", "udp --security plain"),
    ("encrypted", "udp --security encrypted"),
];

/// The columns of each network, and their series.
const COLUMNS: [(&str, &str, Metric); 9] = [
    ("iperf3, TCP", "tcp", Metric::Value),
    ("the other way", "back", Metric::Value),
    ("iperf3, UDP of 1,200 B", "udp", Metric::Value),
    ("sockperf, TCP half-RTT", "rtt", Metric::Value),
    ("CPU, the whole machine", "tcp", Metric::Demand),
    ("sender", "tcp", Metric::Source),
    ("receiver", "tcp", Metric::Target),
    ("between", "tcp", Metric::Between),
    ("the whole machine, the other way", "back", Metric::Demand),
];

fn everybody(figures: &Figures) -> String {
    let titles = ["carried by", "MTU", "encrypted"].into_iter().chain(COLUMNS.map(|(title, ..)| title));
    let rows = networks().into_iter().map(|network| {
        let told = |(_, what, metric)| page::told(figures, by(&format!("{what} {}", network.name), metric));
        let is_encrypted = if network.is_encrypted { "yes" } else { "no" };
        let named = [network.name.to_owned(), network.mtu_bytes.to_string(), is_encrypted.to_owned()];
        named.into_iter().chain(COLUMNS.map(told)).collect()
    });
    page::table(3, titles, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::value;
    use crate::page::requirements;

    #[test]
    fn each_rival_in_user_space_is_compared_with_ours() {
        let requirements = requirements(PART.name).unwrap();
        let compared: Vec<_> = requirements.iter().flat_map(|requirement| &requirement.series[1..]).collect();
        for rival in RIVALS_BETWEEN_MACHINES.iter().filter(|rival| !rival.name.starts_with("kernel")) {
            for what in ["tcp", "back", "udp", "rtt"] {
                let name = format!("{what} {}", rival.name);
                assert!(compared.contains(&&value(&name)), "{name}");
            }
            let name = format!("tcp {}", rival.name);
            assert!(compared.contains(&&by(&name, Metric::Demand)), "{name}");
        }
    }
}
