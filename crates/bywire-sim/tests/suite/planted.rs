//! The simulator finds each of 20 faults planted in connections, and of 17 in the transfers over them, within 1,000
//! seeds. The faults are there with debug assertions only.

#![cfg(debug_assertions)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use bywire_sim::{exchange, run};
use bywire_wire::planted::{BUGS, Bug, TRANSFER_BUGS, plant};

/// Seeds within which each is found.
const SEEDS: u64 = 1000;

/// The first seed that finds a fault, and its message.
fn find(bug: Bug, run: impl Fn(u64) -> Option<String>) -> Option<(u64, String)> {
    plant(Some(bug));
    let found = (1..=SEEDS).find_map(|seed| {
        // A fault may also make an assertion fail.
        let failure = catch_unwind(AssertUnwindSafe(|| run(seed)));
        let reason = failure.unwrap_or_else(|_| Some("panicked".to_owned()));
        reason.map(|reason| (seed, reason))
    });
    plant(None);
    found
}

fn find_all(bugs: &[Bug], run: impl Fn(u64) -> Option<String>) {
    let mut hidden = Vec::new();
    for bug in bugs {
        match find(*bug, &run) {
            Some((seed, reason)) => println!("{bug:?}: seed {seed}: {reason}"),
            None => hidden.push(bug),
        }
    }
    assert!(hidden.is_empty(), "not found: {hidden:?}");
}

fn run_connection(seed: u64) -> Option<String> {
    run(seed).err().map(|failure| failure.reason)
}

fn run_transfers(seed: u64) -> Option<String> {
    exchange::run(seed).err()
}

#[test]
fn every_fault_of_a_connection_is_found_within_a_thousand_seeds() {
    find_all(&BUGS, run_connection);
}

#[test]
fn every_fault_of_transfers_is_found_within_a_thousand_seeds() {
    find_all(&TRANSFER_BUGS, run_transfers);
}

#[test]
fn without_a_planted_fault_the_same_seeds_pass() {
    plant(None);
    for seed in 1..=100 {
        let failure = run_connection(seed).or_else(|| run_transfers(seed));
        assert!(failure.is_none(), "{failure:?}");
    }
}
