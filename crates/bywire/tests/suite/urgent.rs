//! Long messages that give way to messages of high priority after each step: two ports of one thread, polled by hand.

use bywire::{Buffer, Confirm, Event, Peer, Port, PortOptions, Priority, Rights};

use crate::ports::{PortDirectory, message, pattern, until};

/// The length of a step of a copy.
const STEP: usize = 2048;
const LONG: usize = 300_000;

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

/// Writes messages of high priority from `b` to `a`, one before each poll of `a`, which sees it at once, until `a` has the end
/// of its own transfer. `after_each` runs the other end. Returns the number of rounds.
fn interrupt(a: &mut Port, b: &mut Port, to_a: Peer, mut after_each: impl FnMut(&mut Port, usize)) -> usize {
    for round in 0usize.. {
        b.send(to_a, Priority::High, &round.to_ne_bytes()).expect("room");
        match a.poll() {
            Some(Event::Sent { result: Ok(()), .. } | Event::Put { result: Ok(()), .. }) => return round,
            event => assert_eq!(high(event), round.to_ne_bytes(), "at once"),
        }
        after_each(b, round);
    }
    unreachable!("the rounds have no end")
}

/// Sends messages of high priority from `a` to `b`, one before each poll of `b`, which sees them in order, until `is_end` takes
/// an event. Returns the number of rounds. The last message is still to come.
fn overtake(
    a: &mut Port,
    to_b: Peer,
    b: &mut Port,
    mut is_end: impl FnMut(&mut Port, &Event) -> bool,
) -> usize {
    for round in 0usize.. {
        a.send(to_b, Priority::High, &round.to_ne_bytes()).expect("room");
        let event = b.poll().expect("one of them");
        if is_end(b, &event) {
            assert_eq!(high(b.poll()), round.to_ne_bytes(), "the last one");
            return round + 1;
        }
        assert_eq!(high(Some(event)), round.to_ne_bytes(), "in order");
    }
    unreachable!("the rounds have no end")
}

/// Checks that a transfer whose first fragment has left took a round for each of its other steps, or a few more.
fn assert_rounds(rounds: usize, busy: bool, more: usize) {
    let first = if busy { 32 << 10 } else { 4096 };
    let steps = (LONG - first).div_ceil(STEP);
    assert!(rounds >= steps - 2 && rounds < steps + more, "{rounds} rounds for {steps} steps");
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
        let mut received = None;
        let rounds = interrupt(&mut a, &mut b, to_a, |b, _| {
            // The small area has to be emptied on the way.
            if let Some(Event::Message(message)) = b.poll() {
                received = Some(message);
            }
        });
        assert_rounds(rounds, busy, 10);
        assert_eq!(high(a.poll()), rounds.to_ne_bytes(), "the last one");
        let received = received.unwrap_or_else(|| message(&mut b, &mut a));
        assert_eq!(received.priority, Priority::Low);
        assert!(received.payload[..] == pattern(LONG, seed), "the long one is intact");
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
        let rounds = overtake(&mut a, to_b, &mut b, |_, event| match event {
            Event::Message(message) if message.priority == Priority::Low => {
                assert!(message.payload[..] == pattern(LONG, seed), "the long one is intact");
                true
            }
            _ => false,
        });
        // Every eighth poll begins with the low lane, and makes one step there.
        let polls = 8 * LONG.div_ceil(STEP);
        assert!(rounds > polls - 16 && rounds < polls + 100, "{rounds} rounds for {polls} polls");
    }
}

#[test]
fn a_sender_of_a_put_handles_urgent_messages_between_any_two_steps() {
    let place = PortDirectory::new();
    for (seed, (integrity, busy)) in [(false, false), (true, true)].into_iter().enumerate() {
        let (mut a, to_b, mut b, to_a) = pair(&place, integrity, busy);
        let key = b.register(vec![0; LONG], Rights { read: false, write: true }).expect("region");
        a.put(to_b, Priority::Low, (key, 0), pattern(LONG, seed), None).expect("token");
        let rounds = interrupt(&mut a, &mut b, to_a, |b, _| assert!(b.poll().is_none()));
        // The answer has its turn at every 64th poll.
        assert_rounds(rounds, busy, 80);
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
        let rounds = interrupt(&mut a, &mut b, to_a, |b, round| {
            // SAFETY: the vector has `LONG` bytes, and no call on the port is under way.
            unsafe { base.write_bytes(round as u8 + 1, LONG) };
            let event = b.poll();
            assert!(event.is_none(), "{event:?}");
        });
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
        let rounds = overtake(&mut a, to_b, &mut b, |b, event| match event {
            Event::Notified { note, .. } => {
                assert_eq!(&note[..], b"done");
                true
            }
            _ => {
                b.region_mut(key).expect("ours")[0] ^= 0x55;
                false
            }
        });
        assert!(b.region(key).expect("ours")[1..] == pattern(LONG, seed)[1..], "the data is intact");
        // Every eighth poll begins with the low lane, and makes one step there.
        let polls = 8 * (LONG.div_ceil(STEP) + 1);
        assert!(rounds > polls - 24 && rounds < polls + 100, "{rounds} rounds for {polls} polls");
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
    let result = until(|| {
        b.poll();
        match a.poll()? {
            Event::Put { result, .. } => Some(result),
            _ => None,
        }
    });
    assert_eq!(result, Err(bywire::TransferError::BadKey));
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
    let is_sent = |_| matches!(a.poll(), Some(Event::Sent { .. }));
    assert!((0..15).any(is_sent), "a whole fragment at a time");
    let is_received = |_| matches!(b.poll(), Some(Event::Message(_)));
    assert!((0..15).any(is_received), "a whole fragment at a time");
}
