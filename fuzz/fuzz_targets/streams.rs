//! Streams of two engines stand whatever a peer sends: messages of any form, and records that do not fit. Limits are kept,
//! and nothing is reported after a broken rule. Two honest machines understand each other whatever their callers do and
//! however their lanes overtake each other: no rule is broken, and bytes arrive as they were sent.
#![no_main]

mod input;

use std::collections::VecDeque;

use bywire_stream::record::{Header, Record};
use bywire_stream::{
    EARLY_BYTES_MIN, Event, Lane, Limits, MESSAGE_BYTES_MIN, Refusal, ResetReason, Side, StreamId, Streams,
};
use libfuzzer_sys::fuzz_target;

use input::Input;

const LIMITS: Limits = Limits {
    streams_max: 4,
    opens_max: 2,
    window_bytes_max: 5_000,
    bytes_max: 100_000,
    early_bytes_max: EARLY_BYTES_MIN,
};

impl Input<'_> {
    /// Small numbers often, large ones sometimes.
    fn word(&mut self) -> u64 {
        match self.byte() {
            255 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            254 => 1 << 62,
            253 => u64::from(self.byte()) << 32,
            250..=252 => u64::from(self.byte()) << 5,
            small => u64::from(small),
        }
    }

    fn lane(&mut self) -> Lane {
        if self.byte() & 1 == 0 { Lane::High } else { Lane::Low }
    }

    /// A stream of either end, of its first generation or another one.
    fn stream(&mut self) -> StreamId {
        let byte = u64::from(self.byte());
        StreamId::from_bits(if byte < 250 { byte % 10 + ((byte / 64) << 32) } else { self.word() })
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    if input.byte() & 1 == 0 { attack(&mut input) } else { exchange(&mut input) }
});

/// A hostile peer.
fn attack(input: &mut Input) {
    let mut machine = Streams::new(Side::Second, LIMITS);
    let hello = Record::Hello { streams_max: 4, opens_max: 4, early_bytes_max: EARLY_BYTES_MIN };
    deliver(&mut machine, Lane::High, &message(None, &[hello]));
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0 => {
                let lane = input.lane();
                deliver(&mut machine, lane, input.bytes());
            }
            1..=4 => {
                let lane = input.lane();
                let after = (lane == Lane::Low && input.byte() & 3 == 0).then(|| input.word() as u32);
                let payload = [1; 600];
                let records: Vec<Record> = (0..input.byte() % 4).map(|_| record(input, &payload)).collect();
                deliver(&mut machine, lane, &message(after, &records));
            }
            5 => {
                let mut buffer = [0; MESSAGE_BYTES_MIN];
                let length = machine.transmit(input.lane(), &mut buffer, |_, _, target| target.fill(2));
                if length > 0 {
                    let (_, mut records) = Header::parse(&buffer[..length]).expect("a message of its own");
                    assert!(records.all(|record| record.is_ok()), "a record that nobody can read");
                }
            }
            _ => {
                let stream = input.stream();
                call(&mut machine, stream, input);
            }
        }
        assert!(machine.occupied() <= 8, "more streams than the limit");
        assert!(machine.shared_credit() <= LIMITS.bytes_max / 2, "more credit than the limit");
    }
}

fn deliver(machine: &mut Streams, lane: Lane, bytes: &[u8]) {
    let was_over = machine.is_over();
    let mut is_silent = true;
    let result = machine.receive(lane, bytes, |_| is_silent = false);
    assert!(!was_over || is_silent && result.is_ok(), "something is reported after the end");
    assert!(result.is_ok() || machine.is_over());
}

fn message(after: Option<u32>, records: &[Record]) -> Vec<u8> {
    let mut bytes = Header { wants_acknowledgement: true, after, processed: [0; 2] }.to_bytes().to_vec();
    for record in records {
        let begin = bytes.len();
        bytes.resize(begin + record.length(), 0);
        record.write(&mut bytes[begin..]);
        let alone = [&bytes[..16], &bytes[begin..]].concat();
        let (_, mut read) = Header::parse(&alone).expect("the header is valid");
        assert_eq!((read.next(), read.next()), (Some(Ok(*record)), None), "it is not read as it was written");
    }
    bytes
}

fn record<'a>(input: &mut Input, payload: &'a [u8]) -> Record<'a> {
    let (kind, stream) = (input.byte() % 12, input.stream());
    let (offset, window) = (input.word().min(1 << 62), input.word().min(1 << 30) as u32);
    match kind {
        0 => Record::Open { stream, window, description: &payload[..usize::from(input.byte())] },
        1 => Record::Accept { stream, window },
        2 => Record::Refuse { stream, reason: Refusal::Busy },
        3 => Record::Start { stream, offset },
        4 => Record::Bytes {
            stream,
            offset,
            bytes: &payload[..usize::from(input.byte()) + 1],
            is_half: window & 1 == 1,
        },
        5 => Record::Credit { stream, drained: offset, window },
        6 => Record::Return { stream, offset },
        7 => Record::Back { stream, offset },
        8 => Record::Reset { stream, reason: ResetReason::Died },
        9 => Record::Done { stream },
        10 => Record::Bytes { stream, offset, bytes: b"", is_half: true },
        _ if window == 7 => Record::Close { reason: ResetReason::Stopped },
        _ => Record::Open { stream, window, description: b"" },
    }
}

/// Any call for a stream. One that does not fit is refused.
fn call(machine: &mut Streams, stream: StreamId, input: &mut Input) {
    let (kind, number) = (input.byte() % 12, input.word());
    let progress = machine.progress(stream);
    let (sent, received) = progress.map_or((0, 0), |progress| (progress.sent, progress.received));
    let _ = match kind {
        0 => machine.open(b"a stream", number).map_or(Ok(()), |_| Ok(())),
        1 => machine.accept(stream, number),
        2 if number == 1 => machine.refuse(stream, Refusal::Unknown),
        3 => machine.start(stream, number),
        4 | 5 => machine.queue(stream, sent.saturating_add(number)),
        6 => machine.drain(stream, received, number),
        7 => machine.half(stream),
        8 => machine.back(stream, sent.saturating_add(number)),
        9 => machine.ask_back(stream).map(|_| ()),
        10 if number == 1 => machine.reset(stream, ResetReason::Aborted),
        11 => machine.close(stream),
        _ => {
            machine.flush();
            Ok(())
        }
    };
}

fn byte(stream: StreamId, offset: u64) -> u8 {
    (stream.to_bits() ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7]
}

/// Two honest machines.
fn exchange(input: &mut Input) {
    let mut machines = [Side::First, Side::Second].map(|side| Streams::new(side, LIMITS));
    let mut lanes: [[VecDeque<Vec<u8>>; 2]; 2] = Default::default();
    while !input.0.is_empty() {
        let side = usize::from(input.byte() & 1);
        match input.byte() % 3 {
            0 => {
                let stream = input.stream();
                call(&mut machines[side], stream, input);
            }
            1 => {
                let lane = input.lane();
                let mut buffer = vec![0; MESSAGE_BYTES_MIN * (1 + usize::from(input.byte() & 3))];
                let length = machines[side].transmit(lane, &mut buffer, |stream, offset, target| {
                    target.iter_mut().zip(offset..).for_each(|(place, offset)| *place = byte(stream, offset));
                });
                buffer.truncate(length);
                lanes[side][lane as usize].extend((length > 0).then_some(buffer));
            }
            _ => {
                let lane = input.lane();
                let Some(message) = lanes[1 - side][lane as usize].pop_front() else { continue };
                let received = machines[side].receive(lane, &message, |event| {
                    if let Event::Bytes { stream, offset, bytes } = event {
                        let are_sent =
                            bytes.iter().zip(offset..).all(|(found, offset)| *found == byte(stream, offset));
                        assert!(are_sent, "{stream:?}: bytes at {offset} are not those that were sent");
                    }
                });
                received.expect("an honest peer");
            }
        }
    }
}
