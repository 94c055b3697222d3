//! Bywire's laboratory: measures a machine level by level, with what each level costs in CPU,
//! and writes one report.
//!
//! Data flows one way: a [`preset`] names cells, a [`pair`] of fresh processes fills each
//! cell with blocks, [`statistics`] condense the blocks, and the [`report`] shows the cells.

pub mod bench;
pub mod breakdown;
pub mod budget;
pub mod burden;
pub mod carriage;
pub mod clock;
pub mod cpu;
pub mod crowd;
pub mod ending;
pub mod endpoint;
pub mod environment;
pub mod ethernet;
pub mod far;
pub mod gathering;
pub mod gauge;
pub mod hub;
pub mod interrupt;
mod isolation;
pub mod level;
pub mod load;
pub mod measure;
pub mod meeting;
pub mod mpi;
pub mod namespaces;
pub mod outline;
pub mod pace;
pub mod pair;
pub mod payload;
pub mod pin;
pub mod places;
pub mod plan;
pub mod preset;
pub mod request;
pub mod sampling;
pub mod segments;
pub mod size;
pub mod star;
pub mod test;
pub mod web;
pub mod worker;
