//! A day of a fabric whose machines join, leave, restart, move and are cut off from each other keeps what the services promise,
//! in the scenario of every seed. Every named event has happened.

use bywire_sim::fabric::{Counts, run};
use bywire_testing::{number, repetitions};

use crate::seed_range::run_all;

/// Random: from `BYWIRE_SEED` on, `BYWIRE_SEEDS` of them.
#[test]
fn every_day_of_a_fabric_ends_with_members_that_reach_each_other_and_nobody_else() {
    let (first, seeds) = (number("BYWIRE_SEED", 1), repetitions("BYWIRE_SEEDS", [2, 8, 240]));
    let counts = run_all(first, seeds, run, Counts::merge);
    counts.iter().for_each(|(name, number)| println!("{number:>10} {name}"));
    if seeds >= 24 {
        assert!(counts.surprises().is_empty(), "never happened, or never should: {:?}", counts.surprises());
    } else {
        println!(
            "not checked here: that each event has happened: run ./x test soak, which draws enough days"
        );
    }
}
