//! Even sending: a bucket of bytes that fills with time.

/// The time whose bytes the bucket holds.
const BUCKET_NS: u64 = 500_000;
/// The time whose bytes leave together after something was held back.
const BURST_NS: u64 = BUCKET_NS / 2;
/// The most of them: what one call of the kernel sends, and one receives.
const BURST_BYTES_MAX: u64 = 64 * 1024;
/// A smaller window is refilled packet by packet. Where many connections share a link, each has a few packets in flight, and bursts
/// would make some of them lose more than others.
const BURST_WINDOW_BYTES: u64 = 128 * 1024;

/// The bytes that may leave now.
#[derive(Clone, Debug)]
pub struct Pacer {
    bytes: u64,
    filled_at_ns: u64,
    /// When the bucket was last filled up to the present, so that the next packet of a batch needs no division.
    asked_at_ns: Option<u64>,
    /// The least size of the bucket: one batch.
    batch_bytes: u64,
}

/// The rate at which bytes may leave.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes that may be in flight.
    pub window: u64,
    /// The smoothed round-trip time.
    pub smoothed_ns: u64,
    /// The window doubles with each round, and so does the rate.
    pub is_slow_start: bool,
}

impl Rate {
    /// The bytes that leave together after the window or pacing has held something back. The system calls of a packet that
    /// leaves alone, and those of its receiver, take several times as long as those of a packet in a batch. A quarter of the
    /// window keeps the path busy meanwhile. 0: they leave one by one.
    pub fn burst_bytes(&self) -> u64 {
        if self.window < BURST_WINDOW_BYTES {
            return 0;
        }
        self.bytes_in(BURST_NS).min(self.window / 4).min(BURST_BYTES_MAX)
    }

    /// Bytes for a span of time. The rate is above one window for each round trip, because the window is to be the
    /// limit.
    fn bytes_in(&self, span_ns: u64) -> u64 {
        let (bytes, time_ns) = self.ratio();
        scaled(span_ns, bytes, time_ns)
    }

    /// Does this span of time yield at least `bytes`? The answer needs no division.
    fn yields(&self, bytes: u64, span_ns: u64) -> bool {
        let (ratio_bytes, time_ns) = self.ratio();
        u128::from(span_ns) * u128::from(ratio_bytes) >= u128::from(bytes) * u128::from(time_ns)
    }

    /// The time that this many bytes take, rounded down.
    fn time_of(&self, bytes: u64) -> u64 {
        let (ratio_bytes, time_ns) = self.ratio();
        scaled(bytes, time_ns, ratio_bytes)
    }

    fn ratio(&self) -> (u64, u64) {
        let (numerator, denominator) = if self.is_slow_start { (2, 1) } else { (5, 4) };
        let ratio = |value: u64, factor| value.max(1).saturating_mul(factor);
        (ratio(self.window, numerator), ratio(self.smoothed_ns, denominator))
    }
}

/// `value * numerator / denominator`, rounded down.
fn scaled(value: u64, numerator: u64, denominator: u64) -> u64 {
    // A division of 64 bits takes a fraction of the time of one of 128.
    match value.checked_mul(numerator) {
        Some(product) => product / denominator,
        None => {
            let quotient = u128::from(value) * u128::from(numerator) / u128::from(denominator);
            u64::try_from(quotient).unwrap_or(u64::MAX)
        }
    }
}

impl Pacer {
    /// A full bucket.
    pub fn new(batch_bytes: u64) -> Self {
        Self { bytes: batch_bytes, filled_at_ns: 0, asked_at_ns: None, batch_bytes }
    }

    /// May this many bytes leave now? Of more than the bucket holds, as many as it holds.
    #[inline]
    pub fn permits(&mut self, now_ns: u64, bytes: u64, rate: impl FnOnce() -> Rate) -> bool {
        if self.asked_at_ns == Some(now_ns) && self.bytes >= bytes {
            return true;
        }
        self.asked_at_ns = Some(now_ns);
        let rate = rate();
        self.room(now_ns, rate) >= self.fitting(bytes, rate)
    }

    /// The bytes that the bucket had at the last question, without those that were spent since.
    pub fn left(&self) -> u64 {
        self.bytes
    }

    /// Bytes that may leave now.
    pub fn room(&mut self, now_ns: u64, rate: Rate) -> u64 {
        let full = self.size(rate);
        let span_ns = now_ns.saturating_sub(self.filled_at_ns);
        if rate.yields(full.saturating_sub(self.bytes), span_ns) {
            (self.bytes, self.filled_at_ns) = (full, now_ns.max(self.filled_at_ns));
            return full;
        }
        let gain = rate.bytes_in(span_ns);
        self.bytes = self.bytes.saturating_add(gain);
        // The time advances only by that of whole bytes, so fractions are not lost.
        self.filled_at_ns = self.filled_at_ns.saturating_add(rate.time_of(gain));
        self.bytes
    }

    /// The bytes that the bucket holds.
    fn size(&self, rate: Rate) -> u64 {
        rate.bytes_in(BUCKET_NS).max(self.batch_bytes)
    }

    /// Of this many bytes, as many as the bucket holds.
    pub fn fitting(&self, bytes: u64, rate: Rate) -> u64 {
        if bytes <= self.batch_bytes { bytes } else { bytes.min(self.size(rate)) }
    }

    /// Notes that bytes have left.
    pub fn spend(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// When this many bytes may leave, now or later.
    pub fn at_ns(&self, bytes: u64, rate: Rate) -> u64 {
        let missing = self.fitting(bytes, rate).saturating_sub(self.bytes);
        if missing == 0 {
            return self.filled_at_ns;
        }
        self.filled_at_ns.saturating_add(rate.time_of(missing)).saturating_add(1)
    }
}
