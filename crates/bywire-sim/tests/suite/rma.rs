//! Up to three ends of RMA read and write each other's memory at random while memory is registered and withdrawn, lanes
//! deliver at random and connections end: each byte is what a model says, each operation ends once, withdrawn memory is
//! not touched, and each transition has happened.
//!
//! Random, as in `seeds`: 1,000, 2,000 and 100,000 by tier.

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
