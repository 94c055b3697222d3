//! The levels and the tests, each declared in one row.
//!
//! A row of `levels` names a level that carries messages, and its transport. A row of `tests` names a test, and its
//! workload. The worker, the aggregation, the help and the command line are derived from the rows.

use bywire_command::exit_status::Misuse;
use bywire_results::cell::Unit;
use bywire_results::level::{DATAGRAM_BYTES_MAX, SIZE_BYTES_MAX};
use bywire_results::name::unknown;
use bywire_results::{ethernet, message_link, mpi, names, web};

use crate::memory;

pub use bywire_results::level::MEMORY;

/// A name on the command line, and the line of help about it.
pub type HelpRow = (&'static str, &'static str);

/// Calls the macro `$then` with every level that carries messages: its name, its transport in `transport/` unless it
/// has workers of its own, and its properties.
macro_rules! levels {
    ($then:ident) => {
        $then! {
            /// The message layer.
            Msg = "msg" [msg::Msg] Carrier {
                links: message_link::Link::rows,
                own_link: Some("shm"),
                is_adaptive: true,
                times_cacheline: true,
                ..Carrier::of("the message layer")
            };
            /// The kernel's Unix-domain sockets.
            Unix = "unix" [unix::Unix] Carrier {
                own_link: Some("unix"),
                times_cacheline: true,
                ..Carrier::of("the kernel's Unix-domain sockets")
            };
            /// The kernel's TCP.
            Tcp = "tcp" [tcp::Tcp] Carrier { is_ip: true, ..Carrier::of("the kernel's TCP") };
            /// The same calls of the same program, carried by the library of `bywire run`. The two differ only in how a
            /// worker is started.
            Sock = "sock" [tcp::Tcp] Carrier {
                own_link: Some("shm"),
                is_adaptive: true,
                ..Carrier::of(
                    "the program of tcp under `bywire run`: its connections are carried in memory",
                )
            };
            /// The kernel's UDP.
            Udp = "udp" [udp::Udp] Carrier {
                is_ip: true,
                is_lossy: true,
                longest_bytes: DATAGRAM_BYTES_MAX,
                ..Carrier::of("the kernel's UDP")
            };
            /// MPI implementations, whose launcher starts the ranks.
            Mpi = "mpi" [] Carrier {
                tests: &[
                    Test::Latency,
                    Test::Stream,
                    Test::Bidir,
                    Test::Rr,
                    Test::Nhalf,
                    Test::Alltoall,
                    Test::Allreduce,
                ],
                links: mpi::Link::rows,
                own_link: Some("shm"),
                polls: true,
                times_cacheline: true,
                ..Carrier::of("MPI implementations as distributed, between ranks that poll")
            };
        }
    };
}

/// Calls the macro `$then` with every test of messages: its name, its workload in `workload/`, and its properties.
macro_rules! tests {
    ($then:ident) => {
        $then! {
            /// Half-RTT of a ping-pong with every round trip timed.
            Latency = "latency" [latency::Latency] Kind {
                shows_round_trips: true,
                counts_transactions: true,
                ..Kind::of("ping-pong: half of a round trip's time, every one timed (median, p90 to p99.9)")
            };
            /// One-way rate.
            Stream = "stream" [stream::Stream]
                Kind::one_way("one-way rate: payload received per second, with what it costs in CPU per KB");
            /// Two-way summed rate.
            Bidir = "bidir" [bidir::Bidir] Kind {
                is_one_way: false,
                ..Kind::one_way("two-way rate: both ends send at once; the sum of what arrives at both")
            };
            /// Transactions per second.
            Rr = "rr" [latency::Rr] Kind {
                unit: Unit::TransactionsPerSecond,
                size_bytes: 1,
                counts_transactions: true,
                ..Kind::of("transactions per second: a request and its response, one at a time; CPU for each")
            };
            /// Host CPU per message.
            Overhead = "overhead" [overhead::Overhead] Kind {
                lanes: Lanes::WithControl,
                ..Kind::of("host CPU per message inside the calls that send and receive, without waiting")
            };
            /// Half-RTT of short messages beside a long transfer.
            Interleave = "interleave" [interleave::Interleave] Kind {
                lanes: Lanes::BesideLong,
                shows_round_trips: true,
                polls: true,
                ..Kind::of("half-RTT of short messages while a long transfer runs beside them")
            };
            /// The length that reaches half of the plateau.
            Nhalf = "nhalf" [stream::Stream] Kind {
                unit: Unit::Bytes,
                size_bytes: 8,
                ..Kind::one_way("N½: the length at half of the highest rate, by a sweep of streams over 18 lengths")
            };
            /// The parts of the time of one message.
            Breakdown = "breakdown" [latency::Latency] Kind::of(
                "where the half-RTT of a message goes: by differences between variants, and by samples of both cores",
            );
            /// Summed rate of several connections at once.
            Streams = "streams" [stream::Stream] Kind {
                is_multi_connection: true,
                ..Kind::one_way(
                    "several connections at once: the sum of their rates while all of them run, and fairness",
                )
            };
            /// Half-RTT of each of several clients of one server.
            Hotspot = "hotspot" [latency::Latency] Kind {
                size_bytes: 1,
                is_multi_connection: true,
                shows_round_trips: true,
                counts_transactions: true,
                ..Kind::of("several clients of one core's servers: the mean half-RTT that each of them sees")
            };
            /// Summed rate of several senders to one receiver.
            Fanin = "fanin" [stream::Stream] Kind {
                is_multi_connection: true,
                ..Kind::one_way("several senders to one node: the sum of their rates")
            };
            /// Summed rate of one sender to several receivers.
            Fanout = "fanout" [stream::Stream] Kind {
                is_multi_connection: true,
                ..Kind::one_way("one node's senders to several others: the sum of their rates")
            };
            /// Time of an exchange among all ranks.
            Alltoall = "alltoall" [collective::Collective]
                Kind::collective("time of one MPI_Alltoall: every rank sends every rank a message of its own");
            /// Time of a sum over all ranks.
            Allreduce = "allreduce" [collective::Collective]
                Kind::collective("time of one MPI_Allreduce: every rank gets the sums of what all of them have");
        }
    };
}

pub(crate) use {levels, tests};

/// The tests between two ends at a time, which every level has but MPI.
const POINT_TO_POINT: &[Test] = &[
    Test::Latency,
    Test::Stream,
    Test::Bidir,
    Test::Rr,
    Test::Overhead,
    Test::Interleave,
    Test::Nhalf,
    Test::Breakdown,
    Test::Streams,
    Test::Hotspot,
    Test::Fanin,
    Test::Fanout,
];

/// The properties of a level that carries messages.
#[derive(Clone, Copy)]
pub struct Carrier {
    /// One line about it.
    pub about: &'static str,
    /// The tests that it has.
    pub tests: &'static [Test],
    /// The links that it can choose from, if any.
    pub links: fn() -> Vec<HelpRow>,
    /// The default link. Absent if it depends on where the ends run.
    pub own_link: Option<&'static str>,
    /// The longest message that it carries, in bytes.
    pub longest_bytes: u64,
    /// Whether messages may be lost, or arrive twice.
    pub is_lossy: bool,
    /// Whether its ends may be in two network namespaces or on two machines.
    pub is_ip: bool,
    /// Whether an end polls a bounded time and then sleeps by default.
    pub is_adaptive: bool,
    /// Whether its ends poll unless asked otherwise.
    pub polls: bool,
    /// Whether a cache line is timed beside each of its cells.
    pub times_cacheline: bool,
}

impl Carrier {
    /// A level that has every test between two ends and one way to carry messages between two processes of one machine.
    const fn of(about: &'static str) -> Self {
        Self {
            about,
            tests: POINT_TO_POINT,
            links: Vec::new,
            own_link: None,
            longest_bytes: SIZE_BYTES_MAX,
            is_lossy: false,
            is_ip: false,
            is_adaptive: false,
            polls: false,
            times_cacheline: false,
        }
    }
}

/// The properties of a test of messages.
#[derive(Clone, Copy)]
pub struct Kind {
    /// One line about it.
    pub about: &'static str,
    /// The unit of its value.
    pub unit: Unit,
    /// The default length of a message, if the level supports it.
    pub size_bytes: u64,
    /// The lanes between its two ends.
    pub lanes: Lanes,
    /// Whether it has several connections at once.
    pub is_multi_connection: bool,
    /// Whether the source sends as fast as it can and the target only reads.
    pub is_one_way: bool,
    /// Whether all ranks of a job take part at once.
    pub is_collective: bool,
    /// Whether its ends poll unless asked otherwise.
    pub polls: bool,
    /// Whether a cell has the distribution of its round trips.
    pub shows_round_trips: bool,
    /// Whether a cell has the CPU for each transaction.
    pub counts_transactions: bool,
}

impl Kind {
    /// A test of single short messages.
    const fn of(about: &'static str) -> Self {
        Self {
            about,
            unit: Unit::Nanoseconds,
            size_bytes: 8,
            lanes: Lanes::One,
            is_multi_connection: false,
            is_one_way: false,
            is_collective: false,
            polls: false,
            shows_round_trips: false,
            counts_transactions: false,
        }
    }

    /// A test of an operation of all ranks.
    const fn collective(about: &'static str) -> Self {
        Self { is_collective: true, ..Self::of(about) }
    }

    /// A test of a one-way rate.
    const fn one_way(about: &'static str) -> Self {
        Self { unit: Unit::BytesPerSecond, size_bytes: 64 << 10, is_one_way: true, ..Self::of(about) }
    }
}

/// The lanes between the two ends of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// One lane.
    One,
    /// One lane for a long transfer, and one of high priority for the test's own messages.
    BesideLong,
    /// One lane for the test's own messages, and one for its control messages.
    WithControl,
}

macro_rules! level_names {
    ($($(#[$doc:meta])* $variant:ident = $name:literal [$($transport:tt)*] $carrier:expr;)+) => {
        names! {
            /// A level that carries messages between two ends.
            Level, "level" { $($(#[$doc])* $variant = $name,)+ }
        }

        impl Level {
            /// Its properties.
            pub fn carrier(self) -> Carrier {
                match self { $(Self::$variant => $carrier,)+ }
            }
        }
    };
}

levels!(level_names);

impl Level {
    /// Checks that it has a test. `name` is the level of the request, whose messages this level carries.
    ///
    /// # Errors
    /// It has no such test. The line lists those that it has.
    pub fn check_test(self, name: &str, test: &str) -> Result<(), Misuse> {
        let tests: Vec<&str> = self.carrier().tests.iter().map(|test| test.name()).collect();
        match tests.contains(&test) {
            true => Ok(()),
            false => {
                Err(Misuse(format!("level {name} has no test `{test}`: choose one of {}", tests.join(", "))))
            }
        }
    }
}

macro_rules! test_names {
    ($($(#[$doc:meta])* $variant:ident = $name:literal [$($workload:tt)*] $kind:expr;)+) => {
        names! {
            /// A test of a level that carries messages.
            Test, "test" { $($(#[$doc])* $variant = $name,)+ }
        }

        impl Test {
            /// Its properties.
            pub fn kind(self) -> Kind {
                match self { $(Self::$variant => $kind,)+ }
            }
        }
    };
}

tests!(test_names);

impl Test {
    /// True if it has several connections at once.
    pub fn is_multi_connection(self) -> bool {
        self.kind().is_multi_connection
    }

    /// True if the source sends as fast as it can and the target only reads.
    pub fn is_one_way(self) -> bool {
        self.kind().is_one_way
    }
}

/// A level of the command line.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name on the command line and in cells.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Its tests.
    pub tests: Vec<HelpRow>,
    /// The links that it can choose from, if any.
    pub links: Vec<HelpRow>,
}

/// Every level, in the order of its help.
pub fn rows() -> Vec<Row> {
    let words = |tests: &[Test]| tests.iter().map(|test| (test.name(), test.kind().about)).collect();
    let memory = Row {
        name: MEMORY,
        about: "the machine itself: copies, cache lines, futexes, system calls",
        tests: memory::Test::rows(),
        links: Vec::new(),
    };
    let ethernet = Row {
        name: ethernet::LEVEL,
        about: "the kernel's TCP and UDP over Ethernet of the fabric, or over veth (requires root)",
        tests: words(POINT_TO_POINT),
        links: ethernet::Link::rows(),
    };
    let web = Row {
        name: web::LEVEL,
        about: "nginx and Apache as distributed, over persistent connections",
        tests: web::Test::rows(),
        links: web::Link::rows(),
    };
    let of_messages = |level: &Level| {
        let Carrier { about, tests, links, .. } = level.carrier();
        Row { name: level.name(), about, tests: words(tests), links: links() }
    };
    let mut rows: Vec<Row> = [memory].into_iter().chain(Level::ALL.iter().map(of_messages)).collect();
    // After the levels whose messages it carries.
    let carried = Level::ALL.iter().rposition(|level| level.carrier().is_ip).unwrap_or(0);
    rows.insert(carried + 2, ethernet);
    rows.push(web);
    rows
}

/// Their names.
pub fn names() -> Vec<&'static str> {
    rows().iter().map(|level| level.name).collect()
}

/// The level of that name.
///
/// # Errors
/// There is no such level. The line lists those that exist.
pub fn level(name: &str) -> Result<Row, Misuse> {
    let row = rows().into_iter().find(|level| level.name == name);
    row.ok_or_else(|| Misuse(unknown("level", name, &names())))
}

/// The level whose messages the ends exchange over Ethernet.
pub fn spoken(protocol: ethernet::Protocol) -> Level {
    match protocol {
        ethernet::Protocol::Tcp => Level::Tcp,
        ethernet::Protocol::Udp => Level::Udp,
    }
}

/// Every test of any level, each once.
pub fn all_tests() -> Vec<HelpRow> {
    let mut tests: Vec<HelpRow> = Vec::new();
    for test in rows().into_iter().flat_map(|level| level.tests) {
        if !tests.contains(&test) {
            tests.push(test);
        }
    }
    tests
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn every_test_is_between_two_ends_or_of_all_ranks() {
        for test in Test::ALL {
            assert_ne!(POINT_TO_POINT.contains(test), test.kind().is_collective, "{test}");
        }
    }
}
