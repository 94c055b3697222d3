//! A day of a fabric of up to seven machines keeps what the services promise. Every two hours all is healed, and then
//! all members have the same file and reach each other within a bound, messages have come once and in order, a removed
//! machine reaches nobody, and nothing is left once nothing is needed.
//!
//! Each machine has its service, with its channels and file, and a program. The day has random joins, removals,
//! restarts, address changes, partitions, stalls and losses. In a soak each fault and transition has happened. Random,
//! as in `seeds`: 2, 8 and 240 days by tier.

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
