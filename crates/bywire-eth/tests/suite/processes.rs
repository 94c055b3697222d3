//! Interfaces of different processes reach each other through the message layer.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bywire_eth::drops::Cause;
use bywire_eth::network::{Launch, Network};
use bywire_eth::order::{self, Answer, Confinement, Join, NewInterface, Order};
use bywire_sys::socket::Socket;

use crate::hosts::{self, Host, INTERFACE, SETTINGS, TIMEOUT, exchange, hosts, met, node, persist, tcp, udp};

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
    persist(|| {
        let peers = one.peers().expect("an answer");
        let its = peers.iter().find(|peer| peer.node == "thief").expect("it was met");
        let dropped = its.drops.of(Cause::ForeignSource);
        if dropped > 0 { Ok(()) } else { Err(std::io::Error::other(format!("{its:?}"))) }
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
    persist(|| match met(&mut one, 1)[0].interfaces[0].mtu_bytes {
        9000 => Ok(()),
        _ => Err(std::io::ErrorKind::WouldBlock.into()),
    });
    assert_eq!(met(&mut one, 1)[0].interfaces[0].label, hosts[1].plan(9000).label());
    assert!(hosts[1].try_ip(&format!("link show {INTERFACE}")).is_ok());
}

/// A queue of a device that carries no frames.
fn silent_queue() -> std::os::fd::OwnedFd {
    let (end, queue) = bywire_sys::socket::Socket::pair().expect("a pair");
    std::mem::forget(end);
    queue.into()
}

/// A loop that has joined, with `interfaces` interfaces but no devices of the kernel.
fn quiet_node(name: &str, interfaces: usize, directory: &Path) -> Socket {
    let (orders, theirs) = Socket::pair().expect("a pair");
    let run = move || bywire_eth::carrier::run(theirs, Confinement::Absent);
    std::thread::Builder::new().name(format!("loop-{name}")).spawn(run).expect("a thread");
    let settle = || {
        order::send(&orders, &Order::Barrier, None).expect("sent");
        let answer = order::await_next::<Answer>(&orders, Duration::from_secs(20)).expect("an answer");
        assert_eq!(answer, Answer::Done);
    };
    order::send(&orders, &Order::Configure(SETTINGS), None).expect("sent");
    for interface in 0..interfaces {
        let [high, low] = (interface as u16).to_be_bytes();
        let new = NewInterface {
            interface,
            label: format!("/run/a/rather/long/path/to/a/namespace/of/some/container/{interface}:by0"),
            mac: [2, name.len() as u8, 0, 0, high, low],
            mtu_bytes: 1500,
            is_bridge: false,
            takes_tcp: true,
            takes_udp: true,
        };
        order::send(&orders, &Order::AddInterface(new), Some(&silent_queue())).expect("sent");
        settle();
    }
    let (network, node, directory) = ("test".to_owned(), name.to_owned(), directory.to_owned());
    order::send(&orders, &Order::Join(Join { network, node, queue: 0, directory }), None).expect("sent");
    settle();
    orders
}

#[test]
fn the_maximum_number_of_interfaces_is_announced_to_the_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = quiet_node("a", 300, directory.path());
    let other = quiet_node("bb", 1024, directory.path());
    for (orders, count) in [(&one, 1024), (&other, 300)] {
        persist(|| {
            order::send(orders, &Order::QueryPeer(0), None).expect("sent");
            let answer = order::await_next(orders, Duration::from_secs(20)).expect("an answer");
            match answer {
                Answer::Peer(Some(report), _) if report.interfaces_count == count => Ok(()),
                other => {
                    let told = format!("{count} wanted: {other:?}");
                    Err(std::io::Error::other(told.chars().take(300).collect::<String>()))
                }
            }
        });
    }
    // Only after both loops were asked: a process that has ended is forgotten.
    one.shut_down();
    other.shut_down();
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
    for orders in &nodes {
        persist(|| {
            order::send(orders, &Order::QueryPeer(0), None).expect("sent");
            match order::await_next(orders, Duration::from_secs(20)).expect("an answer") {
                Answer::Peer(Some(report), _) if report.interfaces_count == 2 => Ok(()),
                other => Err(std::io::Error::other(format!("{other:?}"))),
            }
        });
    }
    // By then, the work of connecting is done, on a busy machine too.
    let look = || ["loop-idle-a", "loop-idle-bb"].map(processor_of);
    persist(|| {
        let before = look();
        std::thread::sleep(Duration::from_millis(500));
        if look() == before { Ok(()) } else { Err(std::io::Error::other("they are still at work")) }
    });
    let before = look();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(look(), before);
    nodes.iter().for_each(Socket::shut_down);
}

#[test]
fn a_device_removed_during_another_request_is_reported() {
    let Some(hosts) = hosts(1) else { return };
    let mut network = hosts::connect(&hosts, 1500, SETTINGS);
    hosts[0].ip(&format!("link delete {INTERFACE}"));
    // The loop reports the end of the device before it answers.
    persist(|| match network.counts(0) {
        Err(_) => Ok(()),
        Ok(_) => Err(std::io::ErrorKind::WouldBlock.into()),
    });
    assert!(network.has_vanished());
    assert_eq!(network.vanished().expect("an answer").len(), 1);
    assert!(!network.has_vanished());
    // The next interface in the same place must not be taken for the vanished one.
    network.add(hosts[0].plan(1500)).expect("made anew");
    assert_eq!(network.vanished().expect("an answer").len(), 0);
}
