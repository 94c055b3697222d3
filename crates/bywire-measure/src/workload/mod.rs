//! The tests, each written once over [`Endpoint`]: one file for each.

pub mod bidir;
pub mod course;
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
use course::{Blocks, Course, Results, Workload};

macro_rules! played {
    ($($(#[$doc:meta])* $variant:ident = $name:literal [$module:ident :: $workload:ident] $kind:expr;)+) => {
        /// Plays `end` of the planned test over connected `lanes`, the calling thread being pinned to `core`.
        ///
        /// # Errors
        /// One line: what the lanes refused, or an end that has not kept to the course.
        pub fn run<E: Endpoint>(plan: &Plan, end: End, core: Option<u32>, lanes: &mut [E]) -> Result<Outcome> {
            let course = Course::new(plan, end, core);
            match (plan.test, end) {
                $(
                    (Test::$variant, End::Source) => $module::$workload::source(course, lanes),
                    (Test::$variant, End::Target) => $module::$workload::target(course, lanes),
                )+
            }
        }

        /// A block's value out of both ends' parts.
        pub fn value(plan: &Plan, source: &Part, target: &Part) -> Option<f64> {
            match plan.test {
                $(Test::$variant => $module::$workload::value(plan, source, target),)+
            }
        }

        /// What only this test yields.
        pub fn details(plan: &Plan, blocks: &Blocks, details: &mut Results) {
            match plan.test {
                $(Test::$variant => $module::$workload::details(plan, blocks, details),)+
            }
        }
    };
}

tests!(played);
