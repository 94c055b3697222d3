//! The time of a pair, and the machine's own speed at that time.

use serde::{Deserialize, Serialize};

/// The machine's own speed, in ns. Absent if the two cores are one, belong to two machines, or are busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineSpeed {
    /// Half of a cache line's round trip between the two cores.
    pub line_ns: Option<f64>,
    /// One step in a chain of dependent arithmetic.
    pub step_ns: Option<f64>,
    /// Half of a round trip between two sleeping threads that wake each other by a socket.
    pub wake_ns: Option<f64>,
}

/// When a pair was taken, and the machine's own speed before and after.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// The index of the pair in its cell, from 0.
    pub pair: u32,
    /// When it began, in seconds since 1970.
    pub began_unix_seconds: f64,
    /// Just before it.
    pub before: MachineSpeed,
    /// Just after it.
    pub after: MachineSpeed,
}
