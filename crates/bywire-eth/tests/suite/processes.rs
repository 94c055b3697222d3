//! Interfaces of different processes reach each other through the message layer.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bywire_eth::drops::Cause;
use bywire_eth::network::{Launch, Network};
use bywire_eth::order::NewInterface;
use bywire_testing::eventually;

use crate::carrying::{Carrying, interface};
use crate::hosts::{self, Host, INTERFACE, SETTINGS, TIMEOUT, exchange, hosts, met, node, tcp, udp};

const STREAM_BYTES: usize = 8 << 20;

#[test]
fn streams_and_datagrams_cross_between_processes_at_any_mtu() {
    for mtu_bytes in [576, 1500, 9000, 30_000] {
        let Some(hosts) = hosts(2) else { return };
        hosts.iter().for_each(Host::trust_addresses);
        let directory = tempfile::tempdir().expect("a directory");
        let mut one = node(&hosts[0], mtu_bytes, directory.path(), 1);
        let mut other = node(&hosts[1], mtu_bytes, directory.path(), 1);
        assert_eq!(met(&mut other, 1)[0].node, "node1");
        assert_eq!(met(&mut one, 1)[0].interfaces[0].mtu_bytes, mtu_bytes);
        let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000));
        exchange(&near, &far, STREAM_BYTES);
        if mtu_bytes >= 1280 {
            let (near, far) = tcp(&hosts[1], &hosts[0], hosts[0].ipv6(7000));
            exchange(&near, &far, STREAM_BYTES);
        }
        let peers = one.peers().expect("an answer");
        assert!(peers[0].sent.superframes > 0 && peers[0].received.superframes > 0, "{peers:?}");
        assert_eq!(peers[0].drops.of(Cause::Illegal), 0);
        let sent = one.counts(0).expect("counts").sent;
        assert!(
            peers[0].sent.frames + peers[0].drops.total() <= sent.frames,
            "superframes cross whole: {sent:?} became {peers:?}"
        );
    }
}

#[test]
fn three_processes_with_several_queues_exchange_broadcasts_and_multicasts() {
    let Some(hosts) = hosts(3) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut networks: Vec<Network> = hosts.iter().map(|host| node(host, 1500, directory.path(), 2)).collect();
    for network in &mut networks {
        met(network, 2);
    }
    let streams: Vec<_> = [(0, 1), (1, 2), (2, 0), (0, 2)]
        .into_iter()
        .zip(7000..)
        .map(|((from, to), port)| tcp(&hosts[from], &hosts[to], hosts[to].ipv4(port)))
        .collect();
    std::thread::scope(|scope| {
        for (near, far) in &streams {
            scope.spawn(move || exchange(near, far, 1 << 20));
        }
    });
    let sender = udp(&hosts[0], hosts[0].ipv4(7100));
    sender.set_broadcast(true).expect("allowed");
    let listeners: Vec<_> =
        hosts[1..].iter().map(|host| udp(host, SocketAddr::from(([0, 0, 0, 0], 7100)))).collect();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    for (host, listener) in hosts[1..].iter().zip(&listeners) {
        listener.join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 0, host.number)).expect("joined");
    }
    hosts[0].ip(&format!("route add 224.0.0.0/4 dev {INTERFACE}"));
    for everybody in [Ipv4Addr::new(10, 77, 0, 255), group] {
        sender.send_to(b"everybody", (everybody, 7100)).expect("sent");
        for listener in &listeners {
            listener.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
            assert_eq!(listener.recv_from(&mut [0; 64]).expect("received").0, 9);
            listener.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
            assert!(listener.recv_from(&mut [0; 64]).is_err(), "it came twice");
        }
    }
}

#[test]
fn a_connection_survives_a_restart_of_the_far_process() {
    let Some(hosts) = hosts(2) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut one = node(&hosts[0], 1500, directory.path(), 1);
    let other = node(&hosts[1], 1500, directory.path(), 1);
    let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000));
    exchange(&near, &far, 1 << 20);
    drop(other);
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| exchange(&near, &far, 1 << 20));
        std::thread::sleep(Duration::from_millis(300));
        let _other = node(&hosts[1], 1500, directory.path(), 1);
        stream.join().expect("the stream goes on");
    });
    assert_eq!(met(&mut one, 0).len(), 0, "whoever has ended is forgotten");
}

#[test]
fn a_process_that_claims_anothers_address_neither_receives_nor_sends_with_it() {
    let Some(hosts) = hosts(3) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut one = node(&hosts[0], 1500, directory.path(), 1);
    let _other = node(&hosts[1], 1500, directory.path(), 1);
    met(&mut one, 1);
    let mut thief = Network::start(&Launch::Thread, 1, SETTINGS).expect("a network");
    let mut plan = hosts[2].plan(1500);
    plan.mac = hosts[1].plan(1500).mac;
    thief.add(plan).expect("it cannot know");
    thief.join("test", "thief", directory.path()).expect("joined");
    let peers = met(&mut one, 2);
    let its = peers.iter().find(|peer| peer.node == "thief").expect("it was met");
    assert_eq!(its.conflicts.len(), 1, "{its:?}");
    let sender = udp(&hosts[2], hosts[2].ipv4(7001));
    let listener = udp(&hosts[0], hosts[0].ipv4(7001));
    listener.set_read_timeout(Some(Duration::from_millis(300))).expect("a time-out");
    sender.send_to(b"as somebody else", hosts[0].ipv4(7001)).expect("sent");
    eventually("its frames are dropped", || {
        let peers = one.peers().expect("an answer");
        let its = peers.iter().find(|peer| peer.node == "thief").expect("it was met");
        its.drops.of(Cause::ForeignSource) > 0
    });
    assert!(listener.recv_from(&mut [0; 64]).is_err(), "it arrived");
    let (near, far) = tcp(&hosts[0], &hosts[1], hosts[1].ipv4(7000));
    exchange(&near, &far, 1 << 20);
}

#[test]
fn a_changed_mtu_is_announced_to_the_others() {
    let Some(hosts) = hosts(2) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut one = node(&hosts[0], 1500, directory.path(), 1);
    let mut other = node(&hosts[1], 1500, directory.path(), 1);
    met(&mut one, 1);
    other.adapt(0, hosts[1].plan(9000)).expect("adapted");
    eventually("the other MTU", || met(&mut one, 1)[0].interfaces[0].mtu_bytes == 9000);
    assert_eq!(met(&mut one, 1)[0].interfaces[0].label, hosts[1].plan(9000).label());
    assert!(hosts[1].try_ip(&format!("link show {INTERFACE}")).is_ok());
}

/// A loop that has joined, with `interfaces` interfaces but no devices of the kernel.
fn quiet_node(name: &str, interfaces: usize, directory: &Path) -> Carrying {
    let mut node = Carrying::start_with(&format!("loop-{name}"), hosts::SETTINGS, || ());
    for number in 0..interfaces {
        let [high, low] = (number as u16).to_be_bytes();
        let label = format!("/run/a/rather/long/path/to/a/namespace/of/some/container/{number}:by0");
        let mac = [2, name.len() as u8, 0, 0, high, low];
        node.add(NewInterface { label, mtu_bytes: 1500, ..interface(number, mac) });
    }
    node.join(name, directory);
    node
}

#[test]
fn the_maximum_number_of_interfaces_is_announced_to_the_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = quiet_node("a", 300, directory.path());
    let other = quiet_node("bb", 1024, directory.path());
    // Both loops go on until both were asked: a process that has ended is forgotten.
    for (node, count) in [(&one, 1024), (&other, 300)] {
        node.report(0, |report| report.interfaces_count == count);
    }
}

/// The time that a thread has spent on a processor, and how often it was scheduled, from `/proc`.
fn processor_of(thread: &str) -> String {
    let tasks = std::fs::read_dir("/proc/self/task").expect("our threads").flatten();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let mut ours = tasks.filter(|task| read(task.path().join("comm")).trim_end() == thread);
    let told = read(ours.next().expect("it runs").path().join("schedstat"));
    // The second number is the time that it waited for a processor.
    let numbers: Vec<&str> = told.split_whitespace().collect();
    format!("{} ns in {} turns", numbers[0], numbers[2])
}

#[test]
fn two_idle_processes_use_no_processor_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let nodes = ["idle-a", "idle-bb"].map(|name| quiet_node(name, 2, directory.path()));
    for node in &nodes {
        node.report(0, |report| report.interfaces_count == 2);
    }
    // By then, the work of connecting is done, on a busy machine too.
    let look = || ["loop-idle-a", "loop-idle-bb"].map(processor_of);
    eventually("they are at rest", || {
        let before = look();
        std::thread::sleep(Duration::from_millis(500));
        look() == before
    });
    let before = look();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(look(), before);
}

#[test]
fn a_device_removed_during_another_request_is_reported() {
    let Some(hosts) = hosts(1) else { return };
    let mut network = hosts::connect(&hosts, 1500, SETTINGS);
    hosts[0].ip(&format!("link delete {INTERFACE}"));
    // The loop reports the end of the device before it answers.
    eventually("the device has gone", || network.counts(0).is_err());
    assert!(network.has_vanished());
    assert_eq!(network.vanished().expect("an answer").len(), 1);
    assert!(!network.has_vanished());
    // The next interface in the same place must not be taken for the vanished one.
    network.add(hosts[0].plan(1500)).expect("made anew");
    assert_eq!(network.vanished().expect("an answer").len(), 0);
}
