//! Two peers over packets, as ports have them, with programs that use all operations of peers at random.

mod expected;
mod program;
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
            "seed {seed}: {reason}\nBYWIRE_SEED={seed} BYWIRE_SEEDS=1 cargo test -p bywire-sim --test suite transfers::"
        )
    })
}
