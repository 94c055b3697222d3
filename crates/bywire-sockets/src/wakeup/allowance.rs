//! How much of its time a thread may lose by looking before it sleeps.
//!
//! What was lost in vain is paid out of what looking has saved; what is not covered by that is made up for by a rest, in
//! which nothing is lost. So looking costs at most one part in [`REST_FACTOR`] of the time, beyond what it saves.

/// What a sleep and a wake cost, at least, which looking has saved.
const SAVED_NS: u64 = 2_000;
/// As much of what was saved is kept: what others want the core for comes in milliseconds, and is not covered by it.
const KEPT_NS: u64 = 60_000;
/// A loss that is not covered is followed by so many times as long without a look.
pub const REST_FACTOR: u64 = 50;

/// The account of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    kept_ns: u64,
    /// 0: it does not rest.
    rests_until_ns: u64,
}

impl Allowance {
    /// A thread that has not looked yet.
    pub const fn new() -> Self {
        Self { kept_ns: KEPT_NS, rests_until_ns: 0 }
    }

    /// Does it rest, if it ever has to? The clock is asked only then.
    #[inline]
    pub fn rests(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        if self.rests_until_ns == 0 {
            return false;
        }
        if now_ns() < self.rests_until_ns {
            return true;
        }
        self.rests_until_ns = 0;
        false
    }

    /// A look has found what was waited for.
    #[inline]
    pub fn save(&mut self) {
        self.kept_ns = (self.kept_ns + SAVED_NS).min(KEPT_NS);
    }

    /// So much was lost, until now.
    pub fn lose(&mut self, lost_ns: u64, now_ns: u64) {
        let uncovered_ns = lost_ns.saturating_sub(self.kept_ns);
        self.kept_ns -= lost_ns - uncovered_ns;
        if uncovered_ns > 0 {
            self.rests_until_ns = now_ns.saturating_add(uncovered_ns.saturating_mul(REST_FACTOR));
        }
    }
}
