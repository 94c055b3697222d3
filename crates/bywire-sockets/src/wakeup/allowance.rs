//! How much of its time a thread may lose by spinning before it sleeps.
//!
//! Time lost in vain is paid from what spinning has saved. A loss that is not covered is followed by a rest, in which
//! nothing is lost. So spinning costs at most one part in [`REST_FACTOR`] of the time, beyond what it saves.

/// The minimum cost of a sleep and a wake-up, which spinning has saved.
const SAVED_NS: u64 = 2_000;
/// The most that is credited. Other threads need the core for milliseconds, and this credit does not cover that.
const KEPT_NS: u64 = 60_000;
/// A loss that is not covered is followed by a rest of this many times its length.
pub const REST_FACTOR: u64 = 50;

/// The account of one thread. It begins as the default, all zeros.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowance {
    /// Time that was lost, and that spinning has not saved since: at most [`KEPT_NS`].
    owed_ns: u64,
    /// 0: the thread does not rest.
    rests_until_ns: u64,
}

impl Allowance {
    /// Whether the thread rests. The clock is read only if it may.
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

    /// Notes that spinning has found what was waited for.
    #[inline]
    pub fn save(&mut self) {
        self.owed_ns = self.owed_ns.saturating_sub(SAVED_NS);
    }

    /// Notes a loss of time that ends now.
    pub fn lose(&mut self, lost_ns: u64, now_ns: u64) {
        let uncovered_ns = lost_ns.saturating_sub(KEPT_NS - self.owed_ns);
        self.owed_ns += lost_ns - uncovered_ns;
        if uncovered_ns > 0 {
            self.rests_until_ns = now_ns.saturating_add(uncovered_ns.saturating_mul(REST_FACTOR));
        }
    }
}
