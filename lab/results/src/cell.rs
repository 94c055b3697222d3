//! The raw result: one [`Cell`] per measured point, one JSON object per line in a stored session.
//!
//! Units are in the names. Every block is kept; nothing measured is dropped, only marked.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::details::Details;
use crate::moment::Moment;
use crate::names;
use crate::parameter::{Parameters, Waiting};

/// The schema of [`Cell`]; it changes when a reader of the old one would misread the new one.
pub const CELL_SCHEMA: &str = "bywire-cell/1";

/// The fewest pairs for an interval. The range of three values contains the true median in 75 of 100 cells, that of two
/// in 50. The range of five contains it in 94, and is the bootstrap's result. With more pairs the bootstrap interval
/// contains it in 89 to 95.
pub const INTERVAL_PAIRS_MIN: usize = 5;

/// The definition of a disturbed block, for readers of a count of them.
pub const DISTURBED: &str = "A block is disturbed when, for more than 2 % of it, the hypervisor or another thread had the \
                             core of one of its ends while that end was ready to run.";

/// One measured point: a level, a test, a size and its parameters, with every block that was taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Always [`CELL_SCHEMA`] when written by this version.
    pub schema: String,
    /// The level, such as `memory`, `msg` or `tcp`.
    pub level: String,
    /// The test, such as `latency` or `stream`.
    pub test: String,
    /// The link that carried the messages, such as `shm`, `loopback` or `veth`. Absent for `memory`.
    pub link: Option<String>,
    /// `processes`, `threads`, `namespaces`, or a host's name. Empty if one end measures alone (`memory`).
    pub between: String,
    /// Message length. Absent if the test has none (`nhalf`).
    pub size_bytes: Option<u64>,
    /// All other options, by their names on the command line (`mtu`, `protocol`, `integrity`, `spin`, `lent`).
    #[serde(default)]
    pub parameters: Parameters,
    /// The median over pairs, in `unit`.
    pub value: f64,
    /// The unit of `value`, `ci95`, `mean`, `percentiles` and the blocks.
    pub unit: Unit,
    /// The 95 % bootstrap interval of the median, resampled over fresh process pairs; absent below
    /// [`INTERVAL_PAIRS_MIN`] pairs.
    pub ci95: Option<[f64; 2]>,
    /// The mean over all samples, if it differs in kind from the median (latency).
    pub mean: Option<f64>,
    /// Percentiles of single samples (latency tests).
    pub percentiles: Option<Percentiles>,
    /// The whole histogram as (upper bound in `unit`, count) of the filled buckets (latency tests).
    #[serde(default)]
    pub histogram: Vec<(f64, u64)>,
    /// Every block of every pair, in the order taken.
    pub blocks: Vec<Block>,
    /// The time of each pair, and the machine's own speed at that time.
    #[serde(default)]
    pub moments: Vec<Moment>,
    /// The CPU cost at both ends.
    pub cpu: CpuBothEnds,
    /// The time of a cache line between the same two cores just before and after (`msg`, `unix`). On a virtual machine
    /// it may change by the second, and results change two- to three-fold with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cacheline: Option<Cacheline>,
    /// One line: why pairs are missing. Absent if nothing failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Further results of the test.
    #[serde(default)]
    pub details: Details,
    /// Everything needed to judge the run; see [`crate::cell::Session::environment`].
    pub environment: Value,
}

impl Cell {
    /// The number of its pairs of processes.
    pub fn pairs(&self) -> usize {
        self.blocks.iter().map(|block| block.pair).collect::<BTreeSet<_>>().len()
    }

    /// How its ends wait; sleeping if its parameters do not state it.
    pub fn waiting(&self) -> Waiting {
        // The form of older sessions.
        let usual = if self.level == "msg" { Waiting::Adaptive } else { Waiting::Sleeping };
        self.parameters.waiting().unwrap_or(usual)
    }

    /// The number of its disturbed blocks; see [`DISTURBED`].
    pub fn disturbed_blocks(&self) -> usize {
        self.blocks.iter().filter(|block| !block.disturbed.is_empty()).count()
    }

    /// The CPU cost with every end's µs per KB that arrived. The source's own figure is per KB sent, so the ends'
    /// figures do not add up if messages were lost.
    pub fn cpu_by_arrival(&self) -> CpuBothEnds {
        let mut cpu = self.cpu.clone();
        if let Some(lost) = self.details.lost_share() {
            let own = &mut cpu.source.service_demand_us_per_kb;
            *own = own.map(|us| us / (1.0 - lost)).filter(|us| us.is_finite());
        }
        cpu
    }

    /// Service demand of both ends and of the carrying processes, in µs per KB that arrived.
    pub fn service_demand_us_per_kb(&self) -> Option<f64> {
        self.cpu_by_arrival().together(|end| end.service_demand_us_per_kb)
    }

    /// A percentile, if it lies above the median. In cells of earlier versions fast pairs outweigh slow ones among the
    /// samples, so the median over pairs may lie above the 90th percentile. Such a percentile is meaningless.
    pub fn above_median(&self, of: fn(&Percentiles) -> f64) -> Option<f64> {
        self.percentiles.as_ref().map(of).filter(|percentile| *percentile >= self.value)
    }

    /// The number of its blocks outside Tukey's fences.
    pub fn outlier_blocks(&self) -> usize {
        self.blocks.iter().filter(|block| block.outlier).count()
    }
}

/// The half-RTT of a cache line handed between the two cores of a cell, by `memory cacheline`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cacheline {
    /// Before the first pair.
    pub before_ns: f64,
    /// After the last pair. Absent if the cell was cut short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<f64>,
}

names! {
    /// The unit of a value.
    Unit, "unit" {
        /// Nanoseconds: half-RTT, or host CPU per message.
        Nanoseconds = "ns",
        /// Bytes (N½).
        Bytes = "bytes",
        /// Payload bytes per second.
        BytesPerSecond = "bytes_per_second",
        /// Messages per second.
        MessagesPerSecond = "messages_per_second",
        /// Request/response pairs per second.
        TransactionsPerSecond = "transactions_per_second",
        /// Nanoseconds of CPU per second.
        NanosecondsPerSecond = "ns_per_second",
        /// Microseconds of CPU per 1,024 bytes.
        MicrosecondsPerKb = "us_per_kb",
        /// Things that should not happen, such as segments sent again.
        Count = "count",
        /// A share of what there is, such as that of a link.
        Share = "share",
        /// A share that was lost, or sent again.
        LostShare = "lost_share",
    }
}

/// Most tests time what they measure.
impl Default for Unit {
    fn default() -> Self {
        Self::Nanoseconds
    }
}

impl Unit {
    /// True if a smaller value is better.
    pub fn less_is_better(self) -> bool {
        match self {
            Self::Nanoseconds | Self::Bytes | Self::NanosecondsPerSecond | Self::MicrosecondsPerKb => true,
            Self::Count | Self::LostShare => true,
            Self::BytesPerSecond | Self::MessagesPerSecond | Self::TransactionsPerSecond | Self::Share => {
                false
            }
        }
    }
}

/// Percentiles of single samples, in the cell's unit. Every pair has the same weight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// 5th.
    pub p5: f64,
    /// 50th.
    pub p50: f64,
    /// 90th.
    pub p90: f64,
    /// 95th.
    pub p95: f64,
    /// 99th.
    pub p99: f64,
    /// 99.9th.
    pub p999: f64,
}

/// One short part of a measurement within one fresh pair of processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The index of the pair of processes, from 0.
    pub pair: u32,
    /// The block's own value in the cell's unit.
    pub value: f64,
    /// Its duration. On a level that may lose messages it includes the time until the messages that arrived were read.
    pub seconds: f64,
    /// Operations (messages or round trips) in it.
    pub operations: u64,
    /// Why the block counts as disturbed (`steal`, `waited-for-core`). Empty when clean. See [`DISTURBED`].
    #[serde(default)]
    pub disturbed: Vec<String>,
    /// True if it is outside Tukey's fences of its cell. Such a block is marked, but never dropped.
    #[serde(default)]
    pub outlier: bool,
}

/// CPU cost of a cell at both ends. When both ends share a machine, each end has its own core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuBothEnds {
    /// The sending or requesting end.
    pub source: CpuEnd,
    /// The receiving or responding end.
    pub target: CpuEnd,
    /// The processes that carry the messages between the two ends, if it is not the kernel alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carriers: Option<CpuEnd>,
    /// True when both ends ran on one machine, so that machine figures must not be added up twice.
    pub same_machine: bool,
}

impl CpuBothEnds {
    /// Service demand of both ends and of the carrying processes, in µs per transaction.
    pub fn service_demand_us_per_transaction(&self) -> Option<f64> {
        self.together(|end| end.service_demand_us_per_transaction)
    }

    fn together(&self, of: fn(&CpuEnd) -> Option<f64>) -> Option<f64> {
        let carriers = self.carriers.as_ref().map_or(Some(0.0), of)?;
        Some(of(&self.source)? + of(&self.target)? + carriers)
    }
}

/// The CPU cost of one end. A field is absent if its value is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuEnd {
    /// The core this end was pinned to.
    pub core: Option<u32>,
    /// Machine: busy share of that core, wall − idle − iowait − steal, 0 to 1.
    pub machine_busy: Option<f64>,
    /// Steal share of that core, 0 to 1.
    pub steal: Option<f64>,
    /// Attributed: the threads' own clocks as a share of wall time, above 1 if threads run on several cores. With
    /// several connections, whose ends share a core, wall time is from the first beginning to the last end.
    pub attributed: Option<f64>,
    /// Machine − attributed.
    pub unattributed: Option<f64>,
    /// Service demand by attributed CPU: µs per KB (1,024 bytes) sent at the source, received at the target.
    pub service_demand_us_per_kb: Option<f64>,
    /// Service demand by attributed CPU: µs per transaction.
    pub service_demand_us_per_transaction: Option<f64>,
}

/// The schema of [`Session`].
pub const SESSION_SCHEMA: &str = "bywire-session/1";

/// A stored session, empty by default: `session.json` holds this without the cells, `cells.jsonl` one cell a line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Always [`SESSION_SCHEMA`] when written by this version.
    pub schema: String,
    /// The preset's name (`quick`, `gm`, …).
    pub preset: String,
    /// RFC 3339, UTC.
    pub started: String,
    /// How long it took so far.
    pub seconds: f64,
    /// The full command line.
    pub command: Vec<String>,
    /// Kernel, CPU, cores used and what they share, clocks, sysctls, offloads, versions.
    pub environment: Value,
    /// Levels and tests that could not be measured here, and why.
    pub absent: Vec<Absence>,
    /// False while running or when it was interrupted.
    pub complete: bool,
    /// Every cell that was measured, in the order taken.
    #[serde(default, skip_serializing)]
    pub cells: Vec<Cell>,
}

impl Session {
    /// The moments of all pairs.
    pub fn moments(&self) -> impl Iterator<Item = &Moment> {
        self.cells.iter().flat_map(|cell| &cell.moments)
    }
}

/// A level or a test that this machine cannot run, with the reason that the report shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The level.
    pub level: String,
    /// The test, or absent for the whole level.
    pub test: Option<String>,
    /// One line: what is missing and what to do.
    pub reason: String,
}
