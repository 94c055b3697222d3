//! Two connections over a simulated network deliver every byte once and in order within a time that follows from the
//! scenario, and then are silent. Each fault and transition has happened.
//!
//! The network has loss, bursts, reordering, duplicates, damage, partitions, full queues, changing MTUs, stalls, late
//! starts and crashes. Random: `BYWIRE_SEEDS`, or 1,000, 3,000 and 100,000 by tier, from `BYWIRE_SEED` on. With
//! `BYWIRE_SEEDS=1` it prints what happens.

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
