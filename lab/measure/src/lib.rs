//! Measures a machine level by level, with what each level costs in CPU.
//!
//! Data flows one way: a [`preset`] names cells, an [`options::Request`] becomes a [`plan`], a pair of fresh
//! processes fills each cell with blocks, and an aggregation condenses them. The crates that compare and report cells
//! do not depend on this one.

mod aggregation;
pub mod bench;
mod block_progress;
mod bounds;
mod breakdown;
mod budget;
pub mod clock;
mod conversation;
pub mod cpu;
mod disturbance;
pub mod endpoint;
pub mod environment;
pub mod ethernet;
pub mod fabric_keys;
pub mod fabric_pair;
pub mod interrupt;
mod isolation;
mod load;
pub mod machine_probe;
pub mod measure;
pub mod memory;
pub mod mpi;
mod multi_connection;
pub mod namespaces;
mod node_services;
pub mod options;
mod pair;
pub mod payload;
pub mod pin;
mod placement;
pub mod plan;
mod preload;
pub mod preset;
pub mod process;
pub mod registry;
pub mod remote_target;
mod resolution;
mod sampling;
pub mod scratch_directory;
pub mod segments;
mod service_process;
pub mod shared_port;
pub mod size;
pub mod slowdown;
mod topology;
pub mod transport;
pub mod web;
pub mod worker;
pub mod workload;
