//! Tagged endpoints match, carry and end as a naive model says, in the scenario of every seed. Every named event has
//! happened.

use bywire_sim::tagged::{Counts, run};
use bywire_testing::{number, repetitions};

use crate::seed_range::run_all;

/// Random: from `BYWIRE_SEED` on, `BYWIRE_SEEDS` of them.
#[test]
fn every_seed_matches_as_the_model_does() {
    let (first, seeds) = (number("BYWIRE_SEED", 1), repetitions("BYWIRE_SEEDS", [1_000, 2_000, 100_000]));
    let counts = run_all(first, seeds, run, Counts::merge);
    counts.iter().for_each(|(name, number)| println!("{number:>10} {name}"));
    if seeds >= 1000 {
        let missing: Vec<_> = counts.iter().filter(|(_, number)| *number == 0).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}
