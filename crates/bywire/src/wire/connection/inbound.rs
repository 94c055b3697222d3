//! Where the bytes of a lane that comes in stand.

/// What is coming in on one lane.
#[derive(Debug)]
pub(super) struct Inbound {
    pub within: Within,
    /// Bytes that have to wait in the lane before anything can be done with them.
    pub needed: usize,
    /// Bytes ever taken.
    pub taken: u64,
}

/// What the next bytes of a lane are.
#[derive(Debug)]
pub(super) enum Within {
    /// The head of a record.
    Head,
    /// A short message that did not come at once.
    Short { buffer: Vec<u8>, filled: usize, length: usize, is_prompt: bool },
    /// A long message, with so many bytes to come.
    Long { rest: u64, is_prompt: bool },
    /// The data of a put, and then a note of so many bytes.
    Put { note: Option<u8> },
    /// The note of a put.
    Note { length: u8 },
    /// Data that a get has asked for, with so many bytes to come.
    Got { transfer: u64, rest: u64 },
}

impl Default for Inbound {
    fn default() -> Self {
        Self { within: Within::Head, needed: 1, taken: 0 }
    }
}

impl Inbound {
    /// Bytes of memory besides the lane's own.
    pub fn memory_bytes(&self) -> usize {
        if let Within::Short { buffer, .. } = &self.within { buffer.len() } else { 0 }
    }
}
