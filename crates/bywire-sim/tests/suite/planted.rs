//! The simulator finds each of 20 faults planted in connections, of 18 in the transfers over them, and of 21 in streams,
//! within 1,000 seeds. The faults are there with debug assertions only.

#![cfg(debug_assertions)]

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bywire_sim::{exchange, run, streams};
use bywire_stream::planted as in_streams;
use bywire_wire::planted::{BUGS, TRANSFER_BUGS, plant};

/// Seeds within which each is found.
const SEEDS: u64 = 1000;

/// The first seed that finds a fault, and its message.
fn find<Bug>(bug: Bug, plant: fn(Option<Bug>), run: impl Fn(u64) -> Option<String>) -> Option<(u64, String)> {
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

fn find_all<Bug: Copy + Debug>(bugs: &[Bug], plant: fn(Option<Bug>), run: impl Fn(u64) -> Option<String>) {
    let mut hidden = Vec::new();
    for bug in bugs {
        match find(*bug, plant, &run) {
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
    find_all(&BUGS, plant, run_connection);
}

#[test]
fn every_fault_of_transfers_is_found_within_a_thousand_seeds() {
    find_all(&TRANSFER_BUGS, plant, run_transfers);
}

#[test]
fn every_fault_of_streams_is_found_within_a_thousand_seeds() {
    find_all(&in_streams::BUGS, in_streams::plant, |seed| streams::run(seed).err());
}

#[test]
fn without_a_planted_fault_the_same_seeds_pass() {
    plant(None);
    for seed in 1..=100 {
        let failure = run_connection(seed).or_else(|| run_transfers(seed));
        assert!(failure.is_none(), "{failure:?}");
    }
}
