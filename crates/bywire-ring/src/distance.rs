//! How far the consumer's core is, as far as loads of its lines can tell.
//!
//! Where both cores share a cache, payloads go through it. Where they do not, each line of the bulk area must first be
//! fetched from the other core's cache, a quarter of a microsecond away, and non-temporal stores are several times as
//! fast (docs/performance.md). A machine may move its virtual cores at any time, so the question is asked again at every
//! look at the consumer's credit: that line was last written by the consumer.

use std::time::Duration;

use bywire_sys::clock;

/// A line that another core has written takes 30 to 60 ns to load from a shared cache, and 130 ns and more from a distant
/// one, the two looks at the clock included.
const FAR: Duration = Duration::from_nanos(90);
/// Shorter payloads go through the caches: a store around them has its price too.
const BYTES_MIN: usize = 256;

/// What one producer knows.
#[derive(Debug)]
pub(crate) struct Distance {
    far_cycles: u64,
    is_far: bool,
    /// What the last load said. It takes two to change an opinion: one may have been interrupted.
    seemed_far: bool,
}

/// How a payload is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the caches.
    Cached,
    /// Around the caches.
    Nontemporal,
}

impl Distance {
    pub fn new() -> Self {
        Self { far_cycles: clock::cycles_in(FAR), is_far: false, seemed_far: false }
    }

    /// The way for a payload of `length` bytes.
    #[inline(always)]
    pub fn way(&self, length: usize) -> Way {
        if self.is_far && length >= BYTES_MIN { Way::Nontemporal } else { Way::Cached }
    }

    /// Takes in that loading a line of the consumer's took so many cycles.
    pub fn learn(&mut self, cycles: u64) {
        let seems_far = cycles > self.far_cycles;
        if seems_far == self.seemed_far {
            self.is_far = seems_far;
        }
        self.seemed_far = seems_far;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slow_loads_in_a_row_make_a_consumer_far_and_two_fast_ones_near() {
        let mut distance = Distance::new();
        let (near, far) = (distance.far_cycles, distance.far_cycles + 1);
        let ways = [far, near, far, far, near, far, near, near].map(|cycles| {
            distance.learn(cycles);
            assert_eq!(distance.way(BYTES_MIN - 1), Way::Cached);
            distance.way(BYTES_MIN)
        });
        let (cached, around) = (Way::Cached, Way::Nontemporal);
        assert_eq!(ways, [cached, cached, cached, around, around, around, around, cached]);
    }
}
