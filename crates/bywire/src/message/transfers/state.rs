//! The state of one transfer, of ours or of the peer's.

use crate::message::buffer::Buffer;
use crate::message::error::TransferError;
use crate::message::event::Event;
use crate::message::options::SEND_TOKENS_MAX;
use crate::message::peer::{Confirm, Priority, TransferId};
use crate::message::region::Key;

/// The longest note of a put, in bytes.
pub const NOTE_BYTES_MAX: usize = 32;
/// Answers that a peer may have outstanding with us: many times what its tokens allow, for both priorities. More means that
/// it ignores them.
pub(super) const REPLIES_MAX: usize = 64 * 2 * SEND_TOKENS_MAX as usize;

/// What one step of a connection came to.
pub(crate) enum Step {
    Nothing,
    /// Something moved, but nothing to report yet.
    Progress,
    Event(Event),
}

/// What is half received on one lane.
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
    /// The count of buffers posted when the program was told: once more has been posted and it still does
    /// not fit, the program is told again. `None`: it was not told.
    pub told: Option<u64>,
    /// The count of changes that make the lane worth another look.
    pub looks: u64,
}

#[derive(Debug)]
pub(crate) struct Assembly {
    pub buffer: Buffer,
    /// Whose memory it is: the program's, or ours for want of any.
    pub is_posted: bool,
    pub total: usize,
    pub filled: usize,
}

/// A put under way; with an error its data goes nowhere.
#[derive(Debug)]
pub(crate) struct Put {
    pub key: Key,
    pub offset: u64,
    pub remaining: u64,
    pub transfer: u64,
    pub has_note: bool,
    pub result: Result<(), TransferError>,
}

/// What a peer wants to put, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutRequest {
    pub key: Key,
    pub offset: u64,
    pub length: u64,
    pub transfer: u64,
    pub note_length: Option<u64>,
}

/// What becomes of a long message for which no buffer is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unposted {
    /// It waits until there is one.
    Wait,
    /// It gets memory of the library's own.
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
    /// Has its first record been sent (which may hold no bytes)?
    pub is_open: bool,
    pub what: What,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Message {
        confirm: Confirm,
    },
    Put {
        key: Key,
        offset: u64,
        note: Note,
        transfer: u32,
    },
    /// The buffer waits in the table already.
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

/// A put or a get whose answer is awaited.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub id: TransferId,
    pub kind: TransferKind,
    pub priority: Priority,
    /// A put's is empty until it has been sent whole.
    pub buffer: Buffer,
    /// Bytes of a get that have arrived.
    pub filled: usize,
    /// The peer owes an answer: everything has been asked.
    pub asked: bool,
}

/// What a completion is about.
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
    /// Bytes to be sent.
    pub fn rest(&self) -> usize {
        self.buffer.as_ref().len() - self.sent
    }

    /// The completion of a transfer that will never be sent whole; a get's comes from the table.
    pub fn failed(self, result: Result<(), TransferError>) -> Option<Event> {
        match self.what {
            What::Message { .. } => Some(TransferKind::Send.event(self.id, self.buffer, result)),
            What::Put { .. } => Some(TransferKind::Put.event(self.id, self.buffer, result)),
            What::Get { .. } => None,
        }
    }
}

impl Waiting {
    pub fn finished(self, result: Result<(), TransferError>) -> Event {
        self.kind.event(self.id, self.buffer, result)
    }
}

/// The codes are part of the protocol: written out, so that a new variant cannot shift them.
pub(crate) fn status_code(result: Result<(), TransferError>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(TransferError::BadKey | TransferError::Disconnected(_)) => 1,
        Err(TransferError::NoRight) => 2,
        Err(TransferError::OutOfRange) => 3,
    }
}

/// What [`status_code`] stands for.
pub(crate) fn status_of(code: u64) -> Result<(), TransferError> {
    match code {
        0 => Ok(()),
        2 => Err(TransferError::NoRight),
        3 => Err(TransferError::OutOfRange),
        _ => Err(TransferError::BadKey),
    }
}
