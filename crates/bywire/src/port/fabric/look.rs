//! How often the port's socket is read, and the batch that waits because the socket was full.

use std::net::SocketAddr;

use bywire_sys::clock;

/// The shortest interval between reads of the socket while a ring is hot, in nanoseconds, if the socket has brought
/// something, …
const INTERVAL_MIN_NS: u64 = 1_000;
/// … and the longest interval if it has not. A read costs 0.4 µs.
const INTERVAL_MAX_NS: u64 = 16_000;

/// When the socket is read while rings are hot.
#[derive(Debug, Default)]
pub(super) struct Look {
    interval_ns: u64,
    /// In cycles.
    last: u64,
}

/// A batch for which the socket had no room.
pub(super) struct Stalled {
    pub to: SocketAddr,
    /// The bytes of it that have left.
    pub sent: usize,
}

impl Look {
    /// Is it time to read the socket? It always is if no ring is hot.
    #[inline]
    pub fn is_due(&mut self, is_ring_hot: bool) -> bool {
        if !is_ring_hot {
            return true;
        }
        let now = clock::cycles();
        let passed = now.wrapping_sub(self.last);
        let interval = self.interval_ns.saturating_mul(clock::cycles_per_millisecond()) / 1_000_000;
        let is_due = passed >= interval;
        if is_due {
            self.last = now;
        }
        is_due
    }

    /// Notes whether a read has brought something.
    #[inline]
    pub fn found(&mut self, something: bool) {
        let next_ns = if something { 0 } else { 2 * self.interval_ns };
        self.interval_ns = next_ns.clamp(INTERVAL_MIN_NS, INTERVAL_MAX_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_polling_interval_grows_while_nothing_arrives() {
        let mut look = Look::default();
        assert!(look.is_due(false) && look.is_due(false));
        look.found(false);
        assert_eq!(look.interval_ns, INTERVAL_MIN_NS);
        (0..10).for_each(|_| look.found(false));
        assert_eq!(look.interval_ns, INTERVAL_MAX_NS);
        look.found(true);
        assert_eq!(look.interval_ns, INTERVAL_MIN_NS);
    }
}
