//! Every figure of Ethernet between two nodes of a fabric in one run, beside a veth pair, one machine's Ethernet, and other
//! networks over the same wire.

use std::process::ExitCode;
use std::rc::Rc;

use bywire_figures::contestant::{Contest, Contestant};
use bywire_figures::ethernet::{self, Join};
use bywire_figures::figures::Figures;
use bywire_figures::requirement::Basis::{Over, OverHighest, OverLowest};
use bywire_figures::requirement::{Requirement, at_least, at_most};
use bywire_figures::series::Metric;
use bywire_figures::series::Metric::Demand;
use bywire_figures::series::{by, value};
use bywire_figures::tunnel::{RIVALS_BETWEEN_MACHINES, WIRE_MTU_BYTES};
use bywire_figures::{page, program};
use bywire_measure::ethernet::{FrameLink, Link, Wire};
use bywire_measure::measure::Request;
use bywire_results::message_link::Security;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 17] = [
    at_least("TCP stream over that of two processes, plain", 0.4, 0.6, Over(value("tcp bywire plain"), value("tcp bywire shm"))),
    at_least("the same, encrypted", 0.25, 0.4, Over(value("tcp bywire encrypted"), value("tcp bywire shm"))),
    at_least("the same by the laboratory, plain", 0.4, 0.6, Over(value("laboratory stream plain"), value("laboratory stream shm"))),
    at_least("the same by the laboratory, encrypted", 0.25, 0.4, Over(value("laboratory stream encrypted"), value("laboratory stream shm"))),
    at_least("TCP stream with interfaces of MTU 1500 over that of two processes, plain", 0.4, 0.6, Over(value("tcp bywire plain 1500"), value("tcp bywire shm"))),
    at_least("the same, encrypted", 0.25, 0.4, Over(value("tcp bywire encrypted 1500"), value("tcp bywire shm"))),
    at_least("TCP stream, encrypted, over the best encrypting rival in user space", 1.0, 2.0, OverHighest(value("tcp bywire encrypted"), &[value("tcp OpenVPN tap encrypted"), value("tcp tinc encrypted"), value("tcp nebula"), value("tcp wireguard-go")])),
    at_least("the same in the other direction", 1.0, 2.0, OverHighest(value("back bywire encrypted"), &[value("back OpenVPN tap encrypted"), value("back tinc encrypted"), value("back nebula"), value("back wireguard-go")])),
    at_least("datagrams of 1,200 bytes, the same", 1.0, 2.0, OverHighest(value("udp bywire encrypted"), &[value("udp OpenVPN tap encrypted"), value("udp tinc encrypted"), value("udp nebula"), value("udp wireguard-go")])),
    at_most("half-RTT, the same", 1.0, 0.5, OverLowest(value("rtt bywire encrypted"), &[value("rtt OpenVPN tap encrypted"), value("rtt tinc encrypted"), value("rtt nebula"), value("rtt wireguard-go")])),
    at_most("CPU of a TCP stream, the same", 1.0, 0.5, OverLowest(by("tcp bywire encrypted", Demand), &[by("tcp OpenVPN tap encrypted", Demand), by("tcp tinc encrypted", Demand), by("tcp nebula", Demand), by("tcp wireguard-go", Demand)])),
    at_least("TCP stream, plain, over the best plain rival in user space", 1.0, 2.0, OverHighest(value("tcp bywire plain"), &[value("tcp OpenVPN tap"), value("tcp tinc"), value("tcp vde")])),
    at_least("the same in the other direction", 1.0, 2.0, OverHighest(value("back bywire plain"), &[value("back OpenVPN tap"), value("back tinc"), value("back vde")])),
    at_least("datagrams of 1,200 bytes, the same", 1.0, 2.0, OverHighest(value("udp bywire plain"), &[value("udp OpenVPN tap"), value("udp tinc"), value("udp vde")])),
    at_most("half-RTT, the same", 1.0, 0.5, OverLowest(value("rtt bywire plain"), &[value("rtt OpenVPN tap"), value("rtt tinc"), value("rtt vde")])),
    at_most("CPU of a TCP stream, the same", 1.0, 0.5, OverLowest(by("tcp bywire plain", Demand), &[by("tcp OpenVPN tap", Demand), by("tcp tinc", Demand), by("tcp vde", Demand)])),
    at_least("encrypted over plain, TCP stream (not required)", 0.5, 0.8, Over(value("tcp bywire encrypted"), value("tcp bywire plain"))),
];

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

fn main() -> ExitCode {
    program::main("ethernet-between", contestants, |figures| {
        let added = format!(
            "\nTwo namespaces on a veth pair of MTU {WIRE_MTU_BYTES}. `shm` is one machine's Ethernet of two processes, `plain` and \
             `encrypted` are two nodes of a fabric. Who carries frames shares the two cores with both ends, which makes their \
             blocks count as disturbed.\n\nEverybody. The CPU is that of the TCP stream, in µs for each KB:\n\n{}",
            everybody(figures)
        );
        page::page(&REQUIREMENTS, &added, figures)
    })
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
        join: Rc::new(move || Ok(Rc::new(frame_link.open()?))),
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
        let join = ethernet::reused(join, MEASUREMENTS);
        let datagrams = ethernet::iperf3_datagrams(Rc::clone(&join), ethernet::SHORT_DATAGRAMS);
        contest.add(format!("tcp {name}"), Ok(ethernet::costed_stream(Rc::clone(&join), false)));
        contest.add(format!("back {name}"), Ok(ethernet::costed_stream(Rc::clone(&join), true)));
        contest.add(format!("udp {name}"), Ok(datagrams));
        contest.add(format!("rtt {name}"), Ok(ethernet::sockperf(join)));
    }
    let over = |link: Link, security: Option<Security>, test: &str| Request {
        link: Some(link.name().to_owned()),
        security: security.map(|security| security.name().to_owned()),
        mtu_bytes: Some(WIRE_MTU_BYTES),
        ..Request::new("eth", test)
    };
    for (name, link, security) in LABORATORY {
        for test in ["stream", "rr"] {
            let contestant = Contestant::fresh(over(link, security, test), pair_seconds);
            contest.add(format!("laboratory {test} {name}"), Ok(contestant));
        }
    }
    contest
}

/// Networks that the laboratory measures too.
const LABORATORY: [(&str, Link, Option<Security>); 4] = [
    ("veth", Link::Veth, None),
    ("shm", Link::TwoProcesses, None),
    ("plain", Link::Udp, Some(Security::Plain)),
    ("encrypted", Link::Udp, Some(Security::Encrypted)),
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
    use bywire_figures::figures::without;
    use bywire_figures::requirement::assert_contestants;
    use bywire_figures::series::Series;

    use super::*;

    #[test]
    fn every_figure_has_its_contestant() {
        assert_contestants(&REQUIREMENTS, &contestants(0.1));
    }

    #[test]
    fn a_network_that_did_not_run_has_a_reason() {
        let session = without("tcp nebula", "not installed");
        let page = everybody(&Figures::of(&session));
        assert!(
            page.contains("| nebula | 1300 | yes | not run: not installed | not run: interrupted |"),
            "{page}"
        );
    }

    #[test]
    fn each_rival_in_user_space_is_compared_with_ours() {
        let compared = |series: Series| {
            REQUIREMENTS.iter().any(|requirement| match requirement.basis {
                OverHighest(_, rivals) | OverLowest(_, rivals) => rivals.contains(&series),
                _ => false,
            })
        };
        for rival in RIVALS_BETWEEN_MACHINES.iter().filter(|rival| !rival.name.starts_with("kernel")) {
            for what in ["tcp", "back", "udp", "rtt"] {
                let name = format!("{what} {}", rival.name);
                assert!(compared(value(&name)), "{name}");
            }
            assert!(compared(by(&format!("tcp {}", rival.name), Demand)), "{}", rival.name);
        }
    }
}
