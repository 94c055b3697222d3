//! What a measurement yields: cells, sessions of them, how they are stored, and the words and figures that people read.
//!
//! Whoever measures writes them; whoever compares or reports reads them. Nothing here measures.

pub mod breakdown;
pub mod cell;
pub mod csv;
pub mod ethernet;
pub mod level;
pub mod moment;
pub mod mpi;
pub mod name;
pub mod parameter;
pub mod plain;
pub mod quantity;
pub mod shell;
pub mod store;
pub mod web;
