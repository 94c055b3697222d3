//! What one pair is told to do, and what each of its ends reports: the messages between the session and its workers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cell::CpuEnd;
use crate::level::memory;
use crate::mpi::Choice;
use crate::pace::Note;
use crate::web;

/// Named extra results, units in the names.
pub type Details = BTreeMap<String, Value>;

/// Messages longer than this are refused: both ends keep a few whole ones in memory.
pub const SIZE_BYTES_MAX: u64 = 64 << 20;

/// The longest payload of a UDP datagram over IPv4: 65,535 less the headers.
pub const DATAGRAM_BYTES_MAX: u64 = 65_507;

/// Everything that both ends of one pair must know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The level that carries the messages.
    pub level: Level,
    /// The test.
    pub test: Test,
    /// How the level is to carry them, where it has a choice.
    pub link: Option<String>,
    /// Whose MPI, carried by what (`mpi`).
    #[serde(default)]
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
    /// Poll rather than sleep.
    pub spin: bool,
    /// Never spin before sleeping (`msg` and `sock`, which else spin a bounded time).
    pub sleep: bool,
    /// Wait by `epoll_wait` before each receive, as servers of many connections do.
    #[serde(default)]
    pub epoll: bool,
    /// Compare every byte of every payload with what must have been written.
    pub verify: bool,
    /// Write and read no more of a payload than its first 8 bytes.
    #[serde(default)]
    pub untouched: bool,
    /// Leave Nagle's algorithm on (`tcp`).
    pub nagle: bool,
    /// Algorithm of congestion control (`tcp`); absent for the system's own.
    #[serde(default)]
    pub congestion: Option<String>,
    /// Socket buffers asked for, in bytes, in both directions at both ends.
    pub socket_buffer_bytes: Option<u64>,
    /// The message layer's own end-to-end check; absent for its default.
    pub integrity: Option<bool>,
    /// Send lent buffers rather than copies (`msg`).
    pub lent: bool,
    /// Idle peers that stay connected to the target (`msg`); absent for the level's default.
    pub nodes: Option<u32>,
    /// MTU of the link, where the pair may choose it.
    pub mtu_bytes: Option<u32>,
    /// Processes of the source's machine that carry the messages besides the two ends: their CPU is counted too.
    #[serde(default)]
    pub carriers: Vec<u32>,
    /// When the source begins its first block that is kept, by the machine's monotonic clock: several connections begin at once.
    #[serde(default)]
    pub begin_ns: Option<u64>,
    /// Which of several connections of one port this is (`msg`).
    #[serde(default)]
    pub spoke: Option<u32>,
    /// By how many percent the source is slowed down on purpose.
    #[serde(default)]
    pub burden_percent: u32,
    /// The address that the target listens on.
    pub bind: IpAddr,
    /// The only address that the target takes a source from; absent where both ends are on one machine. What a datagram
    /// says of where it comes from is anybody's word: this is from where the test was asked for over TCP.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// Known to the two ends only, so that a stranger's connection is not taken for the source's.
    pub cookie: String,
    /// A worker that has not finished by then ends itself.
    pub deadline_seconds: u64,
}

/// A block of a warm-up is no longer than this: what it is for has happened by then, however long those are that count.
const WARMUP_BLOCK_US_MAX: u64 = 100_000;

impl Plan {
    /// How long the source keeps each block of the warm-up going.
    pub fn warmup_block_us(&self) -> u64 {
        self.block_us.min(WARMUP_BLOCK_US_MAX)
    }

    /// Endpoints that the pair is joined by: lane 1 is the high-priority lane where the level has priorities
    /// (`interleave`), and an independent connection otherwise.
    pub fn lanes(&self) -> usize {
        match self.test {
            Test::Interleave | Test::Overhead => 2,
            _ => 1,
        }
    }

    /// The lengths that travel on `lane`: from source to target and back.
    pub fn lengths(&self, lane: usize) -> Lengths {
        match (self.test, lane) {
            (Test::Interleave, 0) => {
                Lengths { forward: self.level.longest().min(INTERLEAVE_LONG_BYTES) as usize, back: 1 }
            }
            (Test::Overhead, 1) => Lengths { forward: 1, back: 1 },
            _ => Lengths { forward: self.size_bytes as usize, back: self.response_bytes as usize },
        }
    }
}

/// Length of each message of the long transfer that runs beside the short ones (`interleave`).
const INTERLEAVE_LONG_BYTES: u64 = 1 << 20;

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
        match end {
            End::Source => self.forward,
            End::Target => self.back,
        }
    }

    /// The length that `end` receives.
    pub fn received_by(self, end: End) -> usize {
        match end {
            End::Source => self.back,
            End::Target => self.forward,
        }
    }
}

/// An end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Sends, or asks.
    Source,
    /// Receives, or answers.
    Target,
}

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Self::Source => "source",
            Self::Target => "target",
        })
    }
}

/// What a pair is to measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// A test of a level that carries messages.
    Messages(Plan),
    /// A ceiling of the machine.
    Memory(MemoryPlan),
    /// A web server.
    Web(web::Plan),
}

impl Job {
    /// A worker that has not finished by then ends itself.
    pub fn deadline(&self) -> Duration {
        let seconds = match self {
            Self::Messages(plan) => plan.deadline_seconds,
            Self::Memory(plan) => plan.deadline_seconds,
            Self::Web(plan) => plan.deadline_seconds,
        };
        Duration::from_secs(seconds)
    }

    /// False for ceilings that one process measures alone.
    pub fn needs_target(&self) -> bool {
        match self {
            Self::Messages(_) | Self::Web(_) => true,
            Self::Memory(plan) => plan.spec.needs_target(),
        }
    }
}

/// A ceiling to be measured by one fresh process or pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryPlan {
    /// What is measured.
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

/// What a worker process reads from its standard input: one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// What the pair does.
    pub job: Job,
    /// Which part of it this process plays.
    pub role: Role,
}

/// The part that one worker process plays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Listens, reports its address, answers.
    Target {
        /// The core to be pinned to.
        core: Option<u32>,
    },
    /// Connects to the target and drives the test.
    Source {
        /// The core to be pinned to.
        core: Option<u32>,
        /// Where the target listens, as it reported.
        address: String,
    },
    /// One port that has many peers (`msg`): the end where all connections meet.
    Hub {
        /// The core to be pinned to.
        core: Option<u32>,
        /// How many there are.
        connections: u32,
    },
    /// Both ends as two threads of this process.
    Both {
        /// The source's core.
        source_core: Option<u32>,
        /// The target's core.
        target_core: Option<u32>,
    },
}

/// What a worker writes to its standard output: one a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// The target may be connected to at this address.
    Listening {
        /// In the level's own form.
        address: String,
        /// Names the running kernel's boot where it is known, to see whether both ends share a machine.
        boot: Option<String>,
    },
    /// An end has done its part.
    Outcome(Outcome),
    /// An end could not go on: one line why.
    Failed {
        /// Which end.
        end: End,
        /// What, why, and what to do.
        reason: String,
    },
}

/// What one end of one pair measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Which end.
    pub end: End,
    /// Blocks kept, in order; both ends have the same number.
    pub blocks: Vec<Part>,
    /// Blocks run first and dropped.
    pub warmup: Vec<Part>,
    /// Round trips in ns as (value, count), where the test times each.
    pub round_trips: Vec<(u64, u64)>,
    /// The span of all blocks that were kept.
    pub cpu: CpuEnd,
    /// How long that span was.
    pub cpu_seconds: f64,
    /// What the level granted.
    pub details: Details,
}

/// One end's part of one block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// When this end began it, by the machine's monotonic clock.
    #[serde(default)]
    pub began_ns: u64,
    /// How long this end was at it.
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
    /// From the first message of payload that arrived to the last one, where some may be lost; elsewhere nought, as the
    /// source's own time covers the delivery.
    #[serde(default)]
    pub arrival_seconds: f64,
    /// What the block yields by itself: median half-RTT or time per message in ns, or a `memory` test's own value.
    pub reading: Option<f64>,
    /// Round trips that were given up and asked again.
    pub lost: u64,
    /// How far it had got meanwhile, at the end of a crowd's connection that counts: see [`crate::pace`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// Sends that the system refused and that were made again.
    #[serde(default)]
    pub send_errors: u64,
    /// Why the block counts as disturbed; empty when clean.
    pub disturbed: Vec<String>,
}

/// Makes an enumeration of names: parsing that lists what exists, display, serde by the same names.
macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $type { $($(#[$variant_doc])* #[serde(rename = $name)] $variant,)+ }

        impl $type {
            /// All, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word on the command line and in a cell.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = anyhow::Error;

            fn from_str(name: &str) -> anyhow::Result<Self> {
                match Self::ALL.iter().find(|known| known.name() == name) {
                    Some(known) => Ok(*known),
                    None => {
                        let all: Vec<&str> = Self::ALL.iter().map(|known| known.name()).collect();
                        anyhow::bail!("unknown {} `{name}`: choose one of {}", $what, all.join(", "))
                    }
                }
            }
        }
    };
}

pub(crate) use names;

names! {
    /// A row of the ladder that carries messages between two ends.
    Level, "level" {
        /// The message layer.
        Msg = "msg",
        /// The kernel's Unix-domain sockets.
        Unix = "unix",
        /// The kernel's TCP.
        Tcp = "tcp",
        /// The same calls of the same program, carried by the library of `bywire run`.
        Sock = "sock",
        /// The kernel's UDP.
        Udp = "udp",
        /// MPI implementations.
        Mpi = "mpi",
    }
}

names! {
    /// A test of a level that carries messages.
    Test, "test" {
        /// Ping-pong half-RTT, every round trip timed.
        Latency = "latency",
        /// One-way rate.
        Stream = "stream",
        /// Two-way summed rate.
        Bidir = "bidir",
        /// Transactions per second.
        Rr = "rr",
        /// Host CPU per message.
        Overhead = "overhead",
        /// Half-RTT of short messages beside a long transfer.
        Interleave = "interleave",
        /// The length that reaches half of the plateau.
        Nhalf = "nhalf",
        /// Where the time of one message goes.
        Breakdown = "breakdown",
        /// Summed rate of several connections at once.
        Streams = "streams",
        /// Half-RTT of each of several clients of one server.
        Hotspot = "hotspot",
        /// Summed rate of several senders to one receiver.
        Fanin = "fanin",
        /// Summed rate of one sender to several receivers.
        Fanout = "fanout",
    }
}

impl Test {
    /// Several connections at once?
    pub fn is_crowd(self) -> bool {
        matches!(self, Self::Streams | Self::Hotspot | Self::Fanin | Self::Fanout)
    }

    /// Does the source send all it can, and the target but read?
    pub fn is_one_way(self) -> bool {
        matches!(self, Self::Stream | Self::Nhalf | Self::Streams | Self::Fanin | Self::Fanout)
    }
}

impl Test {
    /// What it measures, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Latency => "ping-pong: half of a round trip's time, every one timed (median, p90 to p99.9)",
            Self::Stream => "one-way rate: payload received per second, with what it costs in CPU per KB",
            Self::Bidir => "two-way rate: both ends send at once; what arrives at both, added up",
            Self::Rr => "transactions per second: a request and its response, one at a time; CPU for each",
            Self::Overhead => "host CPU per message inside the calls that send and receive, without waiting",
            Self::Interleave => "half-RTT of short messages while a long transfer runs beside them",
            Self::Nhalf => {
                "N½: the length at half of the highest rate, by a sweep of streams over 18 lengths"
            }
            Self::Breakdown => {
                "where the half-RTT of a message goes: by differences between variants, and by samples of both cores"
            }
            Self::Streams => {
                "several connections at once: their rates while all of them run, added up, and fairness"
            }
            Self::Hotspot => {
                "several clients of one core's servers: the mean half-RTT that each of them sees"
            }
            Self::Fanin => "several senders to one node: their rates added up",
            Self::Fanout => "one node's senders to several others: their rates added up",
        }
    }
}

impl Level {
    /// The longest message that the level carries here, in bytes.
    pub fn longest(self) -> u64 {
        match self {
            Self::Udp => DATAGRAM_BYTES_MAX,
            Self::Msg | Self::Unix | Self::Tcp | Self::Sock | Self::Mpi => SIZE_BYTES_MAX,
        }
    }
}
