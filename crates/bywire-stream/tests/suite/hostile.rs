//! Whatever a peer sends, the machine neither panics nor holds more than its limits: each broken rule is a `Violation`, after
//! which nothing more is reported. Any bytes at all are read or refused.

use bywire_stream::record::{Header, Record};
use bywire_stream::{
    EARLY_BYTES_MIN, Event, Lane, Limits, MESSAGE_BYTES_MAX, Refusal, ResetReason, StreamId, Violation,
};
use proptest::prelude::*;

use crate::fixture::{Heard, Pair};

const LIMITS: Limits = Limits {
    streams_max: 3,
    opens_max: 2,
    window_bytes_max: 1000,
    bytes_max: 60_000,
    early_bytes_max: EARLY_BYTES_MIN,
};
/// Streams that the peer, side 0, opens.
const FIRST: u64 = 0;
const SECOND: u64 = 2;

fn id(bits: u64) -> StreamId {
    StreamId::from_bits(bits)
}

/// A message of these records.
fn message(records: &[Record]) -> Vec<u8> {
    let mut bytes =
        Header { wants_acknowledgement: false, after: None, processed: [0; 2] }.to_bytes().to_vec();
    for record in records {
        let begin = bytes.len();
        bytes.resize(begin + record.length(), 0);
        record.write(&mut bytes[begin..]);
    }
    bytes
}

fn hello() -> Record<'static> {
    Record::Hello { streams_max: 4, opens_max: 4, early_bytes_max: EARLY_BYTES_MIN }
}

/// A machine to whom side 0 says whatever the test wants. It has accepted a stream, whose direction has started at 100.
fn attacked() -> Pair {
    let mut pair = Pair::new(LIMITS);
    let open = Record::Open { stream: id(FIRST), window: 500, description: b"" };
    pair.receive(1, Lane::High, &message(&[hello(), open])).expect("allowed");
    pair.machines[1].accept(id(FIRST), 1000).expect("it was opened");
    pair.receive(1, Lane::High, &message(&[Record::Start { stream: id(FIRST), offset: 100 }]))
        .expect("allowed");
    pair
}

/// The violation that the machine finds in these records, the last of which breaks a rule.
fn violation(mut pair: Pair, records: &[Record]) -> Violation {
    let (last, before) = records.split_last().expect("a record");
    if !before.is_empty() {
        pair.receive(1, Lane::High, &message(before)).expect("allowed");
    }
    let violation = pair.receive(1, Lane::High, &message(&[*last])).expect_err("it breaks a rule");
    assert!(pair.machines[1].is_over());
    assert_eq!(pair.receive(1, Lane::High, &message(&[hello()])), Ok(vec![]), "nothing more is reported");
    assert_eq!(pair.transmit(1, Lane::High, MESSAGE_BYTES_MAX), 0, "nothing more is sent");
    violation
}

#[test]
fn every_broken_rule_of_bytes_is_a_violation() {
    let stream = id(FIRST);
    let bytes = |offset, bytes| Record::Bytes { stream, offset, bytes, is_half: false };
    let half = |offset| Record::Bytes { stream, offset, bytes: b"", is_half: true };
    let start = |offset| Record::Start { stream, offset };
    let back = |offset| Record::Back { stream, offset };
    let cases: [(&[Record], Violation); 15] = [
        (&[bytes(99, b"a")], Violation::Offset),
        (&[bytes(101, b"a")], Violation::Offset),
        (&[bytes(100, b"ab"), bytes(101, b"b")], Violation::Offset),
        (&[bytes(100, &[1; 1001])], Violation::Credit),
        (&[bytes(100, &[1; 1000]), bytes(1100, b"a")], Violation::Credit),
        (&[half(100), bytes(100, b"a")], Violation::AfterEnd),
        (&[half(100), half(100)], Violation::AfterEnd),
        (&[half(100), back(100)], Violation::AfterEnd),
        (&[back(100), back(100)], Violation::AfterEnd),
        (&[back(100), bytes(100, b"a")], Violation::AfterEnd),
        (&[back(105), bytes(100, b"abcdef")], Violation::AfterEnd),
        (&[back(105), half(100)], Violation::AfterEnd),
        (&[bytes(100, b"ab"), back(101)], Violation::Offset),
        (&[start(100)], Violation::State),
        (&[back(100), start(100)], Violation::State),
    ];
    for (records, wanted) in cases {
        assert_eq!(violation(attacked(), records), wanted, "{records:?}");
    }
}

#[test]
fn every_broken_rule_of_a_stream_is_a_violation() {
    let stream = id(FIRST);
    let open = |bits| Record::Open { stream: id(bits), window: 0, description: b"" };
    let accept = Record::Accept { stream, window: 0 };
    let reset = Record::Reset { stream, reason: ResetReason::Aborted };
    let credit = |drained, window| Record::Credit { stream, drained, window };
    let done = |bits| Record::Done { stream: id(bits) };
    let cases: [(&[Record], Violation); 22] = [
        (&[hello()], Violation::Hello),
        (&[open(FIRST)], Violation::UnknownStream),
        (&[open(1)], Violation::UnknownStream),
        (&[open(1 << 32 | SECOND)], Violation::UnknownStream),
        (&[open(4)], Violation::UnknownStream),
        (&[open(6)], Violation::Streams),
        (&[open(SECOND), open(4), open(6)], Violation::Streams),
        (&[open(SECOND), Record::Start { stream: id(SECOND), offset: 0 }], Violation::State),
        (&[open(SECOND), done(SECOND)], Violation::State),
        (&[accept], Violation::State),
        (&[Record::Refuse { stream, reason: Refusal::Busy }], Violation::State),
        (&[Record::Reset { stream: id(SECOND), reason: ResetReason::Died }], Violation::UnknownStream),
        (&[Record::Reset { stream: id(1), reason: ResetReason::Died }], Violation::UnknownStream),
        (&[Record::Reset { stream: id(u64::MAX), reason: ResetReason::Died }], Violation::UnknownStream),
        (&[credit(0, 500)], Violation::State),
        (&[Record::Return { stream, offset: 1 }], Violation::Offset),
        (&[Record::Return { stream, offset: 0 }, Record::Return { stream, offset: 0 }], Violation::State),
        (&[done(FIRST)], Violation::State),
        (&[reset, done(FIRST), done(FIRST)], Violation::State),
        (&[reset, done(FIRST), reset], Violation::State),
        (&[reset, open(FIRST)], Violation::UnknownStream),
        (&[reset, done(FIRST), open(1 << 32)], Violation::UnknownStream),
    ];
    for (records, wanted) in cases {
        assert_eq!(violation(attacked(), records), wanted, "{records:?}");
    }
}

#[test]
fn more_unanswered_streams_than_the_limit_are_a_violation() {
    let open = |bits| Record::Open { stream: id(bits), window: 0, description: b"" };
    let mut pair = Pair::new(LIMITS);
    pair.receive(1, Lane::High, &message(&[hello(), open(0), open(2)])).expect("allowed");
    assert_eq!(pair.receive(1, Lane::High, &message(&[open(4)])), Err(Violation::Opens));
}

#[test]
fn credit_beyond_what_was_sent_or_taken_back_is_a_violation() {
    let stream = id(FIRST);
    let started = || {
        let mut pair = attacked();
        pair.machines[1].start(stream, 0).expect("it is open");
        pair.machines[1].queue(stream, 50).expect("it has started");
        while pair.transmit(1, Lane::High, MESSAGE_BYTES_MAX) > 0 {}
        pair
    };
    let credit = |drained, window| Record::Credit { stream, drained, window };
    assert_eq!(violation(started(), &[credit(51, 500)]), Violation::Offset);
    assert_eq!(violation(started(), &[credit(0, 499)]), Violation::CreditWithdrawn);
    assert_eq!(violation(started(), &[credit(20, 500), credit(19, 501)]), Violation::Offset);
    assert_eq!(violation(started(), &[credit(50, 1 << 30), credit(50, 500)]), Violation::CreditWithdrawn);
    assert_eq!(violation(started(), &[Record::Return { stream, offset: 51 }]), Violation::Offset);
}

#[test]
fn an_introduction_comes_first_and_is_possible() {
    let pair = || Pair::new(LIMITS);
    let open = Record::Open { stream: id(FIRST), window: 0, description: b"" };
    let little = Record::Hello { streams_max: 1, opens_max: 1, early_bytes_max: EARLY_BYTES_MIN - 1 };
    assert_eq!(violation(pair(), &[open]), Violation::Hello);
    assert_eq!(violation(pair(), &[little]), Violation::Hello);
    let mut other = message(&[hello()]);
    other[0] = 2;
    assert_eq!(pair().receive(1, Lane::High, &other), Err(Violation::Version(2)));
    assert!(matches!(pair().receive(1, Lane::High, &[]), Err(Violation::Malformed(_))));
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_a_violation() {
    for processed in [[1, 0], [0, 1], [i32::MAX as u32, 0]] {
        let mut pair = Pair::new(LIMITS);
        let header = Header { wants_acknowledgement: false, after: None, processed };
        let message = [&header.to_bytes()[..], &message(&[hello()])[16..]].concat();
        assert_eq!(pair.receive(1, Lane::High, &message), Err(Violation::Acknowledgement));
    }
}

#[test]
fn messages_that_wait_for_ever_are_bounded_also_if_they_are_empty() {
    let mut pair = attacked();
    let header = Header { wants_acknowledgement: false, after: Some(1000), processed: [0; 2] }.to_bytes();
    assert_eq!(pair.receive(1, Lane::High, &header), Err(Violation::State));
    let mut pair = attacked();
    let (mut held, mut end) = (0, Ok(vec![]));
    while end.is_ok() {
        end = pair.receive(1, Lane::Low, &header);
        held += 1;
    }
    assert_eq!(end, Err(Violation::Early));
    assert!(held <= EARLY_BYTES_MIN / 64, "{held} messages were held");
}

#[test]
fn records_of_a_stream_that_was_reset_here_are_not_reported() {
    let stream = id(FIRST);
    let mut pair = attacked();
    pair.machines[1].reset(stream, ResetReason::Lost).unwrap();
    let late = [
        Record::Bytes { stream, offset: 100, bytes: b"late", is_half: true },
        Record::Credit { stream, drained: 7, window: 7 },
        Record::Reset { stream, reason: ResetReason::Died },
    ];
    assert_eq!(pair.receive(1, Lane::High, &message(&late)), Ok(vec![]));
}

#[derive(Clone, Debug)]
enum Attack {
    Records(bool, Vec<(u8, u64, u64, u32, u16)>),
    Bytes(bool, Vec<u8>),
    Call(u8, u64, u64),
    Transmit,
}

fn attacks() -> impl Strategy<Value = Vec<Attack>> {
    let stream =
        prop_oneof![20 => 0..8u64, 2 => (0..4u64).prop_map(|slot| 1 << 32 | slot), 1 => any::<u64>()];
    let number =
        prop_oneof![10 => 0..300u64, 3 => 0..2000u64, 1 => Just((1 << 62) - 1), 1 => Just(1u64 << 62)];
    let record =
        (0..13u8, stream.clone(), number.clone(), any::<u32>().prop_map(|word| word % 2000), 0..600u16);
    let attack = prop_oneof![
        8 => (any::<bool>(), prop::collection::vec(record, 1..6)).prop_map(|(low, records)| Attack::Records(low, records)),
        1 => (any::<bool>(), prop::collection::vec(any::<u8>(), 0..80)).prop_map(|(low, bytes)| Attack::Bytes(low, bytes)),
        6 => (0..11u8, stream, number).prop_map(|(call, stream, number)| Attack::Call(call, stream, number)),
        3 => Just(Attack::Transmit),
    ];
    prop::collection::vec(attack, 0..60)
}

fn record((kind, bits, number, word, length): (u8, u64, u64, u32, u16), bytes: &[u8]) -> Record<'_> {
    let stream = id(bits);
    let offset = number.min(1 << 62);
    match kind {
        0 | 1 => Record::Open { stream, window: word, description: &bytes[..usize::from(length % 513)] },
        2 => Record::Accept { stream, window: word },
        3 => Record::Refuse { stream, reason: Refusal::Busy },
        4 => Record::Start { stream, offset },
        5 | 6 => Record::Bytes {
            stream,
            offset,
            bytes: &bytes[..usize::from(length)],
            is_half: word % 5 == 0 || length == 0,
        },
        7 => Record::Credit { stream, drained: offset, window: word },
        8 => Record::Return { stream, offset },
        9 => Record::Back { stream, offset },
        10 => Record::Reset { stream, reason: ResetReason::Aborted },
        11 => Record::Done { stream },
        _ => Record::Close { reason: ResetReason::Stopped },
    }
}

fn call(pair: &mut Pair, call: u8, stream: StreamId, number: u64) {
    let machine = &mut pair.machines[1];
    // Calls that do not fit are refused.
    let _ = match call {
        0 => machine.open(b"a stream", number).map(|_| ()).map_err(|_| bywire_stream::CallError::State),
        1 => machine.accept(stream, number),
        2 => machine.refuse(stream, Refusal::Unknown),
        3 => machine.start(stream, number),
        4 => machine.queue(stream, number),
        5 => machine.drain(stream, number, number),
        6 => machine.half(stream),
        7 => machine.back(stream, number),
        8 => machine.ask_back(stream).map(|_| ()),
        9 => machine.reset(stream, ResetReason::Aborted),
        _ => machine.close(stream),
    };
}

proptest! {
    #![proptest_config(crate::oracle::cases())]

    /// Records of every kind in any order, and bytes that are none, between calls of the caller.
    #[test]
    fn no_peer_makes_the_machine_panic_or_exceed_its_limits(attacks in attacks()) {
        let payload = [7; 600];
        let mut pair = attacked();
        for attack in attacks {
            match attack {
                Attack::Records(is_low, records) => {
                    let records: Vec<Record> = records.into_iter().map(|words| record(words, &payload)).collect();
                    let lane = if is_low { Lane::Low } else { Lane::High };
                    let events = pair.receive(1, lane, &message(&records)).unwrap_or_default();
                    let opened = |event: &&Heard| matches!(event, Heard::Opened(..));
                    prop_assert!(events.iter().filter(opened).count() <= LIMITS.opens_max as usize + records.len());
                    prop_assert!(!events.contains(&Heard::Other(Event::Ready)));
                }
                Attack::Bytes(is_low, bytes) => {
                    let lane = if is_low { Lane::Low } else { Lane::High };
                    let _ = pair.receive(1, lane, &bytes);
                }
                Attack::Call(number, stream, argument) => call(&mut pair, number, id(stream), argument),
                Attack::Transmit => {
                    for lane in [Lane::High, Lane::Low] {
                        while pair.transmit(1, lane, 2000) > 0 {
                            // The message that it makes can be read.
                            let sent = pair.lanes[1][lane as usize].back().expect("it was just made");
                            let (_, records) = Header::parse(sent).expect("a header");
                            prop_assert!(records.into_iter().all(|record| record.is_ok()));
                        }
                    }
                }
            }
            prop_assert!(pair.machines[1].occupied() <= 2 * LIMITS.streams_max as usize);
            prop_assert!(pair.machines[1].shared_credit() <= LIMITS.bytes_max / 2);
        }
    }
}
