//! Every kind and length of transfer arrives, and what a peer does not take holds back only its lane.

use bywire::{Confirm, Event, PortOptions, Priority, Rights, SendError, TransferError};

use super::pair::Pair;

fn bytes(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|index| (index * 31 / 7) as u8 ^ salt).collect()
}

#[test]
fn bytes_of_a_long_transfer_are_copied_once() {
    for is_put in [false, true] {
        let mut pair = Pair::new();
        let sent = bytes(2_000_000, 5);
        let mut key = None;
        if is_put {
            let key =
                *key.insert(pair.ends[1].register(vec![0; 2_000_000], Rights { read: true, write: true }));
            pair.ends[0].put(Priority::Low, (key, 0), sent.clone(), Some(b"there")).expect("a token");
        } else {
            pair.ends[1].post_receive(Priority::Low, vec![0; 2_000_000]);
            pair.ends[0].send_buffer(Priority::Low, sent.clone(), Confirm::Copied).expect("a token");
        }
        let mut end = None;
        let mut largest = 0;
        while end.is_none() {
            assert!(pair.now_ns < 20_000_000_000, "it does not arrive");
            (0..2).for_each(|from| _ = pair.carry_now(from));
            end = std::iter::from_fn(|| pair.ends[1].poll()).last();
            largest = largest.max(pair.ends[1].memory_bytes());
            pair.now_ns += 100_000;
        }
        match end {
            Some(Event::Message(message)) => assert!(message.payload[..] == sent),
            Some(Event::Notified { note, .. }) => {
                assert_eq!(note[..], *b"there");
                assert!(key.and_then(|key| pair.ends[1].region(key)) == Some(&sent[..]));
            }
            other => panic!("{other:?}"),
        }
        assert!(
            largest < 32 << 10,
            "{largest}: the lane's memory holds what came with the head, and grows no more"
        );
    }
}

#[test]
fn the_note_of_a_put_leaves_with_its_last_bytes() {
    let mut pair = Pair::new();
    let key = pair.ends[1].register(vec![0; 6000], Rights { read: false, write: true });
    // The search for the length of packets sends packets of its own.
    pair.ends[0].send(Priority::High, b"first").expect("room");
    pair.until_message(1);
    pair.carry();
    pair.ends[0].put(Priority::Low, (key, 0), bytes(6000, 1), Some(b"there")).expect("a token");
    pair.carry_now(0);
    let note = std::iter::from_fn(|| pair.ends[1].poll()).find_map(|event| match event {
        Event::Notified { note, .. } => Some(note.to_vec()),
        _ => None,
    });
    assert_eq!(note.as_deref(), Some(&b"there"[..]));
}

#[test]
fn delivered_means_taken_by_the_program_and_copied_means_received_by_its_port() {
    for length in [10, 60_000] {
        let mut pair = Pair::new();
        let sent = |pair: &mut Pair| {
            let mut events = std::mem::take(&mut pair.events[0]);
            events.extend(std::iter::from_fn(|| pair.ends[0].poll()));
            events.into_iter().any(|event| matches!(event, Event::Sent { .. }))
        };
        pair.ends[0].send_buffer(Priority::Low, bytes(length, 3), Confirm::Copied).expect("a token");
        // Short ones are copied at once. Long ones are the library's until the other end has them.
        assert_eq!(sent(&mut pair), length == 10);
        pair.carry();
        assert_eq!(sent(&mut pair), length != 10);
        pair.ends[0].send_buffer(Priority::Low, bytes(length, 4), Confirm::Delivered).expect("a token");
        pair.carry();
        assert!(!sent(&mut pair), "nobody has taken it");
        (0..2).for_each(|_| pair.ends[1].post_receive(Priority::Low, vec![0; length]));
        assert_eq!(pair.until_message(1), bytes(length, 3));
        assert_eq!(pair.until_message(1), bytes(length, 4));
        pair.carry();
        assert!(sent(&mut pair));
    }
}

#[test]
fn a_forbidden_transfer_fails_without_an_access() {
    let mut pair = Pair::new();
    let read_only = pair.ends[1].register(vec![1; 100_000], Rights { read: true, write: false });
    let write_only = pair.ends[1].register(vec![1; 100_000], Rights { read: false, write: true });
    for (key, offset, length, error) in [
        (read_only, 0, 10, TransferError::NoRight),
        (read_only, 0, 90_000, TransferError::NoRight),
        (write_only, 99_991, 10, TransferError::OutOfRange),
        (write_only, u64::MAX, 10, TransferError::OutOfRange),
        (bywire::Key(12), 0, 50_000, TransferError::BadKey),
    ] {
        pair.ends[0].put(Priority::Low, (key, offset), vec![2; length], Some(b"x")).expect("a token");
        assert_eq!(pair.until_answered(0), (vec![2; length], Err(error)));
        assert!(pair.events[1].is_empty(), "no note of a put that failed");
    }
    pair.ends[0].get(Priority::Low, (write_only, 0), vec![0; 5]).expect("a token");
    assert_eq!(pair.until_answered(0).1, Err(TransferError::NoRight));
    for key in [read_only, write_only] {
        assert_eq!(pair.ends[1].region(key), Some(&[1; 100_000][..]));
    }
}

#[test]
fn a_peer_that_takes_nothing_blocks_its_sender_and_room_is_announced_once() {
    let mut pair = Pair::new();
    let mut sent = 0;
    while pair.ends[0].send(Priority::Low, &bytes(1000, sent as u8)) != Err(SendError::Full) {
        sent += 1;
        pair.carry();
        assert!(sent < 1000, "it never stops");
    }
    assert!(pair.ends[0].poll().is_none());
    assert!(pair.ends[0].memory_bytes() < 400 << 10 && pair.ends[1].memory_bytes() < 400 << 10);
    pair.ends[0].send(Priority::High, b"free").expect("the other lane is");
    for index in 0..sent {
        let taken = pair.until(1, |event| match event {
            Event::Message(message) if message.priority == Priority::Low => Some(message.payload.to_vec()),
            _ => None,
        });
        assert_eq!(taken, bytes(1000, index as u8));
    }
    pair.carry();
    pair.poll();
    let rooms = pair.events[0].iter().filter(|event| matches!(event, Event::Room { .. }));
    assert_eq!(rooms.count(), 1);
}

#[test]
fn a_long_message_from_a_geometry_of_long_fragments_needs_no_buffer() {
    let mut port = PortOptions::default();
    port.geometry.fragment_bytes = 65_472;
    port.geometry.lanes.iter_mut().for_each(|lane| lane.bulk_bytes = 1 << 18);
    let mut pair = Pair::with(&port);
    pair.ends[0].send(Priority::Low, &bytes(65_472, 7)).expect("room");
    assert_eq!(pair.until_message(1), bytes(65_472, 7));
}
