//! One measurement: a request in the words of the command line becomes pairs, and the pairs one cell.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cell::{ADAPTIVE, Cacheline, Cell};
use crate::crowd::{self, Ground};
use crate::ending::Misuse;
use crate::ethernet::{self, Carriage, Link, Protocol};
use crate::gathering::{Gathering, Subject};
use crate::gauge::{Gauge, Moment, now_unix_seconds};
use crate::level::memory;
use crate::mpi::{Choice, Installation};
use crate::pair::{self, Cores, Place};
pub use crate::places::Places;
use crate::plan::{Job, Level, MemoryPlan, Outcome, Plan, SIZE_BYTES_MAX, Test};
use crate::statistics::median;
use crate::test::{nhalf, overhead};
use crate::{burden, environment, pin, size};

/// Fresh pairs behind every cell.
pub const PAIRS: u32 = 5;

/// Measuring time of a cell unless asked otherwise.
pub const TIME_SECONDS: f64 = 1.0;

/// The same of a cell of `nhalf`, which is shared by all the lengths of its sweep.
pub const SWEEP_TIME_SECONDS: f64 = 5.0;

/// The same of a cell with several connections, whose processes take turns on a core.
const CROWD_SECONDS: f64 = 2.5;

/// Connections of such a cell unless asked otherwise.
const CONNECTIONS: u32 = 4;

/// Where both ends are on this machine.
const HERE: [&str; 3] = ["processes", "threads", "namespaces"];

/// Blocks are this long, …
const BLOCK_US: u64 = 20_000;

/// … but this long where a cell takes [`MACHINE_SECONDS_MIN`]: there the machine's CPU is published, which the kernel
/// counts in ticks of 10 ms.
const MACHINE_BLOCK_US: u64 = 500_000;
const MACHINE_SECONDS_MIN: f64 = 10.0;

/// A block shorter than this says more about its beginning and its end than about what is between them.
const BLOCK_US_MIN: u64 = 1_000;

/// A cache line is timed over this many blocks of this length beside a cell.
const CACHELINE_BLOCKS: u32 = 3;
const CACHELINE_BLOCK_US: u64 = 500;

/// The longest `--time`.
const TIME_SECONDS_MAX: f64 = 3600.0;

/// The MTU of a veth pair unless asked otherwise.
pub(crate) const MTU_BYTES: u32 = 1500;

/// The message layer's links.
const MSG_LINKS: [&str; 1] = ["shm"];

/// Idle peers may not be more.
pub const NODES_MAX: u32 = 10_000;

/// What is asked for, in the words of the command line; the same words for every level.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// `memory`, `msg`, `unix`, `tcp`, `udp`, `mpi` or `eth`.
    pub level: String,
    /// A test of that level.
    pub test: String,
    /// How the level is to carry the messages, where it has a choice.
    pub link: Option<String>,
    /// Whose MPI (`mpi`); Open MPI's by default.
    pub mpi: Option<String>,
    /// `processes` (default), `threads`, `namespaces`, or a host with `bywire serve`.
    pub between: Option<String>,
    /// What the ends speak (`eth`): `tcp` (default) or `udp`.
    pub protocol: Option<String>,
    /// Take all frames there are at each wake of a carrying process (`eth`); on by default.
    pub coalesce: Option<bool>,
    /// Idle peers that stay connected (`msg`); of tests with several connections: nodes around a switch.
    pub nodes: Option<u32>,
    /// How many connections at once (`streams`, `hotspot`, `fanin`, `fanout`).
    pub connections: Option<u32>,
    /// Length of a message, or of a buffer.
    pub size_bytes: Option<u64>,
    /// Length of a response (`rr`); as long as the request by default.
    pub response_bytes: Option<u64>,
    /// MTU of the link.
    pub mtu_bytes: Option<u32>,
    /// End-to-end check (`msg`).
    pub integrity: Option<bool>,
    /// Measuring time of the whole cell.
    pub time_seconds: Option<f64>,
    /// Cores of source and target.
    pub cores: Option<(u32, u32)>,
    /// Poll rather than sleep, or the reverse.
    pub spin: Option<bool>,
    /// Nagle's algorithm (`tcp`); off by default.
    pub nagle: Option<bool>,
    /// Compare every byte of every payload.
    pub verify: bool,
    /// Send lent buffers rather than copies (`msg`).
    pub lent: bool,
    /// Socket buffers asked for in both directions at both ends.
    pub socket_buffer_bytes: Option<u64>,
    /// The key of a host's `bywire serve`.
    pub key: Option<Vec<u8>>,
    /// Lines walked (`memory cacheline`).
    pub lines: Option<u32>,
    /// Both cores at once (rates of `memory`).
    pub both_cores: bool,
    /// Slow the source down by so many percent, to see what a comparison finds.
    pub burden_percent: Option<u32>,
}

impl Request {
    /// A request with everything by default.
    pub fn new(level: &str, test: &str) -> Self {
        Self { level: level.to_owned(), test: test.to_owned(), ..Self::default() }
    }

    /// The same messages between two processes without anything between them that would have to be made first.
    ///
    /// # Errors
    /// What the levels `eth` and `mpi` have not.
    pub fn anywhere(&self) -> Result<Self> {
        let level = match Ethernet::asked(self)? {
            Some(ethernet) => ethernet.protocol.name().to_owned(),
            None => self.level.clone(),
        };
        let level = if Choice::asked(self)?.is_some() { Level::Tcp.name().to_owned() } else { level };
        let link = self.link.clone().filter(|_| self.level == level);
        let (between, mtu_bytes, key) = (None, None, None);
        let nodes = self.nodes.filter(|_| self.level == "msg");
        Ok(Self {
            level,
            link,
            between,
            mtu_bytes,
            key,
            nodes,
            protocol: None,
            coalesce: None,
            mpi: None,
            ..self.clone()
        })
    }

    /// Fails on the first of `given` that means nothing here.
    pub(crate) fn refuse(&self, given: &[(&str, bool)]) -> Result<(), Misuse> {
        match given.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((flag, _)) => {
                Err(Misuse(format!("--{flag} means nothing for {} {}: leave it out", self.level, self.test)))
            }
        }
    }
}

/// What is asked of the level `eth`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ethernet {
    protocol: Protocol,
    pub(crate) carriage: Carriage,
}

impl Ethernet {
    /// Nothing where `request` is for another level.
    fn asked(request: &Request) -> Result<Option<Self>> {
        if request.level != ethernet::LEVEL {
            return Ok(None);
        }
        let link: Link = request.link.as_deref().map_or(Ok(Link::OneProcess), str::parse)?;
        let protocol: Protocol = request.protocol.as_deref().map_or(Ok(Protocol::Tcp), str::parse)?;
        request.refuse(&[("coalesce", request.coalesce.is_some() && link == Link::Veth)])?;
        ensure!(
            request.between.as_deref().is_none_or(|between| between == "namespaces"),
            "level eth joins two namespaces that it makes: leave out --between"
        );
        let mtu_bytes = request.mtu_bytes.unwrap_or(MTU_BYTES);
        let (least, most) = (68, if link == Link::Veth { 65_535 } else { 65_521 });
        ensure!(
            (least..=most).contains(&mtu_bytes),
            Misuse(format!("an MTU of {mtu_bytes} is out of bounds: give --mtu {least} to {most} bytes"))
        );
        let carriage = Carriage { link, mtu_bytes, coalesce: request.coalesce.unwrap_or(true) };
        Ok(Some(Self { protocol, carriage }))
    }
}

/// Reads a measuring time in seconds.
///
/// # Errors
/// One line with the range of times that can be asked for.
pub fn parse_time(text: &str) -> Result<f64> {
    let seconds = text.trim().parse().ok().filter(|seconds| time(Some(*seconds), 1).is_ok());
    seconds.with_context(|| format!("give {} to {TIME_SECONDS_MAX} seconds, like 0.5", time_min(1)))
}

/// The measuring time in seconds that was asked for a cell of so many `streams` (one, but for a sweep), or the usual
/// one.
///
/// # Errors
/// A time that is none, too short for a block of each pair, or too long.
pub fn time(asked: Option<f64>, streams: u32) -> Result<f64, Misuse> {
    let usual = if streams > 1 { SWEEP_TIME_SECONDS } else { TIME_SECONDS };
    let seconds = asked.unwrap_or(usual);
    let shortest = time_min(streams);
    if seconds >= shortest && seconds <= TIME_SECONDS_MAX {
        return Ok(seconds);
    }
    let blocks = match streams {
        1 => format!("{PAIRS} pairs"),
        _ => format!("{streams} lengths in each of {PAIRS} pairs"),
    };
    Err(Misuse(format!(
        "--time {seconds} is out of bounds: give {shortest} to {TIME_SECONDS_MAX} seconds, so that {blocks} have a \
         block of {} ms",
        BLOCK_US_MIN / 1000
    )))
}

/// The shortest time of a cell of so many streams, in seconds.
fn time_min(streams: u32) -> f64 {
    f64::from(PAIRS * streams) * BLOCK_US_MIN as f64 * 1e-6
}

/// The shortest time that `request` can be given, in seconds.
pub fn time_min_of(request: &Request) -> f64 {
    let sweeps = request.test == Test::Nhalf.name();
    time_min(if sweeps { nhalf::sizes(u64::MAX).len() as u32 } else { 1 })
}

/// Measures one cell from beginning to end.
///
/// # Errors
/// One line: a request that makes no sense or cannot be met here, or what went wrong on the way. What is done is told
/// to `progress` as a share of the whole.
pub fn run(request: Request, progress: &mut dyn FnMut(f64)) -> Result<Cell> {
    let mut measurement = Measurement::prepare(request, &mut Places::default())?;
    while !measurement.is_complete() {
        let taken = f64::from(measurement.pairs_taken());
        measurement.take_pair_telling(&mut |share| progress((taken + share) / f64::from(PAIRS)))?;
    }
    let mut cell = measurement.cell()?;
    let mut machine = environment::describe(&measurement.cores_used());
    if let (Some(machine), Some(own)) = (machine.as_object_mut(), cell.environment.as_object_mut()) {
        machine.append(own);
    }
    cell.environment = machine;
    Ok(cell)
}

/// A request that has been found to make sense, and the pairs taken for it so far.
pub struct Measurement {
    job: Job,
    place: Place,
    /// Where each of several connections runs, and how many there are.
    crowd: Option<(Ground, u32)>,
    cores: Cores,
    parameters: BTreeMap<String, Value>,
    link: Option<String>,
    between: String,
    /// Of the level `eth`, whose messages are those of another level.
    ethernet: bool,
    /// Whether a cache line is timed beside it, and how fast it was.
    beside: Option<Option<Cacheline>>,
    gathering: Gathering,
    /// Of each pair taken so far.
    moments: Vec<Moment>,
}

impl Measurement {
    /// Checks `request` and opens what its pairs run in; `places` keeps that for the next ones.
    ///
    /// # Errors
    /// One line: what makes no sense or is not possible here, and what to do.
    pub fn prepare(request: Request, places: &mut Places) -> Result<Self> {
        if request.level == "memory" {
            return Self::of_memory(&request);
        }
        let ethernet = Ethernet::asked(&request).map_err(Misuse::of)?;
        let level: Level = match &ethernet {
            Some(ethernet) => ethernet.protocol.level(),
            None => request.level.parse().map_err(|_| unknown_level(&request.level))?,
        };
        let test: Test = request.test.parse().map_err(Misuse::of)?;
        refuse_what_means_nothing(&request, level, test).map_err(Misuse::of)?;
        let mpi = Choice::asked(&request).map_err(Misuse::of)?;
        if let Some(choice) = mpi {
            Installation::look(choice.implementation)?;
        }
        let carriage = mpi.and_then(|choice| choice.carriage(request.mtu_bytes));
        let apart = ethernet.is_some() || carriage.is_some() || (test.is_crowd() && request.nodes.is_some());
        let usually = if apart { "namespaces" } else { "processes" };
        let between = request.between.clone().unwrap_or_else(|| usually.to_owned());
        let star = places.star(&request, level, test, &between, ethernet.as_ref())?;
        let place = match (&star, &ethernet) {
            (Some(star), _) => Ground::Star(Arc::clone(star)).place(test, 0),
            (None, Some(ethernet)) => places.ethernet(&request, ethernet.carriage)?,
            (None, None) => match carriage {
                Some(carriage) => places.ethernet(&request, carriage)?,
                None => places.open(&request, level, &between)?,
            },
        };
        let ground = star.map_or_else(|| Ground::One(place.clone()), Ground::Star);
        let crowd = test.is_crowd().then(|| (ground, request.connections.unwrap_or(CONNECTIONS)));
        let cores = choose_cores(request.cores, &place).map_err(Misuse::of)?;
        let plan = Plan { mpi, ..plan(&request, level, test, &place).map_err(Misuse::of)? };
        let link = link(&request, level, &place);
        Ok(Self {
            parameters: parameters(&request, &plan, &place),
            ethernet: ethernet.is_some(),
            beside: (matches!(level, Level::Msg | Level::Unix | Level::Mpi) && cores.apart()).then_some(None),
            gathering: Gathering::new(match test {
                Test::Nhalf => Subject::Sweep(plan.clone()),
                _ => Subject::Messages(plan.clone()),
            }),
            job: Job::Messages(plan),
            place,
            crowd,
            cores,
            link,
            between,
            moments: Vec::new(),
        })
    }

    fn of_memory(request: &Request) -> Result<Self> {
        request.refuse(&[
            ("link", request.link.is_some()),
            ("between", request.between.as_deref().is_some_and(|between| between != "processes")),
            ("nodes", request.nodes.is_some()),
            ("response-size", request.response_bytes.is_some()),
            ("mtu", request.mtu_bytes.is_some()),
            ("integrity", request.integrity.is_some()),
            ("spin", request.spin.is_some()),
            ("nagle", request.nagle.is_some()),
            ("verify", request.verify),
            ("lent", request.lent),
            ("socket-buffer", request.socket_buffer_bytes.is_some()),
            ("burden", request.burden_percent.is_some()),
            ("mpi", request.mpi.is_some()),
            ("connections", request.connections.is_some()),
        ])?;
        let test: memory::Test = request.test.parse().map_err(Misuse::of)?;
        let mut spec = memory::Spec::new(test);
        request.refuse(&[
            ("size", request.size_bytes.is_some() && !test.is_rate()),
            ("both-cores", request.both_cores && !test.is_rate()),
            ("lines", request.lines.is_some() && test != memory::Test::Cacheline),
        ])?;
        spec.size_bytes = request.size_bytes.unwrap_or(spec.size_bytes);
        spec.lines = request.lines.unwrap_or(spec.lines);
        spec.both_cores = request.both_cores;
        spec.check().map_err(Misuse::of)?;
        // Two cores at once work side by side; only hand-offs go between two processes.
        let between = if spec.needs_target() && !test.is_rate() { "processes" } else { "" };
        let mut parameters = BTreeMap::new();
        if test == memory::Test::Cacheline {
            parameters.insert("lines".to_owned(), spec.lines.into());
        }
        if spec.both_cores {
            parameters.insert("both-cores".to_owned(), true.into());
        }
        let blocks = Blocks::within(time(request.time_seconds, 1)?);
        let plan = MemoryPlan {
            spec,
            block_us: blocks.block_us,
            warmup_blocks: blocks.warmup,
            blocks: blocks.kept,
            deadline_seconds: blocks.deadline_seconds(),
        };
        Ok(Self {
            gathering: Gathering::new(Subject::Memory(plan.spec.clone())),
            job: Job::Memory(plan),
            place: Place::Processes,
            crowd: None,
            cores: choose_cores(request.cores, &Place::Processes).map_err(Misuse::of)?,
            parameters,
            link: None,
            between: between.to_owned(),
            ethernet: false,
            moments: Vec::new(),
            beside: None,
        })
    }

    /// Runs one more fresh pair (for N½ one for each length of the sweep).
    ///
    /// # Errors
    /// One line from the end that failed; the pairs taken before stay.
    pub fn take_pair(&mut self) -> Result<()> {
        self.take_pair_telling(&mut |_| {})
    }

    fn take_pair_telling(&mut self, progress: &mut dyn FnMut(f64)) -> Result<()> {
        if self.pairs_taken() == 0 && self.beside.is_some() {
            self.beside = Some(self.cacheline_ns().map(|before_ns| Cacheline { before_ns, after_ns: None }));
        }
        let gauge = |cores: Cores| Gauge::read(cores.source, cores.target);
        let (pair, before) = (self.pairs_taken(), gauge(self.cores));
        let began_unix_seconds = now_unix_seconds();
        self.take_alone(progress)?;
        self.moments.push(Moment { pair, began_unix_seconds, before, after: gauge(self.cores) });
        // A session in rounds may take more; the second reading stands for all of them.
        if self.pairs_taken() == PAIRS
            && let Some(Some(before)) = self.beside
        {
            self.beside = Some(Some(Cacheline { after_ns: self.cacheline_ns(), ..before }));
        }
        progress(1.0);
        Ok(())
    }

    fn take_alone(&mut self, progress: &mut dyn FnMut(f64)) -> Result<()> {
        let Job::Messages(plan) = &self.job else {
            let outcomes = pair::run(&self.job, &self.place, self.cores)?;
            return self.gathering.add(vec![outcomes], None);
        };
        if let Some((ground, connections)) = &self.crowd {
            let outcomes = crowd::run(plan, ground, *connections, self.cores)?;
            return self.gathering.add(outcomes, None);
        }
        if plan.test != Test::Nhalf {
            let outcomes = pair::run(&self.job, &self.place, self.cores)?;
            return self.gathering.add(vec![outcomes], None);
        }
        let sizes = sweep_sizes(plan.level);
        let mut sweep = Vec::new();
        for &size_bytes in &sizes {
            progress(sweep.len() as f64 / sizes.len() as f64);
            let job = Job::Messages(Plan { size_bytes, ..plan.clone() });
            sweep.push(pair::run(&job, &self.place, self.cores)?);
        }
        let memcpy = match plan.level {
            Level::Msg => Some(self.memcpy(plan)?),
            _ => None,
        };
        self.gathering.add(sweep, memcpy)
    }

    /// How fast a cache line crosses between the two cores right now: the machine's own state, which a virtual one
    /// may change by the second. A few milliseconds; nothing where it cannot be had, which harms no measurement.
    fn cacheline_ns(&self) -> Option<f64> {
        let job = Job::Memory(MemoryPlan {
            spec: memory::Spec::new(memory::Test::Cacheline),
            block_us: CACHELINE_BLOCK_US,
            // The first block finds the lines in nobody's cache.
            warmup_blocks: 1,
            blocks: CACHELINE_BLOCKS,
            deadline_seconds: 5,
        });
        let outcome = pair::run(&job, &Place::Processes, self.cores).ok()?.source;
        let readings: Vec<f64> = outcome.blocks.iter().filter_map(|block| block.reading).collect();
        (!readings.is_empty()).then(|| median(&readings))
    }

    /// Memcpy now: the message layer's N½ is set against its rate.
    fn memcpy(&self, plan: &Plan) -> Result<Outcome> {
        let job = Job::Memory(MemoryPlan {
            spec: memory::Spec::new(memory::Test::Memcpy),
            block_us: plan.block_us,
            warmup_blocks: plan.warmup_blocks,
            blocks: plan.blocks,
            deadline_seconds: plan.deadline_seconds,
        });
        Ok(pair::run(&job, &Place::Processes, self.cores)?.source)
    }

    /// True once the cell has all its pairs.
    pub fn is_complete(&self) -> bool {
        self.pairs_taken() >= PAIRS
    }

    /// Pairs taken so far.
    pub fn pairs_taken(&self) -> u32 {
        self.gathering.pairs()
    }

    /// About how long one more pair takes.
    pub fn pair_duration(&self) -> Duration {
        let (block_us, blocks) = match &self.job {
            Job::Messages(plan) => {
                let sweep = match plan.test {
                    Test::Nhalf => sweep_sizes(plan.level).len() as u32,
                    _ => 1,
                };
                (plan.block_us, sweep * (plan.blocks + plan.warmup_blocks))
            }
            Job::Memory(plan) => (plan.block_us, plan.blocks + plan.warmup_blocks),
        };
        let start = self.crowd.as_ref().map_or(Duration::ZERO, |(_, connections)| crowd::start(*connections));
        start + Duration::from_micros(block_us * u64::from(blocks)) + Duration::from_millis(50)
    }

    /// The cell of the pairs taken so far; of its environment what is not the machine's, between namespaces whether they
    /// soon forget pieces of lost datagrams.
    ///
    /// # Errors
    /// No pair has been taken, or its two ends contradict each other.
    pub fn cell(&self) -> Result<Cell> {
        let mut cell = self.gathering.cell()?;
        if self.ethernet {
            cell.level = ethernet::LEVEL.to_owned();
        }
        cell.parameters.clone_from(&self.parameters);
        cell.parameters.insert("pairs".to_owned(), self.pairs_taken().into());
        cell.cacheline = self.beside.flatten();
        cell.link.clone_from(&self.link);
        cell.between.clone_from(&self.between);
        if let Place::Namespaces(namespaces) = &self.place {
            cell.environment = json!({ "forgets_fragments": namespaces.forgets_fragments() });
        }
        cell.moments.clone_from(&self.moments);
        Ok(cell)
    }

    /// The cores of this machine that it runs on.
    pub fn cores_used(&self) -> Vec<u32> {
        [self.cores.source, self.cores.target].into_iter().flatten().collect()
    }
}

/// The lengths of an N½ sweep, the longest first at one time and last at another would confound drift with length:
/// they come in random order.
fn sweep_sizes(level: Level) -> Vec<u64> {
    use rand::seq::SliceRandom;
    let mut sizes = nhalf::sizes(level.longest());
    sizes.shuffle(&mut rand::rng());
    sizes
}

fn unknown_level(name: &str) -> Misuse {
    let others = Level::ALL.iter().filter(|level| **level != Level::Mpi);
    let levels: Vec<&str> = others.map(|level| level.name()).collect();
    Misuse(format!(
        "unknown level `{name}`: choose one of memory, {}, {}, {}",
        levels.join(", "),
        ethernet::LEVEL,
        Level::Mpi
    ))
}

fn refuse_what_means_nothing(request: &Request, level: Level, test: Test) -> Result<()> {
    let socket = level != Level::Msg;
    request.refuse(&[
        ("lines", request.lines.is_some()),
        ("both-cores", request.both_cores),
        (
            "link",
            request.link.is_some()
                && ![Level::Msg, Level::Mpi].contains(&level)
                && request.level != ethernet::LEVEL,
        ),
        ("protocol", request.protocol.is_some() && request.level != ethernet::LEVEL),
        ("coalesce", request.coalesce.is_some() && request.level != ethernet::LEVEL),
        ("nodes", request.nodes.is_some() && if socket { !test.is_crowd() } else { test.is_crowd() }),
        ("connections", request.connections.is_some() && !test.is_crowd()),
        ("integrity", request.integrity.is_some() && socket),
        ("lent", request.lent && socket),
        ("socket-buffer", request.socket_buffer_bytes.is_some() && !socket),
        ("nagle", request.nagle.is_some() && level != Level::Tcp),
        ("response-size", request.response_bytes.is_some() && test != Test::Rr),
        ("size", request.size_bytes.is_some() && test == Test::Nhalf),
        ("no-spin", request.spin == Some(false) && test == Test::Interleave),
    ])?;
    if let Some(link) = request.link.as_deref().filter(|link| !socket && !MSG_LINKS.contains(link)) {
        bail!("unknown link `{link}`: level msg has {}", MSG_LINKS.join(", "));
    }
    ensure!(
        request.nodes.is_none_or(|nodes| nodes <= NODES_MAX),
        "--nodes is out of bounds: give up to {NODES_MAX}"
    );
    ensure!(
        request.connections.is_none_or(|connections| crowd::CONNECTIONS.contains(&connections)),
        "--connections is out of bounds: give {} to {}",
        crowd::CONNECTIONS.start(),
        crowd::CONNECTIONS.end()
    );
    let here = request.between.as_deref().is_none_or(|between| HERE.contains(&between));
    ensure!(
        here || !test.is_crowd(),
        "{test} takes place on one machine: give --between {}",
        HERE.join(" or ")
    );
    ensure!(
        request.socket_buffer_bytes.is_none_or(|bytes| bytes <= SIZE_BYTES_MAX),
        "--socket-buffer is out of bounds: give up to {}",
        size::show(SIZE_BYTES_MAX)
    );
    Ok(())
}

fn choose_cores(asked: Option<(u32, u32)>, place: &Place) -> Result<Cores> {
    let (source, target) = match asked {
        Some((source, target)) => {
            let allowed = pin::allowed_cores();
            for core in [source, target] {
                ensure!(
                    allowed.contains(&core),
                    "core {core} is not among those that this process may use: choose from {allowed:?}"
                );
            }
            ensure!(
                source != target,
                "both ends would take turns on core {source}: name two different ones of {allowed:?}, as in --cores 0,1"
            );
            (source, target)
        }
        None => pin::two_cores(),
    };
    Ok(Cores { source: Some(source), target: (!matches!(place, Place::Host(_))).then_some(target) })
}

fn plan(request: &Request, level: Level, test: Test, place: &Place) -> Result<Plan> {
    let longest = level.longest();
    let size_bytes = request.size_bytes.unwrap_or(match (test, level) {
        (Test::Stream | Test::Bidir | Test::Streams | Test::Fanin | Test::Fanout, Level::Udp) => 8192,
        (Test::Stream | Test::Bidir | Test::Streams | Test::Fanin | Test::Fanout, _) => 64 << 10,
        (Test::Rr | Test::Hotspot, _) => 1,
        _ => 8,
    });
    let response_bytes = match test {
        Test::Overhead => 1,
        _ if test.is_one_way() => 1,
        _ => request.response_bytes.unwrap_or(size_bytes),
    };
    for bytes in [size_bytes, response_bytes] {
        ensure!(
            (1..=longest).contains(&bytes),
            "a message of {bytes} bytes is out of bounds at level {level}: give a --size of 1 to {longest} bytes"
        );
    }
    ensure!(
        test != Test::Overhead || size_bytes <= overhead::BURST_BYTES_MAX,
        "overhead is measured up to {}: give a --size within that",
        size::show(overhead::BURST_BYTES_MAX)
    );
    let streams = if test == Test::Nhalf { nhalf::sizes(longest).len() as u32 } else { 1 };
    let blocks = match test.is_crowd() {
        true => Blocks::whole(time(Some(request.time_seconds.unwrap_or(CROWD_SECONDS)), 1)?),
        false => Blocks::within(time(request.time_seconds, streams)? / f64::from(streams)),
    };
    Ok(Plan {
        level,
        test,
        link: request.link.clone(),
        mpi: None,
        size_bytes,
        response_bytes,
        block_us: blocks.block_us,
        warmup_blocks: blocks.warmup,
        blocks: blocks.kept,
        // MPI polls.
        spin: request.spin.unwrap_or(test == Test::Interleave || level == Level::Mpi),
        sleep: request.spin == Some(false),
        verify: request.verify,
        nagle: request.nagle.unwrap_or(false),
        socket_buffer_bytes: request.socket_buffer_bytes,
        integrity: request.integrity,
        lent: request.lent,
        // Whoever shares a core with many others needs no idle peers besides.
        nodes: if test.is_crowd() { Some(0) } else { request.nodes },
        mtu_bytes: request.mtu_bytes,
        carriers: place.carriers().to_vec(),
        begin_ns: None,
        burden_percent: request.burden_percent.unwrap_or(0).min(burden::PERCENT_MAX),
        bind: place.target_address(),
        // Each pair gets one of its own.
        cookie: String::new(),
        deadline_seconds: blocks.deadline_seconds(),
    })
}

/// The blocks of one pair.
struct Blocks {
    block_us: u64,
    warmup: u32,
    kept: u32,
}

impl Blocks {
    /// The blocks of each of [`PAIRS`] pairs that take `seconds` together.
    fn within(seconds: f64) -> Self {
        let pair_us = (seconds * 1e6 / f64::from(PAIRS)).max(1.0) as u64;
        let longest_us = if seconds >= MACHINE_SECONDS_MIN { MACHINE_BLOCK_US } else { BLOCK_US };
        let block_us = longest_us.min(pair_us);
        let kept = (pair_us as f64 / block_us as f64).round().max(1.0) as u32;
        // A first block of a fresh mapping is slow for reasons of its own.
        let warmup = if block_us >= MACHINE_BLOCK_US { 1 } else { 2 };
        Self { block_us, warmup, kept }
    }

    /// One block of each of [`PAIRS`] crowds that take `seconds` together: the ends of many connections that share a
    /// core would wait for each other longer between blocks than a short block takes.
    fn whole(seconds: f64) -> Self {
        Self { block_us: (seconds * 1e6 / f64::from(PAIRS)).max(1000.0) as u64, warmup: 0, kept: 1 }
    }

    fn deadline_seconds(&self) -> u64 {
        let planned_us = self.block_us * u64::from(self.kept + self.warmup);
        30 + 2 * planned_us / 1_000_000
    }
}

fn link(request: &Request, level: Level, place: &Place) -> Option<String> {
    let link = match (level, place) {
        (Level::Msg, _) => request.link.as_deref().unwrap_or("shm"),
        (Level::Unix, _) => "unix",
        (Level::Mpi, _) => request.link.as_deref().unwrap_or("shm"),
        (_, Place::Processes | Place::Threads) => "loopback",
        (_, Place::Namespaces(namespaces)) => namespaces.link(),
        (_, Place::Nodes { star, .. }) => star.link(),
        (_, Place::Host(_)) => "network",
    };
    Some(link.to_owned())
}

/// What was chosen, in the words of the command line.
fn parameters(request: &Request, plan: &Plan, place: &Place) -> BTreeMap<String, Value> {
    let on_off = |on: bool| Value::from(if on { "on" } else { "off" });
    let mut parameters = BTreeMap::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            parameters.insert(name.to_owned(), value);
        }
    };
    let adaptive = plan.level == Level::Msg && !plan.spin && !plan.sleep;
    set("spin", Some(if adaptive { ADAPTIVE.into() } else { plan.spin.into() }));
    set("blocks", Some(plan.blocks.into()));
    set("block_us", Some(plan.block_us.into()));
    set("nagle", (plan.level == Level::Tcp).then(|| on_off(plan.nagle)));
    let mtu_bytes = request
        .mtu_bytes
        .or_else(|| matches!(place, Place::Namespaces(_) | Place::Nodes { .. }).then_some(MTU_BYTES));
    set("protocol", (request.level == ethernet::LEVEL).then(|| plan.level.name().into()));
    set("mpi", plan.mpi.map(|choice| choice.implementation.name().into()));
    set("coalesce", request.coalesce.map(on_off));
    set("mtu", mtu_bytes.map(Value::from));
    set("integrity", request.integrity.map(on_off));
    set("lent", request.lent.then(|| true.into()));
    set("verify", request.verify.then(|| true.into()));
    set("nodes", request.nodes.map(Value::from));
    set("connections", plan.test.is_crowd().then(|| request.connections.unwrap_or(CONNECTIONS).into()));
    set("socket-buffer", request.socket_buffer_bytes.map(Value::from));
    set("burden", request.burden_percent.map(Value::from));
    set("response-size", request.response_bytes.map(Value::from));
    parameters
}

/// Reads `A,B` as two cores.
///
/// # Errors
/// One line with the form that is understood.
pub fn parse_cores(text: &str) -> Result<(u32, u32)> {
    text.split_once(',')
        .and_then(|(source, target)| Some((source.trim().parse().ok()?, target.trim().parse().ok()?)))
        .with_context(|| format!("`{text}` is no pair of cores: write it like 0,1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Request)) -> String {
        let mut request = Request::new("tcp", "latency");
        change(&mut request);
        match Measurement::prepare(request, &mut Places::default()) {
            Ok(_) => panic!("this should have been refused"),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_one_line_that_says_what_exists() {
        let refusals = [
            (refusal(|r| r.level = "tpc".into()), "choose one of memory, msg, unix, tcp, udp, eth, mpi"),
            (
                refusal(|r| (r.level, r.link) = ("eth".into(), Some("shm".into()))),
                "choose one of one-process, two-processes, veth",
            ),
            (
                refusal(|r| (r.level, r.protocol) = ("eth".into(), Some("ip".into()))),
                "choose one of tcp, udp",
            ),
            (
                refusal(|r| (r.level, r.between) = ("eth".into(), Some("threads".into()))),
                "leave out --between",
            ),
            (refusal(|r| r.coalesce = Some(false)), "--coalesce means nothing"),
            (
                refusal(|r| (r.level, r.link) = ("msg".into(), Some("udp".into()))),
                "unknown link `udp`: level msg has shm",
            ),
            (refusal(|r| r.test = "lag".into()), "choose one of latency, stream"),
            (refusal(|r| r.size_bytes = Some(0)), "a --size of 1 to"),
            (refusal(|r| r.time_seconds = Some(f64::NAN)), "--time"),
            (refusal(|r| r.integrity = Some(true)), "--integrity means nothing"),
            (refusal(|r| r.mtu_bytes = Some(9000)), "--between namespaces"),
            (refusal(|r| r.cores = Some((0, 9999))), "core 9999"),
            (refusal(|r| r.cores = Some((0, 0))), "both ends would take turns on core 0"),
            (refusal(|r| r.time_seconds = Some(0.004)), "give 0.005 to 3600 seconds, so that 5 pairs"),
            (
                refusal(|r| (r.test, r.time_seconds) = ("nhalf".into(), Some(0.08))),
                "give 0.09 to 3600 seconds, so that 18 lengths in each of 5 pairs",
            ),
            (refusal(|r| (r.level, r.size_bytes) = ("udp".into(), Some(65_508))), "1 to 65507"),
            (
                refusal(|r| (r.level, r.between) = ("unix".into(), Some("namespaces".into()))),
                "processes of one machine",
            ),
            (refusal(|r| r.between = Some("no such host".into())), "cannot resolve"),
        ];
        for (refusal, part) in refusals {
            assert!(refusal.contains(part), "{refusal}");
            assert!(!refusal.contains('\n'), "{refusal}");
        }
    }

    #[test]
    fn blocks_fill_the_time_of_a_pair() {
        let shape = |seconds| {
            let blocks = Blocks::within(seconds);
            (blocks.block_us, blocks.kept)
        };
        assert_eq!(shape(1.0), (20_000, 10));
        assert_eq!(shape(60.0), (500_000, 24));
        assert_eq!(shape(0.01), (2_000, 1));
    }
}
