//! Names of streams, ends and lanes.

use std::fmt;

/// Identifies a stream on a connection of two engines. An identifier is never used again on the same connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

impl StreamId {
    pub(crate) fn new(slot: usize, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | slot as u64)
    }

    /// A number below twice [`crate::Limits::streams_max`] that no other stream has at the same time. Use it as an index.
    pub fn slot(self) -> usize {
        self.0 as u32 as usize
    }

    /// The engine that opened the stream.
    pub fn opener(self) -> Side {
        if self.0 & 1 == 0 { Side::First } else { Side::Second }
    }

    /// The identifier as it stands in records.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Any 64 bits as an identifier, which may be that of no stream.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "stream {}.{}", self.slot(), self.generation())
    }
}

/// One of the two engines. The caller decides which is which, for example by their incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Streams that it opens have even slots.
    First = 0,
    /// Streams that it opens have odd slots.
    Second = 1,
}

impl Side {
    /// The other engine.
    pub fn other(self) -> Self {
        if self == Self::First { Self::Second } else { Self::First }
    }
}

/// A lane of the connection. Each delivers its messages in order. Messages of different lanes may overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// For messages that must not wait behind others.
    High = 0,
    /// For the bulk.
    Low = 1,
}
