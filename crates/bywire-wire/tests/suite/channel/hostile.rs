//! Flipped bits at every byte, wrong keys and replays of every packet at every later time change nothing. Floods cost
//! bounded work and no memory, and cookies let a node through. A member that forges an address gets nothing sent there.
//! Somebody who passes answers on faster keeps no channel. Strangers with 3,000 proved addresses keep no node out.

use std::net::SocketAddr;

use aws_lc_rs::hmac;
use bywire_wire::channel::{NodeCounts, Strangers};
use bywire_wire::handshake::{HELLO_BYTES, PrivateKey, PublicKey, with_cookie};

use super::simulation::{MS, Numbers, Packet, SECOND, Simulation, address_of, identity_of, key_of};

const HELLO: u8 = 0xb1;
const ANSWER: u8 = 0xb2;
const COOKIE: u8 = 0xb3;
const MAC_BYTES: usize = 16;

fn stranger() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 7], 999))
}

/// The check value of a packet. Anyone with the receiver's public key can make it.
fn mac1(receiver: PublicKey, packet: &[u8]) -> [u8; MAC_BYTES] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, &[&b"bywire mac1 "[..], &receiver.0].concat());
    *hmac::sign(&key, packet).as_ref().first_chunk().expect("32 bytes")
}

/// The offset of `mac1` in a hello or an answer.
fn mac1_at(packet: &[u8]) -> usize {
    HELLO_BYTES - if packet[0] == HELLO { 2 * MAC_BYTES } else { MAC_BYTES }
}

pub fn make_mac1(receiver: PublicKey, packet: &mut [u8]) {
    let at = mac1_at(packet);
    let mac = mac1(receiver, &packet[..at]);
    packet[at..at + MAC_BYTES].copy_from_slice(&mac);
}

fn counts(simulation: &Simulation, at: usize, of: usize) -> NodeCounts {
    simulation.nodes[at].channels.status(&simulation.key(of)).expect("it is in the table").counts
}

fn strangers(simulation: &Simulation, at: usize) -> Strangers {
    *simulation.nodes[at].channels.strangers()
}

/// The length of a node's printed state. Numbers have different lengths, so comparisons need a tolerance.
fn remembered(simulation: &Simulation, at: usize) -> usize {
    format!("{:?}", simulation.nodes[at].channels).len()
}

/// A node sends its first hello, which is lost.
fn with_a_hello(simulation: &mut Simulation) -> Packet {
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.connect(0, 1);
    simulation.cut.clear();
    simulation.recorded.last().expect("a hello").clone()
}

#[test]
pub fn packets_that_are_replayed_at_any_later_time_change_nothing() {
    let mut simulation = Simulation::new(2, 20);
    let mut replays = [0; 4];
    let script: [&dyn Fn(&mut Simulation); 9] = [
        &|simulation| simulation.connect(0, 1),
        &|simulation| {
            simulation.await_that("up", SECOND, |simulation| simulation.is_up(0, 1) && simulation.is_up(1, 0))
        },
        &|simulation| simulation.send(0, 1, b"one"),
        &|simulation| simulation.send(1, 0, b"two"),
        &|simulation| simulation.run(12 * SECOND),
        // The other service restarts, so that a new channel is made.
        &|simulation| {
            simulation.restart(1, identity_of(1, 2));
            simulation.connect(1, 0);
            simulation.await_that("up again", 9 * SECOND, |simulation| {
                simulation.ups(0) == 2 && simulation.is_up(1, 0)
            });
        },
        &|simulation| simulation.send(0, 1, b"three"),
        // The link is down for a while, so that the same services make a new channel.
        &|simulation| {
            simulation.cut = vec![(address_of(0), address_of(1)), (address_of(1), address_of(0))];
            simulation.run(12 * SECOND);
            simulation.cut.clear();
            simulation.run(10 * SECOND);
        },
        &|simulation| simulation.send(1, 0, b"four"),
    ];
    for action in script {
        action(&mut simulation);
        simulation.run(20 * MS);
        let before =
            [0, 1].map(|node| (simulation.ups(node), simulation.downs(node), channels(&simulation, node)));
        for packet in simulation.recorded.clone() {
            replays[usize::from(packet.bytes[0] - HELLO)] += 1;
            let to = usize::from(packet.to == address_of(1));
            for from in [packet.from, stranger()] {
                simulation.give(to, from, &packet.bytes);
                simulation.give(1 - to, from, &packet.bytes);
                simulation.run(3 * MS);
            }
        }
        let after =
            [0, 1].map(|node| (simulation.ups(node), simulation.downs(node), channels(&simulation, node)));
        assert_eq!(before, after);
    }
    simulation.run(SECOND);
    assert_eq!(simulation.messages(1, 0), [&b"one"[..], b"three"]);
    assert_eq!(simulation.messages(0, 1), [&b"two"[..], b"four"]);
    assert!(replays[0] > 20 && replays[1] > 20 && replays[3] > 100, "{replays:?}");
    let peers = [(0, 1), (1, 0)].map(|(at, of)| counts(&simulation, at, of));
    assert!(peers.iter().any(|counts| counts.hellos_replayed > 0), "{peers:?}");

    fn channels(simulation: &Simulation, at: usize) -> (u64, SocketAddr, u64) {
        let status = simulation.nodes[at].channels.status(&simulation.key(1 - at)).expect("known");
        status.channel.map_or((0, stranger(), 0), |channel| {
            (status.counts.channels, channel.path.peer, channel.incarnation)
        })
    }
}

#[test]
pub fn replayed_hellos_of_an_earlier_service_do_not_exclude_the_present_one() {
    // Every hello is preceded and followed by all hellos of six earlier incarnations, some of which the other node has
    // never seen.
    let mut simulation = Simulation::new(2, 21);
    let mut old = Vec::new();
    for start in 1..=6 {
        simulation.restart(0, identity_of(0, start));
        simulation.cut = if start % 2 == 0 { vec![(address_of(0), address_of(1))] } else { Vec::new() };
        simulation.connect(0, 1);
        simulation.run(SECOND);
        old.extend(simulation.recorded.drain(..).filter(|packet| packet.bytes[0] == HELLO));
    }
    assert!(old.len() >= 6);
    // Lost hellos of the present incarnation are old as well.
    simulation.run(30 * SECOND);
    simulation.restart(0, identity_of(0, 7));
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.connect(0, 1);
    simulation.run(SECOND);
    old.extend(simulation.recorded.drain(..).filter(|packet| packet.bytes[0] == HELLO));
    simulation.cut.clear();
    // They arrive as fast as the other node accepts them without cookies, during a long round trip.
    simulation.faults.delay_ns = (50 * MS, 50 * MS + 1);
    let (ups, until_ns) = (simulation.ups(0), simulation.now_ns + 5 * SECOND);
    while !(simulation.ups(0) > ups && simulation.is_up(1, 0)) {
        assert!(simulation.now_ns < until_ns, "old hellos keep the new one out");
        for packet in &old {
            simulation.give(1, stranger(), &packet.bytes);
        }
        simulation.run(45 * MS);
    }
    assert_eq!(strangers(&simulation, 1).cookies_sent, 0, "the hellos were distinguished without cookies");
    simulation.send(0, 1, b"here I am");
    simulation.await_that("it has come", SECOND, |simulation| simulation.messages(1, 0).last().is_some());
}

#[test]
pub fn a_hello_with_any_flipped_bit_gets_no_answer() {
    let mut simulation = Simulation::new(2, 22);
    let hello = with_a_hello(&mut simulation);
    let receiver = simulation.key(1);
    let sent = simulation.recorded.len();
    for at in 0..HELLO_BYTES {
        for has_mac in [false, true] {
            let mut packet = hello.bytes.clone();
            packet[at] ^= 1 << (at % 8);
            if has_mac && at < mac1_at(&hello.bytes) {
                make_mac1(receiver, &mut packet);
            }
            // mac2 is checked under load only, and is not a part of the handshake.
            if at < HELLO_BYTES - MAC_BYTES {
                simulation.give(1, hello.from, &packet);
                simulation.now_ns += 3 * MS;
            }
        }
        assert_eq!(simulation.recorded.len(), sent, "byte {at}");
        assert_eq!(simulation.nodes[1].events, []);
    }
    let seen = strangers(&simulation, 1);
    assert!(seen.without_key > 1000 && seen.unreadable > 1000, "{seen:?}");
    simulation.give(1, hello.from, &hello.bytes);
    assert_eq!(simulation.recorded.len(), sent + 1, "the hello itself is answered");
}

#[test]
pub fn an_answer_with_any_flipped_bit_makes_no_channel_and_ends_none() {
    // The number of forged answers to one hello that are examined.
    const AT_ONCE: usize = 50;
    for first in (0..HELLO_BYTES).step_by(AT_ONCE) {
        let mut simulation = Simulation::new(2, 23);
        let hello = with_a_hello(&mut simulation);
        simulation.cut = vec![(address_of(1), address_of(0))];
        simulation.give(1, hello.from, &hello.bytes);
        let answer = simulation.recorded.last().expect("an answer").clone();
        assert_eq!((answer.bytes[0], answer.bytes.len()), (ANSWER, HELLO_BYTES));
        let mut tried = 0;
        for at in first..HELLO_BYTES.min(first + AT_ONCE) {
            let mut packet = answer.bytes.clone();
            packet[at] ^= 1 << (at % 8);
            simulation.give(0, answer.from, &packet);
            make_mac1(simulation.key(0), &mut packet);
            if packet != answer.bytes {
                simulation.give(0, answer.from, &packet);
                // Without the header, which makes it an answer to this hello.
                tried += u64::from(at >= 16);
            }
            assert!(!simulation.is_up(0, 1), "byte {at}");
        }
        assert_eq!(counts(&simulation, 0, 1).answers_refused, tried);
        simulation.give(0, answer.from, &answer.bytes);
        assert!(simulation.is_up(0, 1), "the genuine answer makes the channel");
    }
}

#[test]
pub fn a_channel_packet_with_any_flipped_bit_is_dropped() {
    let mut simulation = Simulation::pair(24);
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.send(0, 1, b"message");
    let packet = simulation.recorded.last().expect("a packet").clone();
    for at in 0..packet.bytes.len() {
        let mut damaged = packet.bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        simulation.give(1, packet.from, &damaged);
        assert_eq!(simulation.messages(1, 0).len(), 0, "byte {at}");
    }
    assert!(counts(&simulation, 1, 0).packets_forged > 20);
    simulation.give(1, packet.from, &packet.bytes);
    assert_eq!(simulation.messages(1, 0), [b"message"]);
}

#[test]
pub fn a_node_with_a_wrong_key_gets_no_answer_and_both_sides_report_it() {
    // A node whose key is not in the table. It has the responder's public key.
    let mut simulation = Simulation::new(2, 25);
    let mut identity = identity_of(0, 1);
    identity.key = key_of(77);
    simulation.restart(0, identity);
    simulation.connect(0, 1);
    simulation.run(6 * SECOND);
    assert!(simulation.recorded.iter().all(|packet| packet.from == address_of(0)));
    let seen = strangers(&simulation, 1);
    assert_eq!((seen.unknown_keys, seen.last_unknown), (6, Some((key_of(77).public(), address_of(0)))));
    assert_eq!(counts(&simulation, 0, 1), NodeCounts { hellos_sent: 6, ..NodeCounts::default() });

    // A node with a wrong public key of the responder.
    let mut simulation = Simulation::new(2, 26);
    let wrong = key_of(88).public();
    simulation.nodes[0].channels.add(simulation.now_ns, wrong, vec![address_of(1)]);
    simulation.nodes[0].channels.connect(simulation.now_ns, &wrong).expect("it is in the table");
    simulation.run(6 * SECOND);
    assert!(
        simulation.recorded.len() == 6
            && simulation.recorded.iter().all(|packet| packet.from == address_of(0))
    );
    assert_eq!(strangers(&simulation, 1).without_key, 6);
}

#[test]
pub fn nodes_with_different_shared_secrets_make_no_channel_and_the_initiator_reports_it() {
    for (first, second) in [(Some([1; 32]), Some([2; 32])), (Some([1; 32]), None), (None, Some([2; 32]))] {
        let mut simulation = Simulation::new(2, 27);
        for (node, secret) in [first, second].into_iter().enumerate() {
            let mut identity = identity_of(node, 1);
            identity.shared_secret = secret;
            simulation.restart(node, identity);
        }
        simulation.connect(0, 1);
        simulation.run(20 * SECOND);
        assert!(
            !simulation.is_up(0, 1) && !simulation.is_up(1, 0) && simulation.ups(0) + simulation.ups(1) == 0
        );
        let counts = counts(&simulation, 0, 1);
        assert!(counts.answers_refused == counts.hellos_sent && counts.answers_received == 0, "{counts:?}");
    }
    let mut simulation = Simulation::new(2, 28);
    for node in 0..2 {
        let mut identity = identity_of(node, 1);
        identity.shared_secret = Some([9; 32]);
        simulation.restart(node, identity);
    }
    simulation.connect(0, 1);
    simulation.await_that("the same secret makes one", MS, |simulation| {
        simulation.is_up(0, 1) && simulation.is_up(1, 0)
    });
}

#[test]
pub fn unknown_nodes_get_no_answer_and_no_answer_is_longer_than_its_request() {
    let mut simulation = Simulation::pair(29);
    simulation.run(SECOND);
    let sent = simulation.recorded.len();
    let mut numbers = Numbers(1);
    for length in 0..3000usize {
        let mut bytes = vec![0; length % 1500];
        numbers.fill(&mut bytes);
        if bytes.len() >= 16 {
            // Most of them begin like packets.
            bytes[0] = HELLO + (numbers.next() % 4) as u8;
            bytes[1] &= 1;
            let length = (bytes.len() as u16).to_le_bytes();
            bytes[2..4].copy_from_slice(&length);
        }
        simulation.give(1, stranger(), &bytes);
    }
    assert_eq!(simulation.recorded.len(), sent);
    // All packets of one datagram are examined.
    let hello = with_a_hello(&mut Simulation::new(2, 30));
    let before = strangers(&simulation, 1);
    simulation.give(1, stranger(), &[&hello.bytes[..], &hello.bytes, b"rest"].concat());
    let after = strangers(&simulation, 1);
    assert_eq!(after.unrecognized, before.unrecognized + 1);
}

/// Hellos that cannot be opened, of a sender with the responder's public key.
fn flood(
    simulation: &mut Simulation,
    numbers: &mut Numbers,
    hellos: u64,
    pause_ns: u64,
    from: impl Fn(u64) -> SocketAddr,
) {
    let receiver = simulation.key(1);
    for hello in 0..hellos {
        let bytes = unreadable(receiver, numbers);
        simulation.give(1, from(hello), &bytes);
        simulation.now_ns += pause_ns;
    }
}

/// A hello that cannot be opened.
fn unreadable(receiver: PublicKey, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = vec![0; HELLO_BYTES];
    numbers.fill(&mut bytes);
    bytes[..4].copy_from_slice(&[HELLO, 0, (HELLO_BYTES % 256) as u8, (HELLO_BYTES / 256) as u8]);
    make_mac1(receiver, &mut bytes);
    bytes
}

fn anybody(hello: u64) -> SocketAddr {
    SocketAddr::from(([198, 51, (hello >> 8) as u8, hello as u8], 1000))
}

#[test]
pub fn a_flood_of_hellos_costs_bounded_work_and_no_memory() {
    let mut simulation = Simulation::new(2, 31);
    let mut numbers = Numbers(2);
    flood(&mut simulation, &mut numbers, 200, 100_000, anybody);
    let before = remembered(&simulation, 1);
    let began_ns = simulation.now_ns;
    flood(&mut simulation, &mut numbers, 5000, 100_000, anybody);
    let seconds = (simulation.now_ns - began_ns) as f64 / SECOND as f64;
    let seen = strangers(&simulation, 1);
    assert!((seen.unreadable as f64) < 64.0 + 40.0 + 500.0 * (seconds + 0.1), "{seen:?} in {seconds} s");
    assert_eq!(seen.unreadable + seen.cookies_sent, 5200, "each costs a handshake or a cookie");
    assert!(remembered(&simulation, 1).abs_diff(before) < 200, "memory grows");
    let longest = simulation.recorded.iter().map(|packet| packet.bytes.len()).max();
    assert!(longest < Some(100), "a cookie is short");
}

#[test]
pub fn during_a_flood_a_node_connects_with_a_cookie_bound_to_its_address() {
    let mut simulation = Simulation::new(2, 32);
    let mut numbers = Numbers(3);
    flood(&mut simulation, &mut numbers, 200, 0, anybody);
    simulation.connect(0, 1);
    for _ in 0..400 {
        flood(&mut simulation, &mut numbers, 20, 0, anybody);
        simulation.run(MS);
    }
    assert!(simulation.is_up(0, 1) && simulation.is_up(1, 0), "a channel is made during the flood");
    let counts = counts(&simulation, 0, 1);
    assert!(counts.cookies_received >= 1 && counts.hellos_sent >= 2, "{counts:?}");

    // The hello that has a cookie, from another address.
    let mut sent = simulation.recorded.iter().rev().filter(|packet| packet.from == address_of(0));
    let hello = sent.find(|packet| packet.bytes[0] == HELLO).expect("a hello").clone();
    assert_ne!(hello.bytes[HELLO_BYTES - MAC_BYTES..], [0; MAC_BYTES]);
    flood(&mut simulation, &mut numbers, 200, 0, anybody);
    let asked = |simulation: &Simulation| {
        (strangers(simulation, 1).cookies_sent, self::counts(simulation, 1, 0).hellos_received)
    };
    let before = asked(&simulation);
    simulation.give(1, stranger(), &hello.bytes);
    assert_eq!(asked(&simulation), (before.0 + 1, before.1));
    // From its own address: it is opened, and found to be old.
    simulation.give(1, address_of(0), &hello.bytes);
    assert_eq!(asked(&simulation), (before.0 + 1, before.1 + 1));
    // Many from its own address: no more handshakes than one address may cause.
    for _ in 0..100 {
        simulation.give(1, address_of(0), &hello.bytes);
    }
    assert!(asked(&simulation).1 - before.1 <= 5);
    // After the secret has changed twice.
    simulation.run(250 * SECOND);
    flood(&mut simulation, &mut numbers, 200, 0, anybody);
    let before = asked(&simulation);
    simulation.give(1, address_of(0), &hello.bytes);
    assert_eq!(asked(&simulation), (before.0 + 1, before.1));
}

/// Hellos of so many strangers with a cookie each, from addresses of their own.
fn proved(simulation: &mut Simulation, numbers: &mut Numbers, count: u64) -> Vec<(SocketAddr, Vec<u8>)> {
    let receiver = simulation.key(1);
    let hello = unreadable(receiver, numbers);
    let mut proved = Vec::new();
    for source in (0..count).map(anybody) {
        for _ in 0..100 {
            let sent = simulation.recorded.len();
            simulation.give(1, source, &hello);
            simulation.now_ns += 60_000;
            // Without load there is none.
            let cookie = simulation.recorded[sent..].iter().find(|packet| packet.bytes[0] == COOKIE);
            if let Some(cookie) = cookie {
                proved.push((source, with_cookie(&receiver, &hello, &cookie.bytes).expect("it is genuine")));
                break;
            }
        }
    }
    proved
}

#[test]
pub fn strangers_with_many_proved_addresses_keep_no_node_out() {
    const RATE: u64 = 12_000;
    for is_asked in [false, true] {
        let mut simulation = Simulation::new(2, 35);
        let mut numbers = Numbers(5);
        flood(&mut simulation, &mut numbers, 200, 0, anybody);
        let hellos = proved(&mut simulation, &mut numbers, 3000);
        assert_eq!(hellos.len(), 3000);
        let mut hellos = hellos.iter().cycle();
        let mut second = |simulation: &mut Simulation, is_over: &dyn Fn(&Simulation) -> bool| {
            let until_ns = simulation.now_ns + SECOND;
            while simulation.now_ns < until_ns && !is_over(simulation) {
                for (from, hello) in hellos.by_ref().take((RATE / 1000) as usize) {
                    simulation.give(1, *from, hello);
                }
                simulation.run(MS);
            }
        };
        second(&mut simulation, &|_| false);
        let before = strangers(&simulation, 1).unreadable;
        second(&mut simulation, &|_| false);
        let worked_on = strangers(&simulation, 1).unreadable - before;
        assert!((100..=600).contains(&worked_on), "strangers with a cookie are worked on: {worked_on}");
        let (from, to) = if is_asked { (0, 1) } else { (1, 0) };
        simulation.connect(from, to);
        let began_ns = simulation.now_ns;
        let is_up = |simulation: &Simulation| simulation.is_up(0, 1) && simulation.is_up(1, 0);
        for _ in 0..4 {
            second(&mut simulation, &is_up);
        }
        assert!(is_up(&simulation), "no channel within 4 s");
        let took_ms = (simulation.now_ns - began_ns) / MS;
        println!("up after {took_ms} ms at {RATE} handshakes a second, of which {worked_on} were worked on");
    }
}

#[test]
pub fn a_forged_cookie_is_refused() {
    let mut simulation = Simulation::new(2, 33);
    let mut numbers = Numbers(4);
    flood(&mut simulation, &mut numbers, 200, 0, anybody);
    let hello = with_a_hello(&mut simulation);
    simulation.cut = vec![(address_of(1), address_of(0))];
    simulation.give(1, hello.from, &hello.bytes);
    simulation.cut.clear();
    let cookie = simulation.recorded.last().expect("a cookie").clone();
    assert_eq!(cookie.bytes[0], COOKIE);
    for at in 0..cookie.bytes.len() {
        let mut forged = cookie.bytes.clone();
        forged[at] ^= 1 << (at % 8);
        simulation.give(0, cookie.from, &forged);
        assert_eq!(counts(&simulation, 0, 1).cookies_received, 0, "byte {at}");
    }
    simulation.give(0, cookie.from, &cookie.bytes);
    assert_eq!(counts(&simulation, 0, 1).cookies_received, 1);
    // The cookie of another hello.
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.run(SECOND);
    simulation.give(0, cookie.from, &cookie.bytes);
    assert_eq!(counts(&simulation, 0, 1).cookies_received, 1);
}

#[test]
pub fn a_known_node_that_floods_with_hellos_costs_no_memory_and_ends_no_channel() {
    let mut simulation = Simulation::pair(34);
    simulation.connect(1, 0);
    let before = remembered(&simulation, 1);
    for start in 10..400 {
        let mut rogue = Simulation::new(2, start);
        rogue.restart(0, identity_of(0, start));
        let hello = with_a_hello(&mut rogue);
        simulation.give(1, stranger(), &hello.bytes);
        simulation.run(3 * MS);
    }
    let during = remembered(&simulation, 1);
    assert!(during < before * 24, "eight hellos wait at most: {before} to {during}");
    simulation.run(30 * SECOND);
    assert!(remembered(&simulation, 1).abs_diff(before) < before / 2, "and they are forgotten");
    assert!(simulation.downs(1).is_empty() && simulation.is_up(1, 0));
    simulation.send(1, 0, b"still here");
    simulation.run(MS);
    assert_eq!(simulation.messages(0, 1), [b"still here"]);
}

#[test]
pub fn every_byte_of_a_private_key_matters_and_none_is_printed() {
    let key = PrivateKey::new([0xab; 32]);
    assert!(!format!("{key:?} {:?}", identity_of(0, 1)).contains("ab, ab"));
    let mut publics: Vec<_> = (0..32)
        .map(|at| {
            let mut bytes = [0xab; 32];
            bytes[at] ^= 0x10;
            PrivateKey::new(bytes).public()
        })
        .collect();
    publics.push(key.public());
    publics.sort();
    publics.dedup();
    assert_eq!(publics.len(), 33);
}
