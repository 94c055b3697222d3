//! Operations of the program until they complete: what the endpoint's matchers keep as handles.

use std::ops::Range;

use bywire::{Buffer, Key};
use bywire_match::{Selector, Sink};

use crate::memory::Memory;

/// Payloads up to this length are kept in the handle itself.
const SHORT_BYTES: usize = 48;

/// The payload of a send.
#[derive(Debug)]
pub enum Payload {
    /// In the program's memory.
    Program(Memory),
    /// A short copy, and its length.
    Short([u8; SHORT_BYTES], u8),
    /// A copy.
    Copied(Box<[u8]>),
}

impl Payload {
    /// A copy of memory that the program takes back at once.
    pub fn copy(memory: &Memory) -> Self {
        let mut bytes = Vec::with_capacity(memory.length() as usize);
        memory.read(0, memory.length(), &mut bytes);
        if bytes.len() > SHORT_BYTES {
            return Self::Copied(bytes.into());
        }
        let mut short = [0; SHORT_BYTES];
        short[..bytes.len()].copy_from_slice(&bytes);
        Self::Short(short, bytes.len() as u8)
    }

    pub fn length(&self) -> u64 {
        match self {
            Self::Program(memory) => memory.length(),
            Self::Short(_, length) => u64::from(*length),
            Self::Copied(bytes) => bytes.len() as u64,
        }
    }

    /// The memory that a copy takes.
    pub fn copied_bytes(&self) -> usize {
        if let Self::Copied(bytes) = self { bytes.len() } else { 0 }
    }
}

/// A send.
#[derive(Debug)]
pub struct SendHandle {
    pub payload: Payload,
    pub report: SendReport,
}

/// What a send reports when it has ended.
#[derive(Clone, Copy, Debug)]
pub struct SendReport {
    /// The program's word for it.
    pub context: usize,
    /// The flags of its completion.
    pub flags: u64,
    /// Is its success reported?
    pub is_reported: bool,
    /// Was it injected by a call without a context? Then nothing is reported, not even a failure: Open MPI before 5.0.3 follows the
    /// context of each error. A counter has it, and the next operation with that target fails at once.
    pub is_silent: bool,
}

impl SendHandle {
    /// Copies the payload, so that the program has its memory back.
    pub fn copy_payload(&mut self) {
        if let Payload::Program(memory) = &self.payload {
            self.payload = Payload::copy(memory);
        }
    }

    /// Appends `length` bytes of the payload from `offset` on to `target`.
    pub fn read(&self, offset: u64, length: u64, target: &mut Vec<u8>) {
        let part = |bytes: &[u8]| {
            let begin = bytes.len().min(offset as usize);
            begin..bytes.len().min(begin + length as usize)
        };
        match &self.payload {
            Payload::Program(memory) => memory.read(offset, length, target),
            Payload::Short(bytes, count) => {
                let bytes = &bytes[..usize::from(*count)];
                target.extend_from_slice(&bytes[part(bytes)]);
            }
            Payload::Copied(bytes) => target.extend_from_slice(&bytes[part(bytes)]),
        }
    }

    /// The bytes of a range of the payload, for a port to copy: where they are, or in `scratch`.
    pub fn joined<'a>(&'a self, range: Range<u64>, scratch: &'a mut Vec<u8>) -> &'a [u8] {
        let part = |bytes: &'a [u8]| {
            bytes.get(range.start as usize..bytes.len().min(range.end as usize)).unwrap_or_default()
        };
        match &self.payload {
            // SAFETY: the program leaves the memory of a message to its operation. If it changes that all the same, any mix of the
            // bytes will do, which are only copied.
            Payload::Program(memory) => unsafe {
                memory.joined(range.start, range.end - range.start, scratch)
            },
            Payload::Short(bytes, count) => part(&bytes[..usize::from(*count)]),
            Payload::Copied(bytes) => part(bytes),
        }
    }

    /// The first `length` bytes, for a port to put. The caller keeps this handle until the port has given them back.
    pub fn buffer(&self, length: u64) -> Buffer {
        let lent = match &self.payload {
            // SAFETY: the caller keeps the handle, and with it the memory, until the put is over. The memory is only
            // read, by the port as by this library.
            Payload::Program(memory) => unsafe { memory.buffer(length) },
            _ => None,
        };
        lent.unwrap_or_else(|| {
            let mut bytes = Vec::with_capacity(length as usize);
            self.read(0, length, &mut bytes);
            bytes.into()
        })
    }
}

/// A receive.
#[derive(Debug)]
pub struct ReceiveHandle {
    pub memory: Memory,
    /// Bytes that were written piece by piece.
    pub written: u64,
    /// The program's word for it.
    pub context: usize,
    /// The flags of its completion.
    pub flags: u64,
    /// Is its success reported?
    pub is_reported: bool,
    /// The region of its memory while a peer puts into it.
    pub key: Option<Key>,
    /// Does it take several messages, one behind the other?
    pub multi: Option<Box<MultiReceive>>,
}

/// A receive that goes on after a message.
#[derive(Clone, Copy, Debug)]
pub struct MultiReceive {
    pub selector: Selector,
    /// It is over once less room than that is left.
    pub rest_bytes: u64,
}

impl ReceiveHandle {
    /// The first `length` bytes of its memory, for a peer to put into. `None`: they are not in one piece. The caller
    /// revokes the region before this handle goes, and writes nothing through the handle until then.
    pub fn buffer(&self, length: u64) -> Option<Buffer> {
        // SAFETY: the region is revoked first, as the caller says. A put is the only thing that writes meanwhile.
        unsafe { self.memory.buffer(length) }
    }
}

impl Sink for ReceiveHandle {
    #[inline(always)]
    fn capacity(&self) -> u64 {
        self.memory.length()
    }

    #[inline(always)]
    fn write(&mut self, payload: &[u8]) {
        self.memory.write(self.written, payload);
        self.written += payload.len() as u64;
    }

    #[inline(always)]
    fn fill(&mut self, payload: &[u8]) {
        // Without a note in the handle, which is about to go: its copy would wait for that.
        self.memory.write(0, payload);
    }
}

/// A read of memory of another endpoint.
#[derive(Debug)]
pub struct ReadHandle {
    pub memory: Memory,
    /// Bytes that were written piece by piece.
    pub written: u64,
    /// The program's word for it.
    pub context: usize,
    /// Is its success reported?
    pub is_reported: bool,
    /// The region of its memory while a peer puts into it.
    pub key: Option<Key>,
}

impl ReadHandle {
    /// Its memory, for a peer to put into. `None`: it is not in one piece. The caller revokes the region before this handle
    /// goes, and writes nothing through the handle until then.
    pub fn buffer(&self) -> Option<Buffer> {
        // SAFETY: the region is revoked first, as the caller says. A put is the only thing that writes meanwhile.
        unsafe { self.memory.buffer(self.memory.length()) }
    }
}

impl Sink for ReadHandle {
    fn capacity(&self) -> u64 {
        self.memory.length()
    }

    fn write(&mut self, payload: &[u8]) {
        self.memory.write(self.written, payload);
        self.written += payload.len() as u64;
    }
}
