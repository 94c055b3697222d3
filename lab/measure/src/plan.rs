//! The messages between a session and its workers: the plan of a pair, and the reports of its ends.

use std::iter::Sum;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bywire_analysis::statistics::median;
use bywire_results::cell::CpuEnd;
use bywire_results::names;
use serde::{Deserialize, Serialize};

use crate::budget::Blocks;
use crate::memory;
use crate::mpi::choice::Choice;
use crate::options::Request;
use crate::web::plan as web;

pub use crate::registry::{Lanes, Level, Test};
pub use bywire_results::details::Details;
pub use bywire_results::level::{DATAGRAM_BYTES_MAX, SIZE_BYTES_MAX};

/// Everything that both ends of one pair must know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The request. Options without a field of their own in the plan are read here.
    #[serde(default)]
    pub request: Request,
    /// The level that carries the messages.
    pub level: Level,
    /// The test.
    pub test: Test,
    /// The MPI implementation and its link (`mpi`).
    pub mpi: Option<Choice>,
    /// Length of a message from source to target.
    pub size_bytes: u64,
    /// Length of a message from target to source.
    pub response_bytes: u64,
    /// How long the source keeps each block going.
    pub block_us: u64,
    /// Blocks that are run first and not kept.
    pub warmup_blocks: u32,
    /// Blocks that are kept.
    pub blocks: u32,
    /// The directories with the sockets of both ends' nodes, if a fabric joins them (`msg` over `udp`).
    pub runtime_directories: Option<RuntimeDirectories>,
    /// Poll, instead of sleeping.
    pub spin: bool,
    /// Never spin before sleeping (`msg` and `sock`, which otherwise spin for a bounded time).
    pub sleep: bool,
    /// Processes of the source's machine that carry the messages. Their CPU is counted too.
    #[serde(default)]
    pub carriers: Vec<u32>,
    /// When the source begins its first kept block, by the machine's monotonic clock, so that several connections begin
    /// at once.
    pub begin_ns: Option<u64>,
    /// The number of this connection among those of one shared port (`msg`).
    pub peer_number: Option<u32>,
    /// The address that the target listens on.
    pub bind: IpAddr,
    /// The only source address that the target accepts. Absent if both ends are on one machine. The address in a
    /// datagram can be forged, so this is the address of the TCP control connection.
    pub source: Option<IpAddr>,
    /// A secret of the two ends, so that another program's connection is not mistaken for the source's.
    pub cookie: String,
    /// A worker that has not finished by then ends itself, and a rank of MPI when no block has ended for so long.
    pub deadline_seconds: u64,
}

/// The longest block of a warm-up, whatever the length of the blocks that count.
const WARMUP_BLOCK_US_MAX: u64 = 100_000;

impl Plan {
    /// How long the source keeps each block of the warm-up going.
    pub fn warmup_block_us(&self) -> u64 {
        self.block_us.min(WARMUP_BLOCK_US_MAX)
    }

    /// The number of connections between the two ends. Lane 1 is the high-priority lane if the level has priorities
    /// (`interleave`), and otherwise an independent connection.
    pub fn lanes(&self) -> usize {
        if self.test.kind().lanes == Lanes::One { 1 } else { 2 }
    }

    /// The lengths of the messages on `lane`, in both directions.
    pub fn lengths(&self, lane: usize) -> Lengths {
        match (self.test.kind().lanes, lane) {
            (Lanes::BesideLong, 0) => {
                let longest = self.level.carrier().longest_bytes;
                Lengths { forward: longest.min(LONG_BYTES) as usize, back: 1 }
            }
            (Lanes::WithControl, 1) => Lengths { forward: 1, back: 1 },
            _ => Lengths { forward: self.size_bytes as usize, back: self.response_bytes as usize },
        }
    }
}

/// The length of each message of the long transfer that runs beside short ones.
const LONG_BYTES: u64 = 1 << 20;

/// The two lengths of a lane, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// From source to target.
    pub forward: usize,
    /// From target to source.
    pub back: usize,
}

impl Lengths {
    /// The length that `end` sends.
    pub fn sent_by(self, end: End) -> usize {
        if end == End::Source { self.forward } else { self.back }
    }

    /// The length that `end` receives.
    pub fn received_by(self, end: End) -> usize {
        if end == End::Source { self.back } else { self.forward }
    }
}

names! {
    /// An end of a pair.
    End, "end" { Source = "source": "sends or requests", Target = "target": "receives or responds", }
}

/// A value of each end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends<T> {
    /// The source's.
    pub source: T,
    /// The target's.
    pub target: T,
}

impl<T> Ends<T> {
    /// The value of `end`.
    pub fn of(&self, end: End) -> &T {
        if end == End::Source { &self.source } else { &self.target }
    }
}

/// The runtime directories of both nodes of a fabric.
pub type RuntimeDirectories = Ends<PathBuf>;

/// The measurement of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::large_enum_variant, reason = "there is one for each pair, and most have messages")]
pub enum Job {
    /// A test of a level that carries messages.
    Messages(Plan),
    /// A ceiling of the machine.
    Memory(MemoryPlan),
    /// A web server.
    Web(web::Plan),
}

impl Job {
    /// A worker that has not finished by then ends itself, and a rank of MPI when no block has ended for so long.
    pub fn deadline(&self) -> Duration {
        let seconds = match self {
            Self::Messages(plan) => plan.deadline_seconds,
            Self::Memory(plan) => plan.deadline_seconds,
            Self::Web(plan) => plan.deadline_seconds,
        };
        Duration::from_secs(seconds)
    }

    /// Returns whether it has a target. Some ceilings are measured by one process alone.
    pub fn needs_target(&self) -> bool {
        !matches!(self, Self::Memory(plan) if !plan.spec.needs_target())
    }
}

/// A ceiling to be measured by one fresh process or pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// The ceiling.
    pub spec: memory::Spec,
    /// How long each block takes.
    pub block_us: u64,
    /// Blocks that are run first and not kept.
    pub warmup_blocks: u32,
    /// Blocks that are kept.
    pub blocks: u32,
    /// A worker that has not finished by then ends itself.
    pub deadline_seconds: u64,
}

impl MemoryPlan {
    /// A ceiling by these blocks.
    pub(crate) fn of(spec: memory::Spec, blocks: &Blocks) -> Self {
        let deadline_seconds = blocks.deadline_seconds();
        let Blocks { block_us, warmup: warmup_blocks, kept: blocks } = *blocks;
        Self { spec, block_us, warmup_blocks, blocks, deadline_seconds }
    }

    /// A few short blocks after one of warm-up, because the first block finds nothing in the caches.
    pub fn short(test: memory::Test, block_us: u64, blocks: u32) -> Self {
        Self { spec: memory::Spec::new(test), block_us, warmup_blocks: 1, blocks, deadline_seconds: 30 }
    }
}

/// The line that a worker process reads from its standard input: the work of the pair, and its own part of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) job: Job,
    pub(crate) role: Role,
}

/// The part that one worker process plays, and the cores to be pinned to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Listens, reports its address, answers.
    Target { core: Option<u32> },
    /// Connects to the address that the target reported and drives the test.
    Source { core: Option<u32>, address: String },
    /// One port with many peers (`msg`): the end that all connections share.
    SharedPort { core: Option<u32>, connections: u32 },
    /// Both ends as two threads of this process.
    Both { source_core: Option<u32>, target_core: Option<u32> },
}

/// A message of a worker to its parent: one line of standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerMessage {
    /// The target accepts connections at this address.
    Listening {
        /// In the level's own form.
        address: String,
        /// Identifies the boot of the running kernel, if known, to find out whether both ends share a machine.
        boot: Option<String>,
    },
    /// An end has done its part.
    Outcome(Outcome),
    /// An end failed, with one line about the reason.
    Failed {
        /// Which end.
        end: End,
        /// The failure, its cause, and what to do.
        reason: String,
    },
}

/// The results of one end of one pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Which end.
    pub end: End,
    /// Kept blocks, in order. Both ends have the same number.
    pub blocks: Vec<Part>,
    /// Warm-up blocks, which are not kept.
    pub warmup: Vec<Part>,
    /// Round trips in ns as (value, count), if the test times each.
    pub round_trips: Vec<(u64, u64)>,
    /// The CPU account over all kept blocks.
    pub cpu: CpuEnd,
    /// The length of that span.
    pub cpu_seconds: f64,
    /// The values that the level granted, and other details.
    pub details: Details,
}

/// The results of both ends of a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcomes {
    /// The source's side.
    pub source: Outcome,
    /// The target's side. `None` for ceilings.
    pub target: Option<Outcome>,
    /// Whether both ends ran under one kernel.
    pub same_machine: bool,
}

impl Outcomes {
    /// Those of two ends on one machine.
    pub(crate) fn of(source: Outcome, target: Outcome) -> Self {
        Self { source, target: Some(target), same_machine: true }
    }

    /// The source, and the target if there is one.
    pub fn ends(&self) -> impl Iterator<Item = &Outcome> {
        std::iter::once(&self.source).chain(&self.target)
    }
}

/// The nanoseconds since a block began, and the operations that were complete by then.
pub type Note = (u64, u64);

impl Outcome {
    /// The outcome of an end that has no results yet.
    pub fn of(end: End) -> Self {
        Self {
            end,
            blocks: Vec::new(),
            warmup: Vec::new(),
            round_trips: Vec::new(),
            cpu: CpuEnd::default(),
            cpu_seconds: 0.0,
            details: Details::default(),
        }
    }

    /// The sum over its blocks.
    pub fn sum<T: Sum>(&self, of: impl Fn(&Part) -> T) -> T {
        self.blocks.iter().map(of).sum()
    }

    /// The median of its blocks' own readings. Absent if they have none.
    pub fn median_reading(&self) -> Option<f64> {
        let readings: Vec<f64> = self.blocks.iter().filter_map(|part| part.reading).collect();
        (!readings.is_empty()).then(|| median(&readings))
    }
}

/// One end's part of one block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// When this end began it, by the machine's monotonic clock.
    #[serde(default)]
    pub began_ns: u64,
    /// Its duration at this end.
    pub seconds: f64,
    /// Messages or round trips completed.
    pub operations: u64,
    /// Payload bytes this end sent.
    pub sent_bytes: u64,
    /// Payload bytes this end received.
    pub received_bytes: u64,
    /// The thread's own CPU time over the block.
    pub cpu_seconds: f64,
    /// The CPU time of the plan's carriers over the block, at the source.
    #[serde(default)]
    pub carriers_cpu_seconds: f64,
    /// On a level that may lose messages, the time from the first payload message that arrived to the last. Otherwise
    /// 0, because the source's own time includes the delivery.
    #[serde(default)]
    pub arrival_seconds: f64,
    /// The block's own reading: median half-RTT or time per message in ns, or the value of a `memory` test.
    pub reading: Option<f64>,
    /// Round trips that were given up and repeated.
    pub lost: u64,
    /// The progress of the block, at the end that counts of one of several connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// Sends that the system refused and that were repeated.
    #[serde(default)]
    pub send_errors: u64,
    /// Why the block counts as disturbed; empty when clean.
    pub disturbed: Vec<String>,
}
