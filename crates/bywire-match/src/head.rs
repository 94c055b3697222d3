//! Heads of frames, little-endian. The payload of a frame is what follows its head.
//!
//! ```text
//! kind 1 · flags 1 · zero 2 · data 4        every head
//! tag 8 · [data 8] · [send 8]               eager: data of more than 4 bytes, and the number of a synchronous message
//! tag 8 · [data 8] · send 8 · length 8      request
//! send 8 · receive 8 · length 8 · [key 8]   grant
//! receive 8                                 piece
//! send 8                                    acknowledgement
//! bytes 8                                   credit
//! ```

use std::ops::Deref;

/// The longest head, in bytes.
pub const HEAD_BYTES_MAX: usize = 40;
/// The longest payload, in bytes.
pub const LENGTH_MAX: u64 = 1 << 40;

const EAGER: u8 = 1;
const REQUEST: u8 = 2;
const GRANT: u8 = 3;
const PIECE: u8 = 4;
const ACKNOWLEDGEMENT: u8 = 5;
const CREDIT: u8 = 6;

/// The message has a word of data, in the first eight bytes.
pub(crate) const DATA: u8 = 1;
/// The word of data is longer than four bytes, and has eight of its own.
pub(crate) const WIDE: u8 = 2;
/// The sender waits for an acknowledgement.
const SYNCHRONOUS: u8 = 4;
/// The grant has the key of a region.
const KEY: u8 = 8;

/// The error for bytes that do not begin with a valid head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame does not begin with a valid head")]
pub struct Malformed;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A message, followed by its payload.
    Eager {
        /// Its tag.
        tag: u64,
        /// A word of the sender's program.
        data: Option<u64>,
        /// The sender's number for the message, if it waits for an acknowledgement.
        synchronous: Option<u64>,
    },
    /// A message whose payload waits for a grant.
    Request {
        /// Its tag.
        tag: u64,
        /// A word of the sender's program.
        data: Option<u64>,
        /// The sender's number for the message.
        send: u64,
        /// The bytes of its payload.
        length: u64,
    },
    /// The answer to a request: so much of the payload is wanted.
    Grant {
        /// The sender's number for the message.
        send: u64,
        /// The receiver's number for it.
        receive: u64,
        /// The bytes that are wanted, from the first one on. After 0 the message is through.
        length: u64,
        /// The region to put them into, from its beginning, with a note of the receiver's number. Without one
        /// they are sent in pieces.
        key: Option<u64>,
    },
    /// The next bytes of a granted payload follow.
    Piece {
        /// The receiver's number for the message.
        receive: u64,
    },
    /// A receive has matched a synchronous message.
    Acknowledgement {
        /// The sender's number for the message.
        send: u64,
    },
    /// Bytes for the window of eager messages.
    Credit {
        /// How many.
        bytes: u64,
    },
}

/// A head as bytes, `MAX` at most.
#[derive(Clone, Copy, Debug)]
pub struct HeadBytes<const MAX: usize = HEAD_BYTES_MAX> {
    bytes: [u8; MAX],
    length: usize,
}

impl<const MAX: usize> Deref for HeadBytes<MAX> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<const MAX: usize> HeadBytes<MAX> {
    /// The first eight bytes, without flags and data.
    pub(crate) fn new(kind: u8) -> Self {
        let mut bytes = [0; MAX];
        bytes[0] = kind;
        Self { bytes, length: 8 }
    }

    pub(crate) fn set_flag(&mut self, flag: u8) {
        self.bytes[1] |= flag;
    }

    /// Sets the four bytes of data in the first eight.
    pub(crate) fn set_short(&mut self, short: u32) {
        self.bytes[4..8].copy_from_slice(&short.to_le_bytes());
    }

    #[inline]
    pub(crate) fn push(&mut self, word: u64) {
        self.bytes[self.length..self.length + 8].copy_from_slice(&word.to_le_bytes());
        self.length += 8;
    }

    /// Data of a message: short ones are in the first eight bytes.
    #[inline]
    pub(crate) fn push_data(&mut self, data: Option<u64>) {
        let Some(data) = data else { return };
        self.set_flag(DATA);
        match u32::try_from(data) {
            Ok(short) => self.set_short(short),
            Err(_) => {
                self.set_flag(WIDE);
                self.push(data);
            }
        }
    }
}

/// The head of an eager message that waits for no acknowledgement, as [`Head::to_bytes`] writes it. Its words are never put
/// together byte by byte: a load of what smaller stores have just written waits for them.
#[derive(Clone, Copy, Debug)]
pub struct EagerHead {
    words: [u64; 3],
    length: usize,
}

impl EagerHead {
    /// The longest one, in bytes.
    pub const BYTES_MAX: usize = 24;

    #[inline(always)]
    pub(crate) fn new(tag: u64, data: Option<u64>) -> Self {
        let first = |flags: u8, short: u32| u64::from(EAGER) | u64::from(flags) << 8 | u64::from(short) << 32;
        match data {
            None => Self { words: [first(0, 0), tag, 0], length: 16 },
            Some(data) => match u32::try_from(data) {
                Ok(short) => Self { words: [first(DATA, short), tag, 0], length: 16 },
                Err(_) => Self { words: [first(DATA | WIDE, 0), tag, data], length: 24 },
            },
        }
    }

    /// Writes it to the beginning of `target`, which has [`EagerHead::BYTES_MAX`] bytes at least. What is behind it is overwritten up to
    /// there. The result is its length.
    ///
    /// # Panics
    /// If `target` is shorter.
    #[inline(always)]
    pub fn write(&self, target: &mut [u8]) -> usize {
        let target = &mut target[..Self::BYTES_MAX];
        for (place, word) in target.as_chunks_mut::<8>().0.iter_mut().zip(self.words) {
            *place = word.to_le_bytes();
        }
        self.length
    }
}

impl Head {
    /// The head as bytes.
    #[inline(always)]
    pub fn to_bytes(self) -> HeadBytes {
        let mut bytes = HeadBytes::new(match self {
            Self::Eager { .. } => EAGER,
            Self::Request { .. } => REQUEST,
            Self::Grant { .. } => GRANT,
            Self::Piece { .. } => PIECE,
            Self::Acknowledgement { .. } => ACKNOWLEDGEMENT,
            Self::Credit { .. } => CREDIT,
        });
        match self {
            Self::Eager { tag, data, synchronous } => {
                bytes.push(tag);
                bytes.push_data(data);
                if let Some(send) = synchronous {
                    bytes.set_flag(SYNCHRONOUS);
                    bytes.push(send);
                }
            }
            Self::Request { tag, data, send, length } => {
                bytes.push(tag);
                bytes.push_data(data);
                [send, length].into_iter().for_each(|word| bytes.push(word));
            }
            Self::Grant { send, receive, length, key } => {
                [send, receive, length].into_iter().for_each(|word| bytes.push(word));
                if let Some(key) = key {
                    bytes.set_flag(KEY);
                    bytes.push(key);
                }
            }
            Self::Piece { receive: word }
            | Self::Acknowledgement { send: word }
            | Self::Credit { bytes: word } => bytes.push(word),
        }
        bytes
    }

    /// Reads a head, and returns what follows it.
    ///
    /// # Errors
    /// [`Malformed`] for bytes that [`Head::to_bytes`] does not write.
    #[inline(always)]
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut rest = frame;
        let data = match word(&mut rest)?.to_le_bytes() {
            // Most heads are of these two forms.
            [EAGER, 0, 0, 0, 0, 0, 0, 0] => None,
            [EAGER, DATA, 0, 0, data @ ..] => Some(u32::from_le_bytes(data).into()),
            _ => return Self::parse_any(frame),
        };
        Ok((Self::Eager { tag: word(&mut rest)?, data, synchronous: None }, rest))
    }

    #[inline(never)]
    fn parse_any(frame: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut rest = frame;
        let [kind, flags, 0, 0, data @ ..] = word(&mut rest)?.to_le_bytes() else { return Err(Malformed) };
        let short = u32::from_le_bytes(data);
        let allowed = match kind {
            EAGER => DATA | WIDE | SYNCHRONOUS,
            REQUEST => DATA | WIDE,
            GRANT => KEY,
            PIECE | ACKNOWLEDGEMENT | CREDIT => 0,
            _ => return Err(Malformed),
        };
        if flags & !allowed != 0 || flags & DATA == 0 && short != 0 {
            return Err(Malformed);
        }
        let head = match kind {
            EAGER => {
                let tag = word(&mut rest)?;
                let data = word_of_data(flags, short, &mut rest)?;
                let synchronous = if flags & SYNCHRONOUS != 0 { Some(word(&mut rest)?) } else { None };
                Self::Eager { tag, data, synchronous }
            }
            REQUEST => {
                let tag = word(&mut rest)?;
                let data = word_of_data(flags, short, &mut rest)?;
                Self::Request { tag, data, send: word(&mut rest)?, length: length(&mut rest)? }
            }
            GRANT => {
                let (send, receive) = (word(&mut rest)?, word(&mut rest)?);
                let length = length(&mut rest)?;
                let key = if flags & KEY != 0 { Some(word(&mut rest)?) } else { None };
                Self::Grant { send, receive, length, key }
            }
            PIECE => Self::Piece { receive: word(&mut rest)? },
            ACKNOWLEDGEMENT => Self::Acknowledgement { send: word(&mut rest)? },
            _ => Self::Credit { bytes: length(&mut rest)? },
        };
        let has_payload = matches!(head, Self::Eager { .. } | Self::Piece { .. });
        if has_payload || rest.is_empty() { Ok((head, rest)) } else { Err(Malformed) }
    }
}

#[inline]
pub(crate) fn word(rest: &mut &[u8]) -> Result<u64, Malformed> {
    let (first, others) = rest.split_first_chunk().ok_or(Malformed)?;
    *rest = others;
    Ok(u64::from_le_bytes(*first))
}

pub(crate) fn length(rest: &mut &[u8]) -> Result<u64, Malformed> {
    word(rest).and_then(|length| if length > LENGTH_MAX { Err(Malformed) } else { Ok(length) })
}

pub(crate) fn word_of_data(flags: u8, short: u32, rest: &mut &[u8]) -> Result<Option<u64>, Malformed> {
    match (flags & DATA != 0, flags & WIDE != 0) {
        (false, false) => Ok(None),
        (true, false) => Ok(Some(short.into())),
        (true, true) if short == 0 => {
            let data = word(rest)?;
            // A short word has one form only.
            if data > u32::MAX.into() { Ok(Some(data)) } else { Err(Malformed) }
        }
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_message_that_leaves_at_once_is_that_of_any_other() {
        for data in [None, Some(0), Some(7), Some(u64::from(u32::MAX)), Some(1 << 32), Some(u64::MAX)] {
            let mut bytes = [0xff; 30];
            let length = EagerHead::new(0x0123_4567_89ab_cdef, data).write(&mut bytes);
            let other = Head::Eager { tag: 0x0123_4567_89ab_cdef, data, synchronous: None }.to_bytes();
            assert_eq!(&bytes[..length], &other[..], "{data:?}");
        }
    }
}
