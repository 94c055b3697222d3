//! Operations of all ranks of an MPI job. The ranks' own program plays them (`mpi/rank.c`); here is what a block yields.

use anyhow::{Result, bail};

use super::block_loop::{BlockLoop, Blocks, Results, Workload};
use crate::endpoint::Endpoint;
use crate::plan::{Outcome, Part, Plan};

/// An operation of all ranks.
pub struct Collective;

impl Workload for Collective {
    fn source<E: Endpoint>(block_loop: BlockLoop, _lanes: &mut [E]) -> Result<Outcome> {
        refuse(&block_loop)
    }

    fn target<E: Endpoint>(block_loop: BlockLoop, _lanes: &mut [E]) -> Result<Outcome> {
        refuse(&block_loop)
    }

    /// The mean time of an operation at rank 0, in ns.
    fn value(_plan: &Plan, source: &Part, _target: &Part) -> Option<f64> {
        Some(source.seconds * 1e9 / source.operations as f64)
    }

    fn details(_plan: &Plan, blocks: &Blocks, details: &mut Results) {
        if let Some(histogram) = &blocks.round_trips {
            for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
                details.set(&format!("operation_{name}_ns"), histogram.value_at_quantile(share) as f64);
            }
        }
    }
}

/// Two ends with one connection are no ranks. The registry gives no level with such ends this test.
fn refuse(block_loop: &BlockLoop) -> Result<Outcome> {
    let (test, level) = (block_loop.plan.test, block_loop.plan.level);
    bail!("{test} is an operation of all ranks, which level {level} does not have")
}
