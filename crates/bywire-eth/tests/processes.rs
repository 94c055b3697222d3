//! Interfaces of different processes see each other through the message layer.

mod rooms;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bywire_eth::drops::Cause;
use bywire_eth::network::{Launch, Network};
use rooms::{INTERFACE, MANNER, exchange, met, node, persist, rooms, tcp, udp};

const STREAM_BYTES: usize = 8 << 20;

#[test]
fn streams_and_datagrams_cross_between_processes_at_any_mtu() {
    for mtu_bytes in [576, 1500, 9000, 30_000] {
        let Some(rooms) = rooms(2) else { return };
        let directory = tempfile::tempdir().expect("a directory");
        let mut one = node(&rooms[0], mtu_bytes, directory.path(), 1);
        let mut other = node(&rooms[1], mtu_bytes, directory.path(), 1);
        assert_eq!(met(&mut other, 1)[0].node, "node1");
        assert_eq!(met(&mut one, 1)[0].interfaces[0].mtu_bytes, mtu_bytes);
        let (near, far) = tcp(&rooms[0], &rooms[1], rooms[1].ipv4(7000));
        exchange(&near, &far, STREAM_BYTES);
        if mtu_bytes >= 1280 {
            let (near, far) = tcp(&rooms[1], &rooms[0], rooms[0].ipv6(7000));
            exchange(&near, &far, STREAM_BYTES);
        }
        let peers = one.peers().expect("an answer");
        assert!(peers[0].sent.superframes > 0 && peers[0].received.superframes > 0, "{peers:?}");
        assert_eq!(peers[0].drops.of(Cause::Illegal), 0);
    }
}

#[test]
fn three_processes_and_several_queues_and_broadcasts_and_multicasts() {
    let Some(rooms) = rooms(3) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut networks: Vec<Network> = rooms.iter().map(|room| node(room, 1500, directory.path(), 2)).collect();
    for network in &mut networks {
        met(network, 2);
    }
    let streams: Vec<_> = [(0, 1), (1, 2), (2, 0), (0, 2)]
        .into_iter()
        .zip(7000..)
        .map(|((from, to), port)| tcp(&rooms[from], &rooms[to], rooms[to].ipv4(port)))
        .collect();
    std::thread::scope(|scope| {
        for (near, far) in &streams {
            scope.spawn(move || exchange(near, far, 1 << 20));
        }
    });
    let sender = udp(&rooms[0], rooms[0].ipv4(7100));
    sender.set_broadcast(true).expect("allowed");
    let listeners: Vec<_> =
        rooms[1..].iter().map(|room| udp(room, SocketAddr::from(([0, 0, 0, 0], 7100)))).collect();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    for (room, listener) in rooms[1..].iter().zip(&listeners) {
        listener.join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 0, room.number)).expect("joined");
    }
    rooms[0].ip(&format!("route add 224.0.0.0/4 dev {INTERFACE}"));
    for everybody in [Ipv4Addr::new(10, 77, 0, 255), group] {
        sender.send_to(b"everybody", (everybody, 7100)).expect("sent");
        for listener in &listeners {
            listener.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out");
            assert_eq!(listener.recv_from(&mut [0; 64]).expect("received").0, 9);
            listener.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
            assert!(listener.recv_from(&mut [0; 64]).is_err(), "it came twice");
        }
    }
}

#[test]
fn a_connection_survives_the_far_process_s_end_and_return() {
    let Some(rooms) = rooms(2) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut one = node(&rooms[0], 1500, directory.path(), 1);
    let other = node(&rooms[1], 1500, directory.path(), 1);
    let (near, far) = tcp(&rooms[0], &rooms[1], rooms[1].ipv4(7000));
    exchange(&near, &far, 1 << 20);
    drop(other);
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| exchange(&near, &far, 1 << 20));
        std::thread::sleep(Duration::from_millis(300));
        let _other = node(&rooms[1], 1500, directory.path(), 1);
        stream.join().expect("the stream goes on");
    });
    assert_eq!(met(&mut one, 0).len(), 0, "whoever has ended is forgotten");
}

#[test]
fn whoever_claims_another_s_address_gets_and_sends_nothing_by_it() {
    let Some(rooms) = rooms(3) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut one = node(&rooms[0], 1500, directory.path(), 1);
    let _other = node(&rooms[1], 1500, directory.path(), 1);
    met(&mut one, 1);
    let mut thief = Network::start(&Launch::Thread, 1, MANNER).expect("a network");
    let mut plan = rooms[2].plan(1500);
    plan.mac = rooms[1].plan(1500).mac;
    thief.add(plan).expect("it cannot know");
    thief.join("test", "thief", directory.path()).expect("joined");
    let peers = met(&mut one, 2);
    let its = peers.iter().find(|peer| peer.node == "thief").expect("it was met");
    assert_eq!(its.conflicts.len(), 1, "{its:?}");
    let sender = udp(&rooms[2], rooms[2].ipv4(7001));
    let listener = udp(&rooms[0], rooms[0].ipv4(7001));
    listener.set_read_timeout(Some(Duration::from_millis(300))).expect("a time-out");
    sender.send_to(b"as somebody else", rooms[0].ipv4(7001)).expect("sent");
    assert!(listener.recv_from(&mut [0; 64]).is_err(), "it arrived");
    let peers = one.peers().expect("an answer");
    let its = peers.iter().find(|peer| peer.node == "thief").expect("it was met");
    assert!(its.drops.of(Cause::ForeignSource) > 0, "{its:?}");
    let (near, far) = tcp(&rooms[0], &rooms[1], rooms[1].ipv4(7000));
    exchange(&near, &far, 1 << 20);
}

#[test]
fn a_changed_mtu_is_told_to_the_others() {
    let Some(rooms) = rooms(2) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut one = node(&rooms[0], 1500, directory.path(), 1);
    let mut other = node(&rooms[1], 1500, directory.path(), 1);
    met(&mut one, 1);
    other.adapt(0, rooms[1].plan(9000)).expect("adapted");
    persist(|| match met(&mut one, 1)[0].interfaces[0].mtu_bytes {
        9000 => Ok(()),
        _ => Err(std::io::ErrorKind::WouldBlock.into()),
    });
    assert_eq!(met(&mut one, 1)[0].interfaces[0].label, rooms[1].plan(9000).label());
    assert!(rooms[1].try_ip(&format!("link show {INTERFACE}")).is_ok());
}
