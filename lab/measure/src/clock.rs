//! Clocks: a cheap one to time blocks and single round trips, and the machine's.
//!
//! [`Clock`] reads the processor's time-stamp counter if that runs at a constant rate through every sleep state. It
//! takes about 10 ns, less than half of the kernel's vDSO call. Otherwise it reads the kernel's monotonic clock.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use bywire_sys::clock::nanoseconds as monotonic_ns;

/// Nanoseconds since a moment in this process's life. It is cheap to copy, and all copies share one origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    counter: Option<Counter>,
}

impl Clock {
    /// This process's clock. The first call may take 10 ms to calibrate the counter.
    pub fn shared() -> Self {
        static SHARED: OnceLock<Clock> = OnceLock::new();
        *SHARED.get_or_init(|| Self {
            origin: Instant::now(),
            counter: counter_is_invariant().then(Counter::calibrate).flatten(),
        })
    }

    /// Nanoseconds since the clock's origin.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match &self.counter {
            Some(counter) => counter.elapsed_ns(read_counter()),
            None => self.origin.elapsed().as_nanos() as u64,
        }
    }

    /// The source of the clock: `tsc` or `clock_gettime`.
    pub fn source(&self) -> &'static str {
        if self.counter.is_some() { "tsc" } else { "clock_gettime" }
    }
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    start: u64,
    /// Nanoseconds per count as a fixed-point number with 32 bits behind the point.
    ns_per_count: u64,
}

impl Counter {
    /// Compares the counter with the kernel's clock over 10 ms. The result is right to a few parts per million.
    fn calibrate() -> Option<Self> {
        let (started, start) = Self::simultaneous();
        std::thread::sleep(Duration::from_millis(10));
        let (ended, end) = Self::simultaneous();
        let elapsed_ns = ended.duration_since(started).as_nanos();
        let ns_per_count = (elapsed_ns << 32).checked_div(u128::from(end.wrapping_sub(start)))?;
        Some(Self { start, ns_per_count: u64::try_from(ns_per_count).ok().filter(|&rate| rate > 0)? })
    }

    /// Both clocks at one moment: the closest of a few readings, so that a preemption in between does no harm.
    fn simultaneous() -> (Instant, u64) {
        let readings = (0..8).map(|_| {
            let (before, instant, after) = (read_counter(), Instant::now(), read_counter());
            (after.wrapping_sub(before), instant, before)
        });
        let (width, instant, before) = readings.min_by_key(|reading| reading.0).expect("eight readings");
        (instant, before + width / 2)
    }

    #[inline]
    fn elapsed_ns(&self, now: u64) -> u64 {
        // Another core's counter may be a few counts behind the first reading's, so the difference is kept above zero.
        let counts = now.saturating_sub(self.start);
        ((u128::from(counts) * u128::from(self.ns_per_count)) >> 32) as u64
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read_counter() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC, and it touches no memory. The kernel lets user code execute it unless a
    // process forbids it to itself by prctl(PR_SET_TSC), which this one does not.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn read_counter() -> u64 {
    0
}

/// Returns whether the kernel itself keeps time by the counter, or the processor promises a constant rate that never
/// stops.
fn counter_is_invariant() -> bool {
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    // If the kernel fell back to the HPET or the ACPI timer, it found this machine's counter unstable.
    let trusted = source.is_ok_and(|source| !matches!(source.trim(), "hpet" | "acpi_pm" | "jiffies"));
    cfg!(target_arch = "x86_64") && trusted && cpu_flag("constant_tsc") && cpu_flag("nonstop_tsc")
}

/// Returns whether the processor has `flag`, such as `hypervisor` inside a virtual machine.
pub fn cpu_flag(flag: &str) -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|word| word == flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_runs_at_the_rate_of_the_kernels() {
        let clock = Clock::shared();
        let outer = Instant::now();
        let before = clock.now_ns();
        let inner = Instant::now();
        while inner.elapsed() < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        let inner_ns = inner.elapsed().as_nanos() as f64;
        let clock_ns = (clock.now_ns() - before) as f64;
        let outer_ns = outer.elapsed().as_nanos() as f64;
        // Nested intervals: the clock's is inside the kernel's, up to 0.1 % of calibration error.
        assert!(
            (inner_ns * 0.999..=outer_ns * 1.001).contains(&clock_ns),
            "{inner_ns} {clock_ns} {outer_ns}"
        );
    }

    #[test]
    fn cycle_counts_convert_to_nanoseconds_without_overflow() {
        let counter = Counter { start: 1000, ns_per_count: 1 << 31 };
        assert_eq!(counter.elapsed_ns(3000), 1000);
        assert_eq!(counter.elapsed_ns(0), 0);
        assert_eq!(counter.elapsed_ns(u64::MAX), (u64::MAX - 1000) / 2);
    }
}
