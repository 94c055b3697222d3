//! Engines over simulated links carry the streams of programs, byte for byte and with the right ends. Engines are killed,
//! links stall and readers stand still: then streams are lost or wait, and no other stream does. In the end no slot and no
//! credit is left. Each transition has happened.
//!
//! Random, as in `seeds`: 300, 1,000 and 50,000 by tier.

use bywire_sim::streams::{Counts, run};
use bywire_testing::{number, repetitions};

use crate::seed_range::{check_all_happened, run_all};

/// Random: from `BYWIRE_SEED` on, `BYWIRE_SEEDS` of them.
#[test]
fn every_seed_keeps_what_streams_promise() {
    let (first, seeds) = (number("BYWIRE_SEED", 1), repetitions("BYWIRE_SEEDS", [300, 1_000, 50_000]));
    let counts = run_all(first, seeds, run, Counts::merge);
    check_all_happened(seeds, counts.iter());
}
