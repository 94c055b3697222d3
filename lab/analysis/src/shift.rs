//! The difference between two sides: an estimate with an exact interval that assumes no distribution.
//!
//! Pairs are compared only within a *stratum*, whose pairs had the same conditions. Let D be all differences of an
//! after and a before of the same stratum. The estimate is the median of D (Hodges and Lehmann, Annals of Mathematical
//! Statistics 34, 1963). The interval lies between two of D's order statistics, by the exact distribution of the number
//! of positive ones: the sum over strata of Mann and Whitney's statistic (the stratified test of van Elteren, Bulletin
//! of the International Statistical Institute 37, 1960; Lehmann, Nonparametrics, 1975, chapters 2 and 3). It is valid
//! for five pairs as for fifty, and a single outlying pair changes it little.

use std::collections::HashMap;

/// Larger strata use the normal approximation, which is close there.
const EXACT_PRODUCT_MAX: usize = 1600;

/// The measurements before and after under the same conditions, one for each pair, as natural logarithms.
pub type Stratum = [Vec<f64>; 2];

/// Returns whether both sides of a stratum have pairs.
pub fn has_both(stratum: &Stratum) -> bool {
    stratum.iter().all(|side| !side.is_empty())
}

/// The distance of `after` from `before`, in natural logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The median difference.
    pub estimate: f64,
    /// Its interval. Absent if there are too few pairs for the requested confidence.
    pub interval: Option<[f64; 2]>,
}

/// Null distributions by the sizes of a stratum: many cells have strata of the same sizes.
#[derive(Debug, Default)]
pub struct Tables(HashMap<(usize, usize), Vec<f64>>);

impl Tables {
    /// The shift over all `strata`, with an interval that misses the truth with a probability of at most `error`.
    /// `None` if no stratum has both sides.
    pub fn shift(&mut self, strata: &[Stratum], error: f64) -> Option<Shift> {
        let mut differences: Vec<f64> = strata
            .iter()
            .flat_map(|[before, after]| {
                after.iter().flat_map(|after| before.iter().map(move |before| after - before))
            })
            .collect();
        differences.sort_by(f64::total_cmp);
        let count = differences.len();
        if count == 0 {
            return None;
        }
        let estimate = (differences[(count - 1) / 2] + differences[count / 2]) / 2.0;
        let outside = self.outside(strata, error / 2.0);
        let interval = outside.map(|outside| [differences[outside], differences[count - 1 - outside]]);
        Some(Shift { estimate, interval })
    }

    /// The number of ordered differences below the interval, and the same number above. It is the largest number for
    /// which, without a shift, the probability of at most that many positive differences is at most `tail`.
    fn outside(&mut self, strata: &[Stratum], tail: f64) -> Option<usize> {
        let sizes = || strata.iter().map(|[before, after]| (before.len(), after.len()));
        if sizes().any(|(before, after)| before * after > EXACT_PRODUCT_MAX) {
            return approximate(sizes(), tail);
        }
        let mut whole = vec![1.0];
        for size in sizes().filter(|(before, after)| before * after > 0) {
            let part = self.0.entry(size).or_insert_with(|| mann_whitney(size.0, size.1));
            whole = convolved(&whole, part);
        }
        let mut cumulated = 0.0;
        let few = whole.iter().take_while(|&probability| {
            cumulated += probability;
            cumulated <= tail
        });
        few.count().checked_sub(1)
    }
}

/// By the normal distribution of the sum. Half a step is added for safety.
fn approximate(sizes: impl Iterator<Item = (usize, usize)>, tail: f64) -> Option<usize> {
    let (mut mean, mut variance) = (0.0, 0.0);
    for (before, after) in sizes {
        let (product, sum) = ((before * after) as f64, (before + after) as f64);
        mean += product / 2.0;
        variance += product * (sum + 1.0) / 12.0;
    }
    let place = (mean - normal_quantile(tail) * f64::sqrt(variance) - 0.5).floor();
    (place >= 0.0).then_some(place as usize)
}

/// The number of standard deviations from the mean that leave `tail` beyond them (Abramowitz and Stegun, 26.2.23:
/// accurate to 4.5e-4).
fn normal_quantile(tail: f64) -> f64 {
    let t = f64::sqrt(-2.0 * tail.clamp(1e-300, 0.5).ln());
    let above = 2.515517 + t * (0.802853 + t * 0.010328);
    let below = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    t - above / below
}

/// The probabilities of Mann and Whitney's statistic for samples of `before` and `after`, from 0 to their product.
///
/// The largest of all values is an `after` with probability after / (before + after). It is then above all `before`.
/// The rest is the same problem with one value less.
fn mann_whitney(before: usize, after: usize) -> Vec<f64> {
    // rows[m] is the distribution for m values after, with as many before as the outer loop has reached.
    let mut rows: Vec<Vec<f64>> = vec![vec![1.0]; after + 1];
    for n in 1..=before {
        for m in 1..=after {
            let share = m as f64 / (n + m) as f64;
            let mut row = vec![0.0; n * m + 1];
            for (count, probability) in rows[m - 1].iter().enumerate() {
                row[count + n] += share * probability;
            }
            for (count, probability) in rows[m].iter().enumerate() {
                row[count] += (1.0 - share) * probability;
            }
            rows[m] = row;
        }
    }
    rows.pop().unwrap_or_default()
}

fn convolved(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; one.len() + other.len() - 1];
    for (i, a) in one.iter().enumerate() {
        for (j, b) in other.iter().enumerate() {
            sum[i + j] += a * b;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stratum(before: &[f64], after: &[f64]) -> Stratum {
        [before, after].map(<[f64]>::to_vec)
    }

    #[test]
    fn small_distributions_match_published_tables() {
        // The 20 orders of three and three, by the statistic's values from 0 to 9.
        let orders: Vec<f64> = mann_whitney(3, 3).iter().map(|probability| probability * 20.0).collect();
        let expected = [1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 2.0, 1.0, 1.0];
        let mut off = orders.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
        assert!(off.all(|off| off < 1e-9), "{orders:?}");
        let two_and_four = mann_whitney(2, 4);
        assert_eq!(two_and_four.len(), 9);
        assert!((two_and_four[0] - 1.0 / 15.0).abs() < 1e-12);
        assert!((mann_whitney(20, 13).iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn intervals_match_published_tables() {
        // Five and five at 95 %: the table's critical value is 2, so two differences lie below.
        let strata = [stratum(&[0.0; 5], &[0.0; 5])];
        assert_eq!(Tables::default().outside(&strata, 0.025), Some(2));
        // Ten rounds of one and one form a sign test: one of ten at 95 % (2.1 %), while two would be 10.9 %.
        let rounds = vec![stratum(&[0.0], &[0.0]); 10];
        assert_eq!(Tables::default().outside(&rounds, 0.025), Some(1));
        assert_eq!(Tables::default().outside(&rounds[..5], 0.025), None);
    }

    #[test]
    fn the_approximation_agrees_with_the_exact_interval() {
        let strata = [stratum(&[0.0; 40], &[0.0; 40])];
        let exact = Tables::default().outside(&strata, 0.001).unwrap();
        let near = approximate([(40, 40)].into_iter(), 0.001).unwrap();
        assert!(exact.abs_diff(near) <= 6, "{exact} and {near}");
    }

    #[test]
    fn strata_of_different_heights_are_not_mixed() {
        let strata = [stratum(&[1.0, 1.1, 1.2], &[1.3, 1.4, 1.5]), stratum(&[9.0], &[9.3, 9.3])];
        let shift = Tables::default().shift(&strata, 0.05).unwrap();
        assert!((shift.estimate - 0.3).abs() < 1e-9, "{shift:?}");
        assert!(Tables::default().shift(&[stratum(&[1.0], &[])], 0.05).is_none());
    }
}
