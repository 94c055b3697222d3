//! One to three engines, whose machines of `bywire-stream` carry the connections of programs over links of two lanes. Engines
//! are killed and come back, links stall, and readers stand still. A book of every stream says which bytes and ends are right.

mod book;
mod end;
mod link;
mod program;
mod scenario;
mod simulation;
mod tally;

pub use tally::Counts;

/// Runs the scenario of a seed, and returns the counts.
///
/// # Errors
/// The broken invariant, with what repeats the run.
pub fn run(seed: u64) -> Result<Counts, String> {
    simulation::Simulation::new(seed).run().map_err(|reason| {
        format!(
            "seed {seed}: {reason}\nBYWIRE_SEED={seed} BYWIRE_SEEDS=1 cargo test -p bywire-sim --test suite streams::"
        )
    })
}
