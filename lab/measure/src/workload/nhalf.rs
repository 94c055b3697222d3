//! N½: the message length that reaches half of the asymptotic rate, from a sweep of streams.

use bywire_analysis::statistics;

/// The lengths of the sweep, in bytes, up to `longest`: powers of two, closest together where N½ is expected.
pub fn sizes(longest: u64) -> Vec<u64> {
    (3..=20).map(|power| 1 << power).filter(|&size| size <= longest).collect()
}

/// N½ in bytes from one sweep of (length in bytes, bytes per second), relative to the larger of its plateau and `floor`
/// (bytes per second). Returns that reference too. `None` if even the shortest message exceeds half of it.
pub fn of_sweep(points: &[(u64, f64)], floor: f64) -> (Option<f64>, f64) {
    let plateau = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let reference = plateau.max(floor);
    (statistics::n_half(points, reference), reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_above_the_plateau_moves_n_half() {
        // Hockney's curve with t0 = 1 µs and 1 GB/s: N½ is 1,000 bytes.
        let rate = |size: u64| size as f64 / (1e-6 + size as f64 * 1e-9);
        let points: Vec<_> = sizes(1 << 20).iter().map(|&size| (size, rate(size))).collect();
        let (own, _) = of_sweep(&points, 0.0);
        assert!((own.unwrap() / 1000.0 - 1.0).abs() < 0.05, "{own:?}");
        let (raised, reference) = of_sweep(&points, 1.5e9);
        assert_eq!(reference, 1.5e9);
        assert!(raised > own);
    }
}
