//! The level `mpi`: messages between two ranks of a job, by MPI implementations as they come.
//!
//! The ranks run a small program of ours in C (`rank.c`), which the implementation's own compiler makes at first
//! use. The implementation's own launcher starts it, each rank under a process of this program that reads its accounts.

pub mod choice;
mod installation;
mod launch;
mod rank;

pub use choice::{Choice, Implementation, LAUNCH, Link};
pub use installation::Installation;
pub(crate) use launch::run;
pub use rank::{COMMAND, run as run_rank};
