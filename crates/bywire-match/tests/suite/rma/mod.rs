//! RMA over a link in memory: writes and reads of every length, by puts and in pieces. What is not permitted is refused
//! and changes nothing. Memory is withdrawn in every state. Limits and endings hold.

mod fixture;
mod hostile;

use bywire_match::Refused;
use bywire_match::rma::{Access, Denied, Event, Failure};

use fixture::{Buffer, KEY, Node, READ_ONLY, deliver, exchange, is_full, limits, pair, place, transmit};

fn bytes(length: u64) -> Vec<u8> {
    (0..length).map(|place| (place * 13 + length) as u8).collect()
}

#[test]
fn writes_of_every_length_arrive_where_they_belong_and_tell_the_target() {
    for exposes in [true, false] {
        let mut nodes = pair();
        nodes[1].exposes = exposes;
        for length in [0, 1, 400, 401, 464, 465, 5000] {
            let at = place(KEY, 5000 - length, length);
            nodes[0].write(at, &bytes(length));
            exchange(&mut nodes);
            assert_eq!(nodes[1].memory.read(at), bytes(length));
            let [source, target] = &mut nodes;
            let written = std::mem::take(&mut source.events);
            assert!(matches!(&written[..], [Event::Written { write, .. }] if *write == bytes(length)));
            let told = std::mem::take(&mut target.events);
            assert_eq!(
                told,
                [Event::Accessed { peer: target.peer, access: Access::Write, place: at, data: Some(9) }]
            );
            assert!(target.exposures.is_empty());
        }
        assert_eq!(nodes[0].rma.under_way(), 0);
        let counts = nodes[0].rma.counts();
        assert_eq!((counts.short_writes, counts.long_writes), (3, 4));
        assert_eq!((counts.puts_of_writes > 0, counts.pieces_of_writes > 0), (exposes, !exposes));
    }
}

#[test]
fn reads_of_every_length_bring_the_bytes() {
    let mut nodes = pair();
    for key in [KEY, READ_ONLY] {
        for length in [0, 1, 400, 401, 497, 5000] {
            for region in [None, Some(5)].into_iter().filter(|region| region.is_none() || length > 0) {
                let at = place(key, 5000 - length, length);
                nodes[0].read(at, region);
                exchange(&mut nodes);
                let events = std::mem::take(&mut nodes[0].events);
                let [Event::Read { read: Buffer(read), .. }] = &events[..] else { panic!("{events:?}") };
                let put = nodes[0].read.borrow_mut().remove(&5).unwrap_or_default();
                let expected = nodes[1].memory.read(at);
                assert_eq!(if region.is_some() { &put } else { read }, &expected);
                let told = std::mem::take(&mut nodes[1].events);
                assert!(matches!(&told[..], [Event::Accessed { access: Access::Read, data: None, .. }]));
            }
        }
    }
    let counts = nodes[1].rma.counts();
    assert!(counts.puts_of_reads == 10 && counts.pieces_of_reads > 10 && counts.reads_answered_at_once == 6);
}

#[test]
fn accesses_that_are_not_permitted_are_refused_and_change_nothing() {
    let mut nodes = pair();
    let before = nodes[1].memory.0.clone();
    let places = [
        (place(3, 0, 10), Denied::NoMemory, true),
        (place(KEY, 4991, 10), Denied::OutOfBounds, true),
        (place(KEY, u64::MAX - 4, 10), Denied::OutOfBounds, true),
        (place(KEY, 4000, 1001), Denied::OutOfBounds, true),
        (place(READ_ONLY, 0, 10), Denied::NoRight, false),
        (place(READ_ONLY, 0, 1000), Denied::NoRight, false),
    ];
    for (at, reason, is_read_too) in places {
        nodes[0].write(place(KEY, 0, 0), &[]);
        nodes[0].write(at, &bytes(at.length));
        nodes[0].write(place(KEY, 0, 0), &[]);
        exchange(&mut nodes);
        let events = std::mem::take(&mut nodes[0].events);
        let failed = events.iter().filter(|event| {
            matches!(event, Event::WriteFailed { reason: failure, .. } if *failure == Failure::Denied(reason))
        });
        assert_eq!((failed.count(), events.len()), (1, 3), "{events:?}");
        if is_read_too {
            for region in [None, Some(1)] {
                nodes[0].read(at, region);
                exchange(&mut nodes);
                let events = std::mem::take(&mut nodes[0].events);
                let is_denied = matches!(&events[..], [Event::ReadFailed { reason: failure, .. }]
                    if *failure == Failure::Denied(reason));
                assert!(is_denied, "{events:?}");
            }
        }
    }
    assert!(nodes[1].memory.0 == before);
}

#[test]
fn operations_wait_for_the_connection_and_for_answers() {
    let mut node = Node::new(limits());
    node.write(place(KEY, 0, 4), &bytes(4));
    assert!(node.rma.is_quiet() && transmit(&mut node).is_empty());
    let mut nodes = pair();
    for _ in 0..50 {
        nodes[0].write(place(KEY, 0, 4), &bytes(4));
        nodes[0].read(place(KEY, 0, 4), None);
    }
    let full = nodes[0].rma.write(nodes[0].peer, place(KEY, 0, 1), None, vec![0]);
    assert!(is_full(full));
    assert_eq!(transmit(&mut nodes[0]).len(), 20);
    assert!(transmit(&mut nodes[0]).is_empty());
    let mut nodes = pair();
    for _ in 0..100 {
        nodes[0].write(place(KEY, 0, 4), &bytes(4));
    }
    exchange(&mut nodes);
    assert_eq!((nodes[0].events.len(), nodes[1].events.len(), nodes[0].rma.under_way()), (100, 100, 0));
    assert!(nodes[0].rma.counts().operations_held_by_unanswered_ones > 0);
}

#[test]
fn the_end_of_a_peer_fails_all_operations_and_withdraws_what_it_may_put_into() {
    let mut nodes = pair();
    let [source, target] = &mut nodes;
    source.write(place(KEY, 0, 4), &bytes(4));
    source.write(place(KEY, 0, 1000), &bytes(1000));
    source.read(place(KEY, 0, 4), None);
    source.read(place(KEY, 0, 1000), Some(1));
    let carried = transmit(source);
    source.write(place(KEY, 0, 5), &bytes(5));
    deliver(source, target, carried);
    target.take_events();
    assert_eq!(target.exposures.len(), 1);
    target.rma.disconnected(target.peer);
    target.take_events();
    assert!(target.exposures.is_empty() && transmit(target).is_empty());
    source.rma.disconnected(source.peer);
    source.take_events();
    assert_eq!(source.events.len(), 5);
    for event in &source.events {
        let (Event::WriteFailed { reason, .. } | Event::ReadFailed { reason, .. }) = event else {
            panic!("{event:?}")
        };
        assert_eq!(*reason, Failure::Ended);
    }
    assert_eq!(source.rma.under_way(), 0);
    let refused = source.rma.read(source.peer, place(KEY, 0, 1), None, Buffer(Vec::new()));
    assert!(matches!(refused, Err((Refused::Ended, _))));
}

/// Memory that is withdrawn in every state of what is under way for it.
#[test]
fn withdrawn_memory_is_neither_read_nor_written_any_more() {
    for exposes in [true, false] {
        let mut nodes = pair();
        nodes[1].exposes = exposes;
        // Requested; granted and not put; with pieces under way; with a put of the answer under way; not yet answered.
        let [source, target] = &mut nodes;
        source.write(place(KEY, 0, 1000), &bytes(1000));
        let asked = transmit(source);
        deliver(source, target, asked);
        target.take_events();
        let grants = transmit(target);
        deliver(target, source, grants);
        source.write(place(KEY, 0, 2000), &bytes(2000));
        source.read(place(KEY, 0, 3), None);
        source.read(place(KEY, 0, 900), None);
        source.read(place(KEY, 0, 900), Some(4));
        let under_way = transmit(source);
        deliver(source, target, under_way);
        target.rma.withdraw(KEY);
        let before = target.memory.0.clone();
        target.memory.0.remove(&KEY);
        exchange(&mut nodes);
        let [source, target] = &mut nodes;
        // What had arrived before is written.
        let written = source.events.iter().filter(|event| matches!(event, Event::Written { .. })).count();
        assert_eq!((source.events.len(), written), (5, 1), "{:?}", source.events);
        assert!(target.exposures.is_empty() && before[&READ_ONLY] == target.memory.0[&READ_ONLY]);
        assert_eq!(source.rma.under_way(), 0);
        assert!(target.rma.counts().accesses_withdrawn > 0);
    }
}

#[test]
fn pieces_and_notes_for_withdrawn_memory_are_dropped() {
    for exposes in [true, false] {
        let mut nodes = pair();
        let [source, target] = &mut nodes;
        target.exposes = exposes;
        source.write(place(KEY, 0, 1000), &bytes(1000));
        let asked = transmit(source);
        deliver(source, target, asked);
        target.take_events();
        let grants = transmit(target);
        deliver(target, source, grants);
        let payload = transmit(source);
        target.rma.withdraw(KEY);
        target.memory.0.remove(&KEY);
        target.take_events();
        deliver(source, target, payload);
        exchange(&mut nodes);
        let events = std::mem::take(&mut nodes[0].events);
        let expected = if exposes { Failure::Withdrawn } else { Failure::Denied(Denied::NoMemory) };
        assert!(
            matches!(&events[..], [Event::WriteFailed { reason, .. }] if *reason == expected),
            "{events:?}"
        );
        assert_eq!(nodes[1].rma.counts().pieces_dropped > 0, !exposes);
    }
}

#[test]
fn data_that_a_refusal_overtakes_are_dropped() {
    let mut nodes = pair();
    let [source, target] = &mut nodes;
    source.read(place(KEY, 0, 1000), None);
    let asked = transmit(source);
    deliver(source, target, asked);
    let mut pieces = Vec::new();
    // The link has room for one piece.
    target.rma.transmit(target.peer, |frame| {
        let bywire_match::rma::Frame::Piece { head, .. } = frame else { panic!("{frame:?}") };
        let has_room = pieces.is_empty();
        if has_room {
            pieces.push([head, &[1; 400]].concat());
        }
        has_room
    });
    target.rma.withdraw(KEY);
    let refusal = transmit(target);
    deliver(target, source, refusal);
    assert!(source.rma.arrive(source.peer, &pieces[0], &mut source.memory).is_ok());
    source.take_events();
    let denied = Failure::Denied(Denied::NoMemory);
    assert!(matches!(&source.events[..], [Event::ReadFailed { reason, .. }] if *reason == denied));
}

#[test]
fn a_put_that_reads_memory_is_known_until_it_is_done() {
    let mut nodes = pair();
    let [source, target] = &mut nodes;
    source.read(place(KEY, 0, 1000), Some(1));
    let asked = transmit(source);
    deliver(source, target, asked);
    assert!(!target.rma.is_being_put(KEY));
    let put = transmit(target);
    target.rma.withdraw(KEY);
    assert!(target.rma.is_being_put(KEY) && !target.rma.is_being_put(READ_ONLY));
    assert_eq!(target.rma.peers_that_read(KEY), [target.peer]);
    deliver(target, source, put);
    assert!(!target.rma.is_being_put(KEY));
    source.take_events();
    assert!(matches!(&source.events[..], [Event::Read { .. }]));
}
