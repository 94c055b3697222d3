//! Connections keep their promises in the scenario of every seed, and every fault and transition has happened.

use bywire_sim::{Counts, run, run_traced};
use bywire_testing::{number, repetitions};

use crate::seed_range::{check_all_happened, run_all};

/// Random: from `BYWIRE_SEED` on, `BYWIRE_SEEDS` of them.
#[test]
fn every_seed_keeps_what_connections_promise() {
    let (first, seeds) = (number("BYWIRE_SEED", 1), repetitions("BYWIRE_SEEDS", [1_000, 3_000, 100_000]));
    if seeds == 1 {
        // A single seed for inspection.
        let (history, end) = run_traced(first, 10_000);
        println!("{history}");
        assert!(end.is_ok(), "it stands above");
        return;
    }
    let counts = run_all(first, seeds, run, Counts::merge);
    let (thousandths, slowest) = counts.slowest();
    println!("the slowest is seed {slowest}: {thousandths} thousandths of what it may take");
    check_all_happened(seeds, counts.iter());
}
