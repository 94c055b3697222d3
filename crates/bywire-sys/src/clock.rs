//! Cheap time: a cycle counter for "about a millisecond has gone by", and the monotonic clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The processor's time-stamp counter, or nanoseconds where there is none.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: RDTSC exists on every x86_64 processor and has no side effect on memory.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        nanoseconds()
    }
}

/// [`cycles`], read after all earlier loads and before all later loads, to time a load.
#[inline(always)]
pub fn cycles_between_loads() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence touches nothing; SSE2 belongs to every x86_64.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    let cycles = cycles();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence touches nothing; SSE2 belongs to every x86_64.
    unsafe {
        core::arch::x86_64::_mm_lfence();
    }
    cycles
}

/// The number of [`cycles`] in a millisecond, measured once per process over about 200 µs.
///
/// The value paces checks that may come early or late. No correctness depends on it.
pub fn cycles_per_millisecond() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, first) = (Instant::now(), cycles());
        while start.elapsed() < Duration::from_micros(200) {
            std::hint::spin_loop();
        }
        let elapsed_ns = start.elapsed().as_nanos().max(1);
        let counted = u128::from(cycles().wrapping_sub(first));
        u64::try_from(counted * 1_000_000 / elapsed_ns).unwrap_or(u64::MAX).max(1)
    })
}

/// About how many [`cycles`] a duration takes, at most `u64::MAX / 4`.
pub fn cycles_in(duration: Duration) -> u64 {
    let cycles = duration.as_nanos().saturating_mul(cycles_per_millisecond().into()) / 1_000_000;
    u64::try_from(cycles).unwrap_or(u64::MAX).min(u64::MAX / 4)
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CLOCK_BOOTTIME in nanoseconds, which goes on while the machine is suspended.
pub fn nanoseconds_with_suspend() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
