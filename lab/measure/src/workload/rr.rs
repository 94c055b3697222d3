//! Requests and responses of given lengths: the ping-pong of `latency`, counted in transactions per second.

use anyhow::Result;

use super::block_loop::{BlockLoop, Blocks, Results, Workload, count_lost};
use super::latency;
use crate::endpoint::Endpoint;
use crate::plan::{Outcome, Part, Plan};

/// Requests and responses.
pub struct Rr;

impl Workload for Rr {
    /// The requesting end.
    fn source<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        latency::Latency::source(block_loop, lanes)
    }

    /// The responding end.
    fn target<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome> {
        latency::Latency::target(block_loop, lanes)
    }

    fn value(_plan: &Plan, source: &Part, _target: &Part) -> Option<f64> {
        Some(source.operations as f64 / source.seconds)
    }

    fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
        if let Some(histogram) = &blocks.round_trips {
            for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
                details.set(&format!("round_trip_{name}_ns"), histogram.value_at_quantile(share) as f64);
            }
        }
        count_lost(plan, blocks, details);
    }
}
