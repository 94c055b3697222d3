//! How often the port's sockets are read.

use bywire_sys::clock;

/// The shortest interval between reads of the socket while a ring is hot, in nanoseconds, if the socket has brought
/// something, …
const INTERVAL_MIN_NS: u64 = 1_000;
/// … and the longest interval if it has not. A read costs 0.4 µs.
const INTERVAL_MAX_NS: u64 = 16_000;

/// The interval between reads while received messages wait for the program.
const BESIDE_MESSAGES_NS: u64 = 20_000;

/// How often the sockets are read.
#[derive(Debug, Default)]
pub(super) struct ReadInterval {
    interval_ns: u64,
    /// The last read, in cycles.
    last: u64,
}

impl ReadInterval {
    /// Is it time to read the socket? It always is if no ring is hot.
    #[inline]
    pub fn is_due(&self, is_ring_hot: bool) -> bool {
        if !is_ring_hot {
            return true;
        }
        self.has_passed(self.interval_ns)
    }

    /// Is it time to read the sockets although messages wait? Other peers wait for that, and so do acknowledgements.
    #[inline]
    pub fn is_due_beside_messages(&self) -> bool {
        self.has_passed(BESIDE_MESSAGES_NS)
    }

    fn has_passed(&self, interval_ns: u64) -> bool {
        let interval = interval_ns.saturating_mul(clock::cycles_per_millisecond()) / 1_000_000;
        clock::cycles().wrapping_sub(self.last) >= interval
    }

    /// Notes a read, and whether it has brought something.
    #[inline]
    pub fn found(&mut self, something: bool) {
        self.last = clock::cycles();
        let next_ns = if something { 0 } else { 2 * self.interval_ns };
        self.interval_ns = next_ns.clamp(INTERVAL_MIN_NS, INTERVAL_MAX_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_polling_interval_grows_while_nothing_arrives() {
        let mut read_interval = ReadInterval::default();
        assert!(read_interval.is_due(false) && read_interval.is_due(false));
        read_interval.found(false);
        assert_eq!(read_interval.interval_ns, INTERVAL_MIN_NS);
        (0..10).for_each(|_| read_interval.found(false));
        assert_eq!(read_interval.interval_ns, INTERVAL_MAX_NS);
        read_interval.found(true);
        assert_eq!(read_interval.interval_ns, INTERVAL_MIN_NS);
    }
}
