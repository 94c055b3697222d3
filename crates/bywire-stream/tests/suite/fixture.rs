//! Two machines, and messages under way between them.

use std::collections::VecDeque;

use bywire_stream::{Event, Lane, Limits, MESSAGE_BYTES_MAX, Side, StreamId, Streams, Violation};

pub const LANES: [Lane; 2] = [Lane::High, Lane::Low];
pub const SIDES: [Side; 2] = [Side::First, Side::Second];

/// The byte of a stream at an offset, in the direction that a side writes.
pub fn byte(stream: StreamId, writer: usize, offset: u64) -> u8 {
    let salt =
        stream.to_bits().wrapping_mul(2).wrapping_add(writer as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((offset ^ salt).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8
}

/// Whether these are the bytes from an offset on.
pub fn are(stream: StreamId, writer: usize, offset: u64, bytes: &[u8]) -> bool {
    bytes.iter().zip(offset..).all(|(found, offset)| *found == byte(stream, writer, offset))
}

/// An event without the bytes of its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Opened(StreamId, Vec<u8>),
    Bytes(StreamId, u64, Vec<u8>),
    Other(Event<'static>),
}

pub fn heard(event: Event) -> Heard {
    Heard::Other(match event {
        Event::Opened { stream, description } => return Heard::Opened(stream, description.to_vec()),
        Event::Bytes { stream, offset, bytes } => return Heard::Bytes(stream, offset, bytes.to_vec()),
        Event::Ready => Event::Ready,
        Event::Accepted { stream } => Event::Accepted { stream },
        Event::Refused { stream, reason } => Event::Refused { stream, reason },
        Event::Started { stream, offset } => Event::Started { stream, offset },
        Event::Half { stream, offset } => Event::Half { stream, offset },
        Event::Back { stream, offset } => Event::Back { stream, offset },
        Event::BackAsked { stream, offset } => Event::BackAsked { stream, offset },
        Event::Drained { stream, offset } => Event::Drained { stream, offset },
        Event::Reset { stream, reason } => Event::Reset { stream, reason },
        Event::Closed { reason } => Event::Closed { reason },
    })
}

pub struct Pair {
    pub machines: [Streams; 2],
    /// Messages by their sender and lane.
    pub lanes: [[VecDeque<Vec<u8>>; 2]; 2],
}

impl Pair {
    pub fn new(limits: Limits) -> Self {
        Self { machines: SIDES.map(|side| Streams::new(side, limits)), lanes: Default::default() }
    }

    /// Both know each other.
    pub fn ready(limits: Limits) -> Self {
        let mut pair = Self::new(limits);
        for side in [0, 1] {
            pair.transmit(side, Lane::High, MESSAGE_BYTES_MAX);
            assert_eq!(pair.deliver(side, Lane::High), [Heard::Other(Event::Ready)]);
        }
        pair
    }

    /// Makes the next message of a side, and returns its length.
    pub fn transmit(&mut self, side: usize, lane: Lane, bytes_max: usize) -> usize {
        let mut message = vec![0; bytes_max];
        let read = |stream, offset: u64, target: &mut [u8]| {
            target.iter_mut().zip(offset..).for_each(|(place, offset)| *place = byte(stream, side, offset));
        };
        let length = self.machines[side].transmit(lane, &mut message, read);
        message.truncate(length);
        if length > 0 {
            self.lanes[side][lane as usize].push_back(message);
        }
        length
    }

    /// Delivers the next message of a side, if there is one.
    ///
    /// # Panics
    /// If the other side calls it a violation.
    pub fn deliver(&mut self, from: usize, lane: Lane) -> Vec<Heard> {
        let message = self.lanes[from][lane as usize].pop_front();
        message
            .map_or_else(Vec::new, |message| self.receive(1 - from, lane, &message).expect("an honest peer"))
    }

    pub fn receive(&mut self, to: usize, lane: Lane, message: &[u8]) -> Result<Vec<Heard>, Violation> {
        let mut events = Vec::new();
        self.machines[to].receive(lane, message, |event| events.push(heard(event)))?;
        Ok(events)
    }

    /// Carries everything until nothing moves, and returns what each side heard.
    pub fn settle(&mut self) -> [Vec<Heard>; 2] {
        let mut all: [Vec<Heard>; 2] = Default::default();
        loop {
            let mut moved = false;
            for (from, lane) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                while self.transmit(from, LANES[lane], MESSAGE_BYTES_MAX) > 0 {}
                while !self.lanes[from][lane].is_empty() {
                    moved = true;
                    all[1 - from].extend(self.deliver(from, LANES[lane]));
                }
            }
            if !moved {
                return all;
            }
        }
    }

    /// A stream that side 0 has opened and side 1 has accepted, with room for so many bytes in each direction.
    pub fn open(&mut self, room: u64) -> StreamId {
        let stream = self.machines[0].open(b"a stream", room).expect("room for a stream");
        self.settle();
        self.machines[1].accept(stream, room).expect("it was opened");
        let events = self.settle();
        assert_eq!(events[0], [Heard::Other(Event::Accepted { stream })]);
        stream
    }
}
