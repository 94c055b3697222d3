//! The options of a measurement: one table, and the [`Request`] that they make. A new option is one entry here.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use bywire_command::exit_status::Misuse;
use bywire_command::option_row::OptionRow;
use bywire_results::message_link::Security;
use bywire_results::mpi::{self, Implementation};
use bywire_results::parameter::{Domain, Parameters};
use bywire_results::{ethernet, web};
use serde::{Deserialize, Serialize};

use crate::registry::{self, HelpRow, Level, MEMORY, Test};
use crate::{memory, size};

/// The values of `--between` with both ends on this machine.
pub const HERE: [&str; 3] = ["processes", "threads", "namespaces"];

/// The default MTU of a veth pair.
pub(crate) const MTU_BYTES: u32 = 1500;

/// Why a host's `bywire serve` admits a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Both have this key.
    Key(Vec<u8>),
    /// Both are on nodes of one fabric.
    Fabric,
}

type Opt = OptionRow<Request>;

bywire_command::options! {
    /// A request for a measurement, in the words of the command line, which are the same for every level.
    /// [`OPTIONS`] states what each option does and where it applies.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Request {
        /// One of [`crate::registry::rows`].
        pub level: String,
        /// A test of that level.
        pub test: String,
        /// The credential that a host's `bywire serve` asks for. No job and no cell contains it.
        #[serde(skip)]
        pub credential: Option<Credential>,
    }

    /// Every option of a measurement, in the order of its help.
    pub static OPTIONS;

    "How the messages are carried" {
        link: Option<String> = Opt::of("link", "LINK", "shm; of eth one-process, of web tcp",
                "What carries the messages, if the level has a choice")
            .words(links)
            .only(|request| request.is_level(&["msg", "sock", "eth", "mpi", "web"]))
            .not_a_parameter();
        security: Option<String> = Opt::of("security", "SECURITY", "encrypted",
                "Protection of packets between machines: encrypted or plain")
            .words(|| Security::ALL.iter().map(|security| security.name()).collect())
            .only(|request| request.crosses_a_fabric() || request.is_mpi_over_bywire());
        between: Option<String> = Opt::of("between", "WHERE",
                "processes; of eth and of link udp always namespaces",
                "Where the ends run: processes, threads, namespaces, or HOST[:PORT] with `bywire serve` (tcp, udp, link udp)")
            .only(|request| match request.level.as_str() {
                MEMORY => request.between.as_deref().is_none_or(|between| between == "processes"),
                level => level != web::LEVEL,
            })
            .not_a_parameter();
        mpi: Option<String> = Opt::of("mpi", "IMPLEMENTATION", "open-mpi",
                "MPI implementation: open-mpi or mpich")
            .words(|| Implementation::ALL.iter().map(|implementation| implementation.name()).collect())
            .only(|request| request.is_level(&["mpi"]));
        ranks: Option<u32> = Opt::of("ranks", "N", "2",
                "Ranks of the job, all on this machine, half of them on each core: 2 to 64")
            .only(|request| request.is_level(&["mpi"]) && request.is_collective());
        unmatched: Option<u32> = Opt::of("unmatched", "N", "0",
                "Receives of each rank that wait for messages of other tags meanwhile: 0 to 65536")
            .only(|request| request.is_level(&["mpi"]) && request.kind() == Some(Test::Latency));
        protocol: Option<String> = Opt::of("protocol", "PROTOCOL", "tcp",
                "Protocol over Ethernet: tcp or udp")
            .words(|| ethernet::Protocol::ALL.iter().map(|protocol| protocol.name()).collect())
            .only(|request| request.is_level(&["eth"]));
        coalesce: Option<bool> = Opt::switch("coalesce", "on",
                "Read all available frames at each wake-up of the carrying process, and merge those of a flow")
            .only(|request| match request.level.as_str() {
                ethernet::LEVEL => !request.is_link(&["veth"]),
                level => level == web::LEVEL && request.is_link(&["eth"]),
            });
        mtu_bytes: Option<u32> = Opt::of("mtu", "N", "1500",
                "MTU of the link between namespaces, in bytes; over link udp the interfaces of eth have 150 less")
            .only(|request| match request.level.as_str() {
                "mpi" | web::LEVEL => request.is_link(&["veth", "eth", "bywire"]),
                "msg" => request.is_link(&["udp"]),
                "sock" => request.is_relayed(),
                level => level == ethernet::LEVEL || level.parse::<Level>().is_ok_and(|level| level.carrier().is_ip),
            });
        segmentation: Option<bool> = Opt::switch("segmentation", "on",
                "Segmentation offload of the interfaces between namespaces")
            .only(|request| match request.level.as_str() {
                web::LEVEL => request.is_link(&["veth", "eth"]),
                _ => request.speaks(&["tcp"]) || request.joins_nodes(),
            });
        loss_percent: Option<f64> = Opt::of("loss", "PERCENT", "none",
                "Percentage of packets that the link between namespaces drops at random, at each end")
            .only(Request::may_cross_a_cable);
        rate_mbits: Option<u32> = Opt::of("rate", "MBITS", "none",
                "Rate limit of a switch between the namespaces, in Mb/s, with queues of 2 ms")
            .only(Request::may_cross_a_cable);
        nodes: Option<u32> = Opt::of("nodes", "N", "16 for msg over shm, else none",
                "Idle peers of each end (msg), up to 10000; with several connections, the number of namespaces around a \
                 switch (tcp, udp, eth), 2 to 64")
            .only(|request| match request.level.as_str() {
                MEMORY | web::LEVEL => false,
                level => (level == "msg") != request.is_multi_connection(),
            });
        connections: Option<u32> = Opt::of("connections", "N", "4; of web 16",
                "Connections at once: 1 to 64, with messages of at most 256MiB together; of web 1 to 256")
            .only(|request| request.is_level(&["web"]) || request.is_multi_connection());
    }
    "What is sent" {
        size_bytes: Option<u64> = Opt::of("size", "SIZE",
                "8; rr and hotspot 1; stream, bidir, streams, fanin and fanout 64KiB, over UDP 8KiB; memory 1MiB",
                "Length of a message, a buffer or a file, like 64, 8K or 1MiB: 1 to 64MiB (udp: to 65507; memory: to 1GiB)")
            .reads(length)
            .only(|request| match request.level.as_str() {
                MEMORY => request.ceiling().is_some_and(memory::Test::is_rate),
                web::LEVEL => request.test == web::Test::File.name(),
                _ => request.kind() != Some(Test::Nhalf),
            })
            .not_a_parameter();
        response_bytes: Option<u64> = Opt::of("response-size", "SIZE", "that of the request",
                "Length of a response")
            .reads(length)
            .only(|request| request.kind() == Some(Test::Rr));
        integrity: Option<bool> = Opt::switch("integrity", "off", "End-to-end check of every message")
            .only(Request::is_in_memory);
        lent: bool = Opt::flag("lent", true, "Send lent buffers rather than copies")
            .only(Request::is_in_memory);
        verify: bool = Opt::flag("verify", true, "Compare every byte of every payload")
            .only(|request| request.level != MEMORY && request.kind() != Some(Test::Breakdown));
        untouched: bool = Opt::flag("untouched", true,
                "Write and read only the first 8 bytes of each payload")
            .excludes("verify")
            .only(|request| {
                request.has_workers() && request.kind() != Some(Test::Breakdown) && !request.verify
            });
    }
    "Sockets" {
        domain: Option<String> = Opt::of("domain", "DOMAIN", "inet",
                "Sockets of the program under `bywire run`: inet, which is TCP, or unix")
            .words(|| Domain::ALL.iter().map(|domain| domain.name()).collect())
            .only(|request| request.is_level(&["sock"]));
        nagle: Option<bool> = Opt::switch("nagle", "off", "Nagle's algorithm")
            .only(Request::is_tcp);
        congestion: Option<String> = Opt::of("congestion", "NAME", "the system's",
                "TCP's congestion control, such as reno")
            .reads(congestion)
            .only(Request::is_tcp);
        socket_buffer_bytes: Option<u64> = Opt::of("socket-buffer", "SIZE", "the kernel's",
                "Requested size of both socket buffers at both ends, up to 64MiB")
            .reads(length)
            .only(|request| request.has_workers() && request.level != "msg");
        epoll: bool = Opt::flag("epoll", true,
                "Wait by epoll_wait before each receive, at both ends, as servers do")
            .only(|request| request.speaks(&["unix", "tcp", "sock"]));
    }
    "How the ends wait, and what else runs" {
        spin: Option<bool> = Opt::flag("spin", true,
                "Poll at both ends; with sock, let the library spin before it sleeps")
            .excludes("no-spin")
            .only(|request| {
                !request.is_level(&[MEMORY, web::LEVEL]) && (!request.epoll || request.is_level(&["sock"]))
            })
            .not_a_parameter(),
            Opt::flag("no-spin", false, "Sleep at both ends without spinning first")
                .only(|request| request.has_workers() && request.kind() != Some(Test::Interleave))
                .not_a_parameter();
        cores: Option<(u32, u32)> = Opt::of("cores", "A,B",
                "the first two allowed, of different physical cores if possible",
                "Two different cores: of the source, and of the target")
            .not_a_parameter();
        load: Option<u32> = Opt::of("load", "N", "none",
                "Busy threads beside the measurement, half of them on each end's core; best over 10 s or more")
            .only(|request| request.has_workers() && request.is_here());
        slowdown_percent: Option<u32> = Opt::of("slowdown", "PERCENT", "none",
                "Slow the source down by this percentage, to see whether a comparison finds it")
            .only(Request::has_workers)
            .unlisted();
    }
    "The machine's memory" {
        lines: Option<u32> = Opt::of("lines", "N", "256", "Lines walked in each direction, up to 1048576")
            .only(|request| request.ceiling() == Some(memory::Test::Cacheline));
        both_cores: bool = Opt::flag("both-cores", true, "Run on both cores at once")
            .only(|request| request.ceiling().is_some_and(memory::Test::is_rate));
    }
    "Web servers" {
        server: Option<String> = Opt::of("server", "SERVER", "nginx", "Web server: nginx or apache")
            .words(|| web::Server::ALL.iter().map(|server| server.name()).collect())
            .only(|request| request.is_level(&[web::LEVEL]));
        alpha: Option<f64> = Opt::of("alpha", "ALPHA", "0.9",
                "Popularity: the i-th document is requested in proportion to 1/i^ALPHA, 0 to 4")
            .only(Request::is_trace);
        rank: Option<String> = Opt::of("rank", "RANK", "small-first",
                "Which documents are popular: small-first, or independent of their size")
            .words(|| web::Rank::ALL.iter().map(|rank| rank.name()).collect())
            .only(Request::is_trace);
        documents: Option<u32> = Opt::of("documents", "N", "1000", "Number of documents, 9 to 100000")
            .only(Request::is_trace);
        seed: Option<u64> = Opt::of("seed", "N", "1", "Seed of the trace and of the request times")
            .only(|request| request.is_level(&[web::LEVEL]));
        trace_out: Option<PathBuf> = Opt::of("trace-out", "FILE", "nowhere",
                "Write the requested paths to this file, one per line")
            .only(|request| request.is_level(&[web::LEVEL]))
            .not_a_parameter();
    }
    "How long" {
        time_seconds: Option<f64> = Opt::of("time", "SECONDS", "1; nhalf 5, several connections 2.5, web 5",
                "Measuring time of the whole cell: all blocks of all five fresh pairs. Starting the pairs and a warm-up of \
                 at most a second in each come on top. At least 0.005 (nhalf 0.09, web 0.25)")
            .reads(seconds)
            .not_a_parameter();
    }
}

impl Request {
    /// A request with defaults.
    pub fn new(level: &str, test: &str) -> Self {
        Self { level: level.to_owned(), test: test.to_owned(), ..Self::default() }
    }

    /// The request that words of a command line make, such as `tcp stream --size 8K`. No word has a space. Fails if an
    /// option does not exist, or if its text is not valid.
    pub fn of_words(text: &str) -> Result<Self> {
        let mut request = Self::default();
        let mut words = text.split_ascii_whitespace();
        while let Some(word) = words.next() {
            if let Some(name) = word.strip_prefix("--") {
                let row = OPTIONS.iter().find(|row| row.name == name);
                let row = row.with_context(|| format!("there is no option --{name}"))?;
                let value = if row.takes_value() { words.next() } else { None };
                row.set(&mut request, value.unwrap_or_default())?;
            } else {
                let place = if request.level.is_empty() { &mut request.level } else { &mut request.test };
                ensure!(place.is_empty(), "{word} stands after a level and a test");
                word.clone_into(place);
            }
        }
        ensure!(!request.test.is_empty(), "a level and a test are needed");
        Ok(request)
    }

    /// Fails on the first option that does not apply here, with one line that names it.
    pub(crate) fn refuse_inapplicable(&self) -> Result<(), Misuse> {
        let row = OPTIONS.iter().find(|row| row.is_given(self) && !(row.applies)(self));
        let (name, elsewhere) = match (row, &self.credential) {
            (Some(row), _) => (row.name, self.where_it_applies(row)),
            (None, Some(credential)) if self.is_here() || !self.may_cross_a_cable() => {
                let name = if *credential == Credential::Fabric { "fabric" } else { "key" };
                (name, ", or add --between HOST".to_owned())
            }
            _ => return Ok(()),
        };
        let (level, test) = (&self.level, &self.test);
        Err(Misuse(format!("--{name} does not apply to {level} {test}: leave it out{elsewhere}")))
    }

    /// The places where an option applies: other links or tests of this request's level, or else other levels.
    fn where_it_applies(&self, row: &Opt) -> String {
        let levels = registry::rows().into_iter().filter(|level| applies_to(row, level)).collect::<Vec<_>>();
        let applying = |names: &[HelpRow], with: fn(&mut Request, String)| {
            let applies = |name: &&str| {
                let mut request = self.clone();
                with(&mut request, (*name).to_owned());
                (row.applies)(&request)
            };
            names.iter().map(|(name, _)| *name).filter(applies).collect::<Vec<_>>().join(" or ")
        };
        if let Some(own) = levels.iter().find(|level| level.name == self.level) {
            let links = applying(&own.links, |request, link| request.link = Some(link));
            let tests = applying(&own.tests, |request, test| request.test = test);
            return match (links.as_str(), tests.as_str()) {
                ("", "") => String::new(),
                ("", tests) => format!(", or measure {} {tests}", own.name),
                (links, _) => format!(", or use --link {links}"),
            };
        }
        match levels.iter().map(|level| level.name).collect::<Vec<_>>()[..] {
            [] => String::new(),
            [one] => format!(", or measure {one}"),
            [ref others @ .., last] => format!(", or measure {} or {last}", others.join(", ")),
        }
    }

    /// The chosen options that are parameters of cells.
    pub fn parameters(&self) -> Parameters {
        let rows = OPTIONS.iter().filter(|row| row.is_parameter);
        rows.filter_map(|row| Some((row.name.to_owned(), row.parameter(self)?))).collect()
    }

    /// The command line of this request.
    pub fn command(&self) -> String {
        let words = OPTIONS.iter().filter(|row| row.is_listed).filter_map(|row| row.argument(self));
        let start = format!("bywire measure {} {}", self.level, self.test);
        std::iter::once(start).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// The test, if it is a test of messages.
    fn kind(&self) -> Option<Test> {
        self.test.parse().ok().filter(|_| !self.is_level(&[MEMORY, web::LEVEL]))
    }

    /// The test, if it is a test of memory.
    fn ceiling(&self) -> Option<memory::Test> {
        self.test.parse().ok().filter(|_| self.is_level(&[MEMORY]))
    }

    fn is_multi_connection(&self) -> bool {
        self.kind().is_some_and(Test::is_multi_connection)
    }

    /// Returns whether all ranks of a job take part at once.
    pub(crate) fn is_collective(&self) -> bool {
        self.kind().is_some_and(|test| test.kind().is_collective)
    }

    fn is_trace(&self) -> bool {
        self.is_level(&[web::LEVEL]) && self.test == web::Test::Zipf.name()
    }

    fn is_level(&self, levels: &[&str]) -> bool {
        levels.contains(&self.level.as_str())
    }

    /// Returns whether messages are carried in shared memory.
    fn is_in_memory(&self) -> bool {
        self.is_level(&["msg"]) && !self.joins_nodes()
    }

    /// Returns whether messages cross between two nodes of a fabric.
    pub(crate) fn joins_nodes(&self) -> bool {
        (self.is_level(&["msg"]) && self.is_link(&["udp"]))
            || (self.is_mpi_over_bywire() && self.between.as_deref() == Some("namespaces"))
    }

    /// Returns whether the ranks of a job use Bywire's provider.
    pub(crate) fn is_mpi_over_bywire(&self) -> bool {
        self.is_level(&[Level::Mpi.name()]) && self.is_link(&[mpi::Link::Bywire.name()])
    }

    /// Returns whether messages or frames cross between nodes of a fabric.
    pub(crate) fn crosses_a_fabric(&self) -> bool {
        self.joins_nodes()
            || (self.is_level(&[ethernet::LEVEL]) && self.is_link(&[ethernet::Link::Udp.name()]))
    }

    /// Returns whether messages may cross a veth pair, which can be made worse than it is.
    fn may_cross_a_cable(&self) -> bool {
        self.is_level(&["tcp", "udp"]) || self.is_relayed() || self.joins_nodes()
    }

    /// Returns whether an engine relays what the source sends.
    pub(crate) fn is_relayed(&self) -> bool {
        self.is_level(&["sock"]) && self.is_link(&[registry::RELAY])
    }

    fn is_link(&self, links: &[&str]) -> bool {
        self.link.as_deref().is_some_and(|link| links.contains(&link))
    }

    /// Returns whether the ends exchange messages of one of these levels, directly or over level `eth`.
    fn speaks(&self, levels: &[&str]) -> bool {
        let spoken = match self.level.as_str() {
            ethernet::LEVEL => self.protocol.as_deref().unwrap_or("tcp"),
            level => level,
        };
        levels.contains(&spoken)
    }

    /// Returns whether the ends exchange messages by TCP, which may be carried in memory.
    fn is_tcp(&self) -> bool {
        self.speaks(&["tcp", "sock"]) && !self.is_unix()
    }

    /// Returns whether the program under `bywire run` has Unix sockets.
    pub fn is_unix(&self) -> bool {
        self.domain.as_deref() == Some(Domain::Unix.name())
    }

    /// Returns whether worker processes of the laboratory exchange messages.
    fn has_workers(&self) -> bool {
        !self.is_level(&[MEMORY, "mpi", web::LEVEL])
    }

    /// Returns whether both ends are on this machine.
    pub(crate) fn is_here(&self) -> bool {
        self.between.as_deref().is_none_or(|between| HERE.contains(&between))
    }
}

/// Returns whether an option applies to any request of a level.
pub fn applies_to(row: &Opt, level: &registry::Row) -> bool {
    let links = || level.links.iter().map(|(name, _)| Some((*name).to_owned())).chain([None]);
    let request = |test: &str, link| Request { link, ..Request::new(level.name, test) };
    level.tests.iter().any(|(test, _)| links().any(|link| (row.applies)(&request(test, link))))
}

fn links() -> Vec<&'static str> {
    let mpi = mpi::Link::ALL.iter().map(|link| link.name());
    ["one-process", "two-processes", "unix", "udp"].into_iter().chain(mpi).collect()
}

/// Parses a length. Each level has bounds of its own, which are checked later.
fn length(text: &str) -> Result<String> {
    let bounds = "1 to 64MiB (65507 over UDP, 1GiB of memory); K, KB and KiB are 1,024";
    size::parse(text).map(|bytes| bytes.to_string()).map_err(|error| anyhow!("{error}, {bounds}"))
}

fn seconds(text: &str) -> Result<String> {
    crate::budget::parse_time(text).map(|seconds| seconds.to_string())
}

/// The kernel's limit of the names of algorithms (`TCP_CA_NAME_MAX`).
const CONGESTION_BYTES_END: usize = 16;

fn congestion(text: &str) -> Result<String> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    ensure!(
        is_name && (1..CONGESTION_BYTES_END).contains(&text.len()),
        "unknown algorithm: give one that /proc/sys/net/ipv4/tcp_available_congestion_control lists, such as reno"
    );
    Ok(text.to_owned())
}
