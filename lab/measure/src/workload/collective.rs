//! Operations of all ranks of an MPI job. The ranks' own program plays them (`mpi/rank.c`); here is what a block yields.

use super::block_loop::{Blocks, Results, Workload};
use crate::plan::{Part, Plan};

/// An operation of all ranks. Two ends with one connection are no ranks, and the registry gives no level with such ends
/// this test.
pub struct Collective;

impl Workload for Collective {
    /// The mean time of an operation at rank 0, in ns.
    fn value(_plan: &Plan, source: &Part, _target: &Part) -> Option<f64> {
        Some(source.seconds * 1e9 / source.operations as f64)
    }

    fn details(_plan: &Plan, blocks: &Blocks, details: &mut Results) {
        details.quantiles("operation", blocks, &[("p50", 0.5), ("p99", 0.99)]);
    }
}
