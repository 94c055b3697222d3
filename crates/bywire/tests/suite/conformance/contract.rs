//! Every link keeps the contract of messages.

use bywire::{
    Confirm, DisconnectReason, Event, LendError, Owner, Peer, PortOptions, Priority, Rights, SendError,
    TransferError,
};
use bywire_testing::repetitions;
use proptest::prelude::*;

use super::port_pair::{ALL, At, Link, pairs};
use crate::ports::{pattern, post_needed, until};

#[test]
fn short_messages_cross_both_ways_with_their_true_source() {
    for (kind, link, mut pair) in pairs(&PortOptions::default()) {
        for length in [0, 1, 7, 8, 9, 55, 56, 57, 63, 64, 1000, 1452, 4095, 4096] {
            for priority in [Priority::Low, Priority::High] {
                pair.a.send(pair.to_b, priority, &pattern(length, 1)).expect("room");
                assert_eq!(&pair.message(At::B)[..], pattern(length, 1), "{kind:?} {length} bytes");
                pair.b.send(pair.to_a, priority, &pattern(length, 2)).expect("room");
                assert_eq!(&pair.message(At::A)[..], pattern(length, 2), "{kind:?} {length} bytes");
            }
        }
        let info = pair.b.peer_info(pair.to_a).expect("connected");
        assert_eq!(info.port(), pair.a.name());
        match &info.owner {
            Owner::Remote { user } => assert!(link.is_remote() && !user.is_empty()),
            Owner::Local { .. } => {
                assert!(!link.is_remote());
                assert_eq!(info.pid(), i32::try_from(std::process::id()).ok());
            }
        }
        let (a, to_b) = (&mut pair.a, pair.to_b);
        assert_eq!(a.send(to_b, Priority::Low, &[0; 4097]), Err(SendError::TooLong { max: 4096 }));
        assert_eq!(a.heap(to_b, 4096, 1).err() == Some(LendError::OtherMachine), link.is_remote());
    }
}

#[test]
fn a_message_in_two_parts_arrives_as_one() {
    for kind in ALL {
        let link = Link::new(kind);
        for integrity in [false, true] {
            let remote_fragment_bytes = 64 << 10;
            let mut pair =
                link.meet(&PortOptions { integrity, remote_fragment_bytes, ..PortOptions::default() });
            let longest = if link.is_remote() { 64 << 10 } else { 4096 };
            for head_bytes in [0, 1, 16, 47, 48] {
                for length in [0, 1, 8, 9, 40, 56, 57, 4096, longest] {
                    let (head, payload) = (pattern(head_bytes, 1), pattern(length, 2));
                    let mut last = Err(SendError::Full);
                    while last == Err(SendError::Full) {
                        last = pair.a.send_headed(pair.to_b, Priority::High, &head, &payload);
                        pair.a.poll();
                    }
                    assert_eq!(last, Ok(()), "{kind:?}: {head_bytes} and {length} bytes");
                    assert_eq!(&pair.message(At::B)[..], [head, payload].concat(), "{kind:?}");
                }
            }
            let (a, to_b) = (&mut pair.a, pair.to_b);
            let too_long = a.send_headed(to_b, Priority::High, &[1; 48], &vec![2; longest + 1]);
            assert_eq!(too_long, Err(SendError::TooLong { max: longest as u64 + 48 }));
            let long_head = a.send_headed(to_b, Priority::High, &[1; 49], &[2]);
            assert_eq!(long_head, Err(SendError::TooLong { max: 48 }));
        }
    }
}

#[test]
fn long_messages_arrive_intact_and_their_memory_is_returned() {
    for kind in ALL {
        let link = Link::new(kind);
        for integrity in [false, true] {
            let mut pair = link.meet(&PortOptions { integrity, ..PortOptions::default() });
            let info = pair.a.peer_info(pair.to_b).expect("connected");
            assert_eq!(info.integrity, integrity || link.is_remote(), "packets are always checked");
            for length in [0, 56, 57, 4096, 4097, 8192, 100_000, 3_000_001] {
                for confirm in [Confirm::Copied, Confirm::Delivered] {
                    pair.b.post_receive(Priority::Low, vec![0; 3_000_001]).expect("token");
                    let sent = pair.a.send_buffer(pair.to_b, Priority::Low, pattern(length, 3), confirm);
                    let id = sent.expect("token");
                    assert_eq!(&pair.message(At::B)[..], pattern(length, 3), "{kind:?}");
                    match pair.next(At::A) {
                        Event::Sent { id: done, buffer, result: Ok(()) } => {
                            assert_eq!((done, buffer.into_vec()), (id, pattern(length, 3)));
                        }
                        other => panic!("{other:?} instead of a completion"),
                    }
                }
            }
        }
    }
}

#[test]
fn put_get_and_notifications_reach_only_what_the_key_grants() {
    for (kind, _link, mut pair) in pairs(&PortOptions::default()) {
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        let both = Rights { read: true, write: true };
        let key = pair.b.register(vec![9; 1_000_020], both).expect("region");
        let readable = Rights { read: true, write: false };
        let read_only = pair.b.register(pattern(10, 9), readable).expect("region");
        for length in [0, 1, 100, 4096, 4097, 15_000, 1_000_000] {
            pair.a.put(to_b, Priority::Low, (key, 10), pattern(length, 5), None).expect("token");
            match pair.next(At::A) {
                Event::Put { buffer, result: Ok(()), .. } => assert_eq!(buffer.as_ref(), pattern(length, 5)),
                other => panic!("{kind:?}: {other:?}"),
            }
            let region = pair.b.region(key).expect("ours");
            assert_eq!(&region[10..10 + length], pattern(length, 5));
            assert!(region[..10] == [9; 10] && region[1_000_010..] == [9; 10], "and nothing else");
            pair.a.get(to_b, Priority::High, (key, 10), vec![0; length]).expect("token");
            match pair.next(At::A) {
                Event::Got { buffer, result: Ok(()), .. } => assert_eq!(buffer.as_ref(), pattern(length, 5)),
                other => panic!("{other:?}"),
            }
        }
        for (target, length, error) in [
            ((key, 1_000_019), 2, TransferError::OutOfRange),
            ((key, u64::MAX), 2, TransferError::OutOfRange),
            ((read_only, 0), 1, TransferError::NoRight),
            ((bywire::Key(key.0 ^ 1 << 40), 0), 1, TransferError::BadKey),
        ] {
            let before = pair.b.region(key).expect("ours").to_vec();
            let data = vec![0xAA; length];
            pair.a.put(to_b, Priority::Low, target, data, Some(b"never seen")).expect("token");
            assert!(matches!(pair.next(At::A), Event::Put { result: Err(why), .. } if why == error));
            assert_eq!(pair.b.region(key).expect("ours"), before, "touched nothing");
        }
        pair.a.put(to_b, Priority::Low, (key, 0), pattern(9000, 6), Some(&[7; 32])).expect("token");
        match pair.next(At::B) {
            Event::Notified { peer, note } => assert_eq!((peer, &note[..]), (to_a, &[7; 32][..])),
            other => panic!("{other:?}"),
        }
        assert_eq!(&pair.b.region(key).expect("ours")[..9000], pattern(9000, 6));
        assert!(matches!(pair.next(At::A), Event::Put { result: Ok(()), .. }));
        assert!(pair.a.put(to_b, Priority::Low, (key, 0), vec![1], Some(&[0; 33])).is_err());
        pair.b.revoke(key).expect("ours");
        pair.a.get(to_b, Priority::Low, (key, 0), vec![0; 5]).expect("token");
        let got = pair.next(At::A);
        assert!(matches!(got, Event::Got { result: Err(TransferError::BadKey), .. }), "{got:?}");
    }
}

#[test]
fn datagrams_arrive_or_are_counted() {
    for (kind, _link, mut pair) in pairs(&PortOptions::default()) {
        for (length, priority) in [0, 1, 10, 56, 57, 1400, 4096]
            .into_iter()
            .flat_map(|length| [(length, Priority::High), (length, Priority::Low)])
        {
            let sent = pair.a.send_datagram(pair.to_b, priority, &pattern(length, 7));
            assert_eq!(sent, Ok(true));
            match pair.next(At::B) {
                Event::Datagram(datagram) => assert_eq!(&datagram.payload[..], pattern(length, 7)),
                other => panic!("{kind:?}: {other:?}"),
            }
        }
        let mut unsent = 0;
        until(|| {
            let sent = pair.a.send_datagram(pair.to_b, Priority::Low, &[7; 4096]).expect("connected");
            unsent += u64::from(!sent);
            unsent > 0
        });
        assert_eq!(pair.a.statistics().datagrams_unsent, unsent);
    }
}

#[test]
fn messages_sent_before_a_close_arrive_and_handles_become_invalid() {
    for (kind, link, mut pair) in pairs(&PortOptions::default()) {
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        pair.a.send(to_b, Priority::Low, b"last words").expect("room");
        let sent = pair.b.send_buffer(to_a, Priority::Low, vec![3; 100_000], Confirm::Delivered);
        let waits = sent.expect("token");
        let bystander = std::mem::replace(&mut pair.a, link.open(At::A, &PortOptions::default()));
        // A connection that lingers needs the other end to continue.
        let closing = std::thread::spawn(move || drop(bystander));
        let mut seen = Vec::new();
        until(|| {
            pair.turn();
            while let Some(event) = pair.seen(At::B) {
                match event {
                    Event::Message(message) => {
                        seen.push(format!("{:?}", std::str::from_utf8(&message.payload)));
                    }
                    Event::Sent { id, buffer, result } => {
                        assert_eq!((id, buffer.as_ref().len()), (waits, 100_000));
                        seen.push(format!("{result:?}"));
                    }
                    Event::Disconnected { peer, reason } => {
                        assert_eq!((peer, reason), (to_a, DisconnectReason::Closed), "{kind:?}");
                        return true;
                    }
                    other => panic!("{other:?}"),
                }
            }
            false
        });
        closing.join().expect("closed");
        assert_eq!(seen, ["Ok(\"last words\")", "Err(Disconnected(Closed))"], "{kind:?}");
        assert_eq!(pair.b.send(Peer::from_bits(u64::MAX), Priority::Low, b"x"), Err(SendError::NoPeer));
        let gone = SendError::Disconnected(DisconnectReason::Closed);
        assert_eq!(pair.b.send(to_a, Priority::Low, b"x"), Err(gone));
        assert!(pair.b.peer_info(to_a).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(repetitions("PROPTEST_CASES", [24, 24, 1000]) as u32))]

    /// Any mix of sends on both lanes arrives whole, and in order within each lane.
    #[test]
    fn order_holds_per_priority(
        kind in prop::sample::select(ALL.to_vec()),
        sends in prop::collection::vec((any::<bool>(), prop_oneof![0..57usize, 57..5000usize, 5000..70_000usize]), 1..60),
        integrity in any::<bool>(),
    ) {
        let link = Link::new(kind);
        let mut pair = link.meet(&PortOptions { integrity, ..PortOptions::default() });
        let mut expected = [Vec::new(), Vec::new()];
        let mut received = [Vec::new(), Vec::new()];
        let mut pending = sends.iter().enumerate();
        let mut next = pending.next();
        let mut completions = 0;
        until(|| {
            if let Some((number, (high, length))) = next {
                let priority = if *high { Priority::High } else { Priority::Low };
                let bytes = pattern(*length, number);
                let (a, to_b) = (&mut pair.a, pair.to_b);
                let begun = if *length <= 4096 && number % 2 == 0 {
                    a.send(to_b, priority, &bytes).map(|()| 0)
                } else {
                    let sent = a.send_buffer(to_b, priority, bytes.clone(), Confirm::Delivered);
                    sent.map(|_| 1).map_err(|unsent| unsent.error)
                };
                match begun {
                    Ok(count) => {
                        completions += count;
                        expected[priority as usize].push(bytes);
                        next = pending.next();
                    }
                    Err(SendError::Full | SendError::NoToken) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            pair.turn();
            while let Some(event) = pair.seen(At::A) {
                match event {
                    Event::Sent { result: Ok(()), .. } => completions -= 1,
                    Event::Room { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            while let Some(event) = pair.seen(At::B) {
                match event {
                    Event::Message(message) => {
                        received[message.priority as usize].push(message.payload.to_vec());
                        pair.b.recycle(message.payload);
                    }
                    other => assert!(post_needed(&mut pair.b, &other), "{other:?}"),
                }
            }
            next.is_none() && completions == 0 && received.iter().map(Vec::len).sum::<usize>() == sends.len()
        });
        prop_assert_eq!(received, expected);
    }
}

#[test]
fn a_message_without_a_buffer_waits_alone_and_is_announced_once() {
    for (kind, _link, mut pair) in pairs(&PortOptions::default()) {
        let (to_a, to_b) = (pair.to_a, pair.to_b);
        for length in [50_000, 6_000, 9_000] {
            pair.b.post_receive(Priority::Low, vec![0; length]).expect("token");
        }
        pair.a.send_buffer(to_b, Priority::Low, pattern(8_000, 0), Confirm::Copied).expect("token");
        let first = pair.message(At::B);
        assert_eq!(first.into_buffer().expect("posted").as_ref().len(), 9_000, "the smallest that fits");
        assert!(matches!(pair.next(At::A), Event::Sent { result: Ok(()), .. }));
        pair.a.send_buffer(to_b, Priority::Low, pattern(60_000, 0), Confirm::Delivered).expect("token");
        pair.a.send(to_b, Priority::High, b"not blocked").expect("room");
        let (mut needed, mut urgent) = (0, false);
        while needed == 0 || !urgent {
            match pair.next(At::B) {
                Event::BufferNeeded { peer, priority: Priority::Low, length_bytes: 60_000 } => {
                    assert_eq!(peer, to_a);
                    needed += 1;
                }
                Event::Message(message) => urgent = &message.payload[..] == b"not blocked",
                other => panic!("{other:?}"),
            }
        }
        for _ in 0..1000 {
            pair.turn();
            assert!(pair.seen(At::B).is_none(), "{kind:?}: said once");
        }
        assert!(pair.seen(At::A).is_none(), "{kind:?}: it is not delivered");
        pair.b.post_receive(Priority::Low, vec![0; 4096]).expect("token");
        assert!(matches!(pair.next(At::B), Event::BufferNeeded { .. }), "{kind:?}: said again");
        pair.b.post_receive(Priority::Low, vec![0; 60_000]).expect("token");
        assert_eq!(&pair.message(At::B)[..], pattern(60_000, 0));
        assert!(matches!(pair.next(At::A), Event::Sent { result: Ok(()), .. }));
    }
}

#[test]
fn a_full_lane_leaves_the_other_its_room_and_announces_its_own() {
    for (kind, _link, mut pair) in pairs(&PortOptions { send_tokens: 2, ..PortOptions::default() }) {
        let to_b = pair.to_b;
        let mut sent = 0;
        until(|| match pair.a.send(to_b, Priority::Low, &[7; 1000]) {
            Ok(()) => {
                sent += 1;
                false
            }
            Err(error) => {
                assert_eq!(error, SendError::Full);
                true
            }
        });
        pair.a.send(to_b, Priority::High, b"the other lane has its own room").expect("room");
        for _ in 0..2 {
            pair.a.send_buffer(to_b, Priority::Low, vec![1; 1000], Confirm::Copied).expect("token");
        }
        let refused =
            pair.a.send_buffer(to_b, Priority::Low, vec![9; 1000], Confirm::Copied).expect_err("no token");
        assert_eq!((refused.error, refused.buffer.into_vec()), (SendError::NoToken, vec![9; 1000]));
        let (mut received, mut completed, mut told) = (0, 0, 0);
        until(|| {
            pair.turn();
            while let Some(event) = pair.seen(At::A) {
                match event {
                    Event::Sent { result: Ok(()), .. } => completed += 1,
                    Event::Room { peer, priority: Priority::Low } if peer == to_b => told += 1,
                    other => panic!("{other:?}"),
                }
            }
            while let Some(event) = pair.seen(At::B) {
                assert!(matches!(event, Event::Message(_)));
                received += 1;
            }
            received == sent + 1 + 2 && completed == 2 && told > 0
        });
        assert_eq!(told, 1, "{kind:?}");
    }
}
