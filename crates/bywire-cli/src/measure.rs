//! `bywire measure`: one cell.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use bywire_measure::ending::Misuse;
use bywire_measure::ethernet::Link;
use bywire_measure::level::memory;
use bywire_measure::measure::{self, Request};
use bywire_measure::mpi::{self, Implementation};
use bywire_measure::plan::Test;
use bywire_measure::web;
use bywire_measure::{interrupt, size};
use bywire_report::netperf::Netperf;
use clap::{ArgAction, Args, ValueEnum};

use crate::progress::Progress;
use crate::words::Words;
use crate::{key, table};

/// What to measure, and how.
#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub struct MeasureArgs {
    /// What is under test: memory, msg, unix, tcp, sock, udp, eth, mpi, web; see below
    #[arg(value_parser = Words::of(LEVELS.map(|(name, _)| name)), hide_possible_values = true)]
    level: String,
    /// What is measured of it; see below
    #[arg(value_parser = tests(), hide_possible_values = true)]
    test: String,
    /// How the messages are carried, where the level has a choice: shm (msg) [default: shm]; one-process, two-processes
    /// or veth (eth) [default: one-process]; shm, tcp, veth or eth (mpi) [default: shm]; tcp, unix, veth or eth (web)
    /// [default: tcp]
    #[arg(long, value_name = "LINK", value_parser = links(), hide_possible_values = true)]
    link: Option<String>,
    /// Where the ends run: processes, threads, namespaces, or HOST[:PORT] with `bywire serve` (tcp, udp) [default:
    /// processes; of eth always namespaces]
    #[arg(long, value_name = "WHERE")]
    between: Option<String>,
    /// Whose MPI: open-mpi or mpich (mpi) [default: open-mpi]
    #[arg(long, value_name = "IMPLEMENTATION", value_parser = implementations(), hide_possible_values = true)]
    mpi: Option<String>,
    /// What the ends speak over emulated Ethernet: tcp or udp (eth) [default: tcp]
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<String>,
    /// Take all frames there are at each wake of a process that carries them, and merge those of a flow, rather than one
    /// by one (eth) [default: on]
    #[arg(long, value_name = "SWITCH")]
    coalesce: Option<Switch>,
    /// Idle peers that stay connected to either end (msg), up to 10000 [default: 16]; with several connections the
    /// namespaces around a switch that they run in (tcp, udp, eth), 2 to 64
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Connections at once (streams, hotspot, fanin, fanout), 1 to 64 [default: 4], one message of each up to 256MiB
    /// together; of level web 1 to 256 [default: 16]
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Length of a message or a buffer, 1 to 64MiB (udp: to 65507; memory: to 1GiB), like 64, 8K or 1MiB; K, M and G are
    /// 1,024, 1,024² and 1,024³, and KB and KiB are the same, in capitals or not [default: 8; rr and hotspot 1; stream,
    /// bidir, streams, fanin and fanout 64KiB, over UDP 8KiB; memory 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = length, allow_negative_numbers = true)]
    size: Option<u64>,
    /// Length of a response (rr) [default: that of the request]
    #[arg(long, value_name = "SIZE", value_parser = length, allow_negative_numbers = true)]
    response_size: Option<u64>,
    /// MTU of the link between namespaces, in bytes [default: 1500]
    #[arg(long, value_name = "N")]
    mtu: Option<u32>,
    /// Leave it to the interfaces between namespaces to cut what is sent into segments (tcp, eth, web) [default: on]
    #[arg(long, value_name = "SWITCH")]
    segmentation: Option<Switch>,
    /// Who answers: nginx or apache (web) [default: nginx]
    #[arg(long, value_name = "SERVER", value_parser = Words::of(web::Server::ALL.iter().map(|server| server.name())), hide_possible_values = true)]
    server: Option<String>,
    /// Popularity: the i-th document is asked for as often as 1/i^ALPHA (web-zipf), 0 to 4; with 0 all alike [default: 0.9]
    #[arg(long, value_name = "ALPHA", allow_negative_numbers = true)]
    alpha: Option<f64>,
    /// Which documents are popular: small-first or independent of their size (web-zipf) [default: small-first]
    #[arg(long, value_name = "RANK", value_parser = Words::of(web::Rank::ALL.iter().map(|rank| rank.name())), hide_possible_values = true)]
    rank: Option<String>,
    /// How many documents there are (web-zipf), 9 to 100000 [default: 1000]
    #[arg(long, value_name = "N")]
    documents: Option<u32>,
    /// What the trace and the moments of requests are drawn from (web) [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the paths that are asked for to this file, one a line, for other programs to ask for (web)
    /// [default: nowhere]
    #[arg(long, value_name = "FILE")]
    trace_out: Option<PathBuf>,
    /// End-to-end check of every message (msg) [default: off]
    #[arg(long, value_name = "SWITCH")]
    integrity: Option<Switch>,
    /// Measuring time of the whole cell: all blocks of all five fresh pairs, and of all 18 lengths of nhalf, together.
    /// Starting the pairs and a warm-up of at most a second in each come on top. At least 0.005 (nhalf: 0.09) [default: 1;
    /// nhalf 5, several connections 2.5, level web 5 and no less than 0.25]
    #[arg(long, value_name = "SECONDS", value_parser = measure::parse_time, allow_negative_numbers = true)]
    time: Option<f64>,
    /// Cores of source and target, two different ones [default: two that this process may use, close to each other but
    /// not threads of one]
    #[arg(long, value_name = "A,B", value_parser = measure::parse_cores)]
    cores: Option<(u32, u32)>,
    /// Both ends poll; of sock, the library may spin before it sleeps [default: msg and sock spin a bounded time, then
    /// sleep; other sockets sleep; interleave polls]
    #[arg(long, conflicts_with = "no_spin")]
    spin: bool,
    /// Both ends sleep at once until they are woken
    #[arg(long)]
    no_spin: bool,
    /// Both ends wait by epoll_wait before each receive, as servers of many connections do (unix, tcp, sock, eth)
    #[arg(long)]
    epoll: bool,
    /// Nagle's algorithm (tcp, sock) [default: off]
    #[arg(long, value_name = "SWITCH")]
    nagle: Option<Switch>,
    /// The kernel's algorithm of congestion control, such as reno (tcp, sock, eth) [default: the system's]
    #[arg(long, value_name = "NAME", value_parser = measure::parse_congestion)]
    congestion: Option<String>,
    /// Compare every byte of every payload
    #[arg(long)]
    verify: bool,
    /// Write and read only the first 8 bytes of each payload, as programs do that measure the carrying alone [default:
    /// every byte is written and read]
    #[arg(long, conflicts_with = "verify")]
    untouched: bool,
    /// Send lent buffers rather than copies (msg)
    #[arg(long)]
    lent: bool,
    /// Socket buffers to ask for, up to 64MiB, in both directions at both ends (unix, tcp, sock, udp, eth) [default: the
    /// kernel's]
    #[arg(long, value_name = "SIZE", value_parser = length, allow_negative_numbers = true)]
    socket_buffer: Option<u64>,
    /// File with the key of the host's `bywire serve`, which tells in its help how to make one [default: no key]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Lines walked in each direction (memory cacheline), up to 1048576 [default: 256]
    #[arg(long, value_name = "N")]
    lines: Option<u32>,
    /// Busy threads beside both ends, half of them on the core of each: what a program gets where others want the cores.
    /// Measure for 10 seconds or longer then, as the scheduler's turns take milliseconds (not memory, mpi, web) [default:
    /// none]
    #[arg(long, value_name = "N")]
    load: Option<u32>,
    /// Both cores at once (rates of memory)
    #[arg(long, action = ArgAction::SetTrue)]
    both_cores: bool,
    /// Print one JSON object and nothing else
    #[arg(long, conflicts_with = "style")]
    json: bool,
    /// Print in another program's form: netperf (stream and rr of tcp, sock, udp, eth) [default: our own text]
    #[arg(long, value_name = "STYLE")]
    style: Option<Style>,
}

fn tests() -> Words {
    let ceilings = memory::Test::ALL.iter().map(|(name, _)| *name);
    let web = web::Test::ALL.iter().map(|test| test.name());
    Words::of(Test::ALL.iter().map(|test| test.name()).chain(web).chain(ceilings))
}

fn links() -> Words {
    let mpi = mpi::Link::ALL.iter().map(|link| link.name());
    Words::of(["one-process", "two-processes", "unix"].into_iter().chain(mpi))
}

fn implementations() -> Words {
    Words::of(Implementation::ALL.iter().map(|implementation| implementation.name()))
}

/// Every level, test and link in a line of its own.
fn after_help() -> String {
    let table = |rows: &[(&str, &str)]| -> String {
        rows.iter().map(|(name, about)| format!("  {name:<13} {about}\n")).collect()
    };
    let memory = memory::Test::ALL.map(|(name, test)| (name, test.about()));
    let tests: Vec<_> = Test::ALL.iter().map(|test| (test.name(), test.about())).collect();
    let links: Vec<_> = Link::ALL.iter().map(|link| (link.name(), link.about())).collect();
    let of_mpi: Vec<_> = mpi::Link::ALL.iter().map(|link| (link.name(), link.about())).collect();
    let implementations: Vec<_> = Implementation::ALL.iter().map(|mpi| (mpi.name(), mpi.about())).collect();
    let web_tests: Vec<_> = web::Test::ALL.iter().map(|test| (test.name(), test.about())).collect();
    let web_links: Vec<_> = web::Link::ALL.iter().map(|link| (link.name(), link.about())).collect();
    format!(
        "Levels:\n{}\nTests of every level but memory and web:\n{}\nTests of memory, the ceilings:\n{}\n\
         Tests of web:\n{}\nLinks of msg:\n{}\nLinks of eth:\n{}\nLinks of mpi:\n{}\nIts implementations:\n{}\nLinks of web:\n{}\n{EXAMPLES}",
        table(&LEVELS),
        table(&tests),
        table(&memory),
        table(&web_tests),
        table(&[("shm", "rings in sealed shared memory")]),
        table(&links),
        table(&of_mpi),
        table(&implementations),
        table(&web_links),
    )
}

/// What can be under test, with a line about each.
pub const LEVELS: [(&str, &str); 9] = [
    ("memory", "the machine itself: what no way of sending can beat"),
    ("msg", "the message layer"),
    ("unix", "the kernel's Unix-domain sockets"),
    ("tcp", "the kernel's TCP"),
    ("sock", "the same program and calls as tcp, its connections carried in memory as by `bywire run`"),
    ("udp", "the kernel's UDP"),
    (
        "eth",
        "the kernel's TCP, with what it sent again, or UDP over Ethernet of the fabric, or over plain veth (needs root)",
    ),
    ("mpi", "MPI implementations as they come, between two ranks that poll"),
    ("web", "nginx and Apache, asked over connections that stay open"),
];

const EXAMPLES: &str = "\
Examples:
  bywire measure tcp latency --size 1
  bywire measure unix stream --size 64KiB --json
  bywire measure udp rr --between namespaces --mtu 9000
  bywire measure tcp stream --between HOST --style netperf
  bywire measure eth stream --mtu 9000 --link two-processes
  bywire measure eth streams --connections 4 --link two-processes
  bywire measure sock rr --size 1 --epoll
  bywire measure sock rr --load 8 --time 10
  bywire measure tcp fanin --connections 12 --nodes 4
  bywire measure mpi latency --mpi mpich --link tcp --size 8
  bywire measure web web-file --size 1KiB --server nginx --connections 16
  bywire measure web web-zipf --alpha 0.9 --server apache --link eth --trace-out paths
  bywire measure memory memcpy --size 1MiB";

/// A length as the engine may take it; which bounds a level has says the engine.
fn length(text: &str) -> Result<u64> {
    size::parse(text).map_err(|error| {
        anyhow!("{error}, 1 to 64MiB (65507 over UDP, 1GiB of memory); K, KB and KiB are 1,024")
    })
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Style {
    /// Netperf 2.2's classic text with CPU at both ends
    Netperf,
}

impl MeasureArgs {
    /// Measures and prints.
    pub fn run(self) -> Result<()> {
        interrupt::arm()?;
        let request = self.request()?;
        if self.style.is_some() {
            Netperf::check(&request.level, &request.test).map_err(Misuse::of)?;
        }
        let bar = Progress::new();
        let measured = measure::run(request, &mut |share| bar.advance(share));
        bar.clear();
        let cell = match measured {
            Err(_) if interrupt::requested() => {
                eprintln!("bywire: interrupted before the cell was complete: nothing is printed");
                std::process::exit(interrupt::EXIT_CODE);
            }
            result => result?,
        };
        let text = if self.json {
            serde_json::to_string(&cell)? + "\n"
        } else if self.style.is_some() {
            Netperf::from_cell(&cell)?.to_string()
        } else {
            table::of_cell(&cell)
        };
        crate::output::print(&text)?;
        if self.style.is_some() && cell.cpu.carriers.is_some() {
            crate::output::print(
                "CPU of the processes that carry frames between both ends is not part of it: see --json\n",
            )?;
        }
        Ok(())
    }

    fn request(&self) -> Result<Request> {
        let on = |switch: Option<Switch>| switch.map(|switch| matches!(switch, Switch::On));
        let mut request = Request::new(&self.level, &self.test);
        request.link.clone_from(&self.link);
        request.between.clone_from(&self.between);
        request.protocol.clone_from(&self.protocol);
        request.mpi.clone_from(&self.mpi);
        request.coalesce = on(self.coalesce);
        request.nodes = self.nodes;
        request.connections = self.connections;
        request.segmentation = on(self.segmentation);
        request.web = web::Wish {
            server: self.server.clone(),
            alpha: self.alpha,
            rank: self.rank.clone(),
            seed: self.seed,
            documents: self.documents,
            trace_out: self.trace_out.clone(),
        };
        request.size_bytes = self.size;
        request.response_bytes = self.response_size;
        request.mtu_bytes = self.mtu;
        request.integrity = on(self.integrity);
        request.time_seconds = self.time;
        request.cores = self.cores;
        request.spin = (self.spin || self.no_spin).then_some(self.spin);
        request.epoll = self.epoll;
        request.nagle = on(self.nagle);
        request.congestion.clone_from(&self.congestion);
        request.verify = self.verify;
        request.untouched = self.untouched;
        request.lent = self.lent;
        request.socket_buffer_bytes = self.socket_buffer;
        request.key = self.key.as_deref().map(key::read).transpose()?;
        request.lines = self.lines;
        request.both_cores = self.both_cores;
        request.load = self.load;
        Ok(request)
    }
}
