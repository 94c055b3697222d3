//! RMA of `bywire-match`: ends that read and write each other's memory at random, while memory comes and goes.
//!
//! A model knows what each byte has to be. Operations whose places overlap are not under way at the same time, as their
//! order is not defined.

mod node;
mod simulation;
mod tally;

pub use tally::Counts;

/// Runs the scenario of a seed, and returns the counts.
///
/// # Errors
/// The broken invariant, with what repeats the run.
pub fn run(seed: u64) -> Result<Counts, String> {
    simulation::Simulation::new(seed).live().map_err(|reason| {
        format!(
            "seed {seed}: {reason}\nBYWIRE_SEED={seed} BYWIRE_SEEDS=1 cargo test -p bywire-sim --test suite rma::"
        )
    })
}
