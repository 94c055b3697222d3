//! The contract of messages as far as shared memory has a part in it, between two ports of one thread, so that the test
//! controls every step. What every link keeps is in `conformance/`.

use std::time::Duration;

use bywire::{
    Confirm, DisconnectReason, Event, FRAGMENT_BYTES, Port, PortOptions, Priority, Rights, SendError,
};

use crate::ports::{MINUTE, PortDirectory, event, meet, messages_until_closed, pattern, until, until_ended};

/// A program that takes its events late still learns the sender of each message.
#[test]
fn the_sender_of_a_message_is_known_until_its_disconnect_event_is_taken() {
    let place = PortDirectory::new();
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
    let (ended, _) = until_ended(&mut b, |b, event| match event {
        Event::Message(message) => {
            assert_eq!(message.peer, to_a);
            let info = b.peer_info(to_a).expect("whoever has sent this is known");
            assert_eq!((info.port(), info.pid()), (&name, Some(std::process::id() as i32)));
            messages += 1;
        }
        other => panic!("{other:?}"),
    });
    assert_eq!((ended, messages), (to_a, 40));
    assert!(b.peer_info(to_a).is_none(), "its end has been taken");
    assert_eq!(b.peers().count(), 0);
}

#[test]
fn tokens_and_credits_bound_every_queue() {
    let place = PortDirectory::new();
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
    let place = PortDirectory::new();
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
    let place = PortDirectory::new();
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
fn room_is_announced_once_to_each_waiting_sender() {
    let place = PortDirectory::new();
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

/// The end of a put comes before a message in which its receiver says that it has the data.
#[test]
fn a_put_ends_before_a_message_that_its_receiver_has_sent_on_seeing_it() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&place.options());
    let key = b.register(vec![0; 300_000], Rights { read: true, write: true }).expect("region");
    for length in [0, 100, 15_000, 300_000] {
        for (priority, is_long) in [(Priority::Low, false), (Priority::Low, true), (Priority::High, false)] {
            let mut ended = 0;
            for note in [&b"one"[..], b"two"] {
                a.put(to_b, Priority::Low, (key, 0), pattern(length, 1), Some(note)).expect("token");
                until(|| {
                    ended += u32::from(matches!(a.poll(), Some(Event::Put { result: Ok(()), .. })));
                    matches!(b.poll(), Some(Event::Notified { .. }))
                });
            }
            b.send(to_a, priority, if is_long { &[7; 2000] } else { b"I have it" }).expect("room");
            until(|| match a.poll() {
                Some(Event::Put { result: Ok(()), .. }) => {
                    ended += 1;
                    false
                }
                Some(Event::Message(_)) => {
                    assert_eq!(ended, 2, "{length} bytes, then {priority:?}, long: {is_long}");
                    true
                }
                Some(other) => panic!("{other:?}"),
                None => false,
            });
        }
    }
}

#[test]
fn a_put_ends_before_the_last_words_of_its_receiver() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&place.options());
    let key = b.register(vec![0; 1000], Rights { read: true, write: true }).expect("region");
    // Those without a note are answered as well, on whichever lane they come.
    for priority in [Priority::High, Priority::Low] {
        a.put(to_b, priority, (key, 0), pattern(100, 1), None).expect("token");
    }
    a.put(to_b, Priority::Low, (key, 0), pattern(100, 1), Some(b"note")).expect("token");
    // The first poll after this looks at the sockets, so it finds the end before any message.
    until(|| a.arm());
    until(|| matches!(b.poll(), Some(Event::Notified { .. })));
    b.send(to_a, Priority::High, b"I have it").expect("room");
    drop(b);
    let mut seen = Vec::new();
    until_ended(&mut a, |_, event| {
        seen.push(match event {
            Event::Put { result: Ok(()), .. } => "put",
            Event::Message(_) => "message",
            other => panic!("{other:?}"),
        });
    });
    assert_eq!(seen, ["put", "put", "put", "message"]);
}

/// The ends of puts, each of which the program answers with a new one, keep no urgent message back, and no other peer's.
#[test]
fn puts_without_end_keep_no_message_back() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, to_a) = place.pair(&place.options());
    let mut other = place.open(place.options());
    let (to_a_of_other, _) = meet(&mut other, &mut a);
    let key = b.register(vec![0; 1000], Rights { read: true, write: true }).expect("region");
    let put =
        |a: &mut Port| a.put(to_b, Priority::Low, (key, 0), pattern(8, 1), None).map(drop).expect("token");
    (0..32).for_each(|_| put(&mut a));
    let mut got = 0;
    for polls in 0..10_000 {
        if polls == 100 {
            b.send(to_a, Priority::High, b"stop").expect("room");
            other.send(to_a_of_other, Priority::Low, b"and listen").expect("room");
        }
        // As fast as the other end takes them.
        (0..4).for_each(|_| assert!(b.poll().is_none()));
        match a.poll() {
            Some(Event::Put { .. }) => put(&mut a),
            Some(Event::Message(_)) => got += 1,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        if got == 2 {
            assert!(polls < 1000, "{polls}");
            return;
        }
    }
    panic!("{got} of two messages");
}

#[test]
fn lent_blocks_are_returned_and_a_borrower_has_a_quota() {
    let place = PortDirectory::new();
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
fn a_long_message_that_was_sent_whole_survives_its_sender_without_a_posted_buffer() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, _) = place.pair(&place.options());
    a.send_buffer(to_b, Priority::Low, pattern(50_000, 4), Confirm::Copied).expect("token");
    assert!(matches!(event(&mut [&mut a]), Event::Sent { result: Ok(()), .. }));
    a.send(to_b, Priority::Low, b"behind it").expect("room");
    drop(a);
    assert_eq!(messages_until_closed(&mut b), [pattern(50_000, 4), b"behind it".to_vec()]);
}
