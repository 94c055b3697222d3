//! A seeded simulator: two connections of `bywire-wire`, as they ship, over a modelled network. In [`exchange`], two peers of
//! `bywire` are above them.
//!
//! A seed expands into a [`Scenario`], which prints itself. Faults reign first; then the world is healed, and everything has
//! to end within a bound. [`run`] tells what has happened, or which property was broken and how it came to that.
#![forbid(unsafe_code)]

mod bytes;
mod counts;
mod end;
pub mod exchange;
mod fan_in;
mod network;
mod scenario;
mod trace;
mod world;

pub use counts::Counts;
pub use fan_in::{FanIn, Outcome};
pub use scenario::Scenario;
pub use world::{Failure, run, run_traced};
