//! Records that were freed lately.

use core::sync::atomic::{AtomicU32, Ordering};

const FREED_MAX: usize = 128;

/// Records that this process has freed. Reusing them keeps them in the caches, however many sockets come and go at
/// once.
///
/// The thread that claims a record checks it, so the entries need not be consistent with each other.
pub struct FreeList {
    count: AtomicU32,
    places: [AtomicU32; FREED_MAX],
}

impl FreeList {
    /// An empty list.
    pub const fn new() -> Self {
        Self { count: AtomicU32::new(0), places: [const { AtomicU32::new(0) }; FREED_MAX] }
    }

    /// Notes that this record is free.
    pub fn put(&self, index: u32) {
        let count = self.count.load(Ordering::Relaxed);
        if let Some(place) = self.places.get(count as usize) {
            place.store(index, Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Relaxed);
        }
    }

    /// A record that may be free; 0: none is known.
    pub fn take(&self) -> u32 {
        let Some(count) = self.count.load(Ordering::Relaxed).checked_sub(1) else { return 0 };
        self.count.store(count, Ordering::Relaxed);
        self.places.get(count as usize).map_or(0, |place| place.load(Ordering::Relaxed))
    }
}
