//! The format of messages, little-endian. The crate's documentation has the table.

use crate::id::StreamId;
use crate::limits::{DESCRIPTION_BYTES_MAX, OFFSET_MAX};

/// The version of the format, in the first byte of each message.
pub const VERSION: u8 = 1;
/// The length of a message's header, in bytes.
pub const HEADER_BYTES: usize = 16;
/// The length of what comes before the bytes of [`Record::Bytes`].
pub(crate) const BYTES_HEAD: usize = 20;

const WANTS_ACKNOWLEDGEMENT: u8 = 1;
const AFTER: u8 = 2;

const HELLO: u8 = 1;
const OPEN: u8 = 2;
const ACCEPT: u8 = 3;
const REFUSE: u8 = 4;
const START: u8 = 5;
const BYTES: u8 = 6;
const CREDIT: u8 = 7;
const RETURN: u8 = 8;
const BACK: u8 = 9;
const RESET: u8 = 10;
const DONE: u8 = 11;
const CLOSE: u8 = 12;

/// In the code of [`Record::Bytes`]: the direction ends behind these bytes.
const HALF: u8 = 1;

/// The error for bytes that are no valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of streams is malformed")]
pub struct Malformed;

/// The reason why a stream was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The engine is at a limit of its own. Another attempt may succeed.
    Busy = 1,
    /// The two kernels or libraries disagree about the connection: its addresses or its bytes.
    Mismatch = 2,
    /// The user may not use this engine.
    NotAdmitted = 3,
    /// The engine does not export the port.
    NotExported = 4,
    /// No program of this engine has offered the other end.
    Unknown = 5,
}

/// The reason why a stream, or a whole connection, was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResetReason {
    /// The program has reset its connection, or closed it with unread bytes.
    Aborted = 1,
    /// The program was killed.
    Died = 2,
    /// Bytes were lost, so the stream cannot continue.
    Lost = 3,
    /// The engine stops.
    Stopped = 4,
}

/// The header before the records of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender needs to know soon that the message was processed.
    pub wants_acknowledgement: bool,
    /// The low half of a count of messages of the high lane. Only once the receiver has processed that many does it
    /// process this message, which is of the low lane.
    pub after: Option<u32>,
    /// The low halves of the counts of messages that the sender has processed, by lane.
    pub processed: [u32; 2],
}

/// One record of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The first record of each end: its limits.
    Hello {
        /// [`crate::Limits::streams_max`].
        streams_max: u32,
        /// [`crate::Limits::opens_max`].
        opens_max: u32,
        /// [`crate::Limits::early_bytes_max`].
        early_bytes_max: u32,
    },
    /// A new stream.
    Open {
        /// Its identifier, chosen by the sender.
        stream: StreamId,
        /// The bytes that the sender takes before it grants more.
        window: u32,
        /// The description by the sender's engine, for the other one.
        description: &'a [u8],
    },
    /// The stream is accepted.
    Accept {
        /// The stream.
        stream: StreamId,
        /// The bytes that the sender takes before it grants more.
        window: u32,
    },
    /// The stream is not accepted.
    Refuse {
        /// The stream.
        stream: StreamId,
        /// The reason.
        reason: Refusal,
    },
    /// The sender's direction leaves the kernel.
    Start {
        /// The stream.
        stream: StreamId,
        /// The offset of its first byte.
        offset: u64,
    },
    /// The next bytes of the sender's direction.
    Bytes {
        /// The stream.
        stream: StreamId,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
        /// The direction ends behind them.
        is_half: bool,
    },
    /// The sender has drained bytes of the other direction.
    Credit {
        /// The stream.
        stream: StreamId,
        /// The offset of the first byte that is not drained.
        drained: u64,
        /// The bytes that may be sent from there on.
        window: u32,
    },
    /// The sender, a reader, wants the other direction to return to the kernel.
    Return {
        /// The stream.
        stream: StreamId,
        /// The offset where it has stopped to read.
        offset: u64,
    },
    /// The sender's direction returns to the kernel.
    Back {
        /// The stream.
        stream: StreamId,
        /// The offset of the first byte that the kernel delivers.
        offset: u64,
    },
    /// The stream has ended, and what is under way of it is void.
    Reset {
        /// The stream.
        stream: StreamId,
        /// The reason.
        reason: ResetReason,
    },
    /// The sender's last record of the stream.
    Done {
        /// The stream.
        stream: StreamId,
    },
    /// The sender's last record at all.
    Close {
        /// The reason.
        reason: ResetReason,
    },
}

impl Header {
    /// The header as bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut flags = 0;
        if self.wants_acknowledgement {
            flags |= WANTS_ACKNOWLEDGEMENT;
        }
        if self.after.is_some() {
            flags |= AFTER;
        }
        let mut bytes = [0; HEADER_BYTES];
        (bytes[0], bytes[1]) = (VERSION, flags);
        bytes[4..8].copy_from_slice(&self.after.unwrap_or(0).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.processed[0].to_le_bytes());
        bytes[12..16].copy_from_slice(&self.processed[1].to_le_bytes());
        bytes
    }

    /// Reads a header, and returns the records behind it.
    ///
    /// # Errors
    /// [`Malformed`] for bytes that [`Header::to_bytes`] does not write.
    pub fn parse(message: &[u8]) -> Result<(Self, Records<'_>), Malformed> {
        let mut rest = message;
        let [VERSION, flags, 0, 0] = array(&mut rest)? else { return Err(Malformed) };
        let after = u32(&mut rest)?;
        if flags & !(WANTS_ACKNOWLEDGEMENT | AFTER) != 0 || flags & AFTER == 0 && after != 0 {
            return Err(Malformed);
        }
        let header = Self {
            wants_acknowledgement: flags & WANTS_ACKNOWLEDGEMENT != 0,
            after: (flags & AFTER != 0).then_some(after),
            processed: [u32(&mut rest)?, u32(&mut rest)?],
        };
        Ok((header, Records { rest }))
    }
}

/// The records of a message.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    /// The next record. After an error there is none.
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = Record::parse(&mut self.rest);
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

impl<'a> Record<'a> {
    fn parse(rest: &mut &'a [u8]) -> Result<Self, Malformed> {
        let [kind, code, length @ ..] = array::<4>(rest)?;
        let length = usize::from(u16::from_le_bytes(length));
        let stream = StreamId::from_bits(u64(rest)?);
        let has_code = matches!(kind, BYTES | REFUSE | RESET | CLOSE);
        let has_length = matches!(kind, OPEN | BYTES);
        let has_stream = !matches!(kind, HELLO | CLOSE);
        if !has_code && code != 0 || !has_length && length != 0 || !has_stream && stream.to_bits() != 0 {
            return Err(Malformed);
        }
        Ok(match kind {
            HELLO => {
                Self::Hello { streams_max: u32(rest)?, opens_max: u32(rest)?, early_bytes_max: u32(rest)? }
            }
            OPEN => {
                let window = window(rest)?;
                let description = bytes(rest, length)?;
                if description.len() > DESCRIPTION_BYTES_MAX {
                    return Err(Malformed);
                }
                Self::Open { stream, window, description }
            }
            ACCEPT => Self::Accept { stream, window: window(rest)? },
            REFUSE => Self::Refuse { stream, reason: refusal(code)? },
            START => Self::Start { stream, offset: offset(rest)? },
            BYTES => {
                let (offset, bytes) = (offset(rest)?, bytes(rest, length)?);
                // A record without bytes exists only to end a direction.
                if code > HALF || code == 0 && bytes.is_empty() {
                    return Err(Malformed);
                }
                Self::Bytes { stream, offset, bytes, is_half: code == HALF }
            }
            CREDIT => Self::Credit { stream, drained: offset(rest)?, window: window(rest)? },
            RETURN => Self::Return { stream, offset: offset(rest)? },
            BACK => Self::Back { stream, offset: offset(rest)? },
            RESET => Self::Reset { stream, reason: reset_reason(code)? },
            DONE => Self::Done { stream },
            CLOSE => Self::Close { reason: reset_reason(code)? },
            _ => return Err(Malformed),
        })
    }

    /// The bytes that [`Record::write`] writes.
    pub fn length(&self) -> usize {
        12 + match self {
            Self::Hello { .. } | Self::Credit { .. } => 12,
            Self::Open { description, .. } => 4 + description.len(),
            Self::Accept { .. } => 4,
            Self::Start { .. } | Self::Return { .. } | Self::Back { .. } => 8,
            Self::Bytes { bytes, .. } => 8 + bytes.len(),
            Self::Refuse { .. } | Self::Reset { .. } | Self::Done { .. } | Self::Close { .. } => 0,
        }
    }

    /// Writes the record to the beginning of `target`, and returns its length.
    ///
    /// # Panics
    /// If `target` is shorter than [`Record::length`], or the record has more bytes than its length can say.
    pub fn write(&self, target: &mut [u8]) -> usize {
        let mut writer = Writer { target, at: 0 };
        match *self {
            Self::Hello { streams_max, opens_max, early_bytes_max } => {
                writer.head(HELLO, 0, 0, StreamId::from_bits(0));
                [streams_max, opens_max, early_bytes_max]
                    .iter()
                    .for_each(|word| writer.push(&word.to_le_bytes()));
            }
            Self::Open { stream, window, description } => {
                writer.head(OPEN, 0, description.len(), stream);
                writer.push(&window.to_le_bytes());
                writer.push(description);
            }
            Self::Accept { stream, window } => {
                writer.head(ACCEPT, 0, 0, stream);
                writer.push(&window.to_le_bytes());
            }
            Self::Refuse { stream, reason } => writer.head(REFUSE, reason as u8, 0, stream),
            Self::Start { stream, offset } => {
                writer.head(START, 0, 0, stream);
                writer.push(&offset.to_le_bytes());
            }
            Self::Bytes { stream, offset, bytes, is_half } => {
                let head = bytes_head(stream, offset, bytes.len(), is_half);
                writer.push(&head);
                writer.push(bytes);
            }
            Self::Credit { stream, drained, window } => {
                writer.head(CREDIT, 0, 0, stream);
                writer.push(&drained.to_le_bytes());
                writer.push(&window.to_le_bytes());
            }
            Self::Return { stream, offset } => {
                writer.head(RETURN, 0, 0, stream);
                writer.push(&offset.to_le_bytes());
            }
            Self::Back { stream, offset } => {
                writer.head(BACK, 0, 0, stream);
                writer.push(&offset.to_le_bytes());
            }
            Self::Reset { stream, reason } => writer.head(RESET, reason as u8, 0, stream),
            Self::Done { stream } => writer.head(DONE, 0, 0, stream),
            Self::Close { reason } => writer.head(CLOSE, reason as u8, 0, StreamId::from_bits(0)),
        }
        writer.at
    }
}

/// The head before the bytes of [`Record::Bytes`].
pub(crate) fn bytes_head(stream: StreamId, offset: u64, length: usize, is_half: bool) -> [u8; BYTES_HEAD] {
    let mut head = [0; BYTES_HEAD];
    let mut writer = Writer { target: &mut head, at: 0 };
    writer.head(BYTES, if is_half { HALF } else { 0 }, length, stream);
    writer.push(&offset.to_le_bytes());
    head
}

struct Writer<'a> {
    target: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn head(&mut self, kind: u8, code: u8, length: usize, stream: StreamId) {
        let length = u16::try_from(length).expect("a record has at most 65,535 bytes").to_le_bytes();
        self.push(&[kind, code, length[0], length[1]]);
        self.push(&stream.to_bits().to_le_bytes());
    }

    fn push(&mut self, bytes: &[u8]) {
        self.target[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

fn array<const LENGTH: usize>(rest: &mut &[u8]) -> Result<[u8; LENGTH], Malformed> {
    let (first, others) = rest.split_first_chunk().ok_or(Malformed)?;
    *rest = others;
    Ok(*first)
}

fn bytes<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (first, others) = rest.split_at_checked(length).ok_or(Malformed)?;
    *rest = others;
    Ok(first)
}

fn u32(rest: &mut &[u8]) -> Result<u32, Malformed> {
    array(rest).map(u32::from_le_bytes)
}

fn u64(rest: &mut &[u8]) -> Result<u64, Malformed> {
    array(rest).map(u64::from_le_bytes)
}

fn offset(rest: &mut &[u8]) -> Result<u64, Malformed> {
    u64(rest).and_then(|offset| if offset <= OFFSET_MAX { Ok(offset) } else { Err(Malformed) })
}

fn window(rest: &mut &[u8]) -> Result<u32, Malformed> {
    u32(rest).and_then(|window| if window <= 1 << 30 { Ok(window) } else { Err(Malformed) })
}

fn refusal(code: u8) -> Result<Refusal, Malformed> {
    let all =
        [Refusal::Busy, Refusal::Mismatch, Refusal::NotAdmitted, Refusal::NotExported, Refusal::Unknown];
    all.into_iter().find(|reason| *reason as u8 == code).ok_or(Malformed)
}

fn reset_reason(code: u8) -> Result<ResetReason, Malformed> {
    let all = [ResetReason::Aborted, ResetReason::Died, ResetReason::Lost, ResetReason::Stopped];
    all.into_iter().find(|reason| *reason as u8 == code).ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(record: Record) -> Vec<u8> {
        let mut bytes = vec![0; record.length()];
        assert_eq!(record.write(&mut bytes), bytes.len());
        bytes
    }

    #[test]
    fn the_format_of_a_record_is_fixed() {
        let stream = StreamId::new(5, 2);
        let bytes = written(Record::Bytes { stream, offset: 0x0102_0304, bytes: b"ab", is_half: true });
        assert_eq!(bytes, [6, 1, 2, 0, 5, 0, 0, 0, 2, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0, b'a', b'b']);
        let bytes = written(Record::Credit { stream, drained: 7, window: 9 });
        assert_eq!(bytes, [7, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]);
        let header = Header { wants_acknowledgement: true, after: Some(3), processed: [1, 2] };
        assert_eq!(header.to_bytes(), [1, 3, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    }

    #[test]
    fn every_record_is_read_as_it_was_written() {
        let stream = StreamId::new(4, 1);
        let records = [
            Record::Hello { streams_max: 1, opens_max: 2, early_bytes_max: 3 },
            Record::Open { stream, window: 1 << 30, description: &[7; 512] },
            Record::Accept { stream, window: 0 },
            Record::Refuse { stream, reason: Refusal::Unknown },
            Record::Start { stream, offset: OFFSET_MAX },
            Record::Bytes { stream, offset: 3, bytes: b"abc", is_half: false },
            Record::Bytes { stream, offset: 3, bytes: b"", is_half: true },
            Record::Credit { stream, drained: 4, window: 5 },
            Record::Return { stream, offset: 6 },
            Record::Back { stream, offset: 6 },
            Record::Reset { stream, reason: ResetReason::Stopped },
            Record::Done { stream },
            Record::Close { reason: ResetReason::Died },
        ];
        let header = Header { wants_acknowledgement: false, after: None, processed: [8, 9] };
        let message =
            [header.to_bytes().to_vec(), records.iter().flat_map(|record| written(*record)).collect()]
                .concat();
        let (found, rest) = Header::parse(&message).unwrap();
        assert_eq!((found, rest.collect::<Result<Vec<_>, _>>().unwrap()), (header, records.to_vec()));
        for length in HEADER_BYTES..message.len() {
            let (_, records) = Header::parse(&message[..length]).unwrap();
            // A cut message has fewer records, or an error at its end.
            assert!(records.count() <= 13);
        }
    }

    #[test]
    fn what_no_end_writes_is_malformed() {
        fn parse(mut bytes: &[u8]) -> Result<Record<'_>, Malformed> {
            Record::parse(&mut bytes)
        }
        let head = |kind: u8, code: u8, length: u8| [kind, code, length, 0, 1, 0, 0, 0, 0, 0, 0, 0].to_vec();
        for kind in [0, 13, 255] {
            assert_eq!(parse(&[head(kind, 0, 0), vec![0; 20]].concat()), Err(Malformed));
        }
        assert_eq!(parse(&head(DONE, 1, 0)), Err(Malformed), "a code");
        assert_eq!(parse(&head(DONE, 0, 1)), Err(Malformed), "a length");
        assert_eq!(parse(&head(CLOSE, 1, 0)), Err(Malformed), "a stream");
        assert_eq!(parse(&head(RESET, 0, 0)), Err(Malformed), "a reason");
        assert_eq!(parse(&head(REFUSE, 6, 0)), Err(Malformed), "a refusal");
        assert_eq!(parse(&[head(BYTES, 0, 0), vec![0; 8]].concat()), Err(Malformed), "no bytes");
        assert_eq!(parse(&[head(START, 0, 0), vec![0xff; 8]].concat()), Err(Malformed), "an offset");
        assert_eq!(Header::parse(&[2; 16]).err(), Some(Malformed), "a version");
        assert_eq!(Header::parse(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).err(), Some(Malformed));
    }
}
