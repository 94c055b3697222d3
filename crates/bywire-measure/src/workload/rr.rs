//! Requests and responses of chosen lengths: the same ping-pong as `latency`, counted in transactions per second.

use anyhow::Result;

use super::course::Course;
use super::latency;
use crate::endpoint::Endpoint;
use crate::plan::Outcome;

/// The requesting end.
pub fn source<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
    latency::source(course, lanes)
}

/// The responding end.
pub fn target<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome> {
    latency::target(course, lanes)
}
