//! The contract of messages, between two ports of one thread, so that the test controls every step.

mod ports;

use std::time::Duration;

use bywire::{
    Confirm, DisconnectReason, Event, FRAGMENT_BYTES, Payload, Port, PortOptions, Priority, Rights,
    SendError, TransferError,
};
use ports::{Place, event, until};
use proptest::prelude::*;

const MINUTE: Duration = Duration::from_secs(60);

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + seed * 7 + (index >> 8)) as u8).collect()
}

fn message(ports: &mut [&mut Port]) -> Payload {
    match event(ports) {
        Event::Message(message) => message.payload,
        other => panic!("{other:?} instead of a message"),
    }
}

/// A program that takes its events late still learns the sender of each message.
#[test]
fn who_sent_a_message_is_known_until_the_end_of_its_sender_is_taken() {
    let place = Place::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&place.options());
    let name = a.name().clone();
    // The first poll after this looks at the sockets, so it finds the end before any message.
    until(|| b.arm());
    for number in 0..20u8 {
        a.send(to_b, Priority::Low, &[number; 100]).expect("room");
        a.send(to_b, Priority::High, &[number]).expect("room");
    }
    drop(a);
    let mut messages = 0;
    until(|| match b.poll() {
        Some(Event::Message(message)) => {
            assert_eq!(message.peer, to_a);
            let info = b.peer_info(to_a).expect("whoever has sent this is known");
            assert_eq!((info.port(), info.pid), (&name, std::process::id() as i32));
            messages += 1;
            false
        }
        Some(Event::Disconnected { peer, .. }) => {
            assert_eq!(peer, to_a);
            true
        }
        Some(other) => panic!("{other:?}"),
        None => false,
    });
    assert_eq!(messages, 40);
    assert!(b.peer_info(to_a).is_none(), "its end has been taken");
    assert_eq!(b.peers().count(), 0);
}

#[test]
fn short_messages_cross_both_ways_with_their_true_source() {
    let place = Place::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&place.options());
    for length in [0, 1, 7, 8, 9, 55, 56, 57, 64, 1000, 4095, 4096] {
        a.send(to_b, Priority::Low, &pattern(length, 1)).expect("room");
        assert_eq!(&message(&mut [&mut b])[..], pattern(length, 1), "{length} bytes");
        b.send(to_a, Priority::Low, &pattern(length, 2)).expect("room");
        assert_eq!(&message(&mut [&mut a])[..], pattern(length, 2), "{length} bytes");
    }
    let info = b.peer_info(to_a).expect("connected");
    assert_eq!(info.port(), a.name());
    assert_eq!(info.pid, i32::try_from(std::process::id()).expect("pid"));
    assert_eq!(a.send(to_b, Priority::Low, &[0; 4097]), Err(SendError::TooLong { max: 4096 }));
}

#[test]
fn long_messages_arrive_whole_with_and_without_the_check() {
    let place = Place::new();
    for integrity in [false, true] {
        let (mut a, to_b, mut b, _) = place.pair(&PortOptions { integrity, ..place.options() });
        assert_eq!(a.peer_info(to_b).expect("connected").integrity, integrity);
        for length in [0, 56, 57, 4096, 4097, 8192, 100_000, 3_000_001] {
            b.post_receive(Priority::Low, vec![0; 3_000_001]).expect("token");
            let id =
                a.send_buffer(to_b, Priority::Low, pattern(length, 3), Confirm::Delivered).expect("token");
            assert_eq!(&message(&mut [&mut b, &mut a])[..], pattern(length, 3));
            match event(&mut [&mut a, &mut b]) {
                Event::Sent { id: done, buffer, result: Ok(()) } => {
                    assert_eq!((done, buffer.into_vec()), (id, pattern(length, 3)));
                }
                other => panic!("{other:?} instead of a completion"),
            }
        }
    }
}

#[test]
fn a_message_takes_the_smallest_buffer_that_fits_and_waits_when_there_is_none() {
    let place = Place::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&place.options());
    for length in [50_000, 6_000, 9_000] {
        b.post_receive(Priority::Low, vec![0; length]).expect("token");
    }
    a.send_buffer(to_b, Priority::Low, pattern(8_000, 0), Confirm::Copied).expect("token");
    assert!(matches!(event(&mut [&mut a]), Event::Sent { result: Ok(()), .. }));
    let first = message(&mut [&mut b]);
    assert_eq!(first.into_buffer().expect("posted").as_ref().len(), 9_000);

    a.send_buffer(to_b, Priority::Low, pattern(60_000, 0), Confirm::Copied).expect("token");
    a.send(to_b, Priority::High, b"not blocked").expect("room");
    let (mut needed, mut urgent) = (0, false);
    until(|| {
        a.poll();
        match b.poll() {
            Some(Event::BufferNeeded { peer, priority: Priority::Low, length_bytes: 60_000 })
                if peer == to_a =>
            {
                needed += 1
            }
            Some(Event::Message(message)) => urgent = &message.payload[..] == b"not blocked",
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        needed > 0 && urgent
    });
    for _ in 0..1000 {
        assert!(b.poll().is_none(), "said once");
    }
    // Ordered behind the waiting message.
    assert_eq!(a.send(to_b, Priority::Low, b"later"), Err(SendError::Full));
    b.post_receive(Priority::Low, vec![0; 60_000]).expect("token");
    let (mut completed, mut received) = (false, None);
    until(|| {
        completed |= matches!(a.poll(), Some(Event::Sent { result: Ok(()), .. }));
        if let Some(Event::Message(message)) = b.poll() {
            received = Some(message.payload);
        }
        completed && received.is_some()
    });
    assert_eq!(&received.expect("received")[..], pattern(60_000, 0));
    a.send(to_b, Priority::Low, b"later").expect("room again");
    assert_eq!(&message(&mut [&mut b])[..], b"later");
}

#[test]
fn tokens_and_credits_bound_every_queue() {
    let place = Place::new();
    let (mut a, to_b, mut b, _) = place.pair(&PortOptions { send_tokens: 2, ..place.options() });
    let mut sent = 0;
    while a.send(to_b, Priority::Low, b"x").is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 256);
    a.send(to_b, Priority::High, b"the other lane has its own room").expect("room");
    for _ in 0..2 {
        a.send_buffer(to_b, Priority::Low, vec![1], Confirm::Copied).expect("token");
    }
    let refused = a.send_buffer(to_b, Priority::Low, vec![9], Confirm::Copied).expect_err("no token");
    assert_eq!((refused.error, refused.buffer.into_vec()), (SendError::NoToken, vec![9]));
    let (mut received, mut completed) = (0, 0);
    until(|| {
        received += u32::from(matches!(b.poll(), Some(Event::Message(_))));
        completed += u32::from(matches!(a.poll(), Some(Event::Sent { .. })));
        received == 256 + 1 + 2 && completed == 2
    });
    for _ in 0..3 {
        assert!(b.post_receive(Priority::High, vec![0; 10]).is_ok());
    }
}

#[test]
fn receive_tokens_bound_posted_buffers_and_a_stated_maximum_is_refused_at_the_sender() {
    let place = Place::new();
    let options = PortOptions { receive_tokens: 1, message_bytes_max: 5000, ..place.options() };
    let (mut a, to_b, mut b, _) = place.pair(&options);
    assert!(b.post_receive(Priority::Low, vec![0; 10]).is_ok());
    assert_eq!(b.post_receive(Priority::Low, vec![0; 11]).expect_err("one token").as_ref().len(), 11);
    let refused = a.send_buffer(to_b, Priority::Low, vec![0; 5001], Confirm::Copied).expect_err("too long");
    assert_eq!(refused.error, SendError::TooLong { max: 5000 });
    // The refusal has kept no token.
    for _ in 0..64 {
        a.send_buffer(to_b, Priority::Low, vec![0; 10], Confirm::Copied).expect("token");
    }
}

#[test]
fn datagrams_are_dropped_and_counted_and_pass_a_message_that_waits_for_room() {
    let place = Place::new();
    let (mut a, to_b, mut b, _) = place.pair(&place.options());
    let mut sent = 0;
    while a.send_datagram(to_b, Priority::Low, b"frame").expect("connected") {
        sent += 1;
    }
    assert_eq!(a.statistics().datagrams_unsent, 1);
    for _ in 0..sent {
        assert!(
            matches!(event(&mut [&mut b]), Event::Datagram(datagram) if &datagram.payload[..] == b"frame")
        );
    }
}

/// For a program that keeps a datagram that was dropped, even while it sleeps.
#[test]
fn room_is_told_once_to_whoever_awaits_it() {
    let place = Place::new();
    let (mut a, to_b, mut b, _) = place.pair(&place.options());
    let is_told = |event, awaited| matches!(event, Some(Event::Room { peer, priority }) if (peer, priority) == (to_b, awaited));
    let moment = Some(Duration::from_millis(20));
    a.await_room(to_b, Priority::Low).expect("connected");
    assert!(is_told(a.wait(Some(MINUTE)).expect("wait"), Priority::Low), "there is room already");
    let mut sent = 0;
    while a.send_datagram(to_b, Priority::High, &[7; 100]).expect("connected") {
        sent += 1;
    }
    a.await_room(to_b, Priority::High).expect("connected");
    assert!(a.wait(moment).expect("wait").is_none(), "there is no room");
    let taking = std::thread::spawn(move || {
        (0..sent).for_each(|_| assert!(matches!(event(&mut [&mut b]), Event::Datagram(_))));
        b
    });
    assert!(is_told(a.wait(Some(MINUTE)).expect("wait"), Priority::High));
    assert_eq!(
        a.send_datagram(to_b, Priority::High, &[7; FRAGMENT_BYTES]),
        Ok(true),
        "a whole fragment fits"
    );
    let mut b = taking.join().expect("all were taken");
    assert!(matches!(event(&mut [&mut b]), Event::Datagram(_)));
    assert!(a.wait(moment).expect("wait").is_none(), "it is told once");
    // If the peer ends, its end is reported instead of room.
    while a.send_datagram(to_b, Priority::High, &[7; 100]).expect("connected") {}
    a.await_room(to_b, Priority::High).expect("connected");
    drop(b);
    assert!(matches!(
        a.wait(Some(MINUTE)),
        Ok(Some(Event::Disconnected { reason: DisconnectReason::Closed, .. }))
    ));
    assert_eq!(a.await_room(to_b, Priority::High), Err(SendError::Disconnected(DisconnectReason::Closed)));
}

#[test]
fn put_get_and_notes_reach_only_what_the_key_grants() {
    let place = Place::new();
    for integrity in [false, true] {
        let (mut a, to_b, mut b, to_a) = place.pair(&PortOptions { integrity, ..place.options() });
        let both = Rights { read: true, write: true };
        let key = b.register(vec![0; 20_000], both).expect("region");
        let read_only = b.register(pattern(10, 9), Rights { read: true, write: false }).expect("region");
        let outcome = |a: &mut Port, b: &mut Port| match event(&mut [a, b]) {
            Event::Put { result, .. } | Event::Got { result, .. } => result,
            other => panic!("{other:?}"),
        };
        for length in [0, 1, 100, 4096, 4097, 15_000] {
            a.put(to_b, Priority::Low, (key, 10), pattern(length, 5), None).expect("token");
            assert_eq!(outcome(&mut a, &mut b), Ok(()));
            assert_eq!(&b.region(key).expect("ours")[10..10 + length], pattern(length, 5));
            a.get(to_b, Priority::High, (key, 10), vec![0; length]).expect("token");
            match event(&mut [&mut a, &mut b]) {
                Event::Got { buffer, result: Ok(()), .. } => assert_eq!(buffer.as_ref(), pattern(length, 5)),
                other => panic!("{other:?}"),
            }
        }
        for (target, length, error) in [
            ((key, 19_999), 2, TransferError::OutOfRange),
            ((key, u64::MAX), 2, TransferError::OutOfRange),
            ((read_only, 0), 1, TransferError::NoRight),
            ((bywire::Key(key.0 ^ 1 << 40), 0), 1, TransferError::BadKey),
        ] {
            let before = b.region(key).expect("ours").to_vec();
            a.put(to_b, Priority::Low, target, vec![0xAA; length], Some(b"never seen")).expect("token");
            assert_eq!(outcome(&mut a, &mut b), Err(error));
            assert_eq!(b.region(key).expect("ours"), before, "touched nothing");
        }
        a.put(to_b, Priority::Low, (key, 0), pattern(9000, 6), Some(&[7; 32])).expect("token");
        match event(&mut [&mut b, &mut a]) {
            Event::Notified { peer, note } => assert_eq!((peer, &note[..]), (to_a, &[7; 32][..])),
            other => panic!("{other:?}"),
        }
        assert_eq!(&b.region(key).expect("ours")[..9000], pattern(9000, 6));
        assert_eq!(outcome(&mut a, &mut b), Ok(()));
        assert!(a.put(to_b, Priority::Low, (key, 0), vec![1], Some(&[0; 33])).is_err());

        b.revoke(key).expect("ours");
        a.get(to_b, Priority::Low, (key, 0), vec![0; 5]).expect("token");
        assert_eq!(outcome(&mut a, &mut b), Err(TransferError::BadKey));
    }
}

#[test]
fn lent_blocks_come_back_and_a_borrower_has_a_quota() {
    let place = Place::new();
    let (mut a, to_b, mut b, _) = place.pair(&place.options());
    let heap = a.heap(to_b, 100_000, 2).expect("heap");
    let mut borrowed = Vec::new();
    for seed in 0..2 {
        let mut block = heap.block().expect("free");
        block[..90_000].copy_from_slice(&pattern(90_000, seed));
        a.send_lent(Priority::Low, block, 90_000).expect("room");
    }
    assert!(heap.block().is_none(), "the quota is the heap");
    for seed in 0..2 {
        match event(&mut [&mut b, &mut a]) {
            Event::Lent(lent) => {
                assert_eq!(lent.to_vec(), pattern(90_000, seed));
                borrowed.push(lent);
            }
            other => panic!("{other:?}"),
        }
    }
    // Returned from another thread, as in a pool of consumers.
    std::thread::spawn(move || drop(borrowed)).join().expect("drop");
    let mut free = Vec::new();
    until(|| {
        assert!(matches!(a.poll(), None | Some(Event::Room { .. })) && b.poll().is_none());
        free.extend(heap.block());
        free.len() == 2
    });
    let (_, unsent) = a.send_lent(Priority::Low, free.remove(0), 200_000).expect_err("longer than the block");
    drop((unsent, free));
    // Blocks held by a dead borrower come back, too.
    a.send_lent(Priority::Low, heap.block().expect("free"), 10).expect("room");
    drop(b);
    until(|| matches!(a.poll(), Some(Event::Disconnected { reason: DisconnectReason::Closed, .. })));
    assert!(heap.block().is_some() && heap.block().is_some());
}

#[test]
fn what_was_sent_before_closing_arrives_and_handles_die() {
    let place = Place::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&place.options());
    a.send(to_b, Priority::Low, b"last words").expect("room");
    let waits = b.send_buffer(to_a, Priority::Low, vec![3; 100_000], Confirm::Delivered).expect("token");
    drop(a);
    let mut seen = Vec::new();
    until(|| {
        match b.poll() {
            Some(Event::Message(message)) => {
                seen.push(format!("{:?}", std::str::from_utf8(&message.payload)))
            }
            Some(Event::Sent { id, buffer, result }) => {
                assert_eq!((id, buffer.as_ref().len()), (waits, 100_000));
                seen.push(format!("{result:?}"));
            }
            Some(Event::Disconnected { peer, reason }) => {
                assert_eq!((peer, reason), (to_a, DisconnectReason::Closed));
                return true;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        false
    });
    assert_eq!(seen, ["Ok(\"last words\")", "Err(Disconnected(Closed))"]);
    assert_eq!(b.send(to_a, Priority::Low, b"x"), Err(SendError::Disconnected(DisconnectReason::Closed)));
    assert!(b.peer_info(to_a).is_none());
    assert_eq!(b.send(bywire::Peer::from_bits(u64::MAX), Priority::Low, b"x"), Err(SendError::NoPeer));
}

#[test]
fn a_long_message_that_was_sent_whole_survives_its_sender_without_a_posted_buffer() {
    let place = Place::new();
    let (mut a, to_b, mut b, _) = place.pair(&place.options());
    a.send_buffer(to_b, Priority::Low, pattern(50_000, 4), Confirm::Copied).expect("token");
    assert!(matches!(event(&mut [&mut a]), Event::Sent { result: Ok(()), .. }));
    a.send(to_b, Priority::Low, b"behind it").expect("room");
    drop(a);
    let received = ports::messages_until_closed(&mut b);
    assert_eq!(received, [pattern(50_000, 4), b"behind it".to_vec()]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any mix of sends on both lanes arrives whole, and in order within each lane.
    #[test]
    fn order_holds_per_priority(
        sends in prop::collection::vec((any::<bool>(), prop_oneof![0..57usize, 57..5000usize, 5000..70_000usize]), 1..60),
        integrity in any::<bool>(),
    ) {
        let place = Place::new();
        let (mut a, to_b, mut b, _) = place.pair(&PortOptions { integrity, ..place.options() });
        let mut expected = [Vec::new(), Vec::new()];
        let mut received = [Vec::new(), Vec::new()];
        let mut pending = sends.iter().enumerate();
        let mut next = pending.next();
        let mut completions = 0;
        until(|| {
            if let Some((number, (high, length))) = next {
                let priority = if *high { Priority::High } else { Priority::Low };
                let bytes = pattern(*length, number);
                let begun = if *length <= 4096 && number % 2 == 0 {
                    a.send(to_b, priority, &bytes).map(|()| 0)
                } else {
                    a.send_buffer(to_b, priority, bytes.clone(), Confirm::Delivered).map(|_| 1).map_err(|unsent| unsent.error)
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
            match a.poll() {
                Some(Event::Sent { result: Ok(()), .. }) => completions -= 1,
                Some(Event::Room { .. }) => {}
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            match b.poll() {
                Some(Event::Message(message)) => {
                    received[message.priority as usize].push(message.payload.to_vec());
                    b.recycle(message.payload);
                }
                Some(Event::BufferNeeded { priority, length_bytes, .. }) => {
                    b.post_receive(priority, vec![0; length_bytes as usize]).expect("token");
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            next.is_none() && completions == 0 && received.iter().map(Vec::len).sum::<usize>() == sends.len()
        });
        prop_assert_eq!(received, expected);
    }
}
