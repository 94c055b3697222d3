//! Programs that use Ethernet run unmodified: sockets in namespaces whose only interface belongs to the fabric.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bywire_eth::drops::Cause;
use bywire_eth::network::{Launch, Network};
use bywire_eth::order::CarrierSettings;
use bywire_testing::eventually;

use crate::hosts::{
    Host, INTERFACE, SETTINGS, connect, connect_with, echo, exchange, hosts, persist, tcp, udp,
};

/// Enough bytes for TCP windows to open and superframes to fill.
const STREAM_BYTES: usize = 8 << 20;

#[test]
fn one_frame_per_wake_up_delivers_the_same() {
    let Some(hosts) = hosts(2) else { return };
    let _network = connect(&hosts, 1500, CarrierSettings { coalesce: false, spin_us: 0, ..SETTINGS });
    let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000));
    exchange(&near, &far, STREAM_BYTES);
}

#[test]
fn several_queues_carry_several_streams() {
    let Some(hosts) = hosts(2) else { return };
    let mut network = connect_with(&hosts, 1500, SETTINGS, 3);
    let streams: Vec<_> = (7000..7004).map(|port| tcp(&hosts[0], &hosts[1], hosts[1].ipv4(port))).collect();
    std::thread::scope(|scope| {
        for (near, far) in &streams {
            scope.spawn(move || exchange(near, far, STREAM_BYTES / 4));
        }
    });
    assert!(network.counts(0).expect("counts").sent.bytes as usize > STREAM_BYTES);
}

#[test]
fn multicast_reaches_every_member_exactly_once() {
    let Some(hosts) = hosts(3) else { return };
    let mut network = connect(&hosts, 1500, SETTINGS);
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let join = |host: &Host| {
        let socket = udp(host, SocketAddr::from(([0, 0, 0, 0], 7002)));
        let own = Ipv4Addr::new(10, 77, 0, host.number);
        host.inside(|| socket.join_multicast_v4(&group, &own)).expect("joined");
        socket
    };
    let (second, third) = (join(&hosts[1]), join(&hosts[2]));
    let sender = udp(&hosts[0], hosts[0].ipv4(7002));
    hosts[0].ip(&format!("route add 224.0.0.0/4 dev {INTERFACE}"));
    sender.send_to(b"to all of you", (group, 7002)).expect("sent");
    for member in [&second, &third] {
        let mut buffer = [0; 64];
        let (length, _) = member.recv_from(&mut buffer).expect("received");
        assert_eq!(&buffer[..length], b"to all of you");
        member.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
        assert!(member.recv_from(&mut buffer).is_err(), "it came twice");
    }
    assert_eq!(network.counts(0).expect("counts").drops.total(), 0);
}

#[test]
fn all_nodes_of_ipv6_hear_each_other() {
    let Some(hosts) = hosts(2) else { return };
    let _network = connect(&hosts, 1500, SETTINGS);
    let all_nodes: Ipv6Addr = "ff02::1".parse().expect("an address");
    let listener = udp(&hosts[1], SocketAddr::from((Ipv6Addr::UNSPECIFIED, 7003)));
    let sender = udp(&hosts[0], hosts[0].ipv6(7003));
    // The kernel is a member of this group on every interface. In a namespace, the first interface after `lo` has
    // index 2 or higher.
    let index =
        hosts[0].inside(|| bywire_eth::rtnetlink::Links::open()?.find(INTERFACE)).expect("a link").index;
    let target = std::net::SocketAddrV6::new(all_nodes, 7003, 0, index);
    persist(|| sender.send_to(b"all", target));
    assert_eq!(listener.recv_from(&mut [0; 8]).expect("received").0, 3);
}

#[test]
fn a_connection_survives_a_restart_of_the_network() {
    let Some(hosts) = hosts(2) else { return };
    let network = connect(&hosts, 1500, SETTINGS);
    let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000));
    exchange(&near, &far, 1 << 20);
    drop(network);
    std::thread::scope(|scope| {
        // The bytes that are under way now are lost, and retransmitted later.
        let stream = scope.spawn(|| exchange(&near, &far, 1 << 20));
        std::thread::sleep(Duration::from_millis(300));
        let _again = connect(&hosts, 1500, SETTINGS);
        stream.join().expect("the stream goes on");
    });
}

/// Waits until an interface has dropped more than `count` frames for this cause.
fn drops_more(network: &mut Network, interface: usize, cause: Cause, count: u64) {
    eventually("frames are dropped", || network.counts(interface).expect("counts").drops.of(cause) > count);
}

#[test]
fn frames_with_another_source_address_are_dropped() {
    let Some(hosts) = hosts(2) else { return };
    let mut network = connect(&hosts, 1500, SETTINGS);
    let (near, far) = (udp(&hosts[0], hosts[0].ipv4(7001)), udp(&hosts[1], hosts[1].ipv4(7001)));
    echo(&near, &far, hosts[1].ipv4(7001), b"as ourselves");
    hosts[0].ip(&format!("link set {INTERFACE} address 02:00:00:00:00:99"));
    // When the first of these frames is dropped, all earlier frames with the right address have arrived.
    let mut before = 0;
    for _ in 0..2 {
        before = network.counts(1).expect("counts").received.frames;
        let dropped = network.counts(0).expect("counts").drops.of(Cause::ForeignSource);
        near.send_to(b"as somebody else", hosts[1].ipv4(7001)).expect("sent");
        drops_more(&mut network, 0, Cause::ForeignSource, dropped);
    }
    far.set_read_timeout(Some(Duration::from_millis(200))).expect("a time-out");
    assert!(far.recv_from(&mut [0; 64]).is_err(), "it arrived");
    assert_eq!(network.counts(1).expect("counts").received.frames, before);
}

#[test]
fn stations_behind_a_bridge_are_reached() {
    let Some(hosts) = hosts(3) else { return };
    // Host 3 has no interface of the fabric. A `veth` pair connects it to a bridge in host 2.
    hosts[1].ip("link add br0 type bridge");
    hosts[1].ip("link set br0 up");
    hosts[1].inside(|| {
        let holder = &hosts[2].namespace;
        let mut links = bywire_eth::rtnetlink::Links::open().expect("netlink");
        let output = std::process::Command::new("ip")
            .args(["link", "add", "cable", "type", "veth", "peer", "name", INTERFACE])
            .output()
            .expect("`ip` of iproute2");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let index = links.find(INTERFACE).expect("the cable's other end").index;
        links.hand_over(index, std::os::fd::AsFd::as_fd(holder)).expect("handed over");
    });
    hosts[1].ip("link set cable master br0");
    hosts[1].ip("link set cable up");
    hosts[2].ip(&format!("address add 10.77.0.3/24 dev {INTERFACE}"));
    hosts[2].ip(&format!("link set {INTERFACE} up"));
    let mut network = Network::start(&Launch::Thread, 1, SETTINGS).expect("a network");
    network.add(hosts[0].plan(1500)).expect("an interface");
    let mut bridged = hosts[1].plan(1500);
    bridged.addresses.clear();
    bridged.bridge = Some("br0".to_owned());
    network.add(bridged).expect("an interface at the bridge");
    let (near, far) = tcp(&hosts[0], &hosts[2], hosts[2].ipv4(7000));
    exchange(&near, &far, STREAM_BYTES);
    let (near, far) = tcp(&hosts[2], &hosts[0], hosts[0].ipv4(7000));
    exchange(&near, &far, STREAM_BYTES);
}

#[test]
fn an_interface_goes_down_and_up_and_changes_its_mtu_and_is_removed() {
    let Some(hosts) = hosts(2) else { return };
    let mut network = connect(&hosts, 1500, SETTINGS);
    let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000));
    exchange(&near, &far, 1 << 20);
    hosts[1].ip(&format!("link set {INTERFACE} down"));
    let sender = udp(&hosts[0], hosts[0].ipv4(7001));
    sender.send_to(b"into the dark", hosts[1].ipv4(7001)).expect("sent");
    drops_more(&mut network, 1, Cause::TargetDown, 0);
    hosts[1].ip(&format!("link set {INTERFACE} up"));
    exchange(&near, &far, 1 << 20);

    let wanted = hosts[0].plan(9000);
    network.adapt(0, wanted).expect("adapted");
    assert_eq!(network.interface(0).expect("an interface").look().expect("a link").mtu_bytes, 9000);
    exchange(&near, &far, 1 << 20);
    let impossible = bywire_eth::interface::Plan { mtu_bytes: 1279, ..hosts[0].plan(1500) };
    network.adapt(0, impossible).expect_err("it has an IPv6 address");
    assert_eq!(network.interface(0).expect("an interface").look().expect("a link").mtu_bytes, 9000);

    hosts[0].ip(&format!("link delete {INTERFACE}"));
    let plan = vanished(&mut network);
    network.add(plan).expect("it can be made again");
    let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7005));
    exchange(&near, &far, 1 << 20);
}

/// Waits until one interface has vanished, and returns its plan.
fn vanished(network: &mut Network) -> bywire_eth::interface::Plan {
    let gone = eventually("one has gone", || network.vanished().ok().filter(|gone| !gone.is_empty()));
    assert_eq!(gone.len(), 1);
    gone[0].plan.clone()
}

#[test]
fn a_device_with_several_queues_is_reported_removed_once() {
    let Some(hosts) = hosts(2) else { return };
    let mut network = connect_with(&hosts, 1500, SETTINGS, 3);
    for _ in 0..5 {
        hosts[0].ip(&format!("link delete {INTERFACE}"));
        let plan = vanished(&mut network);
        // Immediately: late reports of the other loops about the old interface must not end the new one.
        network.add(plan).expect("it can be made again");
        std::thread::sleep(Duration::from_millis(20));
        assert!(network.vanished().expect("an answer").is_empty());
        let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7006));
        exchange(&near, &far, 1 << 16);
    }
}

#[test]
fn an_interface_that_cannot_be_made_is_refused_in_one_line() {
    let Some(hosts) = hosts(1) else { return };
    let mut network = connect(&hosts, 1500, SETTINGS);
    let mut refused = |change: &dyn Fn(&mut bywire_eth::interface::Plan), expected: &str| {
        let mut plan = hosts[0].plan(1500);
        plan.mac.0[5] ^= 1;
        change(&mut plan);
        let error = network.add(plan).expect_err(expected).to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    refused(&|_| (), "is taken already");
    refused(&|plan| plan.mac.0[5] ^= 1, "would both have the address");
    refused(&|plan| plan.mtu_bytes = 1279, "IPv6 needs at least 1280");
    refused(&|plan| plan.namespace = "no-such-namespace".parse().expect("a name"), "no network namespace");
    let unbridged = |plan: &mut bywire_eth::interface::Plan| {
        plan.name = "by1".to_owned();
        plan.bridge = Some("br9".to_owned());
    };
    refused(&unbridged, "there is no bridge br9");
}
