//! Each fault that is planted in a connection is found. Built with `--cfg planted` only, as the faults are.
#![cfg(planted)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use bywire_sim::run;
use bywire_wire::planted::{BUGS, Bug, plant};

/// Seeds within which each is found.
const SEEDS: u64 = 1000;

/// The first seed that finds a fault, and what it says.
fn find(bug: Bug) -> Option<(u64, String)> {
    plant(Some(bug));
    let found = (1..=SEEDS).find_map(|seed| {
        // A fault may also make an assertion fail.
        let failure = catch_unwind(AssertUnwindSafe(|| run(seed).err()));
        let reason =
            failure.map_or(Some("panicked".to_owned()), |failure| failure.map(|failure| failure.reason));
        reason.map(|reason| (seed, reason))
    });
    plant(None);
    found
}

#[test]
fn every_planted_fault_is_found_within_a_thousand_seeds() {
    let mut hidden = Vec::new();
    for bug in BUGS {
        match find(bug) {
            Some((seed, reason)) => println!("{bug:?}: seed {seed}: {reason}"),
            None => hidden.push(bug),
        }
    }
    assert!(hidden.is_empty(), "not found: {hidden:?}");
}

#[test]
fn without_a_planted_fault_the_same_seeds_pass() {
    plant(None);
    (1..=100).for_each(|seed| drop(run(seed).unwrap_or_else(|failure| panic!("{failure}"))));
}
