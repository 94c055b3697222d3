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
use crate::plan::{End, Outcome, Plan, Test};
use course::Course;

/// Plays `end` of the planned test over connected `lanes`, the calling thread being pinned to `core`.
pub fn run<E: Endpoint>(plan: &Plan, end: End, core: Option<u32>, lanes: &mut [E]) -> Result<Outcome> {
    let course = Course::new(plan, end, core);
    match (plan.test, end) {
        (Test::Latency | Test::Breakdown | Test::Hotspot, End::Source) => latency::source(course, lanes),
        (Test::Latency | Test::Breakdown | Test::Hotspot, End::Target) => latency::target(course, lanes),
        (Test::Rr, End::Source) => rr::source(course, lanes),
        (Test::Rr, End::Target) => rr::target(course, lanes),
        (_, End::Source) if plan.test.is_one_way() => stream::source(course, lanes),
        (_, End::Target) if plan.test.is_one_way() => stream::target(course, lanes),
        (Test::Bidir, _) => bidir::either(course, lanes),
        (Test::Overhead, End::Source) => overhead::source(course, lanes),
        (Test::Overhead, End::Target) => overhead::target(course, lanes),
        (_, End::Source) => interleave::source(course, lanes),
        (_, End::Target) => interleave::target(course, lanes),
    }
}
