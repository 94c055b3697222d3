//! The level `mpi`: messages between two ranks of a job, by unmodified MPI implementations.
//!
//! The ranks run a small C program of ours (`rank.c`), which the implementation's own compiler makes at first use. The
//! implementation's own launcher starts it. Each rank is a child of a process of this program, which reads its CPU
//! account.

pub mod choice;
mod installation;
mod launch;
mod rank;

pub use choice::{Choice, Implementation, LAUNCH, Link};
pub use installation::{Installation, Tools};
pub(crate) use launch::run;
pub use launch::{AS_ROOT, telling_line};
pub use rank::{COMMAND, run as run_rank};
