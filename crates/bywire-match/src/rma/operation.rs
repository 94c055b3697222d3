//! Requests of the program, their completions, and the frames of RMA.

use std::ops::Range;

use crate::slab::PeerId;

/// A part of memory that another end has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The key of the memory.
    pub key: u64,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

/// What an operation does with memory of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// The reason why an operation is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No memory has the key.
    #[error("no memory has this key")]
    NoMemory,
    /// The memory ends before.
    #[error("the memory is shorter")]
    OutOfBounds,
    /// The memory may not be read, or not be written.
    #[error("the memory was not registered for this")]
    NoRight,
}

impl Denied {
    /// Its number in a frame.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::NoMemory => 1,
            Self::OutOfBounds => 2,
            Self::NoRight => 3,
        }
    }

    pub(super) fn of(code: u32) -> Option<Self> {
        [Self::NoMemory, Self::OutOfBounds, Self::NoRight].into_iter().find(|reason| reason.code() == code)
    }
}

/// The memory that a program has registered.
pub trait Memory {
    /// May a peer access this place?
    ///
    /// # Errors
    /// Why not.
    fn check(&self, access: Access, place: Place) -> Result<(), Denied>;

    /// Writes to a place that was checked and was not withdrawn since.
    fn write(&mut self, place: Place, payload: &[u8]);
}

/// A long write of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessId(pub(super) u64);

/// A put of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PutId {
    /// Of a long write of this end.
    Write(u64),
    /// Of the answer to a read of a peer.
    Read(u64),
}

/// The note of a put: what it is, and its receiver's number for it.
pub type Note = [u8; 9];

/// The reason why an operation has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its target has ended.
    Ended,
    /// Its target does not permit it.
    Denied(Denied),
    /// The put of its payload has failed, because its target has withdrawn the memory.
    Withdrawn,
}

/// What RMA tells its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<W, R> {
    /// A write is through: the payload is in the target's memory.
    Written {
        /// The program's handle.
        write: W,
        /// Its target.
        peer: PeerId,
    },
    /// A write has failed.
    WriteFailed {
        /// The program's handle.
        write: W,
        /// Its target.
        peer: PeerId,
        /// Why.
        reason: Failure,
    },
    /// A read is through.
    Read {
        /// The program's handle.
        read: R,
        /// Its target.
        peer: PeerId,
    },
    /// A read has failed.
    ReadFailed {
        /// The program's handle.
        read: R,
        /// Its target.
        peer: PeerId,
        /// Why.
        reason: Failure,
    },
    /// A peer wants to write much. The driver exposes the place to it, and calls [`super::Rma::grant`].
    Expose {
        /// The write.
        access: AccessId,
        /// Its source.
        peer: PeerId,
        /// Where it writes.
        place: Place,
    },
    /// A write whose place was exposed is over. The driver ends the exposure.
    Withdraw {
        /// The write.
        access: AccessId,
    },
    /// A peer has written to memory of this end, or its read is being answered.
    Accessed {
        /// The peer.
        peer: PeerId,
        /// What it has done.
        access: Access,
        /// Where.
        place: Place,
        /// The word that its program has sent with a write.
        data: Option<u64>,
    },
}

/// Where the bytes after a head are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source<'a, W> {
    /// There are none.
    Nothing,
    /// In the program's memory for a write: this part of it.
    Write(&'a W, Range<u64>),
    /// In the registered memory of this end. It was checked.
    Registered(Place),
}

/// What the link has to carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a, W> {
    /// An operation or an answer. The bytes are the head and then those of the source.
    Message {
        /// The head.
        head: &'a [u8],
        /// What follows it.
        source: Source<'a, W>,
    },
    /// A piece of a long payload. It may be overtaken by messages. The bytes are as those of a message.
    Piece {
        /// The head.
        head: &'a [u8],
        /// What follows it.
        source: Source<'a, W>,
    },
    /// A put of a long payload, after which the driver calls [`super::Rma::put_done`].
    Put {
        /// What `put_done` wants.
        id: PutId,
        /// The payload.
        source: Source<'a, W>,
        /// The region of the peer, from its beginning on.
        region: u64,
        /// The note that follows the data.
        note: Note,
    },
}
