//! Frames: the contents of a connection's packets.

use std::ops::RangeInclusive;

use crate::reader::Reader;

/// The most ranges in one acknowledgement.
pub const RANGES_MAX: usize = 32;

/// The most frames in one packet besides [`Frame::Pad`]. One of them may be an acknowledgement. This bounds a packet's
/// cost for its receiver more than its length does.
pub const FRAMES_MAX: usize = 160;

/// The bytes of an acknowledgement of one range.
const ACK_BYTES: usize = 1 + 8 + 4 + 1 + 4;

const PAD: u8 = 0x00;
const PING: u8 = 0x01;
const CLOSE: u8 = 0x02;
const ACK: u8 = 0x03;
const LANE: u8 = 0x10;
const CREDIT: u8 = 0x20;
const DATAGRAM: u8 = 0x30;

/// One of the ordered byte streams of a connection. Each has its own credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Lane {
    /// Replies, which flow while both others are blocked.
    Reply = 0,
    /// Messages of high priority.
    High = 1,
    /// Messages of low priority.
    Low = 2,
}

/// Every lane, the most urgent first.
pub const LANES: [Lane; 3] = [Lane::Reply, Lane::High, Lane::Low];

/// The error for bytes that are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packet contains bytes that are not a frame")]
pub struct Malformed;

/// One frame, borrowed from the bytes of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'packet> {
    /// One byte of padding.
    Pad,
    /// Asks for an acknowledgement.
    Ping,
    /// The connection ends.
    Close {
        /// The reason, in a code of the end that closes.
        reason: u8,
    },
    /// Packets that have arrived.
    Ack(Ack<'packet>),
    /// Bytes of a lane.
    Lane {
        /// The lane.
        lane: Lane,
        /// The offset in the lane.
        offset: u64,
        /// The bytes.
        bytes: &'packet [u8],
    },
    /// The credit of a lane.
    Credit {
        /// The lane.
        lane: Lane,
        /// Bytes that the program has consumed.
        taken: u64,
        /// The offset before which everything may be sent.
        limit: u64,
    },
    /// A piece of a datagram, which may be lost.
    Datagram {
        /// Its lane, for its priority.
        lane: Lane,
        /// A number that is the same for every piece of a datagram.
        id: u32,
        /// The offset in the datagram.
        offset: u16,
        /// Bytes of the whole datagram.
        total: u16,
        /// The bytes.
        bytes: &'packet [u8],
    },
}

/// An acknowledgement: ranges of packet numbers that have arrived, the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'packet> {
    /// The highest number that has arrived.
    pub largest: u64,
    /// The microseconds since it arrived.
    pub delay_us: u32,
    /// A run of `u32`, then pairs of gap and run. They were checked.
    runs: &'packet [u8],
}

impl<'packet> Ack<'packet> {
    /// The ranges, the newest first.
    pub fn ranges(self) -> impl Iterator<Item = RangeInclusive<u64>> + Clone + 'packet {
        let mut reader = Reader(self.runs);
        let mut next = Some(self.largest);
        std::iter::from_fn(move || {
            let run = reader.u32()?;
            let last = next?;
            let first = last - (u64::from(run) - 1);
            next = reader.u32().and_then(|gap| first.checked_sub(u64::from(gap) + 1));
            Some(first..=last)
        })
    }

    /// Its range, if it has only one.
    #[inline]
    pub fn only_range(self) -> Option<RangeInclusive<u64>> {
        let run = u32::from_le_bytes(self.runs.try_into().ok()?);
        Some(self.largest - (u64::from(run) - 1)..=self.largest)
    }

    /// A frame's bytes after its kind.
    #[inline]
    fn parse(bytes: &'packet [u8]) -> Option<(Self, &'packet [u8])> {
        let (head, others) = bytes.split_first_chunk::<{ ACK_BYTES - 1 }>()?;
        let [largest @ .., _, _, _, _, _, _, _, _, _] = *head;
        let [.., d0, d1, d2, d3, ranges, r0, r1, r2, r3] = *head;
        let largest = u64::from_le_bytes(largest);
        let delay_us = u32::from_le_bytes([d0, d1, d2, d3]);
        let ranges = usize::from(ranges);
        if !(1..=RANGES_MAX).contains(&ranges) {
            return None;
        }
        // Every range must be above zero and must not be empty, because `ranges` relies on that.
        let run = u32::from_le_bytes([r0, r1, r2, r3]);
        let mut first = largest.checked_sub(u64::from(run.checked_sub(1)?))?;
        let (runs, rest) = bytes[ACK_BYTES - 1 - 4..].split_at_checked(4 + 8 * (ranges - 1))?;
        let mut words = Reader(others);
        for _ in 1..ranges {
            let gap = u64::from(words.u32().filter(|gap| *gap > 0)?);
            let last = first.checked_sub(gap)?.checked_sub(1)?;
            first = last.checked_sub(u64::from(words.u32()?.checked_sub(1)?))?;
        }
        Some((Self { largest, delay_us, runs }, rest))
    }
}

impl Lane {
    #[inline]
    fn of(kind: u8, base: u8) -> Option<Self> {
        match kind.wrapping_sub(base) {
            0 => Some(Self::Reply),
            1 => Some(Self::High),
            2 => Some(Self::Low),
            _ => None,
        }
    }
}

impl<'packet> Frame<'packet> {
    /// Does it ask for an acknowledgement?
    pub fn elicits_ack(&self) -> bool {
        !matches!(self, Self::Pad | Self::Ack(_) | Self::Close { .. })
    }

    /// The frame at the beginning of `bytes`, and the bytes after it.
    #[inline]
    fn parse(bytes: &'packet [u8]) -> Option<(Self, &'packet [u8])> {
        let (kind, rest) = bytes.split_first()?;
        // Most frames are these two.
        if let Some(lane) = Lane::of(*kind, LANE) {
            let (LaneBytes { offset, bytes, .. }, rest) = LaneBytes::parse(lane, rest)?;
            return Some((Self::Lane { lane, offset, bytes }, rest));
        }
        if *kind == ACK {
            let (ack, rest) = Ack::parse(rest)?;
            return Some((Self::Ack(ack), rest));
        }
        let mut reader = Reader(rest);
        let frame = Self::parse_other(*kind, &mut reader)?;
        Some((frame, reader.0))
    }

    #[inline(never)]
    fn parse_other(kind: u8, reader: &mut Reader<'packet>) -> Option<Self> {
        match kind {
            PAD => return Some(Self::Pad),
            PING => return Some(Self::Ping),
            CLOSE => return Some(Self::Close { reason: reader.u8()? }),
            _ => {}
        }
        if let Some(lane) = Lane::of(kind, CREDIT) {
            let (taken, limit) = (reader.u64()?, reader.u64()?);
            return (taken <= limit).then_some(Self::Credit { lane, taken, limit });
        }
        let lane = Lane::of(kind, DATAGRAM).filter(|lane| *lane != Lane::Reply)?;
        let (id, offset, total, length) = (reader.u32()?, reader.u16()?, reader.u16()?, reader.u16()?);
        let bytes = reader.bytes(length.into())?;
        offset.checked_add(length).filter(|end| *end <= total)?;
        Some(Self::Datagram { lane, id, offset, total, bytes })
    }
}

/// The frames of a packet's payload. [`Malformed`] is the last item.
#[inline]
pub fn frames(payload: &[u8]) -> impl Iterator<Item = Result<Frame<'_>, Malformed>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        match Frame::parse(rest) {
            Some((frame, behind)) => {
                rest = behind;
                Some(Ok(frame))
            }
            None => {
                rest = &[];
                Some(Err(Malformed))
            }
        }
    })
}

/// Bytes of a lane, borrowed from those of their packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneBytes<'packet> {
    /// The lane.
    pub lane: Lane,
    /// The offset in the lane.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'packet [u8],
}

impl<'packet> LaneBytes<'packet> {
    /// A frame's bytes after its kind, and the bytes after the frame.
    #[inline]
    fn parse(lane: Lane, bytes: &'packet [u8]) -> Option<(Self, &'packet [u8])> {
        let (head, rest) = bytes.split_first_chunk::<{ LANE_FRAME_BYTES - 1 }>()?;
        let [offset @ .., _, _] = *head;
        let [.., l0, l1] = *head;
        let (offset, length) = (u64::from_le_bytes(offset), u16::from_le_bytes([l0, l1]));
        let (bytes, rest) = rest.split_at_checked(length.into())?;
        offset.checked_add(length.into())?;
        Some((Self { lane, offset, bytes }, rest))
    }
}

/// The frames of most packets, if a payload has no others: an acknowledgement or none, and then bytes of one lane.
#[inline]
pub fn usual(payload: &[u8]) -> Option<(Option<Ack<'_>>, LaneBytes<'_>)> {
    let (ack, rest) = match payload.split_first()? {
        (&ACK, rest) => {
            let (ack, rest) = Ack::parse(rest)?;
            (Some(ack), rest)
        }
        _ => (None, payload),
    };
    let (kind, rest) = rest.split_first()?;
    let (bytes, rest) = LaneBytes::parse(Lane::of(*kind, LANE)?, rest)?;
    rest.is_empty().then_some((ack, bytes))
}

/// The payload of a packet that is being built, up to a length.
#[derive(Debug)]
pub struct Payload<'buffer> {
    buffer: &'buffer mut Vec<u8>,
    end: usize,
}

/// The bytes of a lane's frame without its payload.
pub const LANE_FRAME_BYTES: usize = 1 + 8 + 2;
/// The bytes of a datagram's piece without its payload.
pub const DATAGRAM_FRAME_BYTES: usize = 1 + 4 + 3 * 2;

impl<'buffer> Payload<'buffer> {
    /// Appends up to `room` bytes to a buffer.
    pub fn new(buffer: &'buffer mut Vec<u8>, room: usize) -> Self {
        let end = buffer.len() + room;
        Self { buffer, end }
    }

    /// The bytes that still fit.
    pub fn room(&self) -> usize {
        self.end - self.buffer.len()
    }

    /// Adds a frame. `false`: there is no room, and nothing was added.
    pub fn push(&mut self, frame: &Frame) -> bool {
        match *frame {
            Frame::Pad => self.append(&[&[PAD]]),
            Frame::Ping => self.append(&[&[PING]]),
            Frame::Close { reason } => self.append(&[&[CLOSE, reason]]),
            Frame::Ack(ack) => {
                let ranges = (ack.runs.len() / 8 + 1) as u8;
                let (largest, delay) = (ack.largest.to_le_bytes(), ack.delay_us.to_le_bytes());
                self.append(&[&[ACK], &largest, &delay, &[ranges], ack.runs])
            }
            Frame::Lane { lane, offset, bytes } => {
                let length = (bytes.len() as u16).to_le_bytes();
                bytes.len() <= u16::MAX.into()
                    && self.append(&[&[LANE + lane as u8], &offset.to_le_bytes(), &length, bytes])
            }
            Frame::Credit { lane, taken, limit } => {
                self.append(&[&[CREDIT + lane as u8], &taken.to_le_bytes(), &limit.to_le_bytes()])
            }
            Frame::Datagram { lane, id, offset, total, bytes } => {
                let length = (bytes.len() as u16).to_le_bytes();
                let (id, offset, total) = (id.to_le_bytes(), offset.to_le_bytes(), total.to_le_bytes());
                bytes.len() <= u16::MAX.into()
                    && self.append(&[&[DATAGRAM + lane as u8], &id, &offset, &total, &length, bytes])
            }
        }
    }

    /// Adds a frame with this many bytes of a lane, which `fill` appends. `false`: there is no room, and nothing was
    /// added.
    pub fn push_lane(
        &mut self,
        lane: Lane,
        offset: u64,
        length: u16,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        if LANE_FRAME_BYTES + usize::from(length) > self.room() {
            return false;
        }
        let mut head = [0; LANE_FRAME_BYTES];
        head[0] = LANE + lane as u8;
        head[1..9].copy_from_slice(&offset.to_le_bytes());
        head[9..].copy_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(&head);
        let end = self.buffer.len() + usize::from(length);
        fill(self.buffer);
        debug_assert_eq!(self.buffer.len(), end, "as many bytes as the frame says");
        true
    }

    /// Fills the packet with padding.
    pub fn pad(&mut self) {
        self.buffer.resize(self.end, PAD);
    }

    /// Adds an acknowledgement of as many of these ranges as there is room for, the newest first. `false`: there is
    /// room for none.
    ///
    /// # Panics
    /// If ranges touch or overlap, or are not in this order.
    pub fn push_ack(&mut self, delay_us: u32, ranges: impl IntoIterator<Item = RangeInclusive<u64>>) -> bool {
        const COUNT: usize = 1 + 8 + 4;
        const FIRST: usize = ACK_BYTES;
        let mut ranges = ranges.into_iter();
        let Some(newest) = ranges.next().filter(|_| self.room() >= FIRST) else { return false };
        let others_max = ((self.room() - FIRST) / 8).min(RANGES_MAX - 1);
        let mut first = cut(&newest);
        let mut head = [0; FIRST];
        (head[0], head[COUNT]) = (ACK, 1);
        head[1..9].copy_from_slice(&newest.end().to_le_bytes());
        head[9..COUNT].copy_from_slice(&delay_us.to_le_bytes());
        head[COUNT + 1..].copy_from_slice(&run_of(first, *newest.end()));
        let count = self.buffer.len() + COUNT;
        self.buffer.extend_from_slice(&head);
        for range in ranges.take(others_max) {
            let gap = first - range.end() - 1;
            assert!(gap > 0, "ranges that touch are one");
            // Ranges further back are old and can be left out.
            let Ok(gap) = u32::try_from(gap) else { break };
            first = cut(&range);
            self.buffer.extend_from_slice(&gap.to_le_bytes());
            self.buffer.extend_from_slice(&run_of(first, *range.end()));
            self.buffer[count] += 1;
        }
        true
    }

    fn append(&mut self, parts: &[&[u8]]) -> bool {
        if parts.iter().map(|part| part.len()).sum::<usize>() > self.room() {
            return false;
        }
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        true
    }
}

/// The first number of a range, or the lowest number of its end that a run can express.
fn cut(range: &RangeInclusive<u64>) -> u64 {
    (*range.start()).max(range.end().saturating_sub(u64::from(u32::MAX) - 1))
}

fn run_of(first: u64, last: u64) -> [u8; 4] {
    ((last - first + 1) as u32).to_le_bytes()
}
