//! How far the consumer's core is, as the time of loading its lines tells.
//!
//! Where both cores share a cache, payloads go through it. Where they do not, each line of the bulk area must first
//! be fetched from the other core's cache, which takes a quarter of a microsecond. Non-temporal stores are then
//! several times as fast (docs/notebook/messages.md). A machine may move its virtual cores at any time. So the producer
//! measures again at every look at the consumer's credit: the consumer was the last to write that line.

use std::time::Duration;

use bywire_sys::clock;

/// The processor's cycle counter, for timing a load between two readings.
pub use bywire_sys::clock::cycles_between_loads as cycles;
pub use bywire_sys::clock::moment;

/// A line that another core has written takes 30 to 60 ns to load from a shared cache, and 130 ns and more from a
/// distant one, including the two readings of the clock.
pub const FAR: Duration = Duration::from_nanos(90);
/// Shorter payloads go through the caches: stores around the caches have a price too.
const BYTES_MIN: usize = 256;

/// In an opinion: the consumer is far.
const IS_FAR: u32 = 1;
/// In an opinion: the last load was slow. Only two such loads in a row change an opinion, as one may have been
/// interrupted.
const SEEMED_FAR: u32 = 2;

/// One producer's opinion of its consumer.
#[derive(Debug)]
pub(crate) struct Distance {
    far_cycles: u64,
    opinion: u32,
}

/// How a payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Through the caches.
    Cached,
    /// Around the caches.
    Nontemporal,
}

impl Distance {
    pub fn new() -> Self {
        Self { far_cycles: clock::cycles_in(FAR), opinion: 0 }
    }

    /// The kind of store for a payload of `length` bytes.
    #[inline(always)]
    pub fn store_kind(&self, length: usize) -> StoreKind {
        store_kind(self.opinion, length)
    }

    /// Notes the cycles that loading a line of the consumer took.
    pub fn learn(&mut self, cycles: u64) {
        self.opinion = learnt(self.opinion, cycles > self.far_cycles);
    }
}

/// The kind of store for a payload of `length` bytes under an opinion. The first opinion is 0.
#[inline(always)]
#[must_use]
pub fn store_kind(opinion: u32, length: usize) -> StoreKind {
    if opinion & IS_FAR != 0 && length >= BYTES_MIN { StoreKind::Nontemporal } else { StoreKind::Cached }
}

/// The opinion after a load. `seems_far`: the load took longer than [`FAR`].
#[must_use]
pub fn learnt(opinion: u32, seems_far: bool) -> u32 {
    let seemed_far = opinion & SEEMED_FAR != 0;
    let is_far = if seems_far == seemed_far { seems_far } else { opinion & IS_FAR != 0 };
    (u32::from(is_far) * IS_FAR) | (u32::from(seems_far) * SEEMED_FAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slow_loads_mark_a_consumer_as_far_and_two_fast_ones_as_near() {
        let mut distance = Distance::new();
        let (near, far) = (distance.far_cycles, distance.far_cycles + 1);
        let ways = [far, near, far, far, near, far, near, near].map(|cycles| {
            distance.learn(cycles);
            assert_eq!(distance.store_kind(BYTES_MIN - 1), StoreKind::Cached);
            distance.store_kind(BYTES_MIN)
        });
        let (cached, around) = (StoreKind::Cached, StoreKind::Nontemporal);
        assert_eq!(ways, [cached, cached, cached, around, around, around, around, cached]);
    }
}
