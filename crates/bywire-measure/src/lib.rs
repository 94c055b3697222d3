//! Measures a machine level by level, with what each level costs in CPU.
//!
//! Data flows one way: a [`preset`] names cells, a [`request`] becomes a [`plan`], a [`pair`] of fresh processes fills each
//! cell with blocks, and [`aggregation`] condenses them. Whoever compares or reports cells knows nothing of this crate.

pub mod aggregation;
pub mod bench;
pub mod breakdown;
pub mod budget;
pub mod burden;
pub mod clock;
pub mod cpu;
pub mod crowd;
pub mod ending;
pub mod endpoint;
pub mod environment;
pub mod ethernet;
pub mod far;
pub mod gauge;
pub mod hub;
pub mod interrupt;
mod isolation;
pub mod load;
pub mod measure;
pub mod meeting;
pub mod memory;
pub mod mpi;
pub mod namespaces;
pub mod option;
pub mod pace;
pub mod pair;
pub mod payload;
pub mod pin;
pub mod place;
pub mod plan;
pub mod preload;
pub mod preset;
pub mod process;
pub mod registry;
pub mod request;
pub mod resolution;
pub mod sampling;
pub mod segments;
pub mod size;
pub mod star;
pub mod topology;
pub mod transport;
pub mod web;
pub mod worker;
pub mod workload;
