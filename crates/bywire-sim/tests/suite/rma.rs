//! Ends of RMA read and write as a naive model says, in the scenario of every seed. Every named event has happened.

use bywire_sim::rma::{Counts, run};
use bywire_testing::{number, repetitions};

use crate::seed_range::{check_all_happened, run_all};

/// Random: from `BYWIRE_SEED` on, `BYWIRE_SEEDS` of them.
#[test]
fn every_seed_reads_and_writes_as_the_model_does() {
    let (first, seeds) = (number("BYWIRE_SEED", 1), repetitions("BYWIRE_SEEDS", [1_000, 2_000, 100_000]));
    let counts = run_all(first, seeds, run, Counts::merge);
    check_all_happened(seeds, counts.iter());
}
