//! Two peers over the simulated network, whose programs use everything at random, keep what ports promise: messages
//! once, whole and in order, completions true and one each, put bytes before their note and none outside, memory
//! bounded, and all ends. So they do when one of them leaves or dies. Every named event has happened.
//!
//! Random, as in `seeds`: 300, 1,000 and 20,000 by tier.

use bywire_sim::exchange::{Counts, run};
use bywire_testing::{number, repetitions};

use crate::seed_range::{check_all_happened, run_all};

/// Random: from `BYWIRE_SEED` on, `BYWIRE_SEEDS` of them.
#[test]
fn every_seed_keeps_what_ports_promise() {
    let (first, seeds) = (number("BYWIRE_SEED", 1), repetitions("BYWIRE_SEEDS", [300, 1_000, 20_000]));
    let counts = run_all(first, seeds, run, Counts::merge);
    check_all_happened(seeds, counts.iter());
}
