//! Takes every figure of Ethernet between two nodes of a fabric in one run, beside a veth pair, one machine's Ethernet, and
//! other networks over the same wire, and prints tables.

use std::process::ExitCode;
use std::rc::Rc;

use bywire_command::exit_status;
use bywire_figures::contest::Contest;
use bywire_figures::ethernet::{self, Join};
use bywire_figures::program::{self, Arguments};
use bywire_figures::requirement::Basis::{Over, OverHighest, OverLowest};
use bywire_figures::requirement::Bound::{AtLeast, AtMost};
use bywire_figures::requirement::{self, Requirement};
use bywire_figures::table::{self, Show};
use bywire_figures::tunnel::{RIVALS_BETWEEN_MACHINES, WIRE_MTU_BYTES};
use bywire_measure::ethernet::{FrameLink, Link, Wire};
use bywire_measure::measure::Request;
use bywire_results::message_link::Security;
use clap::Parser;

/// Every figure of docs/performance.md on Ethernet between machines in one run, as Markdown tables
#[derive(Parser)]
struct EthernetBetween {
    #[command(flatten)]
    arguments: Arguments,
}

const RATIO: Show = table::ratio;

#[rustfmt::skip]
const REQUIREMENTS: [Requirement; 17] = [
    Requirement { measure: "TCP stream over that of two processes, plain", bound: AtLeast { required: 0.4, goal: 0.6 }, basis: Over("tcp bywire plain", "tcp bywire shm"), show: RATIO },
    Requirement { measure: "the same, encrypted", bound: AtLeast { required: 0.25, goal: 0.4 }, basis: Over("tcp bywire encrypted", "tcp bywire shm"), show: RATIO },
    Requirement { measure: "the same by the laboratory, plain", bound: AtLeast { required: 0.4, goal: 0.6 }, basis: Over("laboratory stream plain", "laboratory stream shm"), show: RATIO },
    Requirement { measure: "the same by the laboratory, encrypted", bound: AtLeast { required: 0.25, goal: 0.4 }, basis: Over("laboratory stream encrypted", "laboratory stream shm"), show: RATIO },
    Requirement { measure: "TCP stream with interfaces of MTU 1500 over that of two processes, plain", bound: AtLeast { required: 0.4, goal: 0.6 }, basis: Over("tcp bywire plain 1500", "tcp bywire shm"), show: RATIO },
    Requirement { measure: "the same, encrypted", bound: AtLeast { required: 0.25, goal: 0.4 }, basis: Over("tcp bywire encrypted 1500", "tcp bywire shm"), show: RATIO },
    Requirement { measure: "TCP stream, encrypted, over the best encrypting rival in user space", bound: AtLeast { required: 1.0, goal: 2.0 }, basis: OverHighest("tcp bywire encrypted", &["tcp OpenVPN tap encrypted", "tcp tinc encrypted", "tcp nebula", "tcp wireguard-go"]), show: RATIO },
    Requirement { measure: "the same in the other direction", bound: AtLeast { required: 1.0, goal: 2.0 }, basis: OverHighest("back bywire encrypted", &["back OpenVPN tap encrypted", "back tinc encrypted", "back nebula", "back wireguard-go"]), show: RATIO },
    Requirement { measure: "datagrams of 1,200 bytes, the same", bound: AtLeast { required: 1.0, goal: 2.0 }, basis: OverHighest("udp bywire encrypted", &["udp OpenVPN tap encrypted", "udp tinc encrypted", "udp nebula", "udp wireguard-go"]), show: RATIO },
    Requirement { measure: "half-RTT, the same", bound: AtMost { required: 1.0, goal: 0.5 }, basis: OverLowest("rtt bywire encrypted", &["rtt OpenVPN tap encrypted", "rtt tinc encrypted", "rtt nebula", "rtt wireguard-go"]), show: RATIO },
    Requirement { measure: "CPU of a TCP stream, the same", bound: AtMost { required: 1.0, goal: 0.5 }, basis: OverLowest("tcp bywire encrypted demand", &["tcp OpenVPN tap encrypted demand", "tcp tinc encrypted demand", "tcp nebula demand", "tcp wireguard-go demand"]), show: RATIO },
    Requirement { measure: "TCP stream, plain, over the best plain rival in user space", bound: AtLeast { required: 1.0, goal: 2.0 }, basis: OverHighest("tcp bywire plain", &["tcp OpenVPN tap", "tcp tinc", "tcp vde"]), show: RATIO },
    Requirement { measure: "the same in the other direction", bound: AtLeast { required: 1.0, goal: 2.0 }, basis: OverHighest("back bywire plain", &["back OpenVPN tap", "back tinc", "back vde"]), show: RATIO },
    Requirement { measure: "datagrams of 1,200 bytes, the same", bound: AtLeast { required: 1.0, goal: 2.0 }, basis: OverHighest("udp bywire plain", &["udp OpenVPN tap", "udp tinc", "udp vde"]), show: RATIO },
    Requirement { measure: "half-RTT, the same", bound: AtMost { required: 1.0, goal: 0.5 }, basis: OverLowest("rtt bywire plain", &["rtt OpenVPN tap", "rtt tinc", "rtt vde"]), show: RATIO },
    Requirement { measure: "CPU of a TCP stream, the same", bound: AtMost { required: 1.0, goal: 0.5 }, basis: OverLowest("tcp bywire plain demand", &["tcp OpenVPN tap demand", "tcp tinc demand", "tcp vde demand"]), show: RATIO },
    Requirement { measure: "encrypted over plain, TCP stream (not required)", bound: AtLeast { required: 0.5, goal: 0.8 }, basis: Over("tcp bywire encrypted", "tcp bywire plain"), show: RATIO },
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
    let words: Vec<String> = std::env::args().skip(1).collect();
    exit_status::of(
        "ethernet-between",
        match words.first().map(String::as_str) {
            Some("__worker") => bywire_measure::worker::run(),
            Some("eth" | "up") => program::become_bywire(&words),
            _ => EthernetBetween::parse().arguments.run(contestants, page),
        },
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
        let series = |what: &str| format!("{what} {name}");
        let join = ethernet::reused(join, MEASUREMENTS);
        let measurements = [
            (series("tcp"), ethernet::costed_stream(&series("tcp"), Rc::clone(&join), false)),
            (series("back"), ethernet::costed_stream(&series("back"), Rc::clone(&join), true)),
            (
                series("udp"),
                ethernet::iperf3_datagrams(&series("udp"), Rc::clone(&join), ethernet::SHORT_DATAGRAMS),
            ),
            (series("rtt"), ethernet::sockperf(&series("rtt"), join)),
        ];
        for (name, contestant) in measurements {
            contest.add(&name, Ok(contestant));
        }
    }
    let over = |link: Link, security: Option<Security>, test: &str| Request {
        link: Some(link.name().to_owned()),
        security: security.map(|security| security.name().to_owned()),
        mtu_bytes: Some(WIRE_MTU_BYTES),
        ..Request::new("eth", test)
    };
    for (name, link, security) in LABORATORY {
        for test in ["stream", "rr"] {
            let series = format!("laboratory {test} {name}");
            let contestant = ethernet::laboratory(&series, over(link, security, test), pair_seconds);
            contest.add(&series, Ok(contestant));
        }
    }
    contest
}

/// What the laboratory measures too.
const LABORATORY: [(&str, Link, Option<Security>); 4] = [
    ("veth", Link::Veth, None),
    ("shm", Link::TwoProcesses, None),
    ("plain", Link::Udp, Some(Security::Plain)),
    ("encrypted", Link::Udp, Some(Security::Encrypted)),
];

/// The columns of each network, and their series.
const COLUMNS: [(&str, &str, &str); 9] = [
    ("iperf3, TCP", "tcp", ""),
    ("the other way", "back", ""),
    ("iperf3, UDP of 1,200 B", "udp", ""),
    ("sockperf, TCP half-RTT", "rtt", ""),
    ("CPU, the whole machine", "tcp", " demand"),
    ("sender", "tcp", " source"),
    ("receiver", "tcp", " target"),
    ("between", "tcp", " between"),
    ("the whole machine, the other way", "back", " demand"),
];

fn page(contest: &Contest) -> String {
    let mut page = table::machine();
    page.push_str(&format!(
        "\nTwo namespaces on a veth pair of MTU {WIRE_MTU_BYTES}. `shm` is one machine's Ethernet of two processes, `plain` and \
         `encrypted` are two nodes of a fabric.\n\n"
    ));
    page.push_str(&requirement::table(&REQUIREMENTS, contest));
    page.push_str("\nEverybody. The CPU is that of the TCP stream, in µs for each KB:\n\n");
    page.push_str(&everybody(contest));
    page.push_str("\nBehind them. Who carries frames shares the two cores with both ends, which makes their blocks count as disturbed.\n\n");
    page.push_str(&table::contestants(contest, show));
    page
}

fn everybody(contest: &Contest) -> String {
    let titles = COLUMNS.map(|(title, ..)| title);
    let mut rows = table::heading(&[&["carried by", "MTU", "encrypted"][..], &titles].concat());
    for network in networks() {
        let shown = |(_, what, which): (&str, &str, &str)| {
            let series = format!("{what} {}", network.name);
            match contest.rounds().figure(&format!("{series}{which}")) {
                Some(figure) => table::figure(figure, show(&format!("{series}{which}"))),
                None if which.is_empty() => {
                    format!("not run: {}", contest.reason(&series).unwrap_or("interrupted"))
                }
                None => "not run".to_owned(),
            }
        };
        let is_encrypted = if network.is_encrypted { "yes" } else { "no" };
        let named = [network.name.to_owned(), network.mtu_bytes.to_string(), is_encrypted.to_owned()];
        rows.push_str(&table::row(&[&named[..], &COLUMNS.map(shown)].concat()));
    }
    rows
}

/// How a series is written, by its name.
fn show(series: &str) -> Show {
    let costs = ["demand", "source", "target", "between"];
    match series {
        _ if costs.iter().any(|cost| series.ends_with(cost)) => table::us_per_kb,
        _ if series.starts_with("rtt") || series.starts_with("laboratory rr") => table::ns,
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
    fn a_network_that_did_not_run_has_a_reason() {
        let mut contest = Contest::default();
        contest.add("tcp nebula", Err(anyhow::anyhow!("not installed")));
        let page = page(&contest);
        assert!(
            page.contains("| nebula | 1300 | yes | not run: not installed | not run: interrupted |"),
            "{page}"
        );
    }

    #[test]
    fn each_rival_in_user_space_is_compared_with_ours() {
        let compared = |series: &str| {
            REQUIREMENTS.iter().any(|requirement| match requirement.basis {
                OverHighest(_, rivals) | OverLowest(_, rivals) => rivals.contains(&series),
                _ => false,
            })
        };
        for rival in RIVALS_BETWEEN_MACHINES.iter().filter(|rival| !rival.name.starts_with("kernel")) {
            for what in ["tcp", "back", "udp", "rtt"] {
                assert!(compared(&format!("{what} {}", rival.name)), "{what} {}", rival.name);
            }
            assert!(compared(&format!("tcp {} demand", rival.name)), "{}", rival.name);
        }
    }
}
