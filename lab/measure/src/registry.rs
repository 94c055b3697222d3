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

/// Calls the macro `$then` with `$what` and every level that carries messages: its name, its help, its transport in `transport/`
/// unless it has workers of its own, and its properties.
macro_rules! levels {
    ($then:ident $($what:tt)*) => {
        $then! {
            $($what)*
            Msg = "msg": "the message layer" [msg::Msg] Carrier {
                links: message_link::Link::rows,
                own_link: Some("shm"),
                is_adaptive: true,
                times_cacheline: true,
                ..Carrier::USUAL
            };
            Unix = "unix": "the kernel's Unix-domain sockets" [unix::Unix] Carrier {
                own_link: Some("unix"),
                times_cacheline: true,
                ..Carrier::USUAL
            };
            Tcp = "tcp": "the kernel's TCP" [tcp::Tcp] Carrier { is_ip: true, ..Carrier::USUAL };
            // Its calls are those of tcp or unix. It differs from them only in how a worker is started.
            Sock = "sock": "the program of tcp or unix under `bywire run`: its connections are carried in memory"
                [sock::Sock] Carrier {
                    links: sock_links,
                    own_link: Some("shm"),
                    is_adaptive: true,
                    ..Carrier::USUAL
                };
            Udp = "udp": "the kernel's UDP" [udp::Udp] Carrier {
                is_ip: true,
                is_lossy: true,
                longest_bytes: DATAGRAM_BYTES_MAX,
                ..Carrier::USUAL
            };
            // Its launcher starts the ranks.
            Mpi = "mpi": "MPI implementations as distributed, between ranks that poll" [] Carrier {
                has: |test| {
                    let with_two_ends = [Test::Latency, Test::Stream, Test::Bidir, Test::Rr, Test::Nhalf];
                    test.kind().is_collective || with_two_ends.contains(&test)
                },
                links: mpi::Link::rows,
                own_link: Some("shm"),
                polls: true,
                times_cacheline: true,
                ..Carrier::USUAL
            };
        }
    };
}

/// Calls the macro `$then` with `$what` and every test of messages: its name, its help, its workload in `workload/`, and its
/// properties.
macro_rules! tests {
    ($then:ident $($what:tt)*) => {
        $then! {
            $($what)*
            Latency = "latency": "ping-pong: half of a round trip's time, every one timed (median, p90 to p99.9)"
                [latency::Latency]
                Kind { shows_round_trips: true, counts_transactions: true, ..Kind::SHORT };
            Stream = "stream": "one-way rate: payload received per second, with what it costs in CPU per KB"
                [stream::Stream] Kind::ONE_WAY;
            Bidir = "bidir": "two-way rate: both ends send at once; the sum of what arrives at both"
                [bidir::Bidir] Kind { is_one_way: false, ..Kind::ONE_WAY };
            Rr = "rr": "transactions per second: a request and its response, one at a time; CPU for each"
                [latency::Rr] Kind {
                    unit: Unit::TransactionsPerSecond,
                    size_bytes: 1,
                    counts_transactions: true,
                    ..Kind::SHORT
                };
            Overhead = "overhead": "host CPU per message inside the calls that send and receive, without waiting"
                [overhead::Overhead] Kind { lanes: Lanes::WithControl, ..Kind::SHORT };
            Interleave = "interleave": "half-RTT of short messages while a long transfer runs beside them"
                [interleave::Interleave]
                Kind { lanes: Lanes::BesideLong, shows_round_trips: true, polls: true, ..Kind::SHORT };
            Nhalf = "nhalf": "N½: the length at half of the highest rate, by a sweep of streams over 18 lengths"
                [stream::Stream] Kind { unit: Unit::Bytes, size_bytes: 8, ..Kind::ONE_WAY };
            Breakdown = "breakdown":
                "where the half-RTT of a message goes: by differences between variants, and by samples of both cores"
                [latency::Latency] Kind::SHORT;
            Streams = "streams":
                "several connections at once: the sum of their rates while all of them run, and fairness"
                [stream::Stream] Kind { is_multi_connection: true, ..Kind::ONE_WAY };
            Hotspot = "hotspot": "several clients of one core's servers: the mean half-RTT that each of them sees"
                [latency::Latency] Kind {
                    size_bytes: 1,
                    is_multi_connection: true,
                    shows_round_trips: true,
                    counts_transactions: true,
                    ..Kind::SHORT
                };
            Fanin = "fanin": "several senders to one node: the sum of their rates"
                [stream::Stream] Kind { is_multi_connection: true, ..Kind::ONE_WAY };
            Fanout = "fanout": "one node's senders to several others: the sum of their rates"
                [stream::Stream] Kind { is_multi_connection: true, ..Kind::ONE_WAY };
            Alltoall = "alltoall": "time of one MPI_Alltoall: every rank sends every rank a message of its own"
                [collective::Collective] Kind { is_collective: true, ..Kind::SHORT };
            Allreduce = "allreduce": "time of one MPI_Allreduce: every rank gets the sums of what all of them have"
                [collective::Collective] Kind { is_collective: true, ..Kind::SHORT };
        }
    };
}

pub(crate) use {levels, tests};

/// The link of level `sock` on which an engine relays.
pub const RELAY: &str = "relay";

fn sock_links() -> Vec<HelpRow> {
    vec![
        ("shm", "memory that both programs share"),
        (
            RELAY,
            "what the source sends goes to the kernel by an engine, and to a plain TCP peer in another namespace",
        ),
    ]
}

/// The properties of a level that carries messages.
#[derive(Clone, Copy)]
pub struct Carrier {
    /// Whether it has a test.
    pub has: fn(Test) -> bool,
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
    const USUAL: Self = Self {
        has: |test| !test.kind().is_collective,
        links: Vec::new,
        own_link: None,
        longest_bytes: SIZE_BYTES_MAX,
        is_lossy: false,
        is_ip: false,
        is_adaptive: false,
        polls: false,
        times_cacheline: false,
    };
}

/// The properties of a test of messages.
#[derive(Clone, Copy)]
pub struct Kind {
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
    const SHORT: Self = Self {
        unit: Unit::Nanoseconds,
        size_bytes: 8,
        lanes: Lanes::One,
        is_multi_connection: false,
        is_one_way: false,
        is_collective: false,
        polls: false,
        shows_round_trips: false,
        counts_transactions: false,
    };

    /// A test of a one-way rate.
    const ONE_WAY: Self =
        Self { unit: Unit::BytesPerSecond, size_bytes: 64 << 10, is_one_way: true, ..Self::SHORT };
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

/// Makes an enumeration of the rows, and a function that returns the properties of each.
macro_rules! enumeration {
    (
        $doc:literal $type:ident $what:literal $function:ident $properties:ident
        $($variant:ident = $name:literal: $about:literal [$($code:tt)*] $value:expr;)+
    ) => {
        names! { #[doc = $doc] $type, $what { $($variant = $name: $about,)+ } }

        impl $type {
            /// Its properties.
            pub fn $function(self) -> $properties {
                match self { $(Self::$variant => $value,)+ }
            }
        }
    };
}

levels!(enumeration "A level that carries messages between two ends." Level "level" carrier Carrier);
tests!(enumeration "A test of a level that carries messages." Test "test" kind Kind);

impl Level {
    /// Its tests, with their help.
    fn tests(self) -> Vec<HelpRow> {
        let has = self.carrier().has;
        let rows = Test::rows().into_iter().zip(Test::ALL);
        rows.filter(|(_, test)| has(**test)).map(|(row, _)| row).collect()
    }

    /// Fails if it has no such test, with those that it has. `name` is the level of the request, whose messages this level
    /// carries.
    pub(crate) fn check_test(self, name: &str, test: &str) -> Result<(), Misuse> {
        let tests: Vec<&str> = self.tests().iter().map(|(test, _)| *test).collect();
        if tests.contains(&test) {
            return Ok(());
        }
        Err(Misuse(format!("level {name} has no test `{test}`: choose one of {}", tests.join(", "))))
    }
}

impl Test {
    /// Returns whether it has several connections at once.
    pub fn is_multi_connection(self) -> bool {
        self.kind().is_multi_connection
    }

    /// Returns whether the source sends as fast as it can and the target only reads.
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
    let row = |(name, about), tests, links| Row { name, about, tests, links };
    let memory = (MEMORY, "the machine itself: copies, cache lines, futexes, system calls");
    let mut rows = vec![row(memory, memory::Test::rows(), Vec::new())];
    for (help, level) in Level::rows().into_iter().zip(Level::ALL) {
        // Ethernet comes after the levels whose messages it carries.
        if *level == Level::Mpi {
            let about = "the kernel's TCP and UDP over Ethernet of the fabric, or over veth (requires root)";
            rows.push(row((ethernet::LEVEL, about), Level::Tcp.tests(), ethernet::Link::rows()));
        }
        rows.push(row(help, level.tests(), (level.carrier().links)()));
    }
    let about = "nginx and Apache as distributed, over persistent connections";
    rows.push(row((web::LEVEL, about), web::Test::rows(), web::Link::rows()));
    rows
}

/// Their names.
pub fn names() -> Vec<&'static str> {
    rows().iter().map(|level| level.name).collect()
}

/// The level of that name. Fails if there is none, with those that exist.
pub fn level(name: &str) -> Result<Row, Misuse> {
    let row = rows().into_iter().find(|level| level.name == name);
    row.ok_or_else(|| Misuse(unknown("level", name, &names())))
}

/// Every test of any level, each once.
pub fn all_tests() -> Vec<HelpRow> {
    [memory::Test::rows(), Test::rows(), web::Test::rows()].concat()
}
