//! The parts of the half-RTT of one message, as a cell of the test `breakdown` stores them.

use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::quantity::{self, TOO_FEW_PAIRS};

/// The name of the test, and of the detail that holds the [`Account`].
pub const NAME: &str = "breakdown";

/// The name of the part that nothing explains.
pub const REST: &str = "not explained";

/// If negative parts exceed this share of the half-RTT, the breakdown has failed.
const NEGATIVE_SHARE_MAX: f64 = 0.5;

/// The message for a breakdown that does not [add up](Account::adds_up).
pub const FAILED: &str = "the breakdown failed: its differences do not add up to the half-RTT, because the machine changed \
                          between them. Take it again on a quiet machine.";

/// One part of a half-RTT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Its name.
    pub name: String,
    /// Its time in ns. A difference may be negative.
    pub ns: f64,
    /// The 95 % bootstrap interval over pairs, in ns. Absent if there are too few pairs.
    pub ci95_ns: Option<[f64; 2]>,
    /// How it was measured.
    pub how: String,
}

impl Share {
    /// Its interval in words.
    pub fn interval(&self) -> String {
        match self.ci95_ns.map(|bounds| bounds.map(quantity::duration)) {
            Some([low, high]) => format!("{low} to {high}"),
            None => TOO_FEW_PAIRS.to_owned(),
        }
    }
}

/// The work of one end's core during a half-RTT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreAccount {
    /// `source` or `target`.
    pub end: String,
    /// The core.
    pub core: u32,
    /// The number of samples.
    pub samples: u64,
    /// Medians over pairs. In each pair they add up to the mean half-RTT under sampling.
    pub parts: Vec<Share>,
}

/// The breakdown of one half-RTT.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The parts, which add up to the cell's value. The last is the [unexplained rest](REST).
    pub parts: Vec<Share>,
    /// Other parts measured in the same pairs, which are not part of the sum.
    pub beside: Vec<Share>,
    /// The work of both cores, by samples. Empty if they cannot be sampled.
    pub cores: Vec<CoreAccount>,
    /// Costs that the account cannot separate, and why.
    pub notes: Vec<String>,
}

impl Account {
    /// Reads the account of a cell.
    pub fn of(cell: &Cell) -> Option<Self> {
        cell.details.structure(NAME)
    }

    /// True if the differences are parts of a whole. If the machine changes between two variants, a difference may be
    /// many times the half-RTT in either direction, and the breakdown has failed.
    pub fn adds_up(&self) -> bool {
        let whole_ns: f64 = self.parts.iter().map(|share| share.ns).sum();
        let negative_ns: f64 = self.parts.iter().map(|share| share.ns.min(0.0)).sum();
        whole_ns > 0.0 && -negative_ns <= NEGATIVE_SHARE_MAX * whole_ns
    }
}

/// The kinds of work of a core, in the order of the tables.
pub const KINDS: [&str; 12] = [
    PROGRAM,
    CARRIER,
    OTHERS,
    "copies",
    "checksums",
    "system calls",
    "TCP and IP",
    "local sockets",
    "link",
    "memory of packets",
    "sleeping and waking",
    IDLE,
];
/// Kernel functions whose names show no purpose.
pub const OTHERWISE: &str = "the kernel otherwise";
/// Time without a sample.
pub const UNSAMPLED: &str = "not sampled, as an idle core may be";
/// The measured program itself.
pub const PROGRAM: &str = "the program and its library";
/// The program that carries the messages between the ends.
pub const CARRIER: &str = "the carrier's program";
/// Other programs.
pub const OTHERS: &str = "other programs";
/// The core was idle.
pub const IDLE: &str = "idle";
