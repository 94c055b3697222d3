//! The tests, each written once over [`Endpoint`]: one file for each.

pub mod bidir;
pub mod block_loop;
pub mod collective;
pub mod interleave;
pub mod latency;
pub mod nhalf;
pub mod overhead;
pub mod stream;

use anyhow::Result;

use crate::endpoint::Endpoint;
use crate::plan::{End, Outcome, Part, Plan, Test};
use crate::registry::tests;
use block_loop::{BlockLoop, Blocks, Results, Workload};

macro_rules! played {
    ($($variant:ident = $name:literal: $about:literal [$module:ident :: $workload:ident] $kind:expr;)+) => {
        /// Plays `end` of the planned test over connected `lanes`. The calling thread is pinned to `core`. Fails with the
        /// error of a lane, or if an end has not kept step with the other.
        pub fn run<E: Endpoint>(plan: &Plan, end: End, core: Option<u32>, lanes: &mut [E]) -> Result<Outcome> {
            match (plan.test, end) {
                $(
                    (Test::$variant, End::Source) => BlockLoop::run(plan, end, core, lanes, $module::$workload::source),
                    (Test::$variant, End::Target) => BlockLoop::run(plan, end, core, lanes, $module::$workload::target),
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
