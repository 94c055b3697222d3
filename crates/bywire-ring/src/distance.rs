//! How far the consumer's core is, as far as stores can tell.
//!
//! Where both cores share a cache, payloads go through it. Where they do not, each line of the bulk area must first be
//! fetched from the other core's cache, a quarter of a microsecond away, and non-temporal stores are several times as
//! fast (docs/performance.md). A machine may move its virtual cores at any time, so the question is asked again and again.

use std::time::Duration;

use bywire_sys::clock;

use crate::memory::LINE_BYTES;

/// A line takes about 2 ns to copy into a shared cache, 9 where it lies in none (so it does after non-temporal stores,
/// which must not keep themselves in use), and 17 to 27 where it lies in a distant one.
const FAR_PER_LINE: Duration = Duration::from_nanos(13);
/// Shorter payloads are not worth the question.
const BYTES_MIN: usize = 4096;
/// Payloads from one question to the next, where the consumer was near and where it was far.
const NEAR_PAUSE: u32 = 15;
const FAR_PAUSE: u32 = 127;

/// What one producer knows.
#[derive(Debug)]
pub(crate) struct Distance {
    far_cycles_per_line: u64,
    is_far: bool,
    /// Payloads until the next question.
    pause: u32,
}

/// How a payload is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the caches.
    Cached,
    /// The same, to see how long it takes.
    Timed,
    /// Around the caches.
    Nontemporal,
}

impl Distance {
    pub fn new() -> Self {
        Self { far_cycles_per_line: clock::cycles_in(FAR_PER_LINE), is_far: false, pause: NEAR_PAUSE }
    }

    /// The way for the next payload, of `length` bytes.
    #[inline(always)]
    pub fn way(&mut self, length: usize) -> Way {
        if length < BYTES_MIN { Way::Cached } else { self.way_of_long() }
    }

    fn way_of_long(&mut self) -> Way {
        match self.pause.checked_sub(1) {
            Some(rest) => self.pause = rest,
            None => return Way::Timed,
        }
        if self.is_far { Way::Nontemporal } else { Way::Cached }
    }

    /// Takes in that storing `length` bytes took so many cycles.
    pub fn learn(&mut self, length: usize, cycles: u64) {
        let lines = (length / LINE_BYTES) as u64;
        self.is_far = cycles > lines.saturating_mul(self.far_cycles_per_line);
        self.pause = if self.is_far { FAR_PAUSE } else { NEAR_PAUSE };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_consumer_is_written_to_around_the_caches_and_asked_about_again() {
        let mut distance = Distance::new();
        assert_eq!(distance.way(BYTES_MIN - 1), Way::Cached);
        let ways = |distance: &mut Distance| -> Vec<Way> {
            std::iter::from_fn(|| Some(distance.way(BYTES_MIN)).filter(|way| *way != Way::Timed)).collect()
        };
        assert_eq!(ways(&mut distance), [Way::Cached; NEAR_PAUSE as usize]);
        distance.learn(LINE_BYTES, distance.far_cycles_per_line + 1);
        assert_eq!(ways(&mut distance), [Way::Nontemporal; FAR_PAUSE as usize]);
        distance.learn(LINE_BYTES, distance.far_cycles_per_line);
        assert_eq!(ways(&mut distance), [Way::Cached; NEAR_PAUSE as usize]);
    }
}
