//! Words that threads share: the processor's own atomics, or words of a model that tries every interleaving.

use core::sync::atomic::{AtomicU32, Ordering};

/// An atomic word of 32 bits.
pub trait Word {
    /// As [`AtomicU32::load`].
    fn load(&self, order: Ordering) -> u32;
    /// As [`AtomicU32::store`].
    fn store(&self, value: u32, order: Ordering);
    /// As [`AtomicU32::swap`].
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// As [`AtomicU32::fetch_add`], which wraps.
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// As [`AtomicU32::compare_exchange`], with [`Ordering::Relaxed`] on failure.
    ///
    /// # Errors
    /// The value that was found instead.
    fn compare_exchange(&self, found: u32, value: u32, order: Ordering) -> Result<u32, u32>;
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }

    #[inline(always)]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }

    #[inline(always)]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.fetch_add(value, order)
    }

    #[inline(always)]
    fn compare_exchange(&self, found: u32, value: u32, order: Ordering) -> Result<u32, u32> {
        self.compare_exchange(found, value, order, Ordering::Relaxed)
    }
}
