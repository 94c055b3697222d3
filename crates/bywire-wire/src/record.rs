//! Records: the meaning of the bytes of a lane. A record is as long as its message, and may begin and end anywhere in a
//! packet.

use crate::reader::Reader;

/// The longest payload, in bytes.
pub const LENGTH_MAX: u64 = 1 << 40;
/// The longest note of a put, in bytes.
pub const NOTE_BYTES_MAX: u8 = 32;
/// The longest head of a record, in bytes.
pub const HEAD_BYTES_MAX: usize = 8 + 4 * 8;

const NO_NOTE: u8 = u8::MAX;
/// Flags of a message, in the byte that has the note's length otherwise.
const LONG: u8 = 1;
const PROMPT: u8 = 2;

const MESSAGE: u8 = 1;
const PUT: u8 = 2;
const GET: u8 = 3;
const STATUS: u8 = 4;
const GOT: u8 = 5;

/// The error for bytes that are not a valid head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lane contains bytes that are not a record")]
pub struct Malformed;

/// The head of a record, before its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A message, followed by its payload.
    Message {
        /// Bytes of payload.
        length: u64,
        /// Does it need a posted buffer? The sender decides, so that both ends agree.
        is_long: bool,
        /// Does the sender wait for a report that it was consumed?
        is_prompt: bool,
    },
    /// Bytes for a region of the receiver, followed by the payload and then a note.
    Put {
        /// Bytes of payload.
        length: u64,
        /// The region.
        key: u64,
        /// The offset in the region.
        offset: u64,
        /// The sender's number for the transfer.
        transfer: u64,
        /// Bytes of the note, or `None` if there is none.
        note: Option<u8>,
    },
    /// A request for bytes of a region of the receiver.
    Get {
        /// The region.
        key: u64,
        /// The offset in the region.
        offset: u64,
        /// The number of bytes.
        length: u64,
        /// The sender's number for the transfer.
        transfer: u64,
    },
    /// The end of a put or a get.
    Status {
        /// The receiver's number for it.
        transfer: u64,
        /// The result.
        code: u64,
    },
    /// Bytes that a get has requested, followed by the payload.
    Got {
        /// Bytes of payload.
        length: u64,
        /// The receiver's number for the transfer.
        transfer: u64,
    },
}

impl Head {
    /// Bytes after the head, including a note.
    pub fn payload_bytes(&self) -> u64 {
        match *self {
            Self::Message { length, .. } | Self::Got { length, .. } => length,
            Self::Put { length, note, .. } => length + u64::from(note.unwrap_or_default()),
            Self::Get { .. } | Self::Status { .. } => 0,
        }
    }

    /// The head at the beginning of `bytes`, and its length. `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`Malformed`], as soon as the bytes cannot be a valid head.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        // Most records are messages, whose head is one word.
        if let Some(word) = bytes.first_chunk().filter(|word| word[0] == MESSAGE) {
            return Self::parse_message(u64::from_le_bytes(*word)).map(|head| Some((head, 8)));
        }
        Self::parse_other(bytes)
    }

    #[inline]
    fn parse_message(word: u64) -> Result<Self, Malformed> {
        let (flags, length) = ((word >> 8) as u8, word >> 16);
        if length > LENGTH_MAX || flags & !(LONG | PROMPT) != 0 {
            return Err(Malformed);
        }
        Ok(Self::Message { length, is_long: flags & LONG != 0, is_prompt: flags & PROMPT != 0 })
    }

    fn parse_other(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let mut reader = Reader(bytes);
        let (Some(kind), Some(note), Some(length)) = (reader.u8(), reader.u8(), reader.u48()) else {
            return match bytes.first() {
                Some(kind) if words_of(*kind).is_none() => Err(Malformed),
                _ => Ok(None),
            };
        };
        let words = words_of(kind).ok_or(Malformed)?;
        let is_known = match kind {
            PUT => note <= NOTE_BYTES_MAX || note == NO_NOTE,
            _ => note == NO_NOTE,
        };
        if length > LENGTH_MAX || !is_known {
            return Err(Malformed);
        }
        let mut values = [0; 4];
        for value in &mut values[..words] {
            let Some(word) = reader.u64() else { return Ok(None) };
            *value = word;
        }
        let [first, second, third, fourth] = values;
        let head = match kind {
            PUT => {
                let note = (note != NO_NOTE).then_some(note);
                Self::Put { length, key: first, offset: second, transfer: third, note }
            }
            GET if length == 0 && third <= LENGTH_MAX => {
                Self::Get { key: first, offset: second, length: third, transfer: fourth }
            }
            STATUS if length == 0 => Self::Status { transfer: first, code: second },
            GOT => Self::Got { length, transfer: first },
            _ => return Err(Malformed),
        };
        Ok(Some((head, 8 + 8 * words)))
    }

    /// Appends the head to the bytes of a lane.
    ///
    /// # Panics
    /// If a payload or a note is longer than allowed.
    #[inline]
    pub fn write(&self, bytes: &mut Vec<u8>) {
        if let Self::Message { length, is_long, is_prompt } = *self {
            assert!(length <= LENGTH_MAX, "{self:?}");
            let flags = (u8::from(is_long) * LONG) | (u8::from(is_prompt) * PROMPT);
            bytes.extend_from_slice(&first_word(MESSAGE, flags, length));
            return;
        }
        self.write_other(bytes);
    }

    fn write_other(&self, bytes: &mut Vec<u8>) {
        let (kind, second, length, words, count) = match *self {
            // Written above.
            Self::Message { .. } => return,
            Self::Put { length, key, offset, transfer, note } => {
                assert!(note.is_none_or(|note| note <= NOTE_BYTES_MAX), "{self:?}");
                (PUT, note.unwrap_or(NO_NOTE), length, [key, offset, transfer, 0], 3)
            }
            Self::Get { key, offset, length, transfer } => {
                (GET, NO_NOTE, 0, [key, offset, length, transfer], 4)
            }
            Self::Status { transfer, code } => (STATUS, NO_NOTE, 0, [transfer, code, 0, 0], 2),
            Self::Got { length, transfer } => (GOT, NO_NOTE, length, [transfer, 0, 0, 0], 1),
        };
        assert!(length <= LENGTH_MAX, "{self:?}");
        bytes.extend_from_slice(&first_word(kind, second, length));
        words[..count].iter().for_each(|word: &u64| bytes.extend_from_slice(&word.to_le_bytes()));
    }
}

fn first_word(kind: u8, second: u8, length: u64) -> [u8; 8] {
    (u64::from(kind) | (u64::from(second) << 8) | (length << 16)).to_le_bytes()
}

/// Words in the head of a record of this kind.
fn words_of(kind: u8) -> Option<usize> {
    match kind {
        MESSAGE => Some(0),
        GOT => Some(1),
        STATUS => Some(2),
        PUT => Some(3),
        GET => Some(4),
        _ => None,
    }
}
