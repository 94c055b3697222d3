//! Tagged endpoints of `bywire-match`, each connected with each and with itself, and programs that use all calls at random.
//!
//! Lanes keep the order of what one end sends to another one, and deliver at random between the ends. A naive model of
//! lists that are walked through says which receive gets which message.

mod lane;
mod model;
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
            "seed {seed}: {reason}\nBYWIRE_SEED={seed} BYWIRE_SEEDS=1 cargo test -p bywire-sim --test suite tagged::"
        )
    })
}
