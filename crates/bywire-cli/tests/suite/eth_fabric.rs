//! Ethernet between machines by `bywire eth up --fabric`, encrypted and plain: streams, datagrams and broadcasts at any
//! MTU; killed processes, restarted services, a machine that moves or is removed; members that forge addresses or send
//! garbage. Frames of forged neighbours behind tags and extension headers change nothing in real kernels. Needs root.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use bywire_eth::address::MacAddress;
use bywire_eth::fabric::PEERS_MAX;
use bywire_sys::namespace::Namespace;
use bywire_testing::eventually;
use bywire_testing::here::has_taps;
use bywire_testing::test_network::{self, Machine, TIMEOUT, TestNetwork};
use serde_json::Value;

use crate::segment::member::Member;
use crate::segment::{
    address, await_all, await_no_interface, bytes_of, bywire, connected, connected_in, drops, exchange,
    peer_of, segment, status, up, up_by,
};

#[test]
fn streams_and_datagrams_cross_between_machines_encrypted_and_plain() {
    for is_encrypted in [true, false] {
        let Some((network, _ups)) = segment(2, is_encrypted, &[]) else { return };
        let [a, b] = &network.machines[..] else { unreachable!() };
        let (near, far) = connected(a, b, address(2, 7000));
        let began = Instant::now();
        exchange(&near, &far, 64 << 20);
        println!("64 MiB each way, encrypted {is_encrypted}: {:?}", began.elapsed());
        // An IPv6 address is tentative at first, and is no source of a connection then.
        let is_settled = || UdpSocket::bind("[fd77::2]:0").is_ok();
        b.namespace.run(|| eventually("the address", is_settled)).expect("inside");
        let v6 = "[fd77::1]:7001".parse().expect("an address");
        let (near, far) = connected(b, a, v6);
        exchange(&near, &far, 1 << 20);
        let shown = status(a);
        assert_eq!((&shown["machine"], &shown["interfaces"][0]["mtu"]), (&"a".into(), &1350.into()));
        assert!(shown["interfaces"][0]["received"]["superframes"].as_u64() > Some(0), "not merged: {shown}");
        let peer = peer_of(a, "b").expect("it is connected");
        assert_eq!(peer["drops"]["illegal"], Value::Null, "{peer}");
        let carrier = &shown["carriers"][0];
        assert_eq!(
            (&carrier["capabilities"], &carrier["seccomp"]),
            (&"0000000000000000".into(), &true.into())
        );
        let [one, other] = [(a, 1), (b, 2)].map(|(machine, number)| {
            machine.namespace.run(|| UdpSocket::bind(address(number, 7002))).expect("inside").expect("bound")
        });
        other.set_read_timeout(Some(TIMEOUT)).expect("set");
        // Longer than any packet of the path, in fragments.
        let long = bytes_of(20_000);
        one.send_to(&long, address(2, 7002)).expect("sent");
        let mut buffer = vec![0; 65_536];
        let (length, _) = other.recv_from(&mut buffer).expect("received");
        assert!(buffer[..length] == long[..]);
        one.set_broadcast(true).expect("set");
        let everybody = b.namespace.run(|| UdpSocket::bind("0.0.0.0:7003")).expect("inside").expect("bound");
        everybody.set_read_timeout(Some(TIMEOUT)).expect("set");
        one.send_to(b"everybody", address(255, 7003)).expect("sent");
        assert_eq!(everybody.recv_from(&mut buffer).expect("received").0, 9);
    }
}

#[test]
fn any_mtu_works_whatever_the_path_carries() {
    for mtu in ["96", "1280", "1500", "9000"] {
        let Some((network, _ups)) = segment(2, true, &["--mtu", mtu]) else { return };
        let [a, b] = &network.machines[..] else { unreachable!() };
        let (near, far) = connected(a, b, address(2, 7000));
        exchange(&near, &far, if mtu == "96" { 20_000 } else { 2 << 20 });
    }
}

#[test]
fn a_connection_survives_restarts_of_the_far_process_and_of_both_services() {
    let Some((mut network, mut ups)) = segment(2, true, &[]) else { return };
    let (near, far) = connected(&network.machines[0], &network.machines[1], address(2, 7000));
    exchange(&near, &far, 1 << 20);
    // Killed, with the interface. Its address comes back with the next one.
    ups.pop();
    await_no_interface(&network.machines[1]);
    let before = Instant::now();
    ups.push(up(&network.machines[1], 2, &[]));
    exchange(&near, &far, 1 << 20);
    println!("a restart of the far process took {:?}", before.elapsed());
    for machine in &mut network.machines {
        machine.stop();
        machine.start();
    }
    exchange(&near, &far, 1 << 20);
    let registered = |machine: &Machine| {
        let found = machine.status().into_iter();
        found.filter(|entry| format!("{entry:?}").contains("eth.default.")).count() >= 2
    };
    eventually("the carriers register again", || network.machines.iter().all(registered));
    exchange(&near, &far, 1 << 20);
}

#[test]
fn a_removed_node_is_cut_off_within_a_second_and_the_others_go_on() {
    let Some((network, _ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    let (near, far) = connected(a, b, address(2, 7000));
    let (cut, mut far_of_cut) = connected(c, a, address(1, 7000));
    let mut fabric = network.fabric();
    fabric.nodes.retain(|node| node.name != "c");
    fabric.serial = 2;
    for machine in [a, b] {
        machine.write(&fabric);
        machine.reload();
        let began = Instant::now();
        eventually("the node is gone", || peer_of(machine, "c").is_none());
        println!("{} cut it off after {:?}", machine.name, began.elapsed());
        // A debug build on a machine that is busy with other tests takes longer.
        let limit = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
        assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    }
    exchange(&near, &far, 1 << 20);
    // It does not know, and sends on.
    (&cut).write_all(&[7; 10_000]).expect("its own kernel takes it");
    far_of_cut.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    let error = far_of_cut.read(&mut [0; 1]).expect_err("nothing comes");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    // It may come back.
    for machine in [a, b] {
        machine.write(&network.fabric());
        machine.reload();
    }
    await_all(&network);
    exchange(&near, &far, 1 << 20);
}

#[test]
fn a_machine_that_moves_to_another_address_keeps_its_connections() {
    let Some((mut network, _ups)) = segment(3, true, &[]) else { return };
    let (near, far) = connected(&network.machines[0], &network.machines[1], address(2, 7000));
    let (other, its) = connected(&network.machines[0], &network.machines[2], address(3, 7000));
    exchange(&near, &far, 1 << 20);
    let b = &mut network.machines[1];
    test_network::ip(&b.namespace, &format!("address del {}/24 dev eth0", b.address.ip()));
    b.address.set_ip([10, 78, 0, 77].into());
    b.configure_interface();
    let began = Instant::now();
    exchange(&near, &far, 1 << 20);
    println!("it went on after {:?}", began.elapsed());
    exchange(&other, &its, 1 << 20);
}

#[test]
fn hosts_behind_the_bridge_of_a_machine_are_reached_if_the_fabric_file_permits_it() {
    let Some((network, mut ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    // A host with an address of its own is behind a bridge of b, as a virtual machine would be.
    let host = Namespace::fresh().expect("another one");
    test_network::ip(&b.namespace, "link add br1 type bridge");
    test_network::ip(&b.namespace, "link set br1 up");
    test_network::ip(
        &b.namespace,
        &format!("link add host type veth peer name eth0 netns {}", test_network::path(&host)),
    );
    test_network::ip(&b.namespace, "link set host master br1 up");
    for step in ["link set lo up", "address add 10.77.0.50/24 dev eth0", "link set eth0 mtu 1350 up"] {
        test_network::ip(&host, step);
    }
    ups.remove(1);
    let arguments = ["--interface", "-:by0", "--bridge", "br1"];
    let refused =
        bywire(b, &[&["eth", "up", "--fabric"][..], &arguments].concat()).output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("`bridge = true` to the node b") && refused.status.code() == Some(2), "{said}");
    let permit = |is_bridge, serial| {
        let mut fabric = network.fabric();
        fabric.serial = serial;
        fabric.nodes[1].is_bridge = is_bridge;
        for machine in &network.machines {
            machine.write(&fabric);
            machine.reload();
        }
    };
    permit(true, 2);
    ups.push(up_by(b, &arguments));
    await_all(&network);
    let (near, far) = connected_in(&a.namespace, &host, address(50, 7000));
    exchange(&near, &far, 1 << 20);
    let (from_host, its) = connected_in(&host, &c.namespace, address(3, 7000));
    exchange(&from_host, &its, 1 << 20);
    // The host cannot pass for a machine, though its frames come from a bridge.
    let refused = || status(b)["interfaces"][0]["drops"]["foreign_source"].as_u64().unwrap_or(0);
    let before = refused();
    let own = status(a)["peers"].as_array().and_then(|peers| {
        let c = peers.iter().find(|peer| peer["machine"] == "c")?;
        Some(c["interfaces"][0]["mac"].as_str()?.to_owned())
    });
    test_network::ip(&host, &format!("link set eth0 address {}", own.expect("c has introduced itself")));
    eventually("its frames are dropped", || {
        let try_it = || drop(TcpStream::connect_timeout(&address(1, 7009), Duration::from_millis(300)));
        host.run(try_it).expect("inside");
        refused() > before
    });
    // Without the permission nothing passes any more.
    let before = drops(c, "b", "foreign_source");
    permit(false, 3);
    let (from_host, its) = (&from_host, &its);
    its.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    test_network::ip(&host, "link set eth0 address 02:00:00:00:00:50");
    eventually("its frames are dropped", || {
        let _ = { from_host }.write_all(b"more");
        drops(c, "b", "foreign_source") > before
    });
}

/// The frames that have arrived at a machine's interface, and those of them that another machine has sent: the kernel there
/// sends some by itself at any time, as for the discovery of neighbours.
fn frames_of_all_and_of(machine: &Machine, other: &str) -> [u64; 2] {
    let shown = status(machine);
    let peers = shown["peers"].as_array().expect("peers");
    let peer = peers.iter().find(|peer| peer["machine"] == other).expect("it is connected");
    [&shown["interfaces"][0], peer].map(|of| of["received"]["frames"].as_u64().expect("a number"))
}

/// What is counted one after the other, at a moment in which nothing changes.
fn settled<Counts: PartialEq>(count: impl Fn() -> Counts) -> Counts {
    let mut last = count();
    eventually("the counts are at rest", || {
        let before = std::mem::replace(&mut last, count());
        last == before
    });
    last
}

#[test]
fn a_member_that_forges_addresses_or_sends_garbage_is_dropped_and_counted() {
    let Some((network, mut ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    // A program takes the place of the carrier of c.
    drop(ups.pop());
    eventually("it has ended", || peer_of(a, "c").is_none());
    let mut member = Member::join(c, "a");
    let mac_of = |machine: &Machine| -> MacAddress {
        let shown = status(machine);
        shown["interfaces"][0]["mac"].as_str().expect("text").parse().expect("an address")
    };
    let (mac_a, mac_b) = (mac_of(a), mac_of(b));
    let own = MacAddress::of_place("default", "c", 0);
    let foreign = MacAddress([2, 1, 2, 3, 4, 5]);
    // Its own address is taken. Those of others are not, whether in use or not.
    member.introduce("b", &[own, mac_b, foreign, MacAddress::of_place("default", "d", 0)]);
    let mut peer = Value::Null;
    eventually("it is known", || {
        member.serve();
        peer = peer_of(a, "c").unwrap_or_default();
        peer["interfaces_count"] == 4
    });
    assert_eq!((&peer["node"], peer["conflicts"].as_array().map(Vec::len)), (&"c".into(), Some(3)), "{peer}");
    let frame = |target: MacAddress, source: MacAddress| {
        [&[0; 8][..], &target.0, &source.0, &[0x88, 0xB5], &[7; 50]].concat()
    };
    let before = settled(|| frames_of_all_and_of(a, "b"));
    for source in [mac_a, mac_b, foreign, MacAddress::BROADCAST] {
        member.send(&frame(mac_a, source));
    }
    // An address that b has announced, in a packet and in an answer of ARP.
    let packet = |ip: u8| {
        let header = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 77, 0, ip, 10, 77, 0, 1];
        [&[0; 8][..], &mac_a.0, &own.0, &[8, 0], &header, &[0; 26]].concat()
    };
    member.send(&packet(2));
    let answer = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &own.0, &[10, 77, 0, 2], &mac_a.0, &[10, 77, 0, 1]].concat();
    member.send(&[&[0; 8][..], &mac_a.0, &own.0, &[8, 6], &answer].concat());
    eventually("forged frames are counted", || {
        member.serve();
        drops(a, "c", "foreign_source") == 6
    });
    let frames = |counts: [u64; 2]| (counts[0] - before[0]) - (counts[1] - before[1]);
    assert_eq!(frames(settled(|| frames_of_all_and_of(a, "b"))), 0, "no forged frame arrives");
    // A superframe that is none, a descriptor that is none, and a part of nothing.
    let mut superframe = frame(mac_a, own);
    superframe[..8].copy_from_slice(&[2, 0, 8, 0, 14, 34, 0, 0]);
    for garbage in [&superframe[..], &[9; 40], &[255; 40], &[0; 3]] {
        member.send(garbage);
    }
    eventually("garbage is counted", || {
        member.serve();
        drops(a, "c", "illegal") == 4
    });
    member.send(&frame(mac_a, own));
    eventually("honest frames arrive", || {
        member.serve();
        frames(settled(|| frames_of_all_and_of(a, "b"))) == 1
    });
    let (near, far) = connected(a, b, address(2, 7000));
    exchange(&near, &far, 1 << 20);
}

/// The hardware address that a machine's kernel sends packets for an address to.
fn link_address_of(machine: &Machine, ip: &str) -> Option<String> {
    let run = || Command::new("ip").args(["neigh", "show", ip, "dev", "by0"]).output().expect("`ip` runs");
    let shown = String::from_utf8(machine.namespace.run(run).expect("inside").stdout).expect("text");
    let mut words = shown.split_whitespace().skip_while(|word| *word != "lladdr");
    words.nth(1).map(str::to_owned)
}

/// A message of neighbour discovery to fd77::1 in an IPv6 packet, with its type, behind these extension headers, the first of which
/// has this number.
fn neighbour_message(source: [u8; 16], message: &[u8], extensions: &[u8], first: u8) -> Vec<u8> {
    let target = "fd77::1".parse::<Ipv6Addr>().expect("an address").octets();
    let mut message = message.to_vec();
    let length = (message.len() as u32).to_be_bytes();
    let summed = [&source[..], &target, &length, &[0, 0, 0, 58], &message].concat();
    let words = summed.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    message[2..4].copy_from_slice(&(!(sum + (sum >> 16)) as u16).to_be_bytes());
    let bytes = (extensions.len() + message.len()) as u16;
    let header = [&[0x86, 0xDD, 0x60, 0, 0, 0][..], &bytes.to_be_bytes(), &[first, 255]].concat();
    [&header, &source[..], &target, extensions, &message].concat()
}

#[test]
fn no_member_changes_what_another_machine_knows_of_its_neighbours() {
    let Some((network, mut ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    for machine in [a, b] {
        let own = format!("[fd77::{}]:0", if machine.name == "a" { 1 } else { 2 });
        let is_settled = || UdpSocket::bind(&own).is_ok();
        machine.namespace.run(|| eventually("the address", is_settled)).expect("inside");
    }
    for (ip, to) in [("10.77.0.2", address(2, 7000)), ("fd77::2", "[fd77::2]:7001".parse().expect("one"))] {
        let (near, far) = connected(a, b, to);
        exchange(&near, &far, 1000);
        assert!(link_address_of(a, ip).is_some(), "{ip}");
    }
    let known = || ["10.77.0.2", "fd77::2"].map(|ip| link_address_of(a, ip));
    let before = known();
    // The kernel takes no other address in the first second.
    std::thread::sleep(Duration::from_millis(1100));
    drop(ups.pop());
    eventually("it has ended", || peer_of(a, "c").is_none());
    let mut member = Member::join(c, "a");
    let own = MacAddress::of_place("default", "c", 0);
    member.introduce("c", &[own]);
    eventually("it is known", || {
        member.serve();
        peer_of(a, "c").is_some_and(|peer| peer["interfaces_count"] == 1)
    });
    let mac_a: MacAddress = {
        let shown = status(a);
        shown["interfaces"][0]["mac"].as_str().expect("text").parse().expect("an address")
    };
    let arp = |operation: u8, sender: [u8; 4]| {
        let start = [8, 6, 0, 1, 8, 0, 6, 4, 0, operation];
        [&start[..], &own.0, &sender, &mac_a.0, &[10, 77, 0, if sender[0] == 0 { 2 } else { 1 }]].concat()
    };
    let [b_v6, c_v6] = ["fd77::2", "fd77::3"].map(|ip| ip.parse::<Ipv6Addr>().expect("one").octets());
    let message = |kind: u8, flags: u8, target: [u8; 16]| {
        let option = [if kind == 135 { 1 } else { 2 }, 1];
        [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &target, &option, &own.0].concat()
    };
    let advertisement = message(136, 0x60, b_v6);
    let a_v6 = "fd77::1".parse::<Ipv6Addr>().expect("one").octets();
    let forged = [
        arp(2, [10, 77, 0, 2]),
        arp(1, [10, 77, 0, 2]),
        arp(1, [0; 4]),
        neighbour_message(c_v6, &advertisement, &[], 58),
        neighbour_message(c_v6, &advertisement, &[58, 0, 1, 4, 0, 0, 0, 0], 60),
        neighbour_message(b_v6, &message(135, 0, a_v6), &[], 58),
    ];
    let mut sent = 0;
    for tags in [0, 1, 3, 8] {
        for packet in &forged {
            let tags = [0x81, 0, 0, 0].repeat(tags);
            member.send(&[&[0; 8][..], &mac_a.0, &own.0, &tags, packet].concat());
            sent += 1;
        }
    }
    eventually("forged frames are counted", || {
        member.serve();
        drops(a, "c", "foreign_source") == sent
    });
    let many = [0x81, 0, 0, 0].repeat(9);
    let fragment = [58, 0, 0, 1, 0, 0, 0, 1];
    let in_fragments = neighbour_message(c_v6, &advertisement, &fragment, 44);
    for packet in [[&many[..], &forged[0]].concat(), in_fragments] {
        member.send(&[&[0; 8][..], &mac_a.0, &own.0, &packet].concat());
    }
    eventually("what could hide a claim is counted", || {
        member.serve();
        drops(a, "c", "unparsable") == 2
    });
    assert_eq!(known(), before);
    // Its own address may be told.
    let honest = neighbour_message(c_v6, &message(135, 0, a_v6), &[], 58);
    for packet in [&arp(1, [10, 77, 0, 3]), &honest] {
        member.send(&[&[0; 8][..], &mac_a.0, &own.0, packet].concat());
    }
    eventually("honest questions are answered", || {
        member.serve();
        ["10.77.0.3", "fd77::3"].iter().all(|ip| link_address_of(a, ip) == Some(own.to_string()))
    });
}

#[test]
fn a_member_that_connects_again_and_again_takes_no_place_of_others() {
    let Some((network, mut ups)) = segment(3, true, &[]) else { return };
    let [a, b, c] = &network.machines[..] else { unreachable!() };
    ups.truncate(1);
    eventually("both have ended", || peer_of(a, "b").is_none() && peer_of(a, "c").is_none());
    let mut member = Member::join(c, "a");
    member.connect_again("a", PEERS_MAX + 50);
    // The carrier of b is back, and finds a place.
    ups.push(up(b, 2, &[]));
    eventually("it is known", || {
        member.serve();
        peer_of(a, "b").is_some()
    });
}

/// The commands of the page, each in its machine's namespace.
#[test]
fn two_machines_are_joined_as_the_page_says() {
    let page = include_str!("../../../../docs/ethernet.md");
    let printed: Vec<&str> =
        page.lines().filter(|line| line.starts_with("bywire eth up --fabric --background ")).collect();
    assert_eq!(printed.len(), 2, "{printed:?}");
    if !has_taps() {
        return;
    }
    let Some(network) = TestNetwork::up(2) else { return };
    for (machine, line) in network.machines.iter().zip(printed) {
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let mut command = bywire(machine, &words);
        let done = machine.namespace.run(|| command.output()).expect("inside").expect("it runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    await_all(&network);
    let [a, b] = &network.machines[..] else { unreachable!() };
    let (near, far) = connected(a, b, address(2, 7000));
    exchange(&near, &far, 1 << 20);
    let text = bywire(b, &["eth", "status"]).output().expect("it runs").stdout;
    let text = String::from_utf8_lossy(&text);
    let is_shown = text.contains("node a, another machine: 1 interface(s) -:by0");
    for machine in [a, b] {
        assert!(bywire(machine, &["eth", "down"]).status().expect("it runs").success());
        let names = std::fs::read_dir(machine.runtime()).expect("a directory").flatten();
        let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        assert_eq!(names.find(|name| name.starts_with("eth.")), None, "a port is left");
    }
    assert!(is_shown, "{text}");
}

#[test]
fn what_is_missing_is_said_in_one_line() {
    let Some(mut network) = TestNetwork::without_services(1) else { return };
    let machine = &network.machines[0];
    let said = |machine: &Machine, arguments: &[&str]| {
        let mut command = bywire(machine, &[&["eth", "up", "--fabric"], arguments].concat());
        let done = machine.namespace.run(|| command.output()).expect("inside").expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.lines().count() == 1, "{said}");
        said
    };
    let without = said(machine, &["--interface", "-:by0"]);
    assert!(without.contains("bywire up"), "{without}");
    network.machines[0].start();
    let bridge = said(&network.machines[0], &["--interface", "-:by0", "--bridge", "br0"]);
    assert!(bridge.contains("`bridge = true` to the node a"), "{bridge}");
    assert!(network.machines[0].runtime().join("node").exists());
}
