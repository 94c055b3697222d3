//! The outgoing bytes of a lane, which are kept until the peer has them.

use crate::message::transfers::Outgoing;

/// The outgoing side of one lane.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// Records that are not a piece of the lane yet.
    pub gathered: Vec<u8>,
    pub spare: Vec<Vec<u8>>,
    /// Pieces that wait for the peer's acknowledgement.
    pub pieces: u64,
    /// The bytes of those pieces that are copies.
    pub copied: usize,
    /// How many of those pieces are in the program's memory.
    pub lent: u64,
}

impl Outbound {
    /// Is there a record that is not a piece of the lane yet?
    pub fn has_gathered(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// The bytes of memory that it holds.
    pub fn memory_bytes(&self) -> usize {
        self.gathered.capacity() + self.spare.iter().map(Vec::capacity).sum::<usize>() + self.copied
    }

    /// Releases memory in which nothing waits.
    pub fn trim(&mut self) {
        self.spare = Vec::new();
        if self.gathered.is_empty() {
            self.gathered = Vec::new();
        }
    }
}

/// Bytes of a lane that are kept until they are acknowledged.
#[derive(Debug)]
pub(super) enum Piece {
    /// Copied records: heads, short messages, notes and answers.
    Copied(Box<[u8]>),
    /// The same, in a buffer that is used again.
    Chunk(Vec<u8>),
    /// The payload of a long message or of a long put, in the program's memory.
    Lent(Box<Lent>),
}

/// A transfer whose payload is sent from the program's memory.
#[derive(Debug)]
pub(super) struct Lent {
    pub entry: Outgoing,
    /// The offset of the lane after its record.
    pub position: u64,
}

impl Piece {
    /// The memory of a copy.
    pub fn copied_bytes(&self) -> usize {
        match self {
            Self::Copied(bytes) => bytes.len(),
            Self::Chunk(bytes) => bytes.capacity(),
            Self::Lent(_) => 0,
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Chunk(bytes) => bytes,
            Self::Lent(lent) => lent.entry.buffer.as_ref(),
        }
    }
}
