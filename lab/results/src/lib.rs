//! The results of measurements: cells, sessions of cells, their storage, and the formatting of words and figures.
//!
//! `bywire-measure` writes results. `bywire-analysis` and `bywire-report` read them. Nothing here measures.

pub mod breakdown;
pub mod cell;
pub mod csv;
pub mod details;
pub mod ethernet;
pub mod level;
pub mod message_link;
pub mod moment;
pub mod mpi;
pub mod name;
pub mod parameter;
pub mod quantity;
pub mod store;
mod values;
pub mod web;
