//! A seeded simulator: two connections of `bywire-wire`, the code that ships, over a modelled network. [`exchange`]
//! puts two peers of `bywire` above them, and [`fabric`] the services of several machines. [`tagged`] connects endpoints of
//! `bywire-match`, and [`streams`] engines of `bywire-stream`.
//!
//! A seed expands into a [`Scenario`], which prints itself. A run has a phase with faults and a phase without. In the
//! second one everything has to end within a bound. [`run`] returns the counts, or the broken invariant with its trace.
#![forbid(unsafe_code)]

mod bytes;
mod counts;
mod end;
mod events;
pub mod exchange;
pub mod fabric;
mod network;
pub mod rma;
mod scenario;
mod simulation;
pub mod streams;
mod switch;
pub mod tagged;
mod tally;
mod trace;

pub use counts::Counts;
pub use scenario::Scenario;
pub use simulation::{Failure, run, run_traced};
pub use switch::{Outcome, Switch, Traffic};
