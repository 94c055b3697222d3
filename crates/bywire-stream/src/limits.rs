//! Bounds of what a peer can make this end hold, and of what this end sends at once.

/// The longest description of a stream, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 512;
/// The longest message that [`crate::Streams::transmit`] makes, in bytes. Longer buffers are filled up to here.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The shortest buffer for a message, in bytes. Every record fits into it.
pub const MESSAGE_BYTES_MIN: usize = 1024;
/// The highest offset of a stream.
pub const OFFSET_MAX: u64 = 1 << 62;
/// The fewest bytes of early messages that an end must be ready to hold.
pub const EARLY_BYTES_MIN: u32 = 4 * MESSAGE_BYTES_MAX as u32;

/// A stream with more unsent bytes than this uses the low lane.
pub(crate) const SHORT_BYTES_MAX: u64 = 2048;
/// Once this many bytes wait for the high lane, other streams use the low one.
pub(crate) const HIGH_BYTES_MAX: u64 = 16 * 1024;
/// The bytes that a stream sends by the low lane before the next one has its turn.
pub(crate) const TURN_BYTES: u64 = 16 * 1024;
/// Bytes that a held message counts in addition to its own.
pub(crate) const HELD_MESSAGE_BYTES: u64 = 64;

/// The bounds that one end grants to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that the peer may have open at once. This end opens no more itself, so it has at most twice as many.
    pub streams_max: u32,
    /// Streams that the peer may have opened and this end has neither accepted nor refused.
    pub opens_max: u32,
    /// Bytes that a stream may have sent and its reader has not drained. At most 2^30.
    pub window_bytes_max: u32,
    /// The bytes of all streams together. Half of them is divided evenly among all possible streams. Of the rest each
    /// stream gets at most a quarter of what the others leave.
    pub bytes_max: u64,
    /// Bytes of messages of the low lane that may wait for one of the high lane. At least [`EARLY_BYTES_MIN`].
    pub early_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams_max: 8192,
            opens_max: 256,
            window_bytes_max: 4 << 20,
            bytes_max: 512 << 20,
            early_bytes_max: 1 << 20,
        }
    }
}

/// The credit of all streams that a peer may send.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Bytes that every stream can have.
    floor: u64,
    window_max: u64,
    /// Bytes beyond the floors of all streams.
    total: u64,
    used: u64,
}

impl Pool {
    pub fn new(limits: &Limits) -> Self {
        let total = limits.bytes_max / 2;
        let floor = total / (2 * u64::from(limits.streams_max).max(1));
        assert!(floor > 0, "Limits::bytes_max leaves no byte for each stream");
        let window_max = u64::from(limits.window_bytes_max);
        assert!((1..=1 << 30).contains(&window_max), "Limits::window_bytes_max is between 1 and 2^30");
        Self { floor, window_max, total, used: 0 }
    }

    /// The window of a stream whose present one is `held` bytes, and whose reader has room for `room`. Credit that was given
    /// is never taken back, so the result is at least `held`.
    pub fn renew(&mut self, held: u64, room: u64) -> u64 {
        let others = self.used - self.extra(held);
        let share = self.floor + (self.total - others) / 4;
        let window = room.min(share).min(self.window_max).max(held);
        self.used = others + self.extra(window);
        window
    }

    /// Bytes of a window were drained, or its stream has ended.
    pub fn release(&mut self, held: u64, left: u64) {
        self.used -= self.extra(held) - self.extra(left);
    }

    /// The bytes beyond the floors that windows have.
    pub fn used(&self) -> u64 {
        self.used
    }

    fn extra(&self, window: u64) -> u64 {
        window.saturating_sub(self.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_all_streams_together_keep_the_limit() {
        let limits =
            Limits { streams_max: 8, bytes_max: 16_000, window_bytes_max: 1 << 20, ..Limits::default() };
        let mut pool = Pool::new(&limits);
        let windows: Vec<u64> = (0..16).map(|_| pool.renew(0, u64::MAX)).collect();
        assert!(windows.iter().sum::<u64>() <= limits.bytes_max);
        assert_eq!(windows[0], 500 + 8000 / 4);
        assert!(windows.iter().all(|window| *window >= 500));
        windows.iter().for_each(|window| pool.release(*window, 0));
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_window_never_shrinks_below_what_was_given() {
        let mut pool = Pool::new(&Limits::default());
        let window = pool.renew(0, 100_000);
        assert_eq!((window, pool.renew(window, 0)), (100_000, 100_000));
        pool.release(window, 30_000);
        assert_eq!(pool.renew(30_000, 50_000), 50_000);
    }
}
