//! A count of work that empties at a constant rate.

/// A bucket. What goes in is a number, which leaves one by one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bucket {
    empty_at_ns: u64,
}

impl Bucket {
    /// How much is in it, where one leaves after each `interval_ns`.
    pub fn level(&self, now_ns: u64, interval_ns: u64) -> u64 {
        self.empty_at_ns.saturating_sub(now_ns).div_ceil(interval_ns)
    }

    /// Puts some in, whether it is full or not.
    pub fn add(&mut self, now_ns: u64, interval_ns: u64, count: u64) {
        let lasts_ns = interval_ns.saturating_mul(count);
        self.empty_at_ns = self.empty_at_ns.max(now_ns).saturating_add(lasts_ns);
    }

    /// Puts one in. `false`: it is full.
    pub fn put(&mut self, now_ns: u64, interval_ns: u64, burst: u64) -> bool {
        if self.level(now_ns, interval_ns) >= burst {
            return false;
        }
        self.add(now_ns, interval_ns, 1);
        true
    }
}
