//! Memory that changes hands: buffers given to the library, payloads given to the program.

use std::fmt;
use std::ops::Deref;

use bywire_ring::geometry::INLINE_BYTES;

/// Memory that the library uses until it gives it back in a completion.
///
/// Made from a `Vec<u8>` or a boxed slice: the type system keeps the program from touching it meanwhile. The C
/// interface makes it from memory that the C program promises not to touch.
pub struct Buffer {
    memory: Memory,
}

enum Memory {
    Owned(Vec<u8>),
    /// The C program's memory. It is valid until given back, by the promise of `Buffer::from_raw`.
    Raw(*mut u8, usize),
}

// SAFETY: an owned vector is `Send`. The caller of `from_raw` has promised that raw memory may be used from any
// thread.
unsafe impl Send for Buffer {}
// SAFETY: this type reads the memory through a shared reference, and writes it only through an exclusive one. The
// caller of `from_raw` has promised that nothing else writes it, or that whatever a copy finds there will do.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Borrows memory of the caller until this value is given back and dropped.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `length` bytes, initialised, and touched by no other code, from
    /// any thread, until the returned value has been dropped. Memory to be sent or put is only read: it suffices that
    /// it is valid for reads and does not change.
    ///
    /// Memory that is put, got into or registered may be touched meanwhile, for example by an operation that overlaps this
    /// one. Then the bytes that cross, or stay, may be any mix of the old and the new ones, and nothing else happens: a port
    /// reads or writes each of these bytes by one copy, takes its check from that copy, and decides nothing by them. A program
    /// in Rust touches such memory between calls on its port only: there a reference to it may exist during a call.
    pub unsafe fn from_raw(base: *mut u8, length: usize) -> Self {
        Self { memory: Memory::Raw(base, length) }
    }

    /// Does it borrow memory ([`Self::from_raw`])?
    pub fn is_borrowed(&self) -> bool {
        matches!(self.memory, Memory::Raw(..))
    }

    /// The vector inside. Foreign memory is copied.
    pub fn into_vec(self) -> Vec<u8> {
        match self.memory {
            Memory::Owned(vector) => vector,
            Memory::Raw(..) => self.as_ref().to_vec(),
        }
    }

    /// The memory's address.
    pub fn as_ptr(&self) -> *const u8 {
        self.as_ref().as_ptr()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            Memory::Owned(vector) => vector,
            // SAFETY: the caller of `from_raw` has promised that these bytes are valid and initialised, and that the address
            // is not null if there are any. They are this value's alone, or a port only copies them.
            Memory::Raw(base, length) if *length > 0 => unsafe { std::slice::from_raw_parts(*base, *length) },
            Memory::Raw(..) => &[],
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Owned(vector) => vector,
            // SAFETY: the caller of `from_raw` has promised that these bytes are valid and initialised. They are this value's
            // alone, or a port only copies into them. `&mut self` borrows them exclusively.
            Memory::Raw(base, length) if *length > 0 => unsafe {
                std::slice::from_raw_parts_mut(*base, *length)
            },
            Memory::Raw(..) => &mut [],
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(vector: Vec<u8>) -> Self {
        Self { memory: Memory::Owned(vector) }
    }
}

impl From<Box<[u8]>> for Buffer {
    fn from(boxed: Box<[u8]>) -> Self {
        Self::from(Vec::from(boxed))
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        Self::from(bytes.to_vec())
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Buffer({} bytes)", self.as_ref().len())
    }
}

/// The bytes of a slot's words.
#[inline(always)]
pub fn bytes_of(words: &[u64; INLINE_BYTES / 8]) -> [u8; INLINE_BYTES] {
    let mut bytes = [0; INLINE_BYTES];
    for (target, word) in bytes.chunks_exact_mut(8).zip(words) {
        target.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// The words of a slot with these bytes.
#[inline(always)]
pub fn words_of(bytes: &[u8; INLINE_BYTES]) -> [u64; INLINE_BYTES / 8] {
    let mut words = [0; INLINE_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// The bytes of a received message: private memory, which no peer can change any more.
///
/// Short payloads are in the value itself. Others are in a [`Buffer`]. Give it back with [`crate::Port::recycle`] or
/// post it again, and receiving allocates nothing.
pub struct Payload {
    storage: Storage,
}

enum Storage {
    Inline { words: [u64; INLINE_BYTES / 8], length: u8 },
    Buffer { buffer: Buffer, length: usize },
}

impl Payload {
    /// # Panics
    /// When `length` is more than the words hold.
    #[inline(always)]
    pub(crate) fn inline(words: [u64; INLINE_BYTES / 8], length: u16) -> Self {
        assert!(usize::from(length) <= INLINE_BYTES, "a slot holds 56 bytes");
        Self { storage: Storage::Inline { words, length: length as u8 } }
    }

    /// # Panics
    /// When `length` is more than the buffer holds.
    pub(crate) fn buffer(buffer: Buffer, length: usize) -> Self {
        assert!(length <= buffer.as_ref().len(), "a payload ends within its buffer");
        Self { storage: Storage::Buffer { buffer, length } }
    }

    /// Is it in memory that was borrowed ([`Buffer::from_raw`])?
    pub fn is_borrowed(&self) -> bool {
        matches!(&self.storage, Storage::Buffer { buffer, .. } if buffer.is_borrowed())
    }

    /// The size of the memory behind it, beyond the value itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        match &self.storage {
            Storage::Buffer { buffer, .. } => buffer.as_ref().len(),
            Storage::Inline { .. } => 0,
        }
    }

    /// The whole buffer behind a longer message; `None` for one that came inline.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self.storage {
            Storage::Buffer { buffer, .. } => Some(buffer),
            Storage::Inline { .. } => None,
        }
    }
}

impl Deref for Payload {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match &self.storage {
            Storage::Inline { words, length } => {
                // SAFETY: seven words are 56 initialised bytes, borrowed with `self`, and any bit pattern
                // is a byte.
                let bytes: &[u8; INLINE_BYTES] = unsafe { &*words.as_ptr().cast() };
                // `inline` has checked the length; `min` tells the optimiser.
                &bytes[..usize::from(*length).min(INLINE_BYTES)]
            }
            Storage::Buffer { buffer, length } => &buffer.as_ref()[..*length],
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Payload({} bytes)", self.len())
    }
}
