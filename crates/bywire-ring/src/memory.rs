//! Shared memory as the rings see it, so that the same code runs on mapped segments and in models.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bywire_sys::memory::Mapping;

use crate::copy;
use crate::geometry::LINE_BYTES;

/// Words of a slot behind its header word.
pub const SLOT_WORDS: usize = 7;

/// Memory that one side writes and both sides read, addressed by byte offset.
///
/// # Panics
/// Every method panics on an offset outside the memory: offsets come from our own geometry and
/// counters, never from a peer.
pub trait Memory {
    /// Loads the word at `offset` (a multiple of 8).
    fn load(&self, offset: usize, order: Ordering) -> u64;
    /// Stores the word at `offset` (a multiple of 8).
    fn store(&self, offset: usize, value: u64, order: Ordering);
    /// Loads the words behind the header of the slot at `offset`. Words that the writer changes meanwhile are
    /// garbage.
    fn load_words(&self, offset: usize) -> [u64; SLOT_WORDS];
    /// Stores words behind the header of the slot at `offset`, at most [`SLOT_WORDS`].
    fn store_words(&self, offset: usize, words: &[u64]);
    /// Stores at most 56 bytes behind the header of the slot at `offset`. The last word is filled up with zeros.
    #[inline(always)]
    fn store_bytes(&self, offset: usize, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(bytes.len() <= 8 * SLOT_WORDS, "more bytes than a slot holds");
        // Straight from the program's memory: a detour over the stack would cost as much as all the rest. Relaxed:
        // the header's release store comes after.
        for (index, word) in words.iter().enumerate() {
            self.store(offset + 8 + 8 * index, u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.store(offset + 8 + 8 * words.len(), u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }
    /// Copies out of the memory. Bytes that the writer changes meanwhile are garbage.
    fn read(&self, offset: usize, target: &mut [u8]);
    /// Copies into the memory.
    fn write(&self, offset: usize, source: &[u8]);
    /// Copies into the memory with stores around the caches. Only [`Self::settle`] orders them.
    #[inline]
    fn write_nontemporal(&self, offset: usize, source: &[u8]) {
        self.write(offset, source);
    }
    /// Orders every store of [`Self::write_nontemporal`] before all stores that follow.
    #[inline(always)]
    fn settle(&self) {}
    /// Takes lines of free slots out of another core's cache by storing a zero in each, behind its header.
    fn claim(&self, offset: usize, lines: usize) {
        // Relaxed: the caller has seen by an acquire load that the slots are free. Their headers stay as they are.
        (0..lines).for_each(|line| self.store(offset + line * LINE_BYTES + 8, 0, Ordering::Relaxed));
    }
    /// Hints that the line at `offset` will be read soon.
    fn expect(&self, offset: usize);
    /// A full fence between a publication and a look at the other side's doorbell.
    fn fence(&self);
}

/// A mapped segment.
#[derive(Clone, Debug)]
pub struct Shared {
    base: *mut u8,
    length_bytes: usize,
    mapping: Arc<Mapping>,
    /// More memory for payloads, addressed from `length_bytes` on.
    extension: Option<Box<Shared>>,
}

// SAFETY: `base` points into `mapping`, which is `Send + Sync` and lives as long as `self`.
unsafe impl Send for Shared {}
// SAFETY: every access through `&Shared` is atomic or one of the racy copies.
unsafe impl Sync for Shared {}

impl Shared {
    /// Takes a mapping into use. Its page alignment makes every offset that is a multiple of 8 aligned.
    pub fn new(mapping: Mapping) -> Self {
        Self {
            base: mapping.base(),
            length_bytes: mapping.length_bytes(),
            mapping: Arc::new(mapping),
            extension: None,
        }
    }

    /// Adds memory for payloads behind the end, once. Words cannot lie there. Returns its offset.
    ///
    /// # Panics
    /// When memory has been added before.
    pub fn extend(&mut self, extension: Self) -> usize {
        assert!(self.extension.is_none(), "memory is extended once");
        self.extension = Some(Box::new(extension));
        self.length_bytes
    }

    /// A reference that can be upgraded as long as this process uses the mapping.
    pub fn downgrade(&self) -> Weak<Mapping> {
        Arc::downgrade(&self.mapping)
    }

    /// Has it been extended?
    pub fn is_extended(&self) -> bool {
        self.extension.is_some()
    }

    /// The address of a payload, which may lie in the extension.
    #[inline(always)]
    fn payload_address(&self, offset: usize, length: usize) -> *mut u8 {
        if offset >= self.length_bytes
            && let Some(extension) = &self.extension
        {
            return extension.address(offset - self.length_bytes, length);
        }
        self.address(offset, length)
    }

    /// The length in bytes, without the extension.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// The length in bytes, with the extension.
    pub fn extended_bytes(&self) -> usize {
        self.length_bytes + self.extension.as_ref().map_or(0, |extension| extension.length_bytes)
    }

    /// The address of the `length` bytes at `offset`, after checking that they exist.
    ///
    /// # Panics
    /// When they do not.
    #[inline(always)]
    pub fn address(&self, offset: usize, length: usize) -> *mut u8 {
        let is_inside = offset <= self.length_bytes && length <= self.length_bytes - offset;
        assert!(is_inside, "an offset of ours outside the segment");
        // SAFETY: in bounds of the mapping by the check above.
        unsafe { self.base.add(offset) }
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8));
        // SAFETY: mapped and in bounds by `address`; aligned because the base is page-aligned and
        // offsets of words are multiples of 8; shared words are only ever accessed as atomics.
        unsafe { &*self.address(offset & !7, 8).cast::<AtomicU64>() }
    }

    fn assert_writable(&self) {
        debug_assert!(self.mapping.is_writable(), "a write to memory of the peer's");
    }
}

impl Memory for Shared {
    #[inline(always)]
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    #[inline(always)]
    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.assert_writable();
        self.word(offset).store(value, order);
    }

    #[inline(always)]
    fn load_words(&self, offset: usize) -> [u64; SLOT_WORDS] {
        let slot = self.address(offset & !7, LINE_BYTES).cast::<AtomicU64>();
        // SAFETY: eight aligned words are in bounds by `address`; Relaxed because the header's
        // acquire load came before.
        std::array::from_fn(|index| unsafe { &*slot.add(1 + index) }.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn store_words(&self, offset: usize, words: &[u64]) {
        self.assert_writable();
        assert!(words.len() <= SLOT_WORDS, "more words than a slot holds");
        let slot = self.address(offset & !7, LINE_BYTES).cast::<AtomicU64>();
        for (index, word) in words.iter().enumerate() {
            // SAFETY: eight aligned words are in bounds by `address`, and `index` is under seven;
            // Relaxed because the header's release store comes after.
            unsafe { &*slot.add(1 + index) }.store(*word, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn store_bytes(&self, offset: usize, bytes: &[u8]) {
        self.assert_writable();
        assert!(bytes.len() <= 8 * SLOT_WORDS, "more bytes than a slot holds");
        let slot = self.address(offset & !7, LINE_BYTES).cast::<AtomicU64>();
        let (words, rest) = bytes.as_chunks::<8>();
        for (index, word) in words.iter().enumerate() {
            // SAFETY: eight aligned words are in bounds by `address`, and `index` is under seven;
            // Relaxed because the header's release store comes after.
            unsafe { &*slot.add(1 + index) }.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            // SAFETY: eight aligned words are in bounds by `address`, and with a rest there are at most six whole words before
            // it; Relaxed because the header's release store comes after.
            unsafe { &*slot.add(1 + words.len()) }.store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
    }

    #[inline]
    fn read(&self, offset: usize, target: &mut [u8]) {
        // SAFETY: the source is mapped and in bounds by `address`; the target is ours alone.
        unsafe { copy::from_shared(self.payload_address(offset, target.len()), target) }
    }

    #[inline]
    fn write(&self, offset: usize, source: &[u8]) {
        self.assert_writable();
        // SAFETY: the target is mapped writable and in bounds by `address`.
        unsafe { copy::to_shared(source, self.payload_address(offset, source.len())) }
    }

    #[inline]
    fn write_nontemporal(&self, offset: usize, source: &[u8]) {
        self.assert_writable();
        // SAFETY: the target is mapped writable and in bounds by `address`.
        unsafe { copy::to_shared_nontemporal(source, self.payload_address(offset, source.len())) }
    }

    #[inline(always)]
    fn settle(&self) {
        copy::settle();
    }

    #[inline(always)]
    fn claim(&self, offset: usize, lines: usize) {
        self.assert_writable();
        let first = self.address(offset & !7, lines * LINE_BYTES).cast::<AtomicU64>();
        for line in 0..lines {
            // SAFETY: the second of eight aligned words of each line is in bounds by `address`; Relaxed as in the trait.
            unsafe { &*first.add(line * (SLOT_WORDS + 1) + 1) }.store(0, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn expect(&self, offset: usize) {
        copy::expect(self.address(offset, 1));
    }

    #[inline(always)]
    fn fence(&self) {
        // Pairs with the fence of the other side of the doorbell; see `doorbell`.
        copy::full_fence();
    }
}
