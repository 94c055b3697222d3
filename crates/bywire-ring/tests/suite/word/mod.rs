//! A word of loom's, so that the code that ships runs under the model checker.

use bywire_ring::word::Word;
use loom::sync::atomic::{AtomicU32, Ordering};

/// An atomic word under loom, nought at first.
#[derive(Default)]
pub struct Modelled(AtomicU32);

impl Word for Modelled {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.0.swap(value, order)
    }

    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        self.0.fetch_add(value, order)
    }

    fn compare_exchange(&self, found: u32, value: u32, order: Ordering) -> Result<u32, u32> {
        self.0.compare_exchange(found, value, order, Ordering::Relaxed)
    }
}
