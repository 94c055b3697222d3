//! The state of one transfer, ours or the peer's.

use crate::message::buffer::Buffer;
use crate::message::error::TransferError;
use crate::message::event::Event;
use crate::message::options::SEND_TOKENS_MAX;
use crate::message::peer::{Confirm, Priority, TransferId};
use crate::message::region::Key;

/// The longest note of a put, in bytes.
pub const NOTE_BYTES_MAX: usize = 32;
/// Answers that a peer may have outstanding with us: many times what its tokens allow, for both priorities. A peer
/// with more outstanding ignores its tokens.
pub(super) const REPLIES_MAX: usize = 64 * 2 * SEND_TOKENS_MAX as usize;

/// The result of one step of a connection.
pub(crate) enum Step {
    Nothing,
    /// Something moved, but there is nothing to report yet.
    Progress,
    Event(Event),
}

/// The record at the head of a lane. Plain words: nothing to drop on the fast path.
#[derive(Clone, Copy)]
pub(crate) enum Short {
    Nothing,
    Message {
        words: [u64; 7],
        length: u16,
    },
    /// A record that takes longer.
    Other,
}

/// The transfers half received on one lane.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    pub message: Option<Assembly>,
    pub put: Option<Put>,
    /// The message at the head of the lane for which no buffer is large enough.
    pub held_up: Option<HeldUp>,
}

/// A message that waits for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldUp {
    pub length: u64,
    /// The count of posted buffers when the program was told. If more have been posted since and the message still
    /// does not fit, the program is told again. `None`: it was not told.
    pub told: Option<u64>,
    /// The count of changes that make the lane worth another look.
    pub looks: u64,
}

#[derive(Debug)]
pub(crate) struct Assembly {
    pub buffer: Buffer,
    /// Is the buffer one that the program posted? Otherwise it is the library's own, for lack of one.
    pub is_posted: bool,
    pub total: usize,
    pub filled: usize,
}

/// A put under way. After an error, its data is dropped.
#[derive(Debug)]
pub(crate) struct Put {
    pub key: Key,
    pub offset: u64,
    pub remaining: u64,
    pub transfer: u64,
    pub has_note: bool,
    pub result: Result<(), TransferError>,
}

/// A peer's request to put data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutRequest {
    pub key: Key,
    pub offset: u64,
    pub length: u64,
    pub transfer: u64,
    pub note_length: Option<u64>,
}

/// What happens to a long message for which no buffer is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unposted {
    /// It waits until a buffer is posted.
    Wait,
    /// It gets the library's own memory.
    Allocate,
    /// It stays where it is.
    Leave,
}

/// A transfer of ours that has not been sent whole.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub id: TransferId,
    pub buffer: Buffer,
    /// Bytes sent so far.
    pub sent: usize,
    /// Has its first record been sent? (That record may hold no bytes.)
    pub is_open: bool,
    pub operation: Operation,
}

/// The operation that a transfer belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Message {
        confirm: Confirm,
    },
    Put {
        key: Key,
        offset: u64,
        note: Note,
        transfer: u32,
    },
    /// The buffer is in the table of waiting transfers already.
    Get {
        key: Key,
        offset: u64,
        length: u64,
        transfer: u32,
    },
}

/// Up to 32 bytes that follow a put.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Note {
    pub bytes: [u8; NOTE_BYTES_MAX],
    pub length: Option<u8>,
}

/// A message that was sent and whose delivery is to be confirmed.
#[derive(Debug)]
pub(crate) struct Undelivered {
    /// Delivered when the peer has consumed its lane up to here.
    pub position: u64,
    pub id: TransferId,
    pub buffer: Buffer,
}

/// A put or a get that waits for its answer.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub id: TransferId,
    pub kind: TransferKind,
    pub priority: Priority,
    /// For a put, empty until it has been sent whole.
    pub buffer: Buffer,
    /// Bytes of a get that have arrived.
    pub filled: usize,
    /// Has the whole request been sent, so that the peer owes an answer?
    pub asked: bool,
    /// Has the link the memory of a put, whose answer may come before the memory is back?
    pub is_out: bool,
    /// The answer's code, if it came while the memory was out.
    pub answer: Option<u64>,
}

/// The kind of transfer that a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferKind {
    Get,
    Put,
    Send,
}

/// An answer of ours that has not been sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Data { transfer: u64, key: Key, offset: u64, remaining: u64 },
    Status { transfer: u64, result: Result<(), TransferError> },
}

impl Note {
    /// `None` when it is too long.
    pub fn new(note: Option<&[u8]>) -> Option<Self> {
        let mut bytes = [0; NOTE_BYTES_MAX];
        let given = note.unwrap_or_default();
        bytes.get_mut(..given.len())?.copy_from_slice(given);
        Some(Self { bytes, length: note.map(|note| note.len() as u8) })
    }

    pub fn bytes(&self) -> Option<&[u8]> {
        self.length.map(|length| &self.bytes[..length.into()])
    }
}

impl TransferKind {
    pub fn event(self, id: TransferId, buffer: Buffer, result: Result<(), TransferError>) -> Event {
        match self {
            Self::Get => Event::Got { id, buffer, result },
            Self::Put => Event::Put { id, buffer, result },
            Self::Send => Event::Sent { id, buffer, result },
        }
    }
}

impl Outgoing {
    /// Bytes still to be sent.
    pub fn rest(&self) -> usize {
        self.buffer.as_ref().len() - self.sent
    }

    /// The completion of a transfer that will never be sent whole. The completion of a get comes from the table.
    pub fn failed(self, result: Result<(), TransferError>) -> Option<Event> {
        match self.operation {
            Operation::Message { .. } => Some(TransferKind::Send.event(self.id, self.buffer, result)),
            Operation::Put { .. } => Some(TransferKind::Put.event(self.id, self.buffer, result)),
            Operation::Get { .. } => None,
        }
    }
}

impl Waiting {
    pub fn finished(self, result: Result<(), TransferError>) -> Event {
        self.kind.event(self.id, self.buffer, result)
    }
}

/// The codes are part of the protocol. They are written out so that a new variant cannot shift them.
pub(crate) fn status_code(result: Result<(), TransferError>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(TransferError::BadKey | TransferError::Disconnected(_)) => 1,
        Err(TransferError::NoRight) => 2,
        Err(TransferError::OutOfRange) => 3,
    }
}

/// The result with this [`status_code`].
pub(crate) fn status_of(code: u64) -> Result<(), TransferError> {
    match code {
        0 => Ok(()),
        2 => Err(TransferError::NoRight),
        3 => Err(TransferError::OutOfRange),
        _ => Err(TransferError::BadKey),
    }
}
