//! The rate of the processor's cycle counter. It is measured in passing, so that it does not delay the start of a
//! program.

use core::sync::atomic::{AtomicU64, Ordering};

use bywire_ring::distance;

/// The first reading of the clock and of the counter.
static BEGAN_NS: AtomicU64 = AtomicU64::new(0);
static BEGAN_CYCLES: AtomicU64 = AtomicU64::new(0);
/// The threshold that was computed; 0: not known yet.
static FAR_CYCLES: AtomicU64 = AtomicU64::new(0);
/// A measurement over this time is right to one percent.
const MEASURED_NS: u64 = 1_000_000;

/// A load that takes more cycles than this comes from a cache line in a distant cache. `None`: not known yet. The
/// caller passes the time.
#[inline]
pub fn far_cycles(now_ns: impl Fn() -> u64) -> Option<u64> {
    match FAR_CYCLES.load(Ordering::Relaxed) {
        0 => find(now_ns()),
        found => Some(found),
    }
}

/// Relaxed, all of them: mixing the first readings of two threads gives a rate that is nearly right.
#[cold]
fn find(now_ns: u64) -> Option<u64> {
    let now_cycles = distance::cycles();
    let began_ns = BEGAN_NS.load(Ordering::Relaxed);
    if began_ns == 0 {
        BEGAN_CYCLES.store(now_cycles, Ordering::Relaxed);
        BEGAN_NS.store(now_ns, Ordering::Relaxed);
        return None;
    }
    let cycles = now_cycles.wrapping_sub(BEGAN_CYCLES.load(Ordering::Relaxed));
    let passed_ns = now_ns.saturating_sub(began_ns);
    if passed_ns < MEASURED_NS {
        return None;
    }
    let far = u128::from(cycles) * distance::FAR.as_nanos() / u128::from(passed_ns);
    let far = u64::try_from(far).unwrap_or(u64::MAX).max(1);
    FAR_CYCLES.store(far, Ordering::Relaxed);
    Some(far)
}
