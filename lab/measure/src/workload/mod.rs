//! The tests, each written once over [`Endpoint`]: one file for each.

pub mod bidir;
pub mod block_loop;
pub mod collective;
pub mod interleave;
pub mod latency;
pub mod nhalf;
pub mod overhead;
pub mod rr;
pub mod stream;

use anyhow::Result;

use crate::endpoint::Endpoint;
use crate::plan::{End, Outcome, Part, Plan, Test};
use crate::registry::tests;
use block_loop::{BlockLoop, Blocks, Results, Workload};

macro_rules! played {
    ($($variant:ident = $name:literal: $about:literal [$module:ident :: $workload:ident] $kind:expr;)+) => {
        /// Plays `end` of the planned test over connected `lanes`. The calling thread is pinned to `core`.
        ///
        /// # Errors
        /// One line: the error of a lane, or an end that has not kept step with the other.
        pub fn run<E: Endpoint>(plan: &Plan, end: End, core: Option<u32>, lanes: &mut [E]) -> Result<Outcome> {
            let block_loop = BlockLoop::new(plan, end, core);
            match (plan.test, end) {
                $(
                    (Test::$variant, End::Source) => $module::$workload::source(block_loop, lanes),
                    (Test::$variant, End::Target) => $module::$workload::target(block_loop, lanes),
                )+
            }
        }

        /// A block's value, from the parts of both ends.
        pub fn value(plan: &Plan, source: &Part, target: &Part) -> Option<f64> {
            match plan.test {
                $(Test::$variant => $module::$workload::value(plan, source, target),)+
            }
        }

        /// The results that only this test has.
        pub fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
            match plan.test {
                $(Test::$variant => $module::$workload::details(plan, blocks, details),)+
            }
        }
    };
}

tests!(played);
