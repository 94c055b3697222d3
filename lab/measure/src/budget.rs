//! How long a cell is measured, and how that time is divided into pairs and blocks.

use anyhow::{Context, Result};
use bywire_command::exit_status::Misuse;

/// Fresh pairs behind every cell.
pub const PAIRS: u32 = 5;

/// The most variants of one breakdown. They share its time.
pub const VARIANTS: u32 = 8;

/// The default measuring time of a cell.
const TIME_SECONDS: f64 = 1.0;

/// The default of a cell of `nhalf`. All lengths of its sweep share it.
const SWEEP_TIME_SECONDS: f64 = 5.0;

/// The default of a cell with several connections, whose processes take turns on a core.
pub(crate) const CROWD_SECONDS: f64 = 2.5;

/// The length of a block, unless the cell takes [`MACHINE_SECONDS_MIN`] or longer.
const BLOCK_US: u64 = 20_000;

/// The length of a block in cells that take [`MACHINE_SECONDS_MIN`] or longer. Those publish the machine's CPU, which
/// the kernel counts in ticks of 10 ms.
const MACHINE_BLOCK_US: u64 = 500_000;
const MACHINE_SECONDS_MIN: f64 = 10.0;

/// The beginning and the end of a shorter block would weigh more than the rest of it.
const BLOCK_US_MIN: u64 = 1_000;

/// The longest `--time`.
const TIME_SECONDS_MAX: f64 = 3600.0;

/// Reads a measuring time in seconds. Fails with one line about the range of times that can be asked for.
pub fn parse_time(text: &str) -> Result<f64> {
    let seconds = text.trim().parse().ok().filter(|seconds| time(Some(*seconds), 1).is_ok());
    seconds.with_context(|| format!("give {} to {TIME_SECONDS_MAX} seconds, like 0.5", time_min(1)))
}

/// The measuring time of a cell in seconds: the requested one, or the default. A sweep has several `streams`, every
/// other cell one. Fails if the time is not positive, too short for one block of each pair, or too long.
pub fn time(asked: Option<f64>, streams: u32) -> Result<f64, Misuse> {
    let usual = if streams > 1 { SWEEP_TIME_SECONDS } else { TIME_SECONDS };
    let seconds = asked.unwrap_or(usual);
    let shortest = time_min(streams);
    if seconds >= shortest && seconds <= TIME_SECONDS_MAX {
        return Ok(seconds);
    }
    let blocks = match streams {
        1 => String::new(),
        VARIANTS => format!("{streams} variants in each of "),
        _ => format!("{streams} lengths in each of "),
    };
    let block_ms = BLOCK_US_MIN / 1000;
    Err(Misuse(format!(
        "--time {seconds} is out of bounds: give {shortest} to {TIME_SECONDS_MAX} seconds, so that {blocks}{PAIRS} pairs \
         have a block of {block_ms} ms"
    )))
}

/// The minimum time of a cell with this number of streams, in seconds.
pub(crate) fn time_min(streams: u32) -> f64 {
    f64::from(PAIRS * streams) * BLOCK_US_MIN as f64 * 1e-6
}

/// The blocks of one pair.
pub(crate) struct Blocks {
    pub(crate) block_us: u64,
    pub(crate) warmup: u32,
    pub(crate) kept: u32,
}

impl Blocks {
    /// The blocks of each of [`PAIRS`] pairs that take `seconds` together.
    pub(crate) fn within(seconds: f64) -> Self {
        let pair_us = (seconds * 1e6 / f64::from(PAIRS)).max(1.0) as u64;
        let longest_us = if seconds >= MACHINE_SECONDS_MIN { MACHINE_BLOCK_US } else { BLOCK_US };
        let block_us = longest_us.min(pair_us);
        let kept = (pair_us as f64 / block_us as f64).round().max(1.0) as u32;
        // A first block of a fresh mapping is slow for reasons of its own.
        let warmup = if block_us >= MACHINE_BLOCK_US { 1 } else { 2 };
        Self { block_us, warmup, kept }
    }

    /// One block of each of [`PAIRS`] groups that take `seconds` together: the ends of many connections that share a
    /// core would wait for each other longer between blocks than a short block takes.
    pub(crate) fn whole(seconds: f64) -> Self {
        Self { block_us: (seconds * 1e6 / f64::from(PAIRS)).max(1000.0) as u64, warmup: 0, kept: 1 }
    }

    pub(crate) fn deadline_seconds(&self) -> u64 {
        let planned_us = self.block_us * u64::from(self.kept + self.warmup);
        30 + 2 * planned_us / 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fill_the_time_of_a_pair() {
        for (seconds, shape) in [(1.0, (20_000, 10)), (60.0, (500_000, 24)), (0.01, (2_000, 1))] {
            let blocks = Blocks::within(seconds);
            assert_eq!((blocks.block_us, blocks.kept), shape);
        }
    }
}
