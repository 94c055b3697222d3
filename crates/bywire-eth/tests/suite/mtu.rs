//! The MTUs that break things, each by its name. Streams arrive complete, and so do datagrams of every length around
//! the packet size, within one process and between two.

use std::net::{SocketAddr, UdpSocket};

use crate::hosts::{self, Host, Joined, Link, byte_at, exchange, hosts, join, tcp, udp};

/// Enough bytes for TCP windows to open and superframes to fill.
const STREAM_BYTES: usize = 4 << 20;
/// The stream's length if a frame has room for only sixteen bytes.
const SLOW_STREAM_BYTES: usize = 1 << 20;
const IPV4_AND_UDP_BYTES: usize = 28;
const IPV6_AND_UDP_BYTES: usize = 48;
/// The minimum MTU of IPv6.
const IPV6_MTU_BYTES: u32 = 1280;
/// The longest UDP datagram over IPv4.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// The number of tested lengths on either side of an edge.
const AROUND: usize = 9;

/// The MTUs, and what is special about each.
const MTUS: [(u32, &str); 10] = [
    (68, "the minimum"),
    (576, "accepted by every host"),
    (1280, "the minimum of IPv6"),
    (1499, "odd"),
    (1500, "standard"),
    (9000, "jumbo"),
    (30_000, "above the merging limit"),
    (65_450, "the limit of a datagram between processes"),
    (65_451, "above that limit"),
    (65_521, "the maximum"),
];

#[test]
fn streams_and_datagrams_cross_at_every_mtu() {
    for (mtu_bytes, what) in MTUS {
        for link in [Link::Within, Link::Between] {
            println!("an MTU of {mtu_bytes}, {what}: {link:?}");
            crosses(mtu_bytes, link);
        }
    }
}

/// `bywire eth status` warns about interfaces whose MTUs differ.
#[test]
fn packets_longer_than_the_targets_mtu_arrive() {
    for link in [Link::Within, Link::Between] {
        let Some(hosts) = hosts(2) else { return };
        let _joined = join(&hosts, link, 9000);
        hosts[1].ip("link set by0 mtu 1500");
        let (near, far) = (udp(&hosts[0], hosts[0].ipv4(7001)), udp(&hosts[1], hosts[1].ipv4(7001)));
        for length in [1472, 1473, 8972] {
            echo(&near, &far, hosts[1].ipv4(7001), length);
        }
        let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000));
        exchange(&near, &far, STREAM_BYTES);
    }
}

fn crosses(mtu_bytes: u32, link: Link) {
    let Some(hosts) = hosts(2) else { return };
    hosts.iter().for_each(Host::trust_addresses);
    let mut joined = join(&hosts, link, mtu_bytes);
    streams_cross(&hosts, mtu_bytes, &mut joined);
    datagrams_cross(&hosts, mtu_bytes);
}

fn streams_cross(hosts: &[Host], mtu_bytes: u32, joined: &mut Joined) {
    let is_tiny = mtu_bytes < 128;
    if is_tiny {
        // The kernel's TCP makes no segments shorter than 48 bytes. At this MTU its packets are fragmented, which
        // must be allowed.
        for host in hosts {
            host.inside(|| std::fs::write("/proc/sys/net/ipv4/ip_no_pmtu_disc", "1")).expect("allowed");
        }
    }
    let length = if is_tiny { SLOW_STREAM_BYTES } else { STREAM_BYTES };
    let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000));
    exchange(&near, &far, length);
    if mtu_bytes >= IPV6_MTU_BYTES {
        let (near, far) = tcp(&hosts[1], &hosts[0], hosts[0].ipv6(7000));
        exchange(&near, &far, length);
    }
    let counts = joined.networks[0].counts(0).expect("counts");
    assert!(counts.sent.bytes as usize > length);
    assert!(is_tiny || mtu_bytes > 9000 || counts.sent.superframes > 0, "superframes travel whole");
}

fn datagrams_cross(hosts: &[Host], mtu_bytes: u32) {
    let (near, far) = (udp(&hosts[0], hosts[0].ipv4(7001)), udp(&hosts[1], hosts[1].ipv4(7001)));
    for length in lengths(mtu_bytes as usize - IPV4_AND_UDP_BYTES) {
        echo(&near, &far, hosts[1].ipv4(7001), length);
    }
    if mtu_bytes >= IPV6_MTU_BYTES {
        let (near, far) = (udp(&hosts[0], hosts[0].ipv6(7002)), udp(&hosts[1], hosts[1].ipv6(7002)));
        for length in lengths(mtu_bytes as usize - IPV6_AND_UDP_BYTES) {
            echo(&near, &far, hosts[1].ipv6(7002), length);
        }
    }
}

/// The tested lengths: the shortest datagrams, those around one full packet, those around two and three full
/// fragments, those around the shortest Ethernet frame, and a long one. Fragments are multiples of eight bytes.
fn lengths(fits_bytes: usize) -> impl Iterator<Item = usize> {
    let fragment_bytes = (fits_bytes + 8) & !7;
    let edges = [fits_bytes, 2 * fragment_bytes - 8, 3 * fragment_bytes - 8, 18];
    let around = edges.into_iter().flat_map(|edge| edge.saturating_sub(AROUND)..=edge + AROUND);
    around.chain([0, 1, 2, 8192.min(40 * fits_bytes)]).filter(|length| *length <= DATAGRAM_BYTES_MAX)
}

fn echo(near: &UdpSocket, far: &UdpSocket, to: SocketAddr, length: usize) {
    let bytes: Vec<u8> = (0..length).map(|index| byte_at(length as u64, index)).collect();
    hosts::echo(near, far, to, &bytes);
}
