//! The statistics that reduce blocks to a cell: medians, bootstrap intervals, fences, N½.
//!
//! All functions depend on their arguments only. Randomness comes from a seed that is passed in.

use std::collections::BTreeMap;

use bywire_results::cell::{INTERVAL_PAIRS_MIN, Percentiles};
use hdrhistogram::Histogram;

/// The number of samples that [`bootstrap`] draws.
const RESAMPLES: usize = 2000;

/// The median of `values`, in their unit. With an even number of values it is the mean of the middle two.
///
/// NaN without values, so that a cell without blocks cannot pass for a measured one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, 0.5)
}

/// The median over fresh process pairs: each pair is represented by the median of its own blocks.
///
/// `blocks` are (pair, value). A pair with many blocks has the same weight as a pair with few.
pub fn median_over_pairs(blocks: &[(u32, f64)]) -> f64 {
    median(&pair_medians(blocks.iter().copied()).into_values().collect::<Vec<_>>())
}

/// The 95 % percentile-bootstrap interval of [`median_over_pairs`], as `[low, high]` in the unit of the values.
///
/// Pairs are resampled, not blocks, because a program differs more between fresh mappings than its blocks differ among
/// themselves. The same `seed` gives the same interval. `None` below [`INTERVAL_PAIRS_MIN`].
pub fn bootstrap_median_over_pairs(blocks: &[(u32, f64)], seed: u64) -> Option<[f64; 2]> {
    let pairs: Vec<f64> = pair_medians(blocks.iter().copied()).into_values().collect();
    bootstrap(pairs.len(), seed, |drawn| median(&drawn.iter().map(|&pair| pairs[pair]).collect::<Vec<_>>()))
}

/// The 95 % percentile-bootstrap interval of the statistic `of`, which gets the indices of resampled `pairs`. `None`
/// below [`INTERVAL_PAIRS_MIN`].
pub fn bootstrap(pairs: usize, seed: u64, of: impl Fn(&[usize]) -> f64) -> Option<[f64; 2]> {
    if pairs < INTERVAL_PAIRS_MIN {
        return None;
    }
    let mut random = SplitMix(seed);
    let mut values: Vec<f64> =
        (0..RESAMPLES).map(|_| of(&(0..pairs).map(|_| random.below(pairs)).collect::<Vec<_>>())).collect();
    values.sort_by(f64::total_cmp);
    Some([quantile_of_sorted(&values, 0.025), quantile_of_sorted(&values, 0.975)])
}

/// Tells which of `values` are outside Tukey's fences, 1.5 interquartile ranges beyond the quartiles.
///
/// Fewer than four values have no fences, so none is an outlier.
pub fn tukey_outliers(values: &[f64]) -> Vec<bool> {
    if values.len() < 4 {
        return vec![false; values.len()];
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let [lower, upper] = [0.25, 0.75].map(|quantile| quantile_of_sorted(&sorted, quantile));
    let reach = 1.5 * (upper - lower);
    values.iter().map(|&value| value < lower - reach || value > upper + reach).collect()
}

/// N½: the message length in bytes at which the rate first reaches half of `reference`.
///
/// `points` are (length in bytes, rate), in any order. The crossing is interpolated in the logarithm of the length.
/// `None` if no point is below half of `reference`, or none is above it.
pub fn n_half(points: &[(u64, f64)], reference: f64) -> Option<f64> {
    let half = reference / 2.0;
    let mut points: Vec<(u64, f64)> = points.to_vec();
    points.sort_by_key(|point| point.0);
    points.windows(2).find_map(|pair| match (pair[0], pair[1]) {
        ((below, slow), (above, fast)) if below > 0 && slow < half && fast >= half => {
            let share = (half - slow) / (fast - slow);
            let (from, to) = ((below as f64).ln(), (above as f64).ln());
            Some((from + share * (to - from)).exp())
        }
        _ => None,
    })
}

/// Percentiles of single samples. Each recorded count multiplied by `scale` is in the cell's unit.
///
/// A histogram of round trips in nanoseconds gives half-RTT with a scale of 0.5.
pub fn percentiles(histogram: &Histogram<u64>, scale: f64) -> Percentiles {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 * scale;
    Percentiles { p5: at(0.05), p50: at(0.50), p90: at(0.90), p95: at(0.95), p99: at(0.99), p999: at(0.999) }
}

/// The median of each pair's blocks, which are (pair, value), by the pairs' numbers.
pub fn pair_medians(blocks: impl Iterator<Item = (u32, f64)>) -> BTreeMap<u32, f64> {
    let mut by_pair = BTreeMap::<u32, Vec<f64>>::new();
    for (pair, value) in blocks {
        by_pair.entry(pair).or_default().push(value);
    }
    by_pair.into_iter().map(|(pair, values)| (pair, median(&values))).collect()
}

/// The quantile of ascending values, interpolated between neighbours. NaN without values.
fn quantile_of_sorted(sorted: &[f64], quantile: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = quantile * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// Steele, Lea and Flood's generator: small, fast, and never changed, so that an old interval can be recomputed.
pub struct SplitMix(u64);

impl SplitMix {
    /// A separate sequence for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `0..bound`, by the high half of a wide product.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// Uniform from 0 up to but excluding 1.
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn pairs_weigh_alike_however_many_blocks_they_have() {
        let mut blocks = vec![(0, 1.0); 100];
        blocks.extend([(1, 5.0), (2, 9.0)]);
        assert_eq!(median_over_pairs(&blocks), 5.0);
    }

    #[test]
    fn bootstrap_is_repeatable_and_holds_the_median() {
        let blocks: Vec<(u32, f64)> = (0..50).map(|i| (i / 10, f64::from(i / 10) + 10.0)).collect();
        let interval = bootstrap_median_over_pairs(&blocks, 7).unwrap();
        assert_eq!(Some(interval), bootstrap_median_over_pairs(&blocks, 7));
        assert!(interval[0] < 12.0 && 12.0 < interval[1], "{interval:?}");
        assert!(interval[0] >= 10.0 && interval[1] <= 14.0, "{interval:?}");
    }

    #[test]
    fn bootstrap_resamples_pairs_rather_than_blocks() {
        // Within a pair the blocks scatter widely, but the pairs agree, so the interval has no width.
        let blocks: Vec<_> = (0..5).flat_map(|pair| [1.0, 5.0, 9.0].map(|value| (pair, value))).collect();
        assert_eq!(bootstrap_median_over_pairs(&blocks, 1), Some([5.0, 5.0]));
    }

    #[test]
    fn fewer_than_five_pairs_have_no_interval_and_five_have_all_of_theirs() {
        let blocks: Vec<(u32, f64)> = (0..5).map(|pair| (pair, f64::from(pair * pair))).collect();
        for pairs in 0..5 {
            assert_eq!(bootstrap_median_over_pairs(&blocks[..pairs], 1), None, "{pairs} pairs");
        }
        // The median is outside if all five values are on one side of it, which happens in 2 of 32 cells.
        assert_eq!(bootstrap_median_over_pairs(&blocks, 1), Some([0.0, 16.0]));
    }

    #[test]
    fn bootstrap_intervals_cover_the_true_median_at_the_stated_rate() {
        // With few pairs the percentile interval is a little too narrow. It must not be much too narrow.
        let mut random = SplitMix(11);
        let mut uniform = || random.bits() as f64 / u64::MAX as f64;
        let mut is_covered = |seed: &u64| {
            let blocks: Vec<(u32, f64)> = (0..9).map(|pair| (pair, uniform())).collect();
            let [low, high] = bootstrap_median_over_pairs(&blocks, *seed).unwrap();
            low <= 0.5 && 0.5 <= high
        };
        let covered = (0..200).filter(|seed| is_covered(seed)).count();
        assert!((174..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn fences_mark_only_the_outlier() {
        let marked = tukey_outliers(&[10.0, 11.0, 10.5, 10.2, 30.0, 10.8]);
        assert_eq!(marked, [false, false, false, false, true, false]);
        assert_eq!(tukey_outliers(&[1.0, 100.0, 1.0]), [false; 3]);
    }

    #[test]
    fn n_half_of_a_hockney_curve_is_t0_times_r() {
        // rate(n) = n / (t0 + n/r): half of r at n = t0 * r.
        let (t0, r) = (6e-6, 240e6);
        let points: Vec<(u64, f64)> =
            (0..24).map(|exponent| 1u64 << exponent).map(|n| (n, n as f64 / (t0 + n as f64 / r))).collect();
        let found = n_half(&points, r).unwrap();
        assert!((found / (t0 * r) - 1.0).abs() < 0.05, "{found}");
        assert_eq!(n_half(&points[12..], r), None);
        assert_eq!(n_half(&points[..5], r), None);
        let reversed: Vec<_> = points.into_iter().rev().collect();
        assert_eq!(n_half(&reversed, r), Some(found));
    }

    #[test]
    fn percentiles_are_scaled() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        (1..=1000).for_each(|value| histogram.record(value).unwrap());
        let percentiles = percentiles(&histogram, 0.5);
        assert_eq!(percentiles.p5, 25.0);
        assert_eq!(percentiles.p50, 250.0);
        assert_eq!(percentiles.p999, 499.5);
    }
}
