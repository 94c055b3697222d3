//! Channels are made, kept, moved and ended.

use bywire_wire::channel::{DownReason, Event, MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, SendError};
use bywire_wire::keys::Security;

use crate::world::{Faults, MS, SECOND, World, address_of, identity_of};

#[test]
pub fn two_nodes_are_up_after_one_round_trip_and_messages_cross_both_ways() {
    let mut world = World::new(2, 1);
    let began_ns = world.now_ns;
    world.connect(0, 1);
    world.await_that("the one that asked is up", SECOND, |world| world.is_up(0, 1));
    assert_eq!(world.now_ns - began_ns, 100_000, "one round trip of the network");
    world.await_that("the other is up", SECOND, |world| world.is_up(1, 0));
    let up = Event::Up { node: world.key(0), boot_id: [0; 16], incarnation: 1, address: address_of(0) };
    assert_eq!(world.nodes[1].events, [up]);
    let longest = vec![7; MESSAGE_BYTES_MAX];
    for message in [&b"a"[..], &longest, b"last"] {
        world.send(0, 1, message);
        world.send(1, 0, message);
    }
    world.run(SECOND);
    for (at, of) in [(0, 1), (1, 0)] {
        assert_eq!(world.messages(at, of), [&b"a"[..], &longest, b"last"].map(<[u8]>::to_vec));
    }
    let status = world.nodes[0].channels.status(&world.key(1)).expect("it is in the table");
    let channel = status.channel.expect("it is up");
    // Only one of the two has instructions for AES.
    assert_eq!((channel.address, channel.security), (address_of(1), Security::ChaCha20Poly1305));
    assert_eq!((status.counts.hellos_sent, status.counts.answers_received), (1, 1));
}

#[test]
pub fn messages_above_the_limits_are_refused() {
    let mut world = World::new(2, 1);
    let node = world.key(1);
    let send = |world: &mut World, message: &[u8]| world.nodes[0].channels.send(world.now_ns, &node, message);
    assert_eq!(send(&mut world, b"x"), Err(SendError::NotUp));
    world.connect(0, 1);
    world.await_that("up", SECOND, |world| world.is_up(0, 1));
    assert_eq!(send(&mut world, b""), Err(SendError::Length));
    assert_eq!(send(&mut world, &vec![0; MESSAGE_BYTES_MAX + 1]), Err(SendError::Length));
    world.cut = vec![(address_of(0), address_of(1))];
    for _ in 0..QUEUE_BYTES_MAX / MESSAGE_BYTES_MAX {
        assert_eq!(send(&mut world, &[1; MESSAGE_BYTES_MAX]), Ok(()));
    }
    assert_eq!(send(&mut world, &[1]), Err(SendError::Full));
}

#[test]
pub fn every_message_arrives_once_and_in_order_over_a_bad_network() {
    for seed in 0..20 {
        let mut world = World::new(3, seed);
        world.faults = Faults { lost: 20, repeated: 20, delay_ns: (MS / 10, 20 * MS) };
        for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0)] {
            world.connect(from, to);
        }
        let pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)];
        world.await_that("all are up", 30 * SECOND, |world| {
            pairs.iter().all(|(at, node)| world.is_up(*at, *node))
        });
        for (at, node) in pairs {
            let channel = world.nodes[at].channels.status(&world.key(node)).and_then(|status| status.channel);
            let security = if at + node == 2 { Security::Aes256Gcm } else { Security::ChaCha20Poly1305 };
            assert_eq!(channel.expect("it is up").security, security, "AES where both have it");
        }
        for message in 0..50u32 {
            pairs.iter().for_each(|(from, to)| world.send(*from, *to, &message.to_le_bytes()));
            world.run(20 * MS);
        }
        let expected: Vec<_> = (0..50u32).map(|message| message.to_le_bytes().to_vec()).collect();
        world.await_that("all has come", 60 * SECOND, |world| {
            pairs.iter().all(|(from, to)| world.messages(*to, *from).len() >= 50)
        });
        world.run(10 * SECOND);
        for (from, to) in pairs {
            assert_eq!(world.messages(to, from), expected, "seed {seed}, {from} to {to}");
        }
        (0..3).for_each(|node| assert_eq!(world.downs(node), [], "seed {seed}"));
    }
}

#[test]
pub fn a_needed_channel_is_kept_alive_and_an_unneeded_one_ends() {
    let mut world = World::pair(3);
    world.run(SECOND);
    let before = world.recorded.len();
    world.run(600 * SECOND);
    assert!(world.is_up(0, 1) && world.is_up(1, 0));
    let packets = world.recorded.len() - before;
    assert!((2 * 100..=2 * 125).contains(&packets), "a question and an answer each 5 s: {packets}");
    let other = world.key(1);
    world.nodes[0].channels.release(&other);
    world.run(59 * SECOND);
    assert!(world.is_up(0, 1));
    world.run(20 * SECOND);
    assert_eq!((world.downs(0), world.downs(1)), (vec![DownReason::Idle], vec![DownReason::Idle]));
    let before = world.recorded.len();
    world.run(600 * SECOND);
    assert_eq!(world.recorded.len(), before, "nothing is sent without need");
}

#[test]
pub fn a_silent_node_is_reported_and_retried_with_backoff() {
    let mut world = World::new(2, 4);
    world.cut = vec![(address_of(0), address_of(1))];
    world.connect(0, 1);
    world.run(5 * SECOND - 1);
    assert_eq!(world.nodes[0].events, []);
    assert_eq!(world.recorded.len(), 5, "at 0, 0.25, 0.75, 1.75 and 3.75 s");
    world.run(1);
    let node = world.key(1);
    assert_eq!(world.nodes[0].events, [Event::Unreachable { node }]);
    world.run(3600 * SECOND);
    assert_eq!(world.nodes[0].events.len(), 1, "it is reported once");
    let hellos = world.recorded.len();
    assert!((225..240).contains(&hellos), "every 16 s in the end: {hellos}");
    // No two of them have the same ephemeral key.
    let mut sent: Vec<_> = world.recorded.iter().map(|packet| packet.bytes[16..48].to_vec()).collect();
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len(), hellos);
    world.cut.clear();
    world.connect(0, 1);
    world.await_that("who asks again is answered at once", MS, |world| world.is_up(0, 1));
}

#[test]
pub fn simultaneous_opens_end_with_the_same_channel_at_both_ends() {
    for seed in 0..200 {
        let mut world = World::new(2, seed);
        world.faults = Faults { lost: seed % 4 * 10, repeated: 10, delay_ns: (MS / 10, 3 * MS) };
        world.connect(0, 1);
        let gap_ns = world.numbers.below(5 * MS);
        world.run(gap_ns);
        world.connect(1, 0);
        world.run(SECOND / 2);
        for message in 0..20u8 {
            if world.is_up(0, 1) {
                world.send(0, 1, &[message]);
            }
            if world.is_up(1, 0) {
                world.send(1, 0, &[message]);
            }
            world.run(MS);
        }
        world.run(10 * SECOND);
        assert_eq!((world.ups(0), world.ups(1)), (1, 1), "seed {seed}");
        let channels = [(0, 1), (1, 0)].map(|(at, node)| {
            world.nodes[at].channels.status(&world.key(node)).expect("known").counts.channels
        });
        // Losses of a second make another one.
        let most = if seed % 4 == 0 { 2 } else { 6 };
        assert!(channels.iter().all(|made| *made <= most), "seed {seed}: {channels:?}");
        // The wire is silent but for what keeps one channel alive.
        world.faults = crate::world::CLEAN;
        world.run(10 * SECOND);
        let before = world.recorded.len();
        world.run(60 * SECOND);
        let packets = world.recorded.len() - before;
        assert!(packets <= 60, "seed {seed}: {packets}");
        for (at, of) in [(0, 1), (1, 0)] {
            let messages = world.messages(at, of);
            assert!(messages.windows(2).all(|pair| pair[0][0] + 1 == pair[1][0]), "{messages:?}");
        }
    }
}

#[test]
pub fn a_service_that_restarts_is_a_new_one_and_nothing_of_the_old_one_is_delivered() {
    for (node, other) in [(0, 1), (1, 0)] {
        let mut world = World::pair(5);
        let it = world.key(node);
        world.connect(other, node);
        world.cut = vec![(address_of(other), address_of(node))];
        world.send(other, node, b"to the old one");
        world.restart(node, identity_of(node, 2));
        world.cut.clear();
        world.connect(node, other);
        world.await_that("both are up again", 10 * SECOND, |world| {
            world.is_up(node, other) && world.downs(other) == [DownReason::Restarted]
        });
        world.send(other, node, b"to the new one");
        world.run(40 * SECOND);
        assert_eq!(world.messages(node, other), [b"to the new one"]);
        let last = world.nodes[other].events.iter().rev().find(|event| matches!(event, Event::Up { .. }));
        let boot_id = [node as u8; 16];
        let up = Event::Up { node: it, boot_id, incarnation: 2, address: address_of(node) };
        assert_eq!(last, Some(&up));
        assert_eq!(world.downs(other), [DownReason::Restarted]);
    }
}

#[test]
pub fn a_restarted_service_that_initiates_nothing_is_found_by_its_peers() {
    let mut world = World::pair(6);
    world.restart(1, identity_of(1, 2));
    let killed_ns = world.now_ns;
    world.await_that("up again", 20 * SECOND, |world| world.downs(0) == [DownReason::Restarted]);
    assert!(world.now_ns - killed_ns <= 7 * SECOND, "a keep-alive, and a second of silence");
    let mut world = World::pair(6);
    world.restart(1, identity_of(1, 2));
    let killed_ns = world.now_ns;
    world.send(0, 1, b"?");
    world.await_that("up again", 20 * SECOND, |world| world.downs(0) == [DownReason::Restarted]);
    assert!(world.now_ns - killed_ns <= 1100 * MS, "a second of silence");
}

#[test]
pub fn a_short_outage_loses_nothing_and_a_long_one_is_reported() {
    let mut world = World::pair(7);
    let directions = vec![(address_of(0), address_of(1)), (address_of(1), address_of(0))];
    world.cut = directions.clone();
    (0..5u8).for_each(|message| world.send(0, 1, &[message]));
    world.run(20 * SECOND);
    world.cut.clear();
    world.await_that("all has come", 17 * SECOND, |world| world.messages(1, 0).len() == 5);
    assert!(world.downs(0).is_empty() && world.downs(1).is_empty());
    world.cut = directions;
    world.send(0, 1, b"lost");
    world.run(31 * SECOND);
    assert_eq!(world.downs(0), [DownReason::Unreachable]);
    world.cut.clear();
    world.await_that("up again", 20 * SECOND, |world| world.ups(0) == 2 && world.ups(1) == 2);
    world.send(0, 1, b"after");
    world.run(SECOND);
    assert_eq!(world.messages(1, 0).last().expect("messages"), b"after");
    assert_eq!(world.messages(1, 0).len(), 6);
}

#[test]
pub fn messages_with_a_lost_acknowledgement_are_delivered_once() {
    for cut_ms in [10, 900, 1500, 3000, 12_000] {
        let mut world = World::pair(11);
        world.run(SECOND);
        world.cut = vec![(address_of(1), address_of(0))];
        world.is_cut_for_data_only = true;
        (0..3u8).for_each(|message| world.send(0, 1, &[message]));
        world.run(cut_ms * MS);
        assert_eq!(world.messages(1, 0).len(), 3);
        (3..6u8).for_each(|message| world.send(0, 1, &[message]));
        world.run(MS);
        world.cut.clear();
        world.run(20 * SECOND);
        let messages: Vec<_> = (0..6u8).map(|message| vec![message]).collect();
        assert_eq!(world.messages(1, 0), messages, "{cut_ms} ms");
        let channels = world.nodes[0].channels.status(&world.key(1)).expect("known").counts.channels;
        assert_eq!(channels > 1, cut_ms > 1000, "a second of silence makes another channel");
    }
}

#[test]
pub fn a_node_at_a_new_address_is_followed() {
    let mut world = World::pair(8);
    world.connect(1, 0);
    world.run(SECOND);
    let moved = "10.9.9.9:7248".parse().expect("an address");
    world.nodes[0].address = moved;
    world.send(0, 1, b"from somewhere else");
    world.send(1, 0, b"to somewhere else");
    world.await_that("both have come", 3 * SECOND, |world| {
        world.messages(0, 1).len() == 1 && world.messages(1, 0).len() == 1
    });
    let event = Event::Moved { node: world.key(0), address: moved };
    assert!(world.nodes[1].events.contains(&event));
    assert!(world.downs(0).is_empty() && world.downs(1).is_empty());
}

#[test]
pub fn a_removed_node_is_told_at_once_and_gets_no_further_answer() {
    let mut world = World::pair(9);
    world.send(1, 0, b"before");
    world.run(MS);
    let removed = world.key(1);
    world.nodes[0].channels.remove(world.now_ns, &removed);
    world.collect(0);
    assert_eq!(world.downs(0), [DownReason::Removed]);
    world.connect(1, 0);
    world.await_that("the other is told", MS, |world| world.downs(1) == [DownReason::Closed]);
    let before = world.recorded.iter().filter(|packet| packet.from == address_of(0)).count();
    world.run(100 * SECOND);
    let after = world.recorded.iter().filter(|packet| packet.from == address_of(0)).count();
    assert_eq!(after, before, "no packet leaves for a node that was removed");
    let strangers = world.nodes[0].channels.strangers();
    assert_eq!(strangers.last_unknown, Some((removed, address_of(1))));
    assert!(strangers.unknown_keys > 5 && !world.is_up(1, 0));
}

#[test]
pub fn a_lost_close_is_repeated() {
    let mut world = World::pair(12);
    world.run(SECOND);
    world.cut = vec![(address_of(0), address_of(1))];
    world.nodes[0].channels.close(world.now_ns);
    world.collect(0);
    world.run(10 * MS);
    assert!(world.is_up(1, 0));
    world.cut.clear();
    world.await_that("the other is told", SECOND, |world| world.downs(1) == [DownReason::Closed]);
    world.run(SECOND);
    // Both are silent, and the one that ended may go.
    assert_eq!(world.nodes.iter().find_map(|node| node.channels.next_timeout_ns()), None);
    // Who never answers is forgotten.
    let mut world = World::pair(13);
    world.cut = vec![(address_of(0), address_of(1))];
    world.nodes[0].channels.close(world.now_ns);
    world.collect(0);
    world.run(2 * SECOND);
    assert_eq!(world.nodes[0].channels.next_timeout_ns(), None);
}

#[test]
pub fn a_node_removed_and_added_again_starts_fresh_at_both_ends() {
    let mut world = World::pair(14);
    world.connect(1, 0);
    (0..3u8).for_each(|message| {
        world.send(0, 1, &[message]);
        world.send(1, 0, &[message]);
    });
    world.run(SECOND);
    // The other end does not hear of it.
    world.cut = vec![(address_of(0), address_of(1)), (address_of(1), address_of(0))];
    let other = world.key(1);
    world.nodes[0].channels.remove(world.now_ns, &other);
    assert!(world.nodes[0].channels.add(world.now_ns, other, vec![address_of(1)]));
    world.run(2 * SECOND);
    world.cut.clear();
    world.connect(0, 1);
    world.await_that("up again", SECOND, |world| world.ups(0) == 2 && world.ups(1) == 2);
    assert_eq!((world.downs(0), world.downs(1)), (vec![DownReason::Removed], vec![DownReason::Reset]));
    world.send(0, 1, b"first");
    world.send(1, 0, b"first");
    world.run(SECOND);
    for (at, of) in [(0, 1), (1, 0)] {
        assert_eq!(world.messages(at, of), [&[0][..], &[1], &[2], b"first"]);
    }
}

#[test]
pub fn a_service_that_exits_announces_it() {
    let mut world = World::pair(10);
    world.send(0, 1, b"good-bye");
    world.nodes[0].channels.close(world.now_ns);
    world.collect(0);
    world.run(SECOND / 10);
    assert_eq!((world.downs(0), world.downs(1)), (vec![DownReason::Closed], vec![DownReason::Closed]));
}

/// Messages of one node come between `Up` and `Down` only, once and in order.
fn check_events(world: &World, at: usize, of: usize) {
    let of = world.key(of);
    let (mut is_up, mut last) = (false, None);
    for event in &world.nodes[at].events {
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
        let mut world = World::new(2, seed);
        let (mut start, mut message) = (1, 0u32);
        for _ in 0..40 {
            let (node, other) = if world.numbers.below(2) == 0 { (0, 1) } else { (1, 0) };
            let there = world.key(other);
            match world.numbers.below(10) {
                0 => {
                    start += 1;
                    let address = world.nodes[node].address;
                    world.restart(node, identity_of(node, start));
                    world.nodes[node].address = address;
                    // What the old service knew has ended with it.
                    world.nodes[node].events.clear();
                }
                1 => {
                    let addresses = vec![world.nodes[other].address];
                    world.nodes[node].channels.remove(world.now_ns, &there);
                    world.nodes[node].channels.add(world.now_ns, there, addresses);
                    world.collect(node);
                }
                2 => {
                    world.nodes[node].address =
                        address_of(10 + 100 * node + world.numbers.below(100) as usize)
                }
                3 => world.cut = vec![(world.nodes[node].address, world.nodes[other].address)],
                4 => world.cut.clear(),
                5 => world.faults = Faults { lost: 30, repeated: 30, delay_ns: (MS, 30 * MS) },
                6 => world.connect(node, other),
                _ => {
                    message += 1;
                    let _ = world.nodes[node].channels.send(world.now_ns, &there, &message.to_le_bytes());
                    world.collect(node);
                }
            }
            let pause_ns = [MS, SECOND / 3, 2 * SECOND, 9 * SECOND][world.numbers.below(4) as usize];
            world.run(pause_ns);
        }
        world.cut.clear();
        world.faults = crate::world::CLEAN;
        for (node, other) in [(0, 1), (1, 0)] {
            let (key, address) = (world.key(other), world.nodes[other].address);
            world.nodes[node].channels.add(world.now_ns, key, vec![address]);
            world.connect(node, other);
        }
        world.run(20 * SECOND);
        assert!(world.is_up(0, 1) && world.is_up(1, 0), "seed {seed}");
        let before = [world.messages(0, 1).len(), world.messages(1, 0).len()];
        world.send(0, 1, &u32::MAX.to_le_bytes());
        world.send(1, 0, &u32::MAX.to_le_bytes());
        world.run(SECOND);
        let after = [world.messages(0, 1).len(), world.messages(1, 0).len()];
        assert_eq!(after, before.map(|messages| messages + 1), "seed {seed}");
        check_events(&world, 0, 1);
        check_events(&world, 1, 0);
        reasons.extend([world.downs(0), world.downs(1)].concat());
        let events = world.nodes.iter().flat_map(|node| &node.events);
        moves += events.filter(|event| matches!(event, Event::Moved { .. })).count();
    }
    let wanted = [DownReason::Restarted, DownReason::Reset, DownReason::Removed, DownReason::Closed];
    assert!(wanted.iter().all(|reason| reasons.contains(reason)) && moves > 0, "{reasons:?}, {moves}");
}
