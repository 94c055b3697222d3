//! When a pair was taken, and how fast the machine itself was then.

use serde::{Deserialize, Serialize};

/// The machine's own speed, in ns; absent where a core is another machine's, or the same, or taken by somebody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gauge {
    /// Half of what it takes a cache line to the other core and back.
    pub line_ns: Option<f64>,
    /// One step of arithmetic that needs the one before.
    pub step_ns: Option<f64>,
    /// Half of what it takes two sleeping threads to wake each other by a socket.
    pub wake_ns: Option<f64>,
}

/// When a pair was taken, and the machine's own speed before and after.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Which pair of its cell, from 0.
    pub pair: u32,
    /// When it began, in seconds since 1970.
    pub began_unix_seconds: f64,
    /// Just before it.
    pub before: Gauge,
    /// Just after it.
    pub after: Gauge,
}
