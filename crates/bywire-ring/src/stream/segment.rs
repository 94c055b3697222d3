//! The memory of one end, as the rules of a direction see it.

use core::sync::atomic::{AtomicU64, Ordering};

use bywire_sys::memory::Mapping;

use super::segment_layout::EVENT;
use crate::copy;

/// Memory that one end writes and both read, addressed by byte offset.
pub trait Segment {
    /// Loads the word at `offset` (a multiple of 8).
    fn load(&self, offset: usize, order: Ordering) -> u64;
    /// Stores the word at `offset` (a multiple of 8).
    fn store(&self, offset: usize, value: u64, order: Ordering);
    /// Adds to the word at `offset`, wrapping; for words that several threads of one end change.
    fn add(&self, offset: usize, value: u64, order: Ordering);
    /// Copies out of the segment. Bytes that the writer changes meanwhile are garbage.
    ///
    /// # Safety
    /// `target` must be valid for writes of `length` bytes.
    unsafe fn read(&self, offset: usize, target: *mut u8, length: usize);
    /// Copies into the segment.
    ///
    /// # Safety
    /// `source` must be valid for reads of `length` bytes.
    unsafe fn write(&self, offset: usize, source: *const u8, length: usize);
    /// As [`Self::write`], but around the caches, and ordered before every publication that follows.
    ///
    /// # Safety
    /// As for [`Self::write`].
    unsafe fn write_around(&self, offset: usize, source: *const u8, length: usize) {
        // SAFETY: passed on.
        unsafe { self.write(offset, source, length) }
    }
    /// A full fence.
    fn fence(&self);
    /// Asks for the cache line at `offset`, which is about to be read.
    fn expect(&self, _offset: usize) {}
}

/// A mapping that its user keeps alive.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    base: *mut u8,
    length_bytes: usize,
}

impl Window {
    /// # Safety
    /// `base` must be page-aligned and mapped for `length_bytes` bytes for as long as the window is used; writing
    /// methods may only be called if it is mapped for writing.
    pub const unsafe fn new(base: *mut u8, length_bytes: usize) -> Self {
        Self { base, length_bytes }
    }

    /// Its first byte.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// The address of the low half of the event word, on which sleepers wait in the kernel.
    pub fn event_address(&self) -> *const u32 {
        self.base.wrapping_add(EVENT).cast()
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.length_bytes);
        // SAFETY: offsets are constants of this module, all within the header, which `new` vouches for.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }
}

impl Segment for Window {
    #[inline(always)]
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    #[inline(always)]
    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }

    #[inline(always)]
    fn add(&self, offset: usize, value: u64, order: Ordering) {
        self.word(offset).fetch_add(value, order);
    }

    unsafe fn read(&self, offset: usize, target: *mut u8, length: usize) {
        if offset > self.length_bytes || length > self.length_bytes - offset {
            return;
        }
        // SAFETY: the source is in bounds by the check; the caller vouches for the target.
        unsafe {
            copy::from_shared(self.base.add(offset), core::slice::from_raw_parts_mut(target, length));
        }
    }

    unsafe fn write(&self, offset: usize, source: *const u8, length: usize) {
        if offset > self.length_bytes || length > self.length_bytes - offset {
            return;
        }
        // SAFETY: the target is in bounds by the check; the caller vouches for the source.
        unsafe { copy::to_shared(core::slice::from_raw_parts(source, length), self.base.add(offset)) }
    }

    unsafe fn write_around(&self, offset: usize, source: *const u8, length: usize) {
        if offset > self.length_bytes || length > self.length_bytes - offset {
            return;
        }
        // SAFETY: the target is in bounds by the check; the caller vouches for the source.
        unsafe {
            copy::to_shared_nontemporal(core::slice::from_raw_parts(source, length), self.base.add(offset));
        }
        copy::settle();
    }

    #[inline(always)]
    fn fence(&self) {
        // Pairs with the fence of the other end that the caller names.
        copy::full_fence();
    }

    #[inline(always)]
    fn expect(&self, offset: usize) {
        copy::expect(self.base.wrapping_add(offset));
    }
}

/// A mapping that is borrowed for as long as its words are used.
#[derive(Clone, Copy, Debug)]
pub struct Mapped<'a>(&'a Mapping);

impl<'a> Mapped<'a> {
    /// The words of a mapping. Storing into one that is not writable ends the process.
    pub fn new(mapping: &'a Mapping) -> Self {
        Self(mapping)
    }

    /// Wakes everybody who sleeps on the event word of this end, in the other process.
    pub fn wake_sleepers(&self) {
        self.0.wake_sleepers(EVENT);
    }

    fn window(&self) -> Window {
        // SAFETY: mapped with this length for as long as the borrow lasts, which is longer than the call that uses the
        // window. Writing to a mapping for reading only is a fault, not a race.
        unsafe { Window::new(self.0.base(), self.0.length_bytes()) }
    }
}

impl Segment for Mapped<'_> {
    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.window().load(offset, order)
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.window().store(offset, value, order);
    }

    fn add(&self, offset: usize, value: u64, order: Ordering) {
        self.window().add(offset, value, order);
    }

    unsafe fn read(&self, offset: usize, target: *mut u8, length: usize) {
        // SAFETY: passed on.
        unsafe { self.window().read(offset, target, length) }
    }

    unsafe fn write(&self, offset: usize, source: *const u8, length: usize) {
        // SAFETY: passed on.
        unsafe { self.window().write(offset, source, length) }
    }

    fn fence(&self) {
        self.window().fence();
    }
}
