//! Peers over packets keep what ports promise, in the scenario of every seed. Every named event has happened.

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
