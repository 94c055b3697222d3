//! Packets, frames and records between machines are read as they were written, from any bytes, and against a model.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bywire_wire::frame::{Frame, LANES, Lane, LaneBytes, Malformed, Payload, RANGES_MAX, frames, usual};
use bywire_wire::packet::{self, HEADER_BYTES, Header, PacketKind};
use bywire_wire::received::{Received, WINDOW};
use bywire_wire::record::{HEAD_BYTES_MAX, Head, LENGTH_MAX, NOTE_BYTES_MAX};
use proptest::collection::vec;
use proptest::prelude::*;

fn kinds() -> impl Strategy<Value = PacketKind> {
    use PacketKind::*;
    prop::sample::select(vec![Hello, Answer, Cookie, Data])
}

fn lanes() -> impl Strategy<Value = Lane> {
    prop::sample::select(LANES.to_vec())
}

fn heads() -> impl Strategy<Value = Head> {
    let length = 0..=LENGTH_MAX;
    let put = (length.clone(), any::<[u64; 3]>(), prop::option::of(0..=NOTE_BYTES_MAX));
    prop_oneof![
        (length.clone(), any::<[bool; 2]>()).prop_map(|(length, [is_long, is_prompt])| Head::Message {
            length,
            is_long,
            is_prompt
        }),
        put.prop_map(|(length, [key, offset, transfer], note)| Head::Put {
            length,
            key,
            offset,
            transfer,
            note
        }),
        (length.clone(), any::<[u64; 3]>()).prop_map(|(length, [key, offset, transfer])| Head::Get {
            key,
            offset,
            length,
            transfer
        }),
        any::<[u64; 2]>().prop_map(|[transfer, code]| Head::Status { transfer, code }),
        (length, any::<u64>()).prop_map(|(length, transfer)| Head::Got { length, transfer }),
    ]
}

/// Ranges that neither touch nor overlap, the newest first.
fn ranges() -> impl Strategy<Value = Vec<RangeInclusive<u64>>> {
    vec((1..1000u64, 1..1000u64), 1..2 * RANGES_MAX).prop_map(|pairs| {
        let mut next = 0;
        let mut ranges: Vec<_> = pairs
            .into_iter()
            .map(|(gap, run)| {
                let first = next + gap;
                next = first + run;
                first..=next - 1
            })
            .collect();
        ranges.reverse();
        ranges
    })
}

/// A frame that owns its bytes.
#[derive(Clone, Debug)]
enum Written {
    Plain(Frame<'static>),
    Lane(Lane, u64, Vec<u8>),
    Datagram(Lane, u32, u16, Vec<u8>, u16),
    Ack(u32, Vec<RangeInclusive<u64>>),
}

fn written() -> impl Strategy<Value = Written> {
    let bytes = || vec(any::<u8>(), 0..200);
    let offset = 0..u64::MAX - 200;
    let priority = prop::sample::select(vec![Lane::High, Lane::Low]);
    let credit = (lanes(), any::<u64>(), any::<u64>()).prop_map(|(lane, one, other)| Frame::Credit {
        lane,
        taken: one.min(other),
        limit: one.max(other),
    });
    prop_oneof![
        Just(Written::Plain(Frame::Pad)),
        Just(Written::Plain(Frame::Ping)),
        any::<u8>().prop_map(|reason| Written::Plain(Frame::Close { reason })),
        credit.prop_map(Written::Plain),
        (lanes(), offset, bytes()).prop_map(|(lane, offset, bytes)| Written::Lane(lane, offset, bytes)),
        (priority, any::<u32>(), 0..60_000u16, bytes(), 0..5000u16)
            .prop_map(|(lane, id, offset, bytes, rest)| Written::Datagram(lane, id, offset, bytes, rest)),
        (any::<u32>(), ranges()).prop_map(|(delay, ranges)| Written::Ack(delay, ranges)),
    ]
}

fn push(payload: &mut Payload, frame: &Written) -> bool {
    match frame {
        Written::Plain(frame) => payload.push(frame),
        Written::Lane(lane, offset, bytes) => {
            payload.push(&Frame::Lane { lane: *lane, offset: *offset, bytes })
        }
        Written::Datagram(lane, id, offset, bytes, rest) => {
            let total = offset + bytes.len() as u16 + rest;
            payload.push(&Frame::Datagram { lane: *lane, id: *id, offset: *offset, total, bytes })
        }
        Written::Ack(delay, ranges) => payload.push_ack(*delay, ranges.iter().cloned()),
    }
}

/// Is the frame that was read the one that was written?
fn is_same(read: &Frame, frame: &Written) -> bool {
    match (read, frame) {
        (read, Written::Plain(frame)) => read == frame,
        (Frame::Lane { lane, offset, bytes }, Written::Lane(was, at, sent)) => {
            (lane, offset, *bytes) == (was, at, &sent[..])
        }
        (
            Frame::Datagram { lane, id, offset, total, bytes },
            Written::Datagram(was, number, at, sent, rest),
        ) => {
            (lane, id, offset, *bytes) == (was, number, at, &sent[..])
                && *total == at + sent.len() as u16 + rest
        }
        (Frame::Ack(ack), Written::Ack(delay, ranges)) => {
            let read: Vec<_> = ack.ranges().collect();
            ack.delay_us == *delay && !read.is_empty() && read[..] == ranges[..read.len()]
        }
        _ => false,
    }
}

proptest! {
    #[test]
    fn a_header_is_read_as_it_was_written(
        kind in kinds(), key_phase: bool, connection: u32, number: u64, length in HEADER_BYTES as u16..2000,
    ) {
        let header = Header { kind, key_phase, length, connection, number };
        let mut packet = header.to_bytes().to_vec();
        packet.resize(length.into(), 0);
        prop_assert_eq!(Header::parse(&packet), Some(header));
        packet.pop();
        prop_assert_eq!(Header::parse(&packet), None, "it is cut off");
    }

    #[test]
    fn joined_packets_are_split_by_their_own_lengths(lengths in vec(HEADER_BYTES as u16..300, 0..20), rest in vec(any::<u8>(), 0..HEADER_BYTES)) {
        let mut buffer = Vec::new();
        for (number, length) in (0..).zip(&lengths) {
            let header =
                Header { kind: PacketKind::Data, key_phase: false, length: *length, connection: 7, number };
            let end = buffer.len() + usize::from(*length);
            buffer.extend(header.to_bytes());
            buffer.resize(end, 1);
        }
        buffer.extend(rest);
        let found: Vec<_> = packet::split(&mut buffer).map(|(header, bytes)| (header.number, bytes.len())).collect();
        let sent: Vec<_> = (0..).zip(lengths.into_iter().map(usize::from)).collect();
        prop_assert_eq!(found, sent);
    }

    #[test]
    fn a_datagram_that_is_no_packet_takes_none_of_those_joined_with_it(
        length in HEADER_BYTES..300, are_forged in vec(any::<bool>(), 0..20), last in 0..HEADER_BYTES,
    ) {
        let mut buffer = Vec::new();
        for (number, is_forged) in (0..).zip(&are_forged) {
            let header = Header {
                kind: PacketKind::Data,
                key_phase: false,
                length: if *is_forged { length as u16 + 1 } else { length as u16 },
                connection: 7,
                number,
            };
            let end = buffer.len() + length;
            buffer.extend(header.to_bytes());
            buffer.resize(end, 1);
        }
        // The last one may be shorter.
        buffer.resize(buffer.len() + last, 1);
        let found: Vec<_> =
            packet::split_joined(&mut buffer, length).map(|(header, _)| header.number).collect();
        let sent: Vec<_> = (0..).zip(&are_forged).filter(|(_, is_forged)| !**is_forged).collect();
        prop_assert_eq!(found, sent.into_iter().map(|(number, _)| number).collect::<Vec<u64>>());
        prop_assert_eq!(packet::split_joined(&mut [], 0).count(), 0);
    }

    #[test]
    fn frames_are_read_as_they_were_written(frames_written in vec(written(), 0..20), room in 0..2000usize) {
        let mut bytes = vec![9; 3];
        let mut payload = Payload::new(&mut bytes, room);
        let sent: Vec<&Written> = frames_written.iter().filter(|frame| push(&mut payload, frame)).collect();
        prop_assert!(bytes.len() <= 3 + room);
        let read: Vec<Frame> = frames(&bytes[3..]).collect::<Result<_, _>>().expect("well formed");
        prop_assert_eq!(read.len(), sent.len());
        prop_assert!(read.iter().zip(sent).all(|(read, sent)| is_same(read, sent)));
        let expected = match read[..] {
            [Frame::Lane { lane, offset, bytes }] => Some((None, LaneBytes { lane, offset, bytes })),
            [Frame::Ack(ack), Frame::Lane { lane, offset, bytes }] => {
                Some((Some(ack), LaneBytes { lane, offset, bytes }))
            }
            _ => None,
        };
        prop_assert_eq!(usual(&bytes[3..]), expected);
    }

    #[test]
    fn any_bytes_parse_as_frames_or_an_error(bytes in vec(prop_oneof![0..0x40u8, any::<u8>()], 0..300)) {
        let mut read = Vec::new();
        for frame in frames(&bytes) {
            let Ok(frame) = frame else {
                prop_assert_eq!(frame, Err(Malformed));
                prop_assert_eq!(usual(&bytes), None);
                break;
            };
            if let Frame::Ack(ack) = frame {
                let ranges: Vec<_> = ack.ranges().collect();
                prop_assert!((1..=RANGES_MAX).contains(&ranges.len()) && *ranges[0].end() == ack.largest);
                prop_assert!(ranges.iter().all(|range| range.start() <= range.end()));
                prop_assert!(ranges.windows(2).all(|pair| *pair[1].end() + 1 < *pair[0].start()));
            }
            read.push(frame);
        }
        // Every frame that can be read is written again as the same bytes.
        let mut again = Vec::new();
        let mut payload = Payload::new(&mut again, bytes.len());
        prop_assert!(read.iter().all(|frame| payload.push(frame)));
        prop_assert!(bytes.starts_with(&again));
    }

    #[test]
    fn a_record_header_is_read_as_written_however_it_is_split(head in heads(), behind in vec(any::<u8>(), 0..20)) {
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        let length = bytes.len();
        prop_assert!(length <= HEAD_BYTES_MAX);
        for cut in 0..length {
            prop_assert_eq!(Head::parse(&bytes[..cut]), Ok(None), "{} of {}", cut, length);
        }
        bytes.extend(behind);
        prop_assert_eq!(Head::parse(&bytes), Ok(Some((head, length))));
    }

    #[test]
    fn any_bytes_parse_as_a_record_header_or_an_error(bytes in vec(prop_oneof![0..8u8, any::<u8>()], 0..60)) {
        if let Ok(Some((head, length))) = Head::parse(&bytes) {
            let mut again = Vec::new();
            head.write(&mut again);
            prop_assert_eq!(&again[..], &bytes[..length]);
            prop_assert!(head.payload_bytes() <= LENGTH_MAX + u64::from(NOTE_BYTES_MAX));
        }
    }

    #[test]
    fn packet_numbers_are_accepted_once_and_ranges_match_a_model(
        steps in vec(prop_oneof![4 => -3..4i64, 2 => -200..300i64, 1 => -9000..20_000i64], 0..300), start: u32,
        back in 0..10_000u64,
    ) {
        let mut received = Received::default();
        let mut model = BTreeSet::new();
        let mut at = i64::from(start);
        for step in steps {
            at = (at + step).max(0);
            let number = at as u64;
            let floor = model.last().map_or(0, |last: &u64| (last + 1).saturating_sub(WINDOW));
            let is_new = number >= floor && !model.contains(&number);
            prop_assert_eq!(received.is_known(number), !is_new);
            prop_assert_eq!(received.insert(number), is_new);
            model.insert(number);
            prop_assert_eq!(received.largest(), model.last().copied());
        }
        let floor = model.last().map_or(0, |last| (last + 1).saturating_sub(WINDOW));
        let from = (at as u64).saturating_sub(back);
        let mut expected: Vec<RangeInclusive<u64>> = Vec::new();
        for number in model.range(floor.max(from)..).rev() {
            match expected.last_mut() {
                Some(range) if *range.start() == number + 1 => *range = *number..=*range.end(),
                _ => expected.push(*number..=*number),
            }
        }
        prop_assert_eq!(&received.ranges(from).collect::<Vec<_>>(), &expected);
        if let Some(only) = received.only_range(from) {
            prop_assert_eq!(expected, [only]);
        }
    }
}

/// A range with more packets than the format can express is shortened, and an older range beyond that limit is left out.
#[test]
fn an_acknowledgement_of_a_very_large_range_is_valid() {
    let mut bytes = Vec::new();
    let mut payload = Payload::new(&mut bytes, 1000);
    let newest = 1 << 40..=1 << 41;
    assert!(payload.push_ack(5, [newest, 0..=3]));
    let read: Vec<Frame> = frames(&bytes).collect::<Result<_, _>>().expect("well formed");
    let [Frame::Ack(ack)] = read[..] else { panic!("{read:?}") };
    let ranges: Vec<_> = ack.ranges().collect();
    assert_eq!(ranges, [(1u64 << 41) - u64::from(u32::MAX) + 1..=1 << 41]);
}

#[test]
fn the_highest_packet_number_is_never_used() {
    let mut received = Received::default();
    assert!(!received.insert(u64::MAX) && received.largest().is_none());
    assert!(received.insert(u64::MAX - 1) && !received.insert(u64::MAX));
    assert_eq!(received.ranges(0).collect::<Vec<_>>(), [u64::MAX - 1..=u64::MAX - 1]);
}

#[test]
fn requests_never_exceed_what_can_be_answered() {
    let ask = |length: u64| {
        let mut bytes = vec![3, u8::MAX, 0, 0, 0, 0, 0, 0];
        [1, 2, length, 4].iter().for_each(|word: &u64| bytes.extend(word.to_le_bytes()));
        Head::parse(&bytes)
    };
    assert!(ask(LENGTH_MAX).is_ok_and(|head| head.is_some()));
    assert!(ask(LENGTH_MAX + 1).is_err());
}
