//! Long messages that give way to messages of high priority after each step: two ports of one thread, polled by hand.

use bywire::{Buffer, Confirm, Event, Peer, Port, PortOptions, Priority, Rights};

use crate::ports::{PortDirectory, until};

/// The length of a step of a copy.
const STEP: usize = 2048;
const LONG: usize = 300_000;

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 + seed * 7 + (index >> 8)) as u8).collect()
}

/// Two ports. With `busy`, the first one has large fragments of low priority.
fn pair(place: &PortDirectory, integrity: bool, busy: bool) -> (Port, Peer, Port, Peer) {
    let (mut a, to_b, mut b, to_a) = place.pair(&PortOptions { integrity, ..place.options() });
    if busy {
        for port in [&mut a, &mut b] {
            port.post_receive(Priority::Low, vec![0; 2 << 20]).expect("token");
        }
        a.send_buffer(to_b, Priority::Low, vec![7; 2 << 20], Confirm::Copied).expect("token");
        let (mut sent, mut received) = (false, false);
        until(|| {
            sent |= matches!(a.poll(), Some(Event::Sent { .. }));
            received |= matches!(b.poll(), Some(Event::Message(_)));
            sent && received
        });
    }
    (a, to_b, b, to_a)
}

fn high(event: Option<Event>) -> Vec<u8> {
    match event {
        Some(Event::Message(message)) if message.priority == Priority::High => message.payload.to_vec(),
        other => panic!("{other:?} instead of a message of high priority"),
    }
}

fn take_long(port: &mut Port, other: &mut Port, seed: usize) {
    until(|| {
        other.poll();
        match port.poll() {
            Some(Event::Message(message)) => {
                assert_eq!(message.priority, Priority::Low);
                assert!(message.payload[..] == pattern(LONG, seed), "the long one is intact");
                true
            }
            None => false,
            Some(other) => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_sender_handles_urgent_messages_between_any_two_steps() {
    let place = PortDirectory::new();
    for (seed, (integrity, busy)) in
        [(false, false), (false, true), (true, true), (true, false)].into_iter().enumerate()
    {
        let (mut a, to_b, mut b, to_a) = pair(&place, integrity, busy);
        b.post_receive(Priority::Low, vec![0; LONG]).expect("token");
        a.send_buffer(to_b, Priority::Low, pattern(LONG, seed), Confirm::Copied).expect("token");
        // One step at a time, with a message for the sender before each. The first fragment has gone before.
        let (mut rounds, mut received) = (0usize, None);
        loop {
            b.send(to_a, Priority::High, &rounds.to_ne_bytes()).expect("room");
            match a.poll() {
                Some(Event::Sent { result: Ok(()), .. }) => break,
                event => assert_eq!(high(event), rounds.to_ne_bytes(), "at once"),
            }
            rounds += 1;
            // The small area has to be emptied on the way.
            if let Some(Event::Message(message)) = b.poll() {
                received = Some(message.payload);
            }
        }
        let first = if busy { 32 << 10 } else { 4096 };
        let steps = (LONG - first).div_ceil(STEP);
        assert!(rounds >= steps - 2 && rounds < steps + 10, "{rounds} rounds for {steps} steps");
        assert_eq!(high(a.poll()), rounds.to_ne_bytes(), "the last one");
        match received {
            Some(payload) => assert!(payload[..] == pattern(LONG, seed), "the long one is intact"),
            None => take_long(&mut b, &mut a, seed),
        }
    }
}

#[test]
fn a_receiver_handles_urgent_messages_between_any_two_steps() {
    let place = PortDirectory::new();
    for (seed, integrity) in [(1, false), (2, true)] {
        let (mut a, to_b, mut b, _) = pair(&place, integrity, true);
        b.post_receive(Priority::Low, vec![0; LONG]).expect("token");
        a.send_buffer(to_b, Priority::Low, pattern(LONG, seed), Confirm::Copied).expect("token");
        until(|| matches!(a.poll(), Some(Event::Sent { .. })));
        // The whole message is there, yet each message of high priority comes before the rest of it.
        let (mut rounds, mut expected) = (0usize, 0usize);
        loop {
            a.send(to_b, Priority::High, &rounds.to_ne_bytes()).expect("room");
            rounds += 1;
            match b.poll() {
                Some(Event::Message(message)) if message.priority == Priority::Low => {
                    assert!(message.payload[..] == pattern(LONG, seed), "the long one is intact");
                    break;
                }
                event => assert_eq!(high(event), expected.to_ne_bytes(), "in order"),
            }
            expected += 1;
        }
        // Every eighth poll begins with the low lane, and makes one step there.
        let polls = 8 * LONG.div_ceil(STEP);
        assert!(rounds > polls - 16 && rounds < polls + 100, "{rounds} rounds for {polls} polls");
        assert_eq!(high(b.poll()), expected.to_ne_bytes(), "the last one");
    }
}

#[test]
fn a_sender_of_a_put_handles_urgent_messages_between_any_two_steps() {
    let place = PortDirectory::new();
    for (seed, (integrity, busy)) in [(false, false), (true, true)].into_iter().enumerate() {
        let (mut a, to_b, mut b, to_a) = pair(&place, integrity, busy);
        let key = b.register(vec![0; LONG], Rights { read: false, write: true }).expect("region");
        a.put(to_b, Priority::Low, (key, 0), pattern(LONG, seed), None).expect("token");
        let mut rounds = 0usize;
        loop {
            b.send(to_a, Priority::High, &rounds.to_ne_bytes()).expect("room");
            match a.poll() {
                Some(Event::Put { result: Ok(()), .. }) => break,
                event => assert_eq!(high(event), rounds.to_ne_bytes(), "at once"),
            }
            rounds += 1;
            assert!(b.poll().is_none());
        }
        let first = if busy { 32 << 10 } else { 4096 };
        let steps = (LONG - first).div_ceil(STEP);
        // The answer has its turn at every 64th poll.
        assert!(rounds >= steps - 2 && rounds < steps + 80, "{rounds} rounds for {steps} steps");
        assert!(b.region(key) == Some(&pattern(LONG, seed)), "the data is intact");
    }
}

/// Other peers may write the same memory meanwhile: the check covers the bytes that cross.
#[test]
fn a_put_from_memory_that_changes_between_two_steps_ends_no_connection() {
    let place = PortDirectory::new();
    for (integrity, busy) in [(false, true), (true, true), (true, false)] {
        let (mut a, to_b, mut b, to_a) = pair(&place, integrity, busy);
        let key = b.register(vec![0; LONG], Rights { read: false, write: true }).expect("region");
        let mut memory = vec![0; LONG];
        let base = memory.as_mut_ptr();
        // SAFETY: the vector outlives the buffer, which comes back with the event, and is touched between calls only.
        let buffer = unsafe { Buffer::from_raw(base, LONG) };
        a.put(to_b, Priority::Low, (key, 0), buffer, None).expect("token");
        let mut rounds = 0usize;
        loop {
            b.send(to_a, Priority::High, &rounds.to_ne_bytes()).expect("room");
            match a.poll() {
                Some(Event::Put { result: Ok(()), .. }) => break,
                event => assert_eq!(high(event), rounds.to_ne_bytes(), "at once"),
            }
            rounds += 1;
            // SAFETY: the vector has `LONG` bytes, and no call on the port is under way.
            unsafe { base.write_bytes(rounds as u8, LONG) };
            let event = b.poll();
            assert!(event.is_none(), "{event:?}");
        }
        let came = b.region(key).expect("ours");
        // The last step was copied later than the first.
        assert!(came[LONG - 1] as usize > LONG / STEP / 2, "{} after {rounds} rounds", came[LONG - 1]);
        a.send(to_b, Priority::Low, b"still here").expect("room");
        until(|| matches!(b.poll(), Some(Event::Message(_))));
        drop(memory);
    }
}

/// Between two steps the program may change its region: the check covers the bytes that came.
#[test]
fn a_receiver_of_a_put_handles_urgent_messages_between_any_two_steps() {
    let place = PortDirectory::new();
    for (seed, integrity) in [(1, false), (2, true)] {
        let (mut a, to_b, mut b, _) = pair(&place, integrity, true);
        let key = b.register(vec![0; LONG], Rights { read: false, write: true }).expect("region");
        a.put(to_b, Priority::Low, (key, 0), pattern(LONG, seed), Some(b"done")).expect("token");
        (0..1000).for_each(|_| drop(a.poll()));
        let (mut rounds, mut expected) = (0usize, 0usize);
        loop {
            a.send(to_b, Priority::High, &rounds.to_ne_bytes()).expect("room");
            rounds += 1;
            match b.poll() {
                Some(Event::Notified { note, .. }) => {
                    assert_eq!(&note[..], b"done");
                    break;
                }
                event => assert_eq!(high(event), expected.to_ne_bytes(), "in order"),
            }
            expected += 1;
            b.region_mut(key).expect("ours")[0] ^= 0x55;
        }
        assert!(b.region(key).expect("ours")[1..] == pattern(LONG, seed)[1..], "the data is intact");
        // Every eighth poll begins with the low lane, and makes one step there.
        let polls = 8 * (LONG.div_ceil(STEP) + 1);
        assert!(rounds > polls - 24 && rounds < polls + 100, "{rounds} rounds for {polls} polls");
        assert_eq!(high(b.poll()), expected.to_ne_bytes(), "the last one");
    }
}

#[test]
fn a_region_revoked_between_two_steps_is_not_accessed_again() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, to_a) = pair(&place, false, true);
    let key = b.register(vec![0; LONG], Rights { read: false, write: true }).expect("region");
    a.put(to_b, Priority::Low, (key, 0), vec![7; LONG], None).expect("token");
    (0..1000).for_each(|_| drop(a.poll()));
    // A few steps of the put.
    for round in 0..40usize {
        a.send(to_b, Priority::High, &round.to_ne_bytes()).expect("room");
        high(b.poll());
    }
    let memory = b.revoke(key).expect("ours").into_vec();
    let copied = memory.iter().filter(|byte| **byte == 7).count();
    assert!((STEP..=6 * STEP).contains(&copied) && copied.is_multiple_of(STEP), "{copied} bytes");
    let mut result = None;
    until(|| {
        b.poll();
        if let Some(Event::Put { result: over, .. }) = a.poll() {
            result = Some(over);
        }
        result.is_some()
    });
    assert_eq!(result, Some(Err(bywire::TransferError::BadKey)));
    // The lane behind it is not blocked.
    b.send(to_a, Priority::Low, b"well?").expect("room");
    until(|| matches!(a.poll(), Some(Event::Message(_))));
}

/// A datagram takes the place of a staged fragment. The fragment begins again, and is then not interrupted a second
/// time.
#[test]
fn datagrams_and_urgent_messages_do_not_starve_a_long_message() {
    let place = PortDirectory::new();
    for busy in [false, true] {
        let (mut a, to_b, mut b, to_a) = pair(&place, false, busy);
        b.post_receive(Priority::Low, vec![0; LONG]).expect("token");
        a.send_buffer(to_b, Priority::Low, pattern(LONG, 5), Confirm::Copied).expect("token");
        let (mut sent, mut received) = (false, false);
        let mut datagrams = 0;
        for round in 0..400usize {
            b.send(to_a, Priority::High, &round.to_ne_bytes()).expect("room");
            datagrams +=
                usize::from(a.send_datagram(to_b, Priority::Low, &[round as u8; 100]).expect("connected"));
            match a.poll() {
                Some(Event::Sent { .. }) => sent = true,
                event => drop(high(event)),
            }
            for _ in 0..4 {
                match b.poll() {
                    Some(Event::Datagram(datagram)) => {
                        assert_eq!(&datagram.payload[..], [datagram.payload[0]; 100]);
                        datagrams -= 1;
                    }
                    Some(Event::Message(message)) => {
                        assert!(message.payload[..] == pattern(LONG, 5), "the long one is intact");
                        received = true;
                    }
                    None => {}
                    Some(other) => panic!("{other:?}"),
                }
            }
            if sent && received && datagrams == 0 {
                break;
            }
        }
        assert!(sent && received, "the long message was shut out");
    }
}

/// A message that waits for a buffer is not urgent.
#[test]
fn a_message_that_waits_for_a_buffer_delays_no_other() {
    let place = PortDirectory::new();
    let (mut a, to_b, mut b, to_a) = pair(&place, false, false);
    // At each end a long message of high priority waits.
    a.send_buffer(to_b, Priority::High, pattern(10_000, 0), Confirm::Copied).expect("token");
    b.send_buffer(to_a, Priority::High, pattern(10_000, 0), Confirm::Copied).expect("token");
    let mut needed = 0;
    until(|| {
        for port in [&mut a, &mut b] {
            needed += u32::from(matches!(port.poll(), Some(Event::BufferNeeded { .. })));
        }
        needed == 2
    });
    for port in [&mut a, &mut b] {
        (0..20).for_each(|_| drop(port.poll()));
    }
    b.post_receive(Priority::Low, vec![0; 10 * 4096]).expect("token");
    a.send_buffer(to_b, Priority::Low, pattern(10 * 4096, 1), Confirm::Copied).expect("token");
    let mut polls = 0;
    while !matches!(a.poll(), Some(Event::Sent { .. })) {
        polls += 1;
        assert!(polls < 15, "a whole fragment at a time");
    }
    polls = 0;
    while !matches!(b.poll(), Some(Event::Message(_))) {
        polls += 1;
        assert!(polls < 15, "a whole fragment at a time");
    }
}
