//! Heads of frames of RMA, little-endian. The payload of a frame is what follows its head.
//!
//! ```text
//! kind 1 · flags 1 · zero 2 · data 4                       every head
//! key 8 · offset 8 · [data 8]                              write: data of more than 4 bytes
//! operation 8 · key 8 · offset 8 · length 8 · [data 8]     request
//! operation 8 · access 8 · [region 8]                      grant
//! access 8                                                 piece
//! operation 8                                              written
//! operation 8 · key 8 · offset 8 · length 8 · [region 8]   read
//! operation 8                                              data
//! writes 8                                                 done
//! [operation 8]                                            refusal: the reason is in the first 4 bytes of data
//! ```

use super::Denied;
use crate::head::{DATA, HeadBytes, Malformed, WIDE, length, word, word_of_data};

/// The longest head, in bytes.
pub const HEAD_BYTES_MAX: usize = 48;

const WRITE: u8 = 1;
const REQUEST: u8 = 2;
const GRANT: u8 = 3;
const PIECE: u8 = 4;
const WRITTEN: u8 = 5;
const READ: u8 = 6;
const DATA_OF_READ: u8 = 7;
const DONE: u8 = 8;
const REFUSAL: u8 = 9;

/// The head has the key of a region of the link.
const REGION: u8 = 4;
/// The refusal names an operation. Without it, it is about the oldest write that has not been answered.
const NUMBERED: u8 = 8;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A short write, followed by its payload.
    Write {
        /// The key of the memory.
        key: u64,
        /// Where in it.
        offset: u64,
        /// A word for the target's program.
        data: Option<u64>,
    },
    /// A long write, whose payload waits for a grant.
    Request {
        /// The source's number for the operation.
        operation: u64,
        /// The key of the memory.
        key: u64,
        /// Where in it.
        offset: u64,
        /// The bytes of the payload.
        length: u64,
        /// A word for the target's program.
        data: Option<u64>,
    },
    /// The answer to a request.
    Grant {
        /// The source's number for the operation.
        operation: u64,
        /// The target's number for it.
        access: u64,
        /// The region of the link to put the payload into, with a note of the target's number. Without one it is sent
        /// in pieces.
        region: Option<u64>,
    },
    /// The next bytes of a granted payload follow.
    Piece {
        /// The target's number for the operation.
        access: u64,
    },
    /// All pieces have arrived.
    Written {
        /// The source's number for the operation.
        operation: u64,
    },
    /// A read.
    Read {
        /// The source's number for the operation.
        operation: u64,
        /// The key of the memory.
        key: u64,
        /// Where in it.
        offset: u64,
        /// The bytes that are wanted.
        length: u64,
        /// The region of the link to put the data into, with a note of the source's number. Without one they are sent
        /// in pieces.
        region: Option<u64>,
    },
    /// The next bytes of a read follow.
    Data {
        /// The source's number for the operation.
        operation: u64,
    },
    /// Short writes are through, the oldest ones first.
    Done {
        /// How many.
        writes: u64,
    },
    /// An operation is not permitted.
    Refusal {
        /// The source's number for it. `None`: the oldest short write that has not been answered.
        operation: Option<u64>,
        /// Why.
        reason: Denied,
    },
}

impl Head {
    /// The head as bytes.
    pub fn to_bytes(self) -> HeadBytes<HEAD_BYTES_MAX> {
        let mut bytes = HeadBytes::new(match self {
            Self::Write { .. } => WRITE,
            Self::Request { .. } => REQUEST,
            Self::Grant { .. } => GRANT,
            Self::Piece { .. } => PIECE,
            Self::Written { .. } => WRITTEN,
            Self::Read { .. } => READ,
            Self::Data { .. } => DATA_OF_READ,
            Self::Done { .. } => DONE,
            Self::Refusal { .. } => REFUSAL,
        });
        let mut push = |words: &[u64]| words.iter().for_each(|word| bytes.push(*word));
        match self {
            Self::Write { key, offset, .. } => push(&[key, offset]),
            Self::Request { operation, key, offset, length, .. }
            | Self::Read { operation, key, offset, length, .. } => push(&[operation, key, offset, length]),
            Self::Grant { operation, access, .. } => push(&[operation, access]),
            Self::Piece { access: word }
            | Self::Written { operation: word }
            | Self::Data { operation: word }
            | Self::Done { writes: word } => push(&[word]),
            Self::Refusal { operation, .. } => push(operation.as_slice()),
        }
        match self {
            Self::Write { data, .. } | Self::Request { data, .. } => bytes.push_data(data),
            Self::Grant { region: Some(region), .. } | Self::Read { region: Some(region), .. } => {
                bytes.set_flag(REGION);
                bytes.push(region);
            }
            Self::Refusal { operation, reason } => {
                bytes.set_short(reason.code());
                bytes.set_flag(if operation.is_some() { NUMBERED } else { 0 });
            }
            _ => {}
        }
        bytes
    }

    /// Reads a head, and returns what follows it.
    ///
    /// # Errors
    /// [`Malformed`] for bytes that [`Head::to_bytes`] does not write.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut rest = frame;
        let [kind, flags, 0, 0, data @ ..] = word(&mut rest)?.to_le_bytes() else { return Err(Malformed) };
        let short = u32::from_le_bytes(data);
        let allowed = match kind {
            WRITE | REQUEST => DATA | WIDE,
            GRANT | READ => REGION,
            REFUSAL => NUMBERED,
            _ => 0,
        };
        if flags & !allowed != 0 || flags & DATA == 0 && short != 0 && kind != REFUSAL {
            return Err(Malformed);
        }
        let optional = |flag: u8, rest: &mut &[u8]| match flags & flag {
            0 => Ok(None),
            _ => word(rest).map(Some),
        };
        let head = match kind {
            WRITE => {
                let (key, offset) = (word(&mut rest)?, word(&mut rest)?);
                Self::Write { key, offset, data: word_of_data(flags, short, &mut rest)? }
            }
            REQUEST => {
                let (operation, key, offset) = (word(&mut rest)?, word(&mut rest)?, word(&mut rest)?);
                let length = length(&mut rest)?;
                let data = word_of_data(flags, short, &mut rest)?;
                Self::Request { operation, key, offset, length, data }
            }
            GRANT => {
                let (operation, access) = (word(&mut rest)?, word(&mut rest)?);
                Self::Grant { operation, access, region: optional(REGION, &mut rest)? }
            }
            PIECE => Self::Piece { access: word(&mut rest)? },
            WRITTEN => Self::Written { operation: word(&mut rest)? },
            READ => {
                let (operation, key, offset) = (word(&mut rest)?, word(&mut rest)?, word(&mut rest)?);
                let length = length(&mut rest)?;
                Self::Read { operation, key, offset, length, region: optional(REGION, &mut rest)? }
            }
            DATA_OF_READ => Self::Data { operation: word(&mut rest)? },
            DONE => Self::Done { writes: word(&mut rest)? },
            REFUSAL => {
                let reason = Denied::of(short).ok_or(Malformed)?;
                Self::Refusal { operation: optional(NUMBERED, &mut rest)?, reason }
            }
            _ => return Err(Malformed),
        };
        let has_payload = matches!(head, Self::Write { .. } | Self::Piece { .. } | Self::Data { .. });
        if has_payload || rest.is_empty() { Ok((head, rest)) } else { Err(Malformed) }
    }
}
