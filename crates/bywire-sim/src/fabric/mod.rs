//! A day of a fabric: the services of several machines and a program on each, while machines join, are removed, restart, get
//! other addresses, and cannot reach each other.
//!
//! The channels, the broker, the fabric file and the peers over packets are those that ship. What `bywire-node` and ports do
//! with sockets is done here in memory. A day has phases. Each begins with faults, and then everything is healed: all members
//! have to reach each other within a bound, a removed machine reaches nobody, and nothing is left once nothing is needed.

mod machine;
mod program;
mod scenario;
mod service;
mod simulation;
mod tally;

pub use tally::Counts;

/// Runs the day of a seed, and returns the counts.
///
/// # Errors
/// The broken invariant, with what happened before and what repeats the run.
pub fn run(seed: u64) -> Result<Counts, String> {
    simulation::Simulation::new(seed).live().map_err(|reason| {
        format!(
            "seed {seed}: {reason}\nBYWIRE_SEED={seed} BYWIRE_SEEDS=1 cargo test -p bywire-sim --test suite membership::"
        )
    })
}
