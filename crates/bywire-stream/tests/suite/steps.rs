//! The calls and their meaning, step by step: lanes, turns, credit, the return to the kernel, resets, and the end of a connection.

use bywire_stream::record::{Header, Record};
use bywire_stream::{
    CallError, EARLY_BYTES_MIN, Event, Lane, Limits, MESSAGE_BYTES_MAX, OpenError, Refusal, ResetReason,
    StreamId,
};

use crate::fixture::{Heard, Pair, are};

const ROOM: u64 = 1 << 20;

/// The records of a message.
fn records(message: &[u8]) -> Vec<Record<'_>> {
    Header::parse(message).expect("a message").1.map(|record| record.expect("a record")).collect()
}

fn bytes_of(events: &[Heard]) -> u64 {
    let length = |event: &Heard| if let Heard::Bytes(_, _, bytes) = event { bytes.len() as u64 } else { 0 };
    events.iter().map(length).sum()
}

/// A started direction of side 0 with so many bytes queued.
fn queue(pair: &mut Pair, stream: StreamId, length: u64) {
    pair.machines[0].start(stream, 0).expect("it was accepted");
    pair.machines[0].queue(stream, length).expect("it has started");
}

#[test]
fn short_writes_of_many_streams_share_one_message_of_the_high_lane() {
    let mut pair = Pair::ready(Limits::default());
    let streams: Vec<StreamId> = (0..50).map(|_| pair.open(ROOM)).collect();
    for stream in &streams {
        queue(&mut pair, *stream, 32);
    }
    assert!(pair.transmit(0, Lane::High, MESSAGE_BYTES_MAX) > 0);
    let pieces = records(&pair.lanes[0][0][0]);
    assert_eq!(pieces.iter().filter(|record| matches!(record, Record::Bytes { .. })).count(), 50);
    assert_eq!(pair.transmit(0, Lane::High, MESSAGE_BYTES_MAX), 0);
    assert_eq!(pair.transmit(0, Lane::Low, MESSAGE_BYTES_MAX), 0);
    assert_eq!(bytes_of(&pair.settle()[1]), 50 * 32);
}

#[test]
fn short_writes_beyond_16_kib_take_the_low_lane() {
    let mut pair = Pair::ready(Limits::default());
    let streams: Vec<StreamId> = (0..20).map(|_| pair.open(ROOM)).collect();
    for stream in &streams {
        pair.machines[0].start(*stream, 0).unwrap();
    }
    pair.settle();
    for stream in &streams {
        pair.machines[0].queue(*stream, 1000).unwrap();
    }
    assert_eq!(bytes_of(&pair.settle()[1]), 20_000);
    let counts = pair.machines[0].counts();
    assert_eq!((counts.high_pieces, counts.low_pieces), (16, 4));
}

#[test]
fn a_stream_goes_back_to_the_high_lane_once_its_bulk_is_acknowledged() {
    let mut pair = Pair::ready(Limits::default());
    let stream = pair.open(ROOM);
    queue(&mut pair, stream, 10_000);
    while pair.transmit(0, Lane::High, 4096) + pair.transmit(0, Lane::Low, 4096) > 0 {}
    // Its bulk is under way.
    pair.machines[0].queue(stream, 10_010).unwrap();
    assert_eq!(pair.transmit(0, Lane::High, 4096), 0);
    assert!(pair.transmit(0, Lane::Low, 4096) > 0);
    pair.settle();
    pair.machines[0].queue(stream, 10_020).unwrap();
    assert_eq!(pair.transmit(0, Lane::Low, 4096), 0);
    assert!(pair.transmit(0, Lane::High, 4096) > 0);
}

#[test]
fn a_low_message_waits_for_the_high_one_that_it_follows() {
    let mut pair = Pair::ready(Limits::default());
    let (stream, other) = (pair.open(ROOM), pair.open(ROOM));
    queue(&mut pair, other, 50_000);
    pair.transmit(0, Lane::High, 4096);
    pair.deliver(0, Lane::High);
    queue(&mut pair, stream, 50_000);
    pair.transmit(0, Lane::High, 4096);
    while pair.transmit(0, Lane::Low, 1 << 16) > 0 {}
    // The start of the second stream is late. Messages of the low lane that name its message wait.
    let mut early = Vec::new();
    while !pair.lanes[0][1].is_empty() {
        early.extend(pair.deliver(0, Lane::Low));
    }
    assert!(
        early.iter().all(|event| matches!(event, Heard::Bytes(found, ..) if *found == other)),
        "{early:?}"
    );
    assert!(pair.machines[1].counts().held > 0);
    let late = pair.deliver(0, Lane::High);
    assert_eq!(bytes_of(&early) + bytes_of(&late), 100_000);
}

#[test]
fn the_low_lane_stops_while_the_peer_holds_what_it_may() {
    let mut pair = Pair::ready(Limits { early_bytes_max: EARLY_BYTES_MIN, ..Limits::default() });
    let stream = pair.open(ROOM);
    queue(&mut pair, stream, 1 << 20);
    // The message with the start is under way for long.
    pair.transmit(0, Lane::High, 4096);
    while pair.transmit(0, Lane::Low, 1 << 16) > 0 {}
    let sent = pair.machines[0].progress(stream).unwrap().sent;
    assert!((200_000..262_144).contains(&sent), "{sent}");
    assert!(!pair.machines[0].has_output(Lane::Low));
    while !pair.lanes[0][1].is_empty() {
        assert_eq!(pair.deliver(0, Lane::Low), []);
    }
    assert_eq!(bytes_of(&pair.settle()[1]), 1 << 20);
}

#[test]
fn long_streams_take_turns_of_16_kib() {
    let mut pair = Pair::ready(Limits::default());
    let streams = [0; 3].map(|_| pair.open(ROOM));
    for stream in streams {
        queue(&mut pair, stream, 200_000);
    }
    pair.transmit(0, Lane::High, 4096);
    for _ in 0..4 {
        pair.transmit(0, Lane::Low, 50_000);
    }
    let sent = streams.map(|stream| pair.machines[0].progress(stream).unwrap().sent);
    assert!(sent.iter().max().unwrap() - sent.iter().min().unwrap() <= 16 * 1024, "{sent:?}");
}

#[test]
fn a_reader_that_stands_still_holds_up_no_other_stream() {
    let limits = Limits { streams_max: 128, window_bytes_max: 8192, bytes_max: 1 << 20, ..Limits::default() };
    let mut pair = Pair::ready(limits);
    let standing = pair.open(8192);
    queue(&mut pair, standing, 1 << 20);
    pair.settle();
    assert_eq!(pair.machines[0].progress(standing).unwrap().sent, 8192);
    let streams: Vec<StreamId> = (0..100).map(|_| pair.open(8192)).collect();
    for stream in streams {
        queue(&mut pair, stream, 50_000);
        let mut received = 0;
        while received < 50_000 {
            let progress = bytes_of(&pair.settle()[1]);
            assert!(progress > 0, "it stands still, too");
            received += progress;
            pair.machines[1].drain(stream, received, 8192).unwrap();
        }
    }
    assert_eq!(pair.machines[0].progress(standing).unwrap().sent, 8192);
}

#[test]
fn credit_is_announced_at_half_a_window_or_beside_something_else() {
    let mut pair = Pair::ready(Limits::default());
    let stream = pair.open(10_000);
    queue(&mut pair, stream, 6_000);
    pair.settle();
    pair.machines[1].drain(stream, 4_000, 10_000).unwrap();
    assert_eq!(pair.settle()[0], []);
    pair.machines[1].drain(stream, 5_000, 10_000).unwrap();
    assert_eq!(pair.settle()[0], [Heard::Other(Event::Drained { stream, offset: 5_000 })]);
    pair.machines[1].drain(stream, 5_500, 10_000).unwrap();
    pair.machines[1].start(stream, 0).unwrap();
    let drained = Heard::Other(Event::Drained { stream, offset: 5_500 });
    assert_eq!(pair.settle()[0], [Heard::Other(Event::Started { stream, offset: 0 }), drained]);
    pair.machines[1].drain(stream, 6_000, 10_000).unwrap();
    pair.machines[1].flush();
    assert_eq!(pair.settle()[0], [Heard::Other(Event::Drained { stream, offset: 6_000 })]);
}

#[test]
fn a_reader_gets_its_direction_back_where_it_has_stopped() {
    let mut pair = Pair::ready(Limits::default());
    let stream = pair.open(ROOM);
    queue(&mut pair, stream, 30_000);
    pair.settle();
    pair.machines[1].drain(stream, 10_000, ROOM).unwrap();
    assert_eq!(pair.machines[1].ask_back(stream), Ok(10_000));
    assert_eq!(pair.machines[1].drain(stream, 10_001, ROOM), Err(CallError::Offset));
    // More is queued before the question arrives.
    pair.machines[0].queue(stream, 40_000).unwrap();
    pair.transmit(1, Lane::High, 4096);
    assert_eq!(
        pair.deliver(1, Lane::High),
        [Event::BackAsked { stream, offset: 10_000 }, Event::Drained { stream, offset: 10_000 }]
            .map(Heard::Other)
    );
    assert_eq!(pair.transmit(0, Lane::High, 4096) + pair.transmit(0, Lane::Low, 4096), 0, "it is still");
    assert_eq!(pair.machines[0].half(stream), Err(CallError::State));
    assert_eq!(pair.machines[0].back(stream, 9_999), Err(CallError::Offset));
    pair.machines[0].back(stream, 10_000).unwrap();
    assert_eq!(pair.settle()[1], [Heard::Other(Event::Back { stream, offset: 10_000 })]);
    assert_eq!(pair.machines[1].drain(stream, 10_001, ROOM), Err(CallError::Offset));
}

#[test]
fn a_writer_that_has_kept_nothing_answers_with_a_later_offset() {
    let mut pair = Pair::ready(Limits::default());
    let stream = pair.open(20_000);
    queue(&mut pair, stream, 30_000);
    pair.settle();
    assert_eq!(pair.machines[1].ask_back(stream), Ok(0));
    pair.settle();
    pair.machines[0].back(stream, 25_000).unwrap();
    assert_eq!(pair.settle()[1], [Heard::Other(Event::Back { stream, offset: 25_000 })]);
    assert!(!pair.machines[1].progress(stream).unwrap().is_over);
    pair.machines[1].drain(stream, 20_000, 20_000).unwrap();
    let events = &pair.settle()[1];
    assert!(
        matches!(&events[..], [Heard::Bytes(_, 20_000, bytes)] if bytes.len() == 5_000 && are(stream, 0, 20_000, bytes))
    );
    pair.machines[1].drain(stream, 25_000, 20_000).unwrap();
    pair.machines[1].back(stream, 0).unwrap();
    pair.settle();
    for machine in &mut pair.machines {
        machine.close(stream).unwrap();
    }
    pair.settle();
    assert_eq!(pair.machines.each_ref().map(|machine| machine.occupied()), [0, 0]);
}

#[test]
fn an_end_that_crosses_a_question_answers_it() {
    let mut pair = Pair::ready(Limits::default());
    let stream = pair.open(ROOM);
    queue(&mut pair, stream, 100);
    pair.machines[0].half(stream).unwrap();
    pair.transmit(0, Lane::High, 4096);
    pair.machines[1].ask_back(stream).unwrap();
    pair.transmit(1, Lane::High, 4096);
    assert_eq!(pair.deliver(1, Lane::High), []);
    let events = &pair.settle()[1];
    assert_eq!(events.last(), Some(&Heard::Other(Event::Half { stream, offset: 100 })));
    pair.machines[1].drain(stream, 100, ROOM).unwrap();
}

#[test]
fn a_question_before_the_start_stops_the_direction_where_it_starts() {
    let mut pair = Pair::ready(Limits::default());
    let stream = pair.open(ROOM);
    pair.machines[1].ask_back(stream).unwrap();
    pair.machines[0].start(stream, 500).unwrap();
    pair.machines[0].queue(stream, 600).unwrap();
    let events = pair.settle();
    assert!(events[0].contains(&Heard::Other(Event::BackAsked { stream, offset: 500 })), "{events:?}");
    pair.machines[0].back(stream, 500).unwrap();
    assert_eq!(pair.settle()[1], [Heard::Other(Event::Back { stream, offset: 500 })]);
}

#[test]
fn a_reset_overtakes_the_bytes_of_its_stream() {
    let mut pair = Pair::ready(Limits::default());
    let stream = pair.open(ROOM);
    queue(&mut pair, stream, 100_000);
    pair.transmit(0, Lane::High, 4096);
    pair.deliver(0, Lane::High);
    pair.transmit(0, Lane::Low, 50_000);
    pair.machines[0].reset(stream, ResetReason::Aborted).unwrap();
    assert_eq!(pair.machines[0].reset(stream, ResetReason::Aborted), Err(CallError::Gone));
    pair.transmit(0, Lane::High, 4096);
    assert_eq!(
        pair.deliver(0, Lane::High),
        [Heard::Other(Event::Reset { stream, reason: ResetReason::Aborted })]
    );
    assert_eq!(pair.settle(), [vec![], vec![]]);
    assert_eq!(pair.machines.each_ref().map(|machine| machine.occupied()), [0, 0]);
    assert_eq!(pair.machines[1].counts().late, 4);
}

#[test]
fn a_slot_is_used_again_under_another_identifier_once_both_ends_are_done() {
    let mut pair = Pair::ready(Limits { streams_max: 1, ..Limits::default() });
    let stream = pair.open(ROOM);
    assert_eq!(pair.machines[0].open(b"", ROOM), Err(OpenError::Full));
    pair.machines[0].reset(stream, ResetReason::Died).unwrap();
    // Both last records have to cross first.
    pair.transmit(0, Lane::High, 4096);
    pair.deliver(0, Lane::High);
    assert_eq!(pair.machines[0].open(b"", ROOM), Err(OpenError::Full));
    pair.settle();
    let next = pair.open(ROOM);
    assert_eq!((next.slot(), stream.slot()), (0, 0));
    assert_ne!(next, stream);
    assert_eq!(pair.machines[1].start(stream, 0), Err(CallError::Gone));
    // The other end's streams have slots of their own.
    let other = pair.machines[1].open(b"", ROOM).unwrap();
    assert_eq!(other.slot(), 1);
}

#[test]
fn a_refusal_frees_the_slot_of_its_stream() {
    let mut pair = Pair::ready(Limits { opens_max: 1, ..Limits::default() });
    for _ in 0..5 {
        let stream = pair.machines[0].open(b"who", ROOM).unwrap();
        assert_eq!(pair.machines[0].open(b"", ROOM), Err(OpenError::Pending));
        assert_eq!(pair.settle()[1], [Heard::Opened(stream, b"who".to_vec())]);
        pair.machines[1].refuse(stream, Refusal::Mismatch).unwrap();
        assert_eq!(pair.settle()[0], [Heard::Other(Event::Refused { stream, reason: Refusal::Mismatch })]);
        assert_eq!(pair.machines.each_ref().map(|machine| machine.occupied()), [0, 0]);
    }
    assert_eq!(pair.machines[0].open(&[0; 513], ROOM), Err(OpenError::TooLong));
}

#[test]
fn a_connection_that_is_shut_down_loses_all_streams_at_both_ends() {
    let mut pair = Pair::ready(Limits::default());
    let stream = pair.open(ROOM);
    pair.machines[0].shut_down(ResetReason::Stopped);
    assert!(pair.machines[0].is_over());
    assert_eq!(pair.machines[0].start(stream, 0), Err(CallError::Gone));
    assert_eq!(pair.machines[0].open(b"", ROOM), Err(OpenError::Ended));
    assert_eq!(pair.settle()[1], [Heard::Other(Event::Closed { reason: ResetReason::Stopped })]);
    for machine in &pair.machines {
        assert!(machine.is_over());
        assert!(machine.live().eq([stream]));
    }
}

#[test]
fn no_stream_is_opened_before_the_peer_is_known() {
    let mut pair = Pair::new(Limits::default());
    assert_eq!(pair.machines[0].open(b"", ROOM), Err(OpenError::NotReady));
}
