//! The levels that carry messages, and their tests.

use crate::name::names;

/// Messages longer than this are refused: both ends keep a few whole ones in memory.
pub const SIZE_BYTES_MAX: u64 = 64 << 20;

/// The longest payload of a UDP datagram over IPv4: 65,535 less the headers.
pub const DATAGRAM_BYTES_MAX: u64 = 65_507;

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

impl Level {
    /// The longest message that the level carries here, in bytes.
    pub fn longest(self) -> u64 {
        match self {
            Self::Udp => DATAGRAM_BYTES_MAX,
            Self::Msg | Self::Unix | Self::Tcp | Self::Sock | Self::Mpi => SIZE_BYTES_MAX,
        }
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
