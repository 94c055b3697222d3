//! Channels get new keys from a handshake while messages are under way, lose none, do not move and do not slow down,
//! also if an attacker drops or holds back the packets of renewals.

use std::collections::BTreeSet;

use bywire_wire::channel::{DownReason, KEYS_NS_MAX, KEYS_OVERLAP_NS, RENEW_LATER_NS, RENEW_NS};
use bywire_wire::packet::{Header, PacketKind};

use super::simulation::{Attacker, CLEAN, Faults, MS, Numbers, Packet, SECOND, Simulation, address_of};

fn channels(simulation: &Simulation, at: usize) -> u64 {
    let status = simulation.nodes[at].channels.status(&simulation.key(1 - at)).expect("known");
    status.counts.channels
}

fn hellos(packets: &[Packet]) -> usize {
    packets.iter().filter(|packet| packet.bytes[0] == PacketKind::Hello as u8).count()
}

/// Both nodes send a message each now and then. Returns how many each has sent.
fn talk(simulation: &mut Simulation, for_ns: u64, pause_ns: u64) -> u32 {
    let until_ns = simulation.now_ns + for_ns;
    let mut count = 0u32;
    while simulation.now_ns < until_ns {
        for (from, to) in [(0, 1), (1, 0)] {
            simulation.send(from, to, &count.to_le_bytes());
        }
        count += 1;
        simulation.run(pause_ns);
    }
    count
}

#[test]
pub fn a_channel_in_use_gets_new_keys_every_two_minutes_and_loses_nothing() {
    for (seed, are_both_needed) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut simulation = Simulation::pair(seed);
        if are_both_needed {
            simulation.connect(1, 0);
        }
        let lost = seed % 4 * 5;
        simulation.faults = Faults { lost, repeated: 5, delay_ns: (MS / 10, 20 * MS) };
        let sent = talk(&mut simulation, 20 * 60 * SECOND, 500 * MS);
        simulation.faults = CLEAN;
        simulation.run(10 * SECOND);
        let expected: Vec<_> = (0..sent).map(|message| message.to_le_bytes().to_vec()).collect();
        for (at, of) in [(0, 1), (1, 0)] {
            assert_eq!(simulation.messages(at, of), expected, "seed {seed}");
            assert_eq!((simulation.ups(at), simulation.downs(at).len()), (1, 0), "seed {seed}");
            // Seldom a second without an answer makes one more.
            let made = channels(&simulation, at);
            assert!((9..=14 + 2 * lost).contains(&made), "seed {seed}: {made} channels in 20 minutes");
        }
        let hellos = hellos(&simulation.recorded);
        assert!(hellos <= 20 + 6 * lost as usize, "seed {seed}: {hellos} hellos");
    }
}

/// What a node knows of the path to the other one: the round-trip time in ms, the packet size, and the packets that have left.
fn path_known(simulation: &Simulation, at: usize) -> (u64, u16, u64) {
    let status = simulation.nodes[at].channels.status(&simulation.key(1 - at)).expect("known");
    let channel = status.channel.expect("it is up");
    (channel.rtt_ns / MS, channel.packet_bytes[0], channel.sent_and_lost[0])
}

#[test]
fn a_renewal_keeps_what_is_known_of_the_path() {
    const ROUND_TRIP_NS: u64 = 40 * MS;
    let mut simulation = Simulation::pair(53);
    simulation.faults = Faults { delay_ns: (ROUND_TRIP_NS / 2, ROUND_TRIP_NS / 2 + 1), ..CLEAN };
    for at in [0, 1] {
        let other = simulation.key(1 - at);
        simulation.nodes[at].channels.set_route_bytes(&other, 1452);
    }
    talk(&mut simulation, RENEW_NS - 3 * SECOND, 250 * MS);
    // One end sends as much as it can.
    let target = simulation.key(1);
    let flood = |simulation: &mut Simulation, for_ns: u64| {
        let (until_ns, before) = (simulation.now_ns + for_ns, simulation.nodes[1].events.len());
        while simulation.now_ns < until_ns {
            while simulation.nodes[0].channels.send(simulation.now_ns, &target, &[7; 1000]).is_ok() {}
            simulation.collect(0);
            simulation.run(MS);
        }
        simulation.nodes[1].events.len() - before
    };
    let rounds = 5;
    flood(&mut simulation, SECOND);
    let usual = flood(&mut simulation, rounds * ROUND_TRIP_NS);
    let (made, known) = (channels(&simulation, 0), [0, 1].map(|at| path_known(&simulation, at)));
    for (rtt_ms, packet_bytes, _) in known {
        assert!(rtt_ms.abs_diff(ROUND_TRIP_NS / MS) < 15 && packet_bytes == 1452, "{known:?}");
    }
    while channels(&simulation, 0) == made || channels(&simulation, 1) == made {
        flood(&mut simulation, MS);
    }
    for (at, (rtt_ms, packet_bytes, sent)) in known.into_iter().enumerate() {
        let (rtt_ms_now, packet_bytes_now, sent_now) = path_known(&simulation, at);
        assert!(rtt_ms_now.abs_diff(rtt_ms) < 15, "{rtt_ms_now} ms");
        assert!(packet_bytes_now == packet_bytes && sent_now >= sent, "node {at}");
    }
    // What was under way leaves once more, which takes a round trip. There is no other dip.
    let renewed = flood(&mut simulation, rounds * ROUND_TRIP_NS);
    assert!(4 * renewed >= 3 * usual, "{renewed} messages after a renewal, and {usual} before");
    assert_eq!(simulation.ups(0) + simulation.ups(1), 2);
}

#[test]
pub fn keys_from_before_a_renewal_are_good_for_a_moment_only() {
    let mut simulation = Simulation::pair(50);
    talk(&mut simulation, SECOND, 100 * MS);
    // A packet under way when the keys change.
    simulation.run(RENEW_NS - 3 * SECOND);
    simulation.cut = vec![(address_of(1), address_of(0))];
    let sent = simulation.recorded.len();
    simulation.send(1, 0, b"under way");
    let late = simulation.recorded[sent..].last().expect("a packet").clone();
    simulation.cut.clear();
    let made = channels(&simulation, 0);
    simulation.await_that("new keys", 4 * SECOND, |simulation| channels(simulation, 0) > made);
    let recorded = simulation.recorded.clone();
    let received = |simulation: &Simulation| {
        simulation.nodes[0].channels.status(&simulation.key(1)).expect("known").counts.packets_received
    };
    let before = received(&simulation);
    simulation.give(0, late.from, &late.bytes);
    // It has been sent again since, or it comes now.
    assert!(received(&simulation) >= before);
    simulation.run(KEYS_OVERLAP_NS + MS);
    assert_eq!(simulation.messages(0, 1).iter().filter(|message| **message == b"under way").count(), 1);
    // All packets of the keys before belong to nothing.
    let unrecognized = |simulation: &Simulation| simulation.nodes[0].channels.strangers().unrecognized;
    let before = unrecognized(&simulation);
    let old = recorded.iter().filter(|packet| packet.bytes[0] == PacketKind::Data as u8);
    let old: Vec<_> = old.filter(|packet| packet.to == address_of(0)).collect();
    old.iter().for_each(|packet| simulation.give(0, packet.from, &packet.bytes));
    assert_eq!(unrecognized(&simulation) - before, old.len() as u64);
}

#[test]
pub fn a_channel_whose_keys_cannot_be_renewed_goes_on_for_five_minutes() {
    let mut simulation = Simulation::pair(51);
    simulation.connect(1, 0);
    let other = std::net::SocketAddr::from(([10, 0, 0, 99], 7248));
    let node = simulation.key(1);
    let now_ns = simulation.now_ns;
    simulation.nodes[0].channels.add(now_ns, node, vec![address_of(1), other]);
    simulation.are_handshakes_cut = true;
    let began = simulation.recorded.len();
    let sent = talk(&mut simulation, KEYS_NS_MAX - 5 * SECOND, 500 * MS);
    assert_eq!(simulation.messages(1, 0).len(), sent as usize, "the channel is as good as before");
    let packets = &simulation.recorded[began..];
    let tried = hellos(packets);
    assert!((20..60).contains(&tried), "it is tried again and again: {tried}");
    assert!(packets.iter().all(|packet| packet.to != other), "only where the channel is");
    simulation.run(6 * SECOND);
    for at in [0, 1] {
        assert_eq!(simulation.downs(at), [DownReason::Unreachable], "the keys are too old");
    }
    simulation.are_handshakes_cut = false;
    simulation.await_that("a new channel", 60 * SECOND, |simulation| {
        simulation.is_up(0, 1) && simulation.is_up(1, 0)
    });
}

#[test]
fn a_service_that_ends_in_the_middle_of_a_renewal_is_known_to_have_ended() {
    for seed in 60..64 {
        let mut simulation = Simulation::pair(seed);
        talk(&mut simulation, RENEW_NS - SECOND, 250 * MS);
        let made = channels(&simulation, 1);
        simulation.await_that("new keys at one end", 3 * SECOND, |simulation| channels(simulation, 0) > made);
        assert_eq!(channels(&simulation, 1), made, "the first packet with the new keys is under way");
        let now_ns = simulation.now_ns;
        simulation.nodes[1].channels.close(now_ns);
        simulation.collect(1);
        simulation.await_that("the end", MS, |simulation| simulation.downs(0) == [DownReason::Closed]);
        simulation.await_that("the answer", 100 * MS, |simulation| {
            simulation.nodes[1].channels.next_timeout_ns().is_none()
        });
    }
}

/// The kinds of packets of a renewal: hellos, answers, and packets with the new keys by their sender.
const KINDS: usize = 4;

/// An attacker who drops or holds back the first packets of each kind, as the seed says, and knows the channel before.
fn attacker_on_renewals(seed: u64, known: BTreeSet<u32>) -> Attacker {
    let mut numbers = Numbers(seed);
    let mut left: [u64; KINDS] = std::array::from_fn(|_| [0, 0, 1, 2, 5][numbers.below(5) as usize]);
    let are_dropped: [bool; KINDS] = std::array::from_fn(|_| numbers.below(2) == 0);
    Box::new(move |packet| {
        let header = Header::parse(&packet.bytes).expect("a packet");
        let kind = match header.kind {
            PacketKind::Hello => 0,
            PacketKind::Answer => 1,
            PacketKind::Cookie => return Some(0),
            PacketKind::Data if known.contains(&header.connection) => return Some(0),
            PacketKind::Data => 2 + usize::from(packet.from == address_of(1)),
        };
        if left[kind] == 0 {
            return Some(0);
        }
        left[kind] -= 1;
        (!are_dropped[kind]).then(|| numbers.below(4 * SECOND))
    })
}

#[test]
fn an_attacker_who_drops_or_holds_back_the_packets_of_renewals_ends_no_session_and_loses_no_message() {
    let mut renewals = 0;
    for seed in 0..200 {
        let mut simulation = Simulation::pair(100 + seed);
        if seed % 2 == 0 {
            simulation.connect(1, 0);
        }
        let mut sent = talk(&mut simulation, RENEW_NS - 5 * SECOND, 500 * MS);
        let data = simulation.recorded.iter().filter_map(|packet| Header::parse(&packet.bytes));
        let known = data.filter(|header| header.kind == PacketKind::Data).map(|header| header.connection);
        simulation.attacker = Some(attacker_on_renewals(seed, known.collect()));
        // Both begin at once if hellos are held back until the other end's time.
        let until_ns = simulation.now_ns + 60 * SECOND;
        while simulation.now_ns < until_ns {
            for (from, to) in [(0, 1), (1, 0)] {
                simulation.send(from, to, &sent.to_le_bytes());
            }
            sent += 1;
            simulation.run(500 * MS);
        }
        simulation.attacker = None;
        simulation.run(20 * SECOND);
        let expected: Vec<_> = (0..sent).map(|message| message.to_le_bytes().to_vec()).collect();
        for (at, of) in [(0, 1), (1, 0)] {
            assert_eq!(simulation.messages(at, of), expected, "seed {seed}");
            assert_eq!((simulation.ups(at), simulation.downs(at).len()), (1, 0), "seed {seed}");
        }
        renewals += channels(&simulation, 0) - 1;
        let now_ns = simulation.now_ns;
        for (from, to) in [(0, 1), (1, 0)] {
            simulation.send(from, to, b"last");
            simulation.await_that("both are on the same channel", 10 * MS, |simulation| {
                simulation.messages(to, from).last().is_some_and(|message| message == b"last")
            });
        }
        assert!(simulation.now_ns - now_ns < 10 * MS);
    }
    assert!(renewals >= 200, "{renewals}");
}

#[test]
fn the_end_that_answered_renews_if_the_other_one_does_not() {
    let mut simulation = Simulation::pair(52);
    simulation.connect(1, 0);
    simulation.run(SECOND);
    // Hellos of the initiator are lost.
    simulation.are_handshakes_cut = true;
    simulation.run(RENEW_NS);
    let made = channels(&simulation, 1);
    simulation.are_handshakes_cut = false;
    simulation.cut = Vec::new();
    simulation.await_that("new keys", 2 * RENEW_LATER_NS + 20 * SECOND, |simulation| {
        channels(simulation, 1) > made && channels(simulation, 0) > made
    });
    let before = simulation.recorded.len();
    simulation.run(100 * SECOND);
    assert_eq!(hellos(&simulation.recorded[before..]), 0, "one renewal is enough for both");
}
