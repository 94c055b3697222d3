//! Channels between two and three nodes deliver every message once and in order over a bad network. They are kept,
//! moved, made again and ended. Simultaneous opens end with one channel. After random restarts, removals, moves, cuts
//! and losses two nodes find each other.

use bywire_wire::channel::{DownReason, Event, MESSAGE_BYTES_MAX, NodeCounts, QUEUE_BYTES_MAX, SendError};
use bywire_wire::keys::Security;

use super::simulation::{Faults, MS, SECOND, Simulation, address_of, identity_of};

#[test]
pub fn two_nodes_are_up_after_one_round_trip_and_messages_cross_both_ways() {
    let mut simulation = Simulation::new(2, 1);
    let began_ns = simulation.now_ns;
    simulation.connect(0, 1);
    simulation.await_that("the one that asked is up", SECOND, |simulation| simulation.is_up(0, 1));
    assert_eq!(simulation.now_ns - began_ns, 100_000, "one round trip of the network");
    simulation.await_that("the other is up", SECOND, |simulation| simulation.is_up(1, 0));
    let up =
        Event::Up { node: simulation.key(0), boot_id: [0; 16], incarnation: 1, path: address_of(0).into() };
    assert_eq!(simulation.nodes[1].events, [up]);
    let longest = vec![7; MESSAGE_BYTES_MAX];
    for message in [&b"a"[..], &longest, b"last"] {
        simulation.send(0, 1, message);
        simulation.send(1, 0, message);
    }
    simulation.run(SECOND);
    for (at, of) in [(0, 1), (1, 0)] {
        assert_eq!(simulation.messages(at, of), [&b"a"[..], &longest, b"last"].map(<[u8]>::to_vec));
    }
    let status = simulation.nodes[0].channels.status(&simulation.key(1)).expect("it is in the table");
    let channel = status.channel.expect("it is up");
    // Only one of the two processors has instructions for AES.
    assert_eq!((channel.path.peer, channel.security), (address_of(1), Security::ChaCha20Poly1305));
    assert_eq!((status.counts.hellos_sent, status.counts.answers_received), (1, 1));
}

#[test]
pub fn messages_above_the_limits_are_refused() {
    let mut simulation = Simulation::new(2, 1);
    let node = simulation.key(1);
    let send = |simulation: &mut Simulation, message: &[u8]| {
        simulation.nodes[0].channels.send(simulation.now_ns, &node, message)
    };
    assert_eq!(send(&mut simulation, b"x"), Err(SendError::NotUp));
    simulation.connect(0, 1);
    simulation.await_that("up", SECOND, |simulation| simulation.is_up(0, 1));
    assert_eq!(send(&mut simulation, b""), Err(SendError::Length));
    assert_eq!(send(&mut simulation, &vec![0; MESSAGE_BYTES_MAX + 1]), Err(SendError::Length));
    simulation.cut = vec![(address_of(0), address_of(1))];
    for _ in 0..QUEUE_BYTES_MAX / MESSAGE_BYTES_MAX {
        assert_eq!(send(&mut simulation, &[1; MESSAGE_BYTES_MAX]), Ok(()));
    }
    assert_eq!(send(&mut simulation, &[1]), Err(SendError::Full));
}

#[test]
pub fn every_message_arrives_once_and_in_order_over_a_bad_network() {
    for seed in 0..20 {
        let mut simulation = Simulation::new(3, seed);
        simulation.faults = Faults { lost: 20, repeated: 20, delay_ns: (MS / 10, 20 * MS) };
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0)] {
            simulation.connect(from, to);
        }
        let pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)];
        simulation.await_that("all are up", 30 * SECOND, |simulation| {
            pairs.iter().all(|(at, node)| simulation.is_up(*at, *node))
        });
        for (at, node) in pairs {
            let channel =
                simulation.nodes[at].channels.status(&simulation.key(node)).and_then(|status| status.channel);
            let security = if at + node == 2 { Security::Aes256Gcm } else { Security::ChaCha20Poly1305 };
            assert_eq!(channel.expect("it is up").security, security, "AES where both have it");
        }
        for message in 0..50u32 {
            pairs.iter().for_each(|(from, to)| simulation.send(*from, *to, &message.to_le_bytes()));
            simulation.run(20 * MS);
        }
        let expected: Vec<_> = (0..50u32).map(|message| message.to_le_bytes().to_vec()).collect();
        simulation.await_that("all has come", 60 * SECOND, |simulation| {
            pairs.iter().all(|(from, to)| simulation.messages(*to, *from).len() >= 50)
        });
        simulation.run(10 * SECOND);
        for (from, to) in pairs {
            assert_eq!(simulation.messages(to, from), expected, "seed {seed}, {from} to {to}");
        }
        (0..3).for_each(|node| assert_eq!(simulation.downs(node), [], "seed {seed}"));
    }
}

#[test]
pub fn a_needed_channel_is_kept_alive_and_an_unneeded_one_ends() {
    let mut simulation = Simulation::pair(3);
    simulation.run(SECOND);
    let before = simulation.recorded.len();
    simulation.run(600 * SECOND);
    assert!(simulation.is_up(0, 1) && simulation.is_up(1, 0));
    let packets = simulation.recorded.len() - before;
    // Beside them the keys are renewed every two minutes.
    assert!((2 * 100..=2 * 125 + 5 * 10).contains(&packets), "a question and an answer each 5 s: {packets}");
    let other = simulation.key(1);
    simulation.nodes[0].channels.release(&other);
    simulation.run(59 * SECOND);
    assert!(simulation.is_up(0, 1));
    simulation.run(20 * SECOND);
    assert_eq!((simulation.downs(0), simulation.downs(1)), (vec![DownReason::Idle], vec![DownReason::Idle]));
    let before = simulation.recorded.len();
    simulation.run(600 * SECOND);
    assert_eq!(simulation.recorded.len(), before, "no packet is sent without need");
}

#[test]
fn a_question_for_a_sign_of_life_is_answered_at_once() {
    let mut simulation = Simulation::pair(3);
    simulation.run(SECOND);
    let before = simulation.recorded.len();
    simulation.await_that("asked", 10 * SECOND, |simulation| simulation.recorded.len() == before + 1);
    // The way there. A service that waited for a message to carry its answer would wake up once more.
    simulation.await_that("answered", MS / 10, |simulation| simulation.recorded.len() == before + 2);
}

#[test]
fn a_channel_that_both_ends_need_is_kept_alive_by_one_of_them() {
    let mut simulation = Simulation::pair(3);
    simulation.connect(1, 0);
    simulation.run(SECOND);
    let before = simulation.recorded.len();
    // A question that is slower than the answer before it would meet one of the other end.
    simulation.faults = Faults { lost: 0, repeated: 0, delay_ns: (10 * MS, 200 * MS) };
    simulation.run(600 * SECOND);
    let packets = simulation.recorded.len() - before;
    // Some packets are sent again, because the delay varies.
    assert!((2 * 100..=3 * 100 + 5 * 32).contains(&packets), "a question and an answer each 5 s: {packets}");
}

#[test]
pub fn a_silent_node_is_reported_and_retried_with_backoff() {
    let mut simulation = Simulation::new(2, 4);
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.connect(0, 1);
    simulation.run(5 * SECOND - 1);
    assert_eq!(simulation.nodes[0].events, []);
    assert_eq!(simulation.recorded.len(), 5, "at 0, 0.25, 0.75, 1.75 and 3.75 s");
    simulation.run(1);
    let node = simulation.key(1);
    assert_eq!(simulation.nodes[0].events, [Event::Unreachable { node }]);
    simulation.run(3600 * SECOND);
    assert_eq!(simulation.nodes[0].events.len(), 1, "it is reported once");
    let hellos = simulation.recorded.len();
    assert!((225..240).contains(&hellos), "at last one every 16 s: {hellos}");
    // All have different ephemeral keys.
    let mut sent: Vec<_> = simulation.recorded.iter().map(|packet| packet.bytes[16..48].to_vec()).collect();
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len(), hellos);
    simulation.cut.clear();
    simulation.connect(0, 1);
    simulation.await_that("who asks again is answered at once", MS, |simulation| simulation.is_up(0, 1));
}

#[test]
pub fn simultaneous_opens_end_with_the_same_channel_at_both_ends() {
    for seed in 0..200 {
        let mut simulation = Simulation::new(2, seed);
        simulation.faults = Faults { lost: seed % 4 * 10, repeated: 10, delay_ns: (MS / 10, 3 * MS) };
        simulation.connect(0, 1);
        let gap_ns = simulation.numbers.below(5 * MS);
        simulation.run(gap_ns);
        simulation.connect(1, 0);
        simulation.run(SECOND / 2);
        for message in 0..20u8 {
            if simulation.is_up(0, 1) {
                simulation.send(0, 1, &[message]);
            }
            if simulation.is_up(1, 0) {
                simulation.send(1, 0, &[message]);
            }
            simulation.run(MS);
        }
        simulation.run(10 * SECOND);
        assert_eq!((simulation.ups(0), simulation.ups(1)), (1, 1), "seed {seed}");
        let channels = [(0, 1), (1, 0)].map(|(at, node)| {
            simulation.nodes[at].channels.status(&simulation.key(node)).expect("known").counts.channels
        });
        // A second of losses makes another channel.
        let most = if seed % 4 == 0 { 2 } else { 6 };
        assert!(channels.iter().all(|made| *made <= most), "seed {seed}: {channels:?}");
        // Only keep-alives are sent.
        simulation.faults = super::simulation::CLEAN;
        simulation.run(10 * SECOND);
        let before = simulation.recorded.len();
        simulation.run(60 * SECOND);
        let packets = simulation.recorded.len() - before;
        assert!(packets <= 60, "seed {seed}: {packets}");
        for (at, of) in [(0, 1), (1, 0)] {
            let messages = simulation.messages(at, of);
            assert!(messages.windows(2).all(|pair| pair[0][0] + 1 == pair[1][0]), "{messages:?}");
        }
    }
}

#[test]
pub fn a_service_that_restarts_is_a_new_one_and_nothing_of_the_old_one_is_delivered() {
    for (node, other) in [(0, 1), (1, 0)] {
        let mut simulation = Simulation::pair(5);
        let it = simulation.key(node);
        simulation.connect(other, node);
        simulation.cut = vec![(address_of(other), address_of(node))];
        simulation.send(other, node, b"to the old one");
        simulation.restart(node, identity_of(node, 2));
        simulation.cut.clear();
        simulation.connect(node, other);
        simulation.await_that("both are up again", 10 * SECOND, |simulation| {
            simulation.is_up(node, other) && simulation.downs(other) == [DownReason::Restarted]
        });
        simulation.send(other, node, b"to the new one");
        simulation.run(40 * SECOND);
        assert_eq!(simulation.messages(node, other), [b"to the new one"]);
        let last =
            simulation.nodes[other].events.iter().rev().find(|event| matches!(event, Event::Up { .. }));
        let boot_id = [node as u8; 16];
        let up = Event::Up { node: it, boot_id, incarnation: 2, path: address_of(node).into() };
        assert_eq!(last, Some(&up));
        assert_eq!(simulation.downs(other), [DownReason::Restarted]);
    }
}

#[test]
pub fn a_restarted_service_that_initiates_nothing_is_found_by_its_peers() {
    let mut simulation = Simulation::pair(6);
    simulation.restart(1, identity_of(1, 2));
    let killed_ns = simulation.now_ns;
    simulation
        .await_that("up again", 20 * SECOND, |simulation| simulation.downs(0) == [DownReason::Restarted]);
    assert!(simulation.now_ns - killed_ns <= 7 * SECOND, "a keep-alive, and a second of silence");
    let mut simulation = Simulation::pair(6);
    simulation.restart(1, identity_of(1, 2));
    let killed_ns = simulation.now_ns;
    simulation.send(0, 1, b"?");
    simulation
        .await_that("up again", 20 * SECOND, |simulation| simulation.downs(0) == [DownReason::Restarted]);
    assert!(simulation.now_ns - killed_ns <= 1100 * MS, "a second of silence");
}

#[test]
pub fn a_short_outage_loses_nothing_and_a_long_one_is_reported() {
    let mut simulation = Simulation::pair(7);
    let directions = vec![(address_of(0), address_of(1)), (address_of(1), address_of(0))];
    simulation.cut = directions.clone();
    (0..5u8).for_each(|message| simulation.send(0, 1, &[message]));
    simulation.run(20 * SECOND);
    simulation.cut.clear();
    simulation.await_that("all has come", 17 * SECOND, |simulation| simulation.messages(1, 0).len() == 5);
    assert!(simulation.downs(0).is_empty() && simulation.downs(1).is_empty());
    simulation.cut = directions;
    simulation.send(0, 1, b"lost");
    simulation.run(31 * SECOND);
    assert_eq!(simulation.downs(0), [DownReason::Unreachable]);
    simulation.cut.clear();
    simulation
        .await_that("up again", 20 * SECOND, |simulation| simulation.ups(0) == 2 && simulation.ups(1) == 2);
    simulation.send(0, 1, b"after");
    simulation.run(SECOND);
    assert_eq!(simulation.messages(1, 0).last().expect("messages"), b"after");
    assert_eq!(simulation.messages(1, 0).len(), 6);
}

#[test]
pub fn messages_with_a_lost_acknowledgement_are_delivered_once() {
    for cut_ms in [10, 900, 1500, 3000, 12_000] {
        let mut simulation = Simulation::pair(11);
        simulation.run(SECOND);
        simulation.cut = vec![(address_of(1), address_of(0))];
        simulation.is_cut_for_data_only = true;
        (0..3u8).for_each(|message| simulation.send(0, 1, &[message]));
        simulation.run(cut_ms * MS);
        assert_eq!(simulation.messages(1, 0).len(), 3);
        (3..6u8).for_each(|message| simulation.send(0, 1, &[message]));
        simulation.run(MS);
        simulation.cut.clear();
        simulation.run(20 * SECOND);
        let messages: Vec<_> = (0..6u8).map(|message| vec![message]).collect();
        assert_eq!(simulation.messages(1, 0), messages, "{cut_ms} ms");
        let channels =
            simulation.nodes[0].channels.status(&simulation.key(1)).expect("known").counts.channels;
        assert_eq!(channels > 1, cut_ms > 1000, "a second of silence makes another channel");
    }
}

#[test]
pub fn a_node_at_a_new_address_is_followed() {
    let mut simulation = Simulation::pair(8);
    simulation.connect(1, 0);
    simulation.run(SECOND);
    let moved = "10.9.9.9:7248".parse().expect("an address");
    simulation.nodes[0].address = moved;
    simulation.send(0, 1, b"from somewhere else");
    simulation.send(1, 0, b"to somewhere else");
    simulation.await_that("both have come", 3 * SECOND, |simulation| {
        simulation.messages(0, 1).len() == 1 && simulation.messages(1, 0).len() == 1
    });
    let event = Event::Moved { node: simulation.key(0), path: moved.into() };
    assert!(simulation.nodes[1].events.contains(&event));
    assert!(simulation.downs(0).is_empty() && simulation.downs(1).is_empty());
    // Its former address may be somebody else's now, who copies a packet that has not arrived yet.
    for _ in 0..3 {
        simulation.run(3 * SECOND);
        simulation.send(0, 1, b"copied on the way");
        let copied = simulation.recorded.last().expect("it was sent").clone();
        assert_eq!(copied.from, moved);
        simulation.give(1, address_of(0), &copied.bytes);
        let status = simulation.nodes[1].channels.status(&simulation.key(0)).expect("known");
        assert_eq!(status.channel.expect("it is up").path.peer, moved);
    }
}

#[test]
pub fn counts_from_before_a_node_was_needed_or_went_down_are_kept_apart() {
    let mut simulation = Simulation::pair(13);
    let status = |simulation: &Simulation| {
        simulation.nodes[0].channels.status(&simulation.key(1)).expect("it is in the table")
    };
    assert_eq!(status(&simulation).counts_before, NodeCounts::default());
    simulation.cut = vec![(address_of(0), address_of(1)), (address_of(1), address_of(0))];
    simulation.await_that("it is down", 100 * SECOND, |simulation| !simulation.is_up(0, 1));
    let before = status(&simulation).counts;
    assert!(before.channels == 1 && status(&simulation).counts_before == before);
    simulation.run(100 * SECOND);
    let found = status(&simulation);
    assert!(found.counts_before == before && found.counts.hellos_sent > before.hellos_sent);
}

#[test]
pub fn strangers_are_forgotten_at_the_address_of_a_node() {
    let mut simulation = Simulation::pair(14);
    let removed = simulation.key(1);
    simulation.nodes[0].channels.remove(simulation.now_ns, &removed);
    simulation.collect(0);
    simulation.connect(1, 0);
    simulation.run(SECOND);
    let channels = &mut simulation.nodes[0].channels;
    let count = channels.strangers().unknown_keys;
    channels.forget_strangers_at([192, 0, 2, 1].into());
    assert!(channels.strangers().last_unknown.is_some());
    channels.forget_strangers_at(address_of(1).ip());
    assert_eq!((channels.strangers().last_unknown, channels.strangers().unknown_keys), (None, count));
}

#[test]
pub fn a_removed_node_is_told_at_once_and_gets_no_further_answer() {
    let mut simulation = Simulation::pair(9);
    simulation.send(1, 0, b"before");
    simulation.run(MS);
    let removed = simulation.key(1);
    simulation.nodes[0].channels.remove(simulation.now_ns, &removed);
    simulation.collect(0);
    assert_eq!(simulation.downs(0), [DownReason::Removed]);
    simulation.connect(1, 0);
    simulation.await_that("the other is told", MS, |simulation| simulation.downs(1) == [DownReason::Closed]);
    let before = simulation.recorded.iter().filter(|packet| packet.from == address_of(0)).count();
    simulation.run(100 * SECOND);
    let after = simulation.recorded.iter().filter(|packet| packet.from == address_of(0)).count();
    assert_eq!(after, before, "no packet leaves for a node that was removed");
    let strangers = simulation.nodes[0].channels.strangers();
    assert_eq!(strangers.last_unknown, Some((removed, address_of(1))));
    assert!(strangers.unknown_keys > 5 && !simulation.is_up(1, 0));
}

#[test]
fn a_service_that_ends_makes_no_channel_any_more() {
    let mut simulation = Simulation::pair(9);
    simulation.connect(1, 0);
    simulation.run(SECOND);
    let now_ns = simulation.now_ns;
    simulation.nodes[0].channels.close(now_ns);
    simulation.collect(0);
    // The other one has been told, and calls again.
    simulation.run(3 * SECOND);
    assert_eq!(simulation.downs(1), [DownReason::Closed]);
    assert!(!simulation.is_up(1, 0) && simulation.ups(1) == 1);
}

#[test]
pub fn a_lost_close_is_repeated() {
    let mut simulation = Simulation::pair(12);
    simulation.run(SECOND);
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.nodes[0].channels.close(simulation.now_ns);
    simulation.collect(0);
    simulation.run(10 * MS);
    assert!(simulation.is_up(1, 0));
    simulation.cut.clear();
    simulation
        .await_that("the other is told", SECOND, |simulation| simulation.downs(1) == [DownReason::Closed]);
    simulation.run(SECOND);
    // Both are silent, and the node that ended may exit.
    assert_eq!(simulation.nodes.iter().find_map(|node| node.channels.next_timeout_ns()), None);
    // A node that never answers is forgotten.
    let mut simulation = Simulation::pair(13);
    simulation.cut = vec![(address_of(0), address_of(1))];
    simulation.nodes[0].channels.close(simulation.now_ns);
    simulation.collect(0);
    simulation.run(2 * SECOND);
    assert_eq!(simulation.nodes[0].channels.next_timeout_ns(), None);
}

#[test]
pub fn a_node_removed_and_added_again_starts_fresh_at_both_ends() {
    let mut simulation = Simulation::pair(14);
    simulation.connect(1, 0);
    (0..3u8).for_each(|message| {
        simulation.send(0, 1, &[message]);
        simulation.send(1, 0, &[message]);
    });
    simulation.run(SECOND);
    // The other end is not told.
    simulation.cut = vec![(address_of(0), address_of(1)), (address_of(1), address_of(0))];
    let other = simulation.key(1);
    simulation.nodes[0].channels.remove(simulation.now_ns, &other);
    assert!(simulation.nodes[0].channels.add(simulation.now_ns, other, vec![address_of(1)]));
    simulation.run(2 * SECOND);
    simulation.cut.clear();
    simulation.connect(0, 1);
    simulation.await_that("up again", SECOND, |simulation| simulation.ups(0) == 2 && simulation.ups(1) == 2);
    assert_eq!(
        (simulation.downs(0), simulation.downs(1)),
        (vec![DownReason::Removed], vec![DownReason::Reset])
    );
    simulation.send(0, 1, b"first");
    simulation.send(1, 0, b"first");
    simulation.run(SECOND);
    for (at, of) in [(0, 1), (1, 0)] {
        assert_eq!(simulation.messages(at, of), [&[0][..], &[1], &[2], b"first"]);
    }
}

#[test]
pub fn a_service_that_exits_announces_it() {
    let mut simulation = Simulation::pair(10);
    simulation.send(0, 1, b"good-bye");
    simulation.nodes[0].channels.close(simulation.now_ns);
    simulation.collect(0);
    simulation.run(SECOND / 10);
    assert_eq!(
        (simulation.downs(0), simulation.downs(1)),
        (vec![DownReason::Closed], vec![DownReason::Closed])
    );
}

/// Messages of a node come only between `Up` and `Down`, once and in order.
fn check_events(simulation: &Simulation, at: usize, of: usize) {
    let of = simulation.key(of);
    let (mut is_up, mut last) = (false, None);
    for event in &simulation.nodes[at].events {
        match event {
            Event::Up { node, .. } if *node == of => {
                assert!(!is_up, "up twice");
                is_up = true;
            }
            Event::Down { node, .. } if *node == of => {
                assert!(is_up, "down twice");
                is_up = false;
            }
            Event::Message { node, bytes } if *node == of => {
                let message = u32::from_le_bytes(bytes[..].try_into().expect("four bytes"));
                assert!(is_up && last.is_none_or(|last| message > last), "{message} after {last:?}");
                last = Some(message);
            }
            _ => {}
        }
    }
}

#[test]
pub fn two_nodes_always_find_each_other_once_the_network_recovers() {
    let (mut reasons, mut moves) = (Vec::new(), 0);
    for seed in 0..60 {
        let mut simulation = Simulation::new(2, seed);
        let (mut start, mut message) = (1, 0u32);
        for _ in 0..40 {
            let (node, other) = if simulation.numbers.below(2) == 0 { (0, 1) } else { (1, 0) };
            let there = simulation.key(other);
            match simulation.numbers.below(10) {
                0 => {
                    start += 1;
                    let address = simulation.nodes[node].address;
                    simulation.restart(node, identity_of(node, start));
                    simulation.nodes[node].address = address;
                    // The state of the old service ended with it.
                    simulation.nodes[node].events.clear();
                }
                1 => {
                    let addresses = vec![simulation.nodes[other].address];
                    simulation.nodes[node].channels.remove(simulation.now_ns, &there);
                    simulation.nodes[node].channels.add(simulation.now_ns, there, addresses);
                    simulation.collect(node);
                }
                2 => {
                    simulation.nodes[node].address =
                        address_of(10 + 100 * node + simulation.numbers.below(100) as usize)
                }
                3 => simulation.cut = vec![(simulation.nodes[node].address, simulation.nodes[other].address)],
                4 => simulation.cut.clear(),
                5 => simulation.faults = Faults { lost: 30, repeated: 30, delay_ns: (MS, 30 * MS) },
                6 => simulation.connect(node, other),
                _ => {
                    message += 1;
                    let _ = simulation.nodes[node].channels.send(
                        simulation.now_ns,
                        &there,
                        &message.to_le_bytes(),
                    );
                    simulation.collect(node);
                }
            }
            let pause_ns = [MS, SECOND / 3, 2 * SECOND, 9 * SECOND][simulation.numbers.below(4) as usize];
            simulation.run(pause_ns);
        }
        simulation.cut.clear();
        simulation.faults = super::simulation::CLEAN;
        for (node, other) in [(0, 1), (1, 0)] {
            let (key, address) = (simulation.key(other), simulation.nodes[other].address);
            simulation.nodes[node].channels.add(simulation.now_ns, key, vec![address]);
            simulation.connect(node, other);
        }
        simulation.run(20 * SECOND);
        assert!(simulation.is_up(0, 1) && simulation.is_up(1, 0), "seed {seed}");
        let before = [simulation.messages(0, 1).len(), simulation.messages(1, 0).len()];
        simulation.send(0, 1, &u32::MAX.to_le_bytes());
        simulation.send(1, 0, &u32::MAX.to_le_bytes());
        simulation.run(SECOND);
        let after = [simulation.messages(0, 1).len(), simulation.messages(1, 0).len()];
        assert_eq!(after, before.map(|messages| messages + 1), "seed {seed}");
        check_events(&simulation, 0, 1);
        check_events(&simulation, 1, 0);
        reasons.extend([simulation.downs(0), simulation.downs(1)].concat());
        let events = simulation.nodes.iter().flat_map(|node| &node.events);
        moves += events.filter(|event| matches!(event, Event::Moved { .. })).count();
    }
    let wanted = [DownReason::Restarted, DownReason::Reset, DownReason::Removed, DownReason::Closed];
    assert!(wanted.iter().all(|reason| reasons.contains(reason)) && moves > 0, "{reasons:?}, {moves}");
}
