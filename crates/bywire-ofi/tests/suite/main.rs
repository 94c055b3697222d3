//! The provider as libfabric loads it, and MPI programs over it, on one machine and on several.

mod intel_mpi;
mod job;
mod kills;
mod loaded;
mod loading;
mod machines;
mod messages;
mod mpich;
mod open_mpi;
