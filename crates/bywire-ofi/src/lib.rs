//! A libfabric provider: MPI and other programs that use libfabric exchange their messages over Bywire.
//!
//! ```text
//!  program ──► libfabric ──► entry: the calls, by object
//!                              │  one lock for each domain
//!                            endpoint: connections of a port, two matchers and RMA of bywire-match
//!                              │
//!                            bywire::Port
//! ```
//!
//! The library is loaded by libfabric, from a directory that `FI_PROVIDER_PATH` names, and offers itself only to programs
//! whose user or whose hints name it. `entry` and the modules with memory of the program contain all unsafe code.

mod abi;
mod addresses;
mod completion;
mod domain;
mod endpoint;
mod entry;
mod host;
mod idle;
mod memory;
mod name;
mod operation;
mod outlets;
mod parameters;
mod persistence;
mod regions;
