//! Cheap time: a cycle counter for "about a millisecond has gone by", and the monotonic clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

#[cfg(target_arch = "x86_64")]
mod counter {
    /// The time-stamp counter.
    #[inline(always)]
    pub fn cycles() -> u64 {
        // SAFETY: RDTSC exists on every x86_64 processor and has no side effect on memory.
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    /// RDTSC has no barrier, so a moment may be a little early.
    #[inline(always)]
    pub fn moment() -> u64 {
        cycles()
    }

    #[inline(always)]
    pub fn await_loads() {
        // SAFETY: a fence touches nothing; SSE2 belongs to every x86_64.
        unsafe { core::arch::x86_64::_mm_lfence() }
    }
}

#[cfg(target_arch = "aarch64")]
mod counter {
    /// The virtual counter, which counts 25 million to a billion times a second.
    #[inline(always)]
    pub fn cycles() -> u64 {
        let count: u64;
        // SAFETY: Linux lets every program read this register, which has no side effect on memory.
        unsafe {
            core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nostack, nomem, preserves_flags))
        }
        count
    }

    /// The barrier keeps the processor from reading the counter early, as in Linux's own clock.
    #[inline(always)]
    pub fn moment() -> u64 {
        // SAFETY: a barrier touches nothing. The compiler moves no access to memory over it.
        unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) }
        cycles()
    }

    /// Nothing depends on the time of a load here: no store goes around the caches.
    #[inline(always)]
    pub fn await_loads() {}
}

/// Other architectures: nanoseconds.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod counter {
    pub fn cycles() -> u64 {
        super::nanoseconds()
    }

    pub fn moment() -> u64 {
        cycles()
    }

    pub fn await_loads() {}
}

/// The processor's counter, to pace what may come early or late.
#[inline(always)]
pub fn cycles() -> u64 {
    counter::cycles()
}

/// [`cycles`], for the order of events. All cores count alike where Linux keeps time by the counter.
#[inline(always)]
pub fn moment() -> u64 {
    counter::moment()
}

/// [`cycles`], read after all earlier loads and before all later loads, to time a load.
#[inline(always)]
pub fn cycles_between_loads() -> u64 {
    counter::await_loads();
    let cycles = counter::cycles();
    counter::await_loads();
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
