//! One measurement: a request in the words of the command line becomes pairs, and the pairs one cell.

mod web_measurement;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bywire_command::exit_status::Misuse;
use bywire_command::provider;
use bywire_pairing::launch;
use bywire_results::cell::{Cacheline, Cell, Percentiles};
use bywire_results::parameter::Parameters;
use serde_json::{Value, json};

use crate::aggregation::{Aggregation, Subject};
use crate::breakdown::{self, Breakdown};
use crate::budget::Blocks;
pub use crate::budget::{PAIRS, SWEEP_TIME_SECONDS, TIME_SECONDS, parse_time, time};
use crate::environment;
use crate::ethernet::{self, Ethernet};
use crate::load::Load;
use crate::machine_probe::{self, Moment, now_unix_seconds};
use crate::memory;
use crate::mpi::{self, Choice, Installation};
use crate::multi_connection::{self, Layout};
pub use crate::options::Request;
use crate::pair;
use crate::placement::{Cores, Placement};
use crate::plan::{Job, Level, MemoryPlan, Outcome, Plan, Test};
use crate::registry;
use crate::registry::MEMORY;
use crate::resolution::{self, CONNECTIONS};
pub use crate::resolution::{NODES_MAX, anywhere, time_min_of};
use crate::segments::{self, Segments};
pub use crate::topology::Topology;
use crate::transport::msg;
use crate::web;
use crate::workload::nhalf;

/// The expected time for the processes of a pair to start and end, without idle peers.
const PAIR_START: Duration = Duration::from_millis(45);

/// The expected additional time for each idle peer, at both ends together.
const PEER_START: Duration = Duration::from_millis(4);

/// A cache line is timed over this many blocks of this length beside a cell.
const CACHELINE_BLOCKS: u32 = 3;
const CACHELINE_BLOCK_US: u64 = 500;

/// Measures one cell from beginning to end.
///
/// # Errors
/// One line: the request is invalid or not possible here, or what failed. `progress` gets the finished share of the
/// whole.
pub fn run(request: Request, progress: &mut dyn FnMut(f64)) -> Result<Cell> {
    let mut measurement = Measurement::prepare(request, &mut Topology::default())?;
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

/// A checked request, and the pairs taken for it so far.
pub struct Measurement {
    job: Job,
    placement: Placement,
    /// Where several connections run, and their number.
    group: Option<(Layout, u32)>,
    cores: Cores,
    parameters: Parameters,
    link: Option<String>,
    between: String,
    /// The Ethernet part of a request for the level `eth`, which carries the messages of another level.
    ethernet: Option<Ethernet>,
    /// Whether a cache line is timed beside the cell, and its times.
    beside: Option<Option<Cacheline>>,
    /// Busy threads beside each pair.
    load: u32,
    aggregation: Aggregation,
    /// The number of repeated attempts, because connections did not run at one time.
    attempts_repeated: u32,
    /// The segments that TCP sent between namespaces, including warm-ups.
    segments: Option<Segments>,
    breakdown: Option<Breakdown>,
    /// The moment of each pair taken so far.
    moments: Vec<Moment>,
}

impl Measurement {
    /// Checks `request` and opens the namespaces or hosts that its pairs run in. `topology` keeps them for later
    /// requests.
    ///
    /// # Errors
    /// One line: what is invalid or not possible here, and what to do.
    pub fn prepare(request: Request, topology: &mut Topology) -> Result<Self> {
        registry::level(&request.level)?;
        if request.level == web::LEVEL {
            return Self::of_web(&request, topology);
        }
        if request.level == MEMORY {
            return Self::of_memory(&request);
        }
        let ethernet = Ethernet::asked(&request).map_err(Misuse::of)?;
        let level: Level = match &ethernet {
            Some(ethernet) => registry::spoken(ethernet.protocol),
            None => request.level.parse().map_err(Misuse::of)?,
        };
        // First, because the level knows its tests.
        let mpi = Choice::asked(&request).map_err(Misuse::of)?;
        let test: Test = request.test.parse().map_err(Misuse::of)?;
        resolution::check_bounds(&request, level, test).map_err(Misuse::of)?;
        if let Some(choice) = mpi {
            Installation::look(choice.implementation)?;
            if choice.link == mpi::Link::Bywire {
                provider::directory()?;
            }
        }
        let frame_link = mpi.and_then(|choice| choice.frame_link(request.mtu_bytes));
        let apart = ethernet.is_some()
            || frame_link.is_some()
            || request.joins_nodes()
            || (test.is_multi_connection() && request.nodes.is_some());
        let usually = if apart { "namespaces" } else { "processes" };
        let between = request.between.clone().unwrap_or_else(|| usually.to_owned());
        let network = topology.network(&request, level, test, &between, ethernet.as_ref())?;
        let placement = match (&network, &ethernet) {
            (Some(network), _) => Layout::Network(Arc::clone(network)).placement(test, 0),
            (None, Some(ethernet)) => topology.ethernet(ethernet.frame_link)?,
            (None, None) => match frame_link {
                Some(frame_link) => topology.ethernet(frame_link)?,
                None => topology.open(&request, level, &between)?,
            },
        };
        if level == Level::Sock {
            // Checked before anything is started.
            launch::find_library().map_err(|error| Misuse(error.to_string()))?;
        }
        let layout = network.map_or_else(|| Layout::One(placement.clone()), Layout::Network);
        let group = test.is_multi_connection().then(|| (layout, request.connections.unwrap_or(CONNECTIONS)));
        let cores = resolution::choose_cores(request.cores, &placement).map_err(Misuse::of)?;
        let plan = Plan { mpi, ..resolution::plan(&request, level, test, &placement).map_err(Misuse::of)? };
        let link = resolution::link(&request, level, &placement);
        let breakdown = (test == Test::Breakdown).then(|| Breakdown::new(&plan, &placement)).transpose()?;
        let subject = match test {
            Test::Nhalf => Subject::Sweep(plan.clone()),
            Test::Breakdown => Subject::Messages(Plan { test: Test::Latency, ..plan.clone() }),
            _ => Subject::Messages(plan.clone()),
        };
        Ok(Self {
            load: request.load.unwrap_or(0),
            parameters: resolution::parameters(&request, &plan, &placement),
            ethernet,
            beside: (level.carrier().times_cacheline && cores.apart() && !request.joins_nodes())
                .then_some(None),
            breakdown,
            group,
            link,
            between,
            ..Self::of(subject, Job::Messages(plan), placement, cores)
        })
    }

    /// A measurement without anything beside its pairs.
    fn of(subject: Subject, job: Job, placement: Placement, cores: Cores) -> Self {
        Self {
            job,
            placement,
            group: None,
            cores,
            parameters: Parameters::default(),
            link: None,
            between: String::new(),
            ethernet: None,
            beside: None,
            load: 0,
            aggregation: Aggregation::new(subject),
            attempts_repeated: 0,
            segments: None,
            breakdown: None,
            moments: Vec::new(),
        }
    }

    fn of_memory(request: &Request) -> Result<Self> {
        let test: memory::Test = request.test.parse().map_err(Misuse::of)?;
        let mut spec = memory::Spec::new(test);
        request.refuse_inapplicable()?;
        spec.size_bytes = request.size_bytes.unwrap_or(spec.size_bytes);
        spec.lines = request.lines.unwrap_or(spec.lines);
        spec.both_cores = request.both_cores;
        spec.check().map_err(Misuse::of)?;
        // With both cores at once, two threads of one process measure. Only hand-offs are between two processes.
        let between = if spec.needs_target() && !test.is_rate() { "processes" } else { "" };
        let lines = (test == memory::Test::Cacheline).then_some(spec.lines);
        let parameters = Request { lines, ..request.clone() }.parameters();
        let blocks = Blocks::within(time(request.time_seconds, 1)?);
        let plan = MemoryPlan {
            spec,
            block_us: blocks.block_us,
            warmup_blocks: blocks.warmup,
            blocks: blocks.kept,
            deadline_seconds: blocks.deadline_seconds(),
        };
        let cores = resolution::choose_cores(request.cores, &Placement::Processes).map_err(Misuse::of)?;
        let subject = Subject::Memory(plan.spec.clone());
        Ok(Self {
            parameters,
            between: between.to_owned(),
            ..Self::of(subject, Job::Memory(plan), Placement::Processes, cores)
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
        let probe = |cores: Cores| machine_probe::read(cores.source, cores.target);
        let (pair, before) = (self.pairs_taken(), probe(self.cores));
        let began_unix_seconds = now_unix_seconds();
        let load = Load::start(self.load, self.cores)?;
        let counted = self.count_segments()?;
        self.take_alone(progress)?;
        drop(load);
        if let Some((before, after)) = counted.zip(self.count_segments()?) {
            *self.segments.get_or_insert_default() += after - before;
        }
        self.moments.push(Moment { pair, began_unix_seconds, before, after: probe(self.cores) });
        // A session in rounds may take more pairs. The second reading counts for all of them.
        if self.pairs_taken() == PAIRS
            && let Some(Some(before)) = self.beside
        {
            self.beside = Some(Some(Cacheline { after_ns: self.cacheline_ns(), ..before }));
        }
        progress(1.0);
        Ok(())
    }

    /// The segments that TCP has sent in the namespaces so far, if TCP is measured.
    fn count_segments(&self) -> Result<Option<Segments>> {
        let namespaces = self.placement.namespaces();
        let is_tcp = matches!(&self.job, Job::Messages(plan) if plan.level == Level::Tcp);
        (is_tcp && !namespaces.is_empty()).then(|| Segments::of(namespaces)).transpose()
    }

    fn take_alone(&mut self, progress: &mut dyn FnMut(f64)) -> Result<()> {
        if let Job::Web(plan) = &mut self.job {
            plan.pair = self.aggregation.pairs();
        }
        let Job::Messages(plan) = &self.job else {
            let outcomes = pair::run(&self.job, &self.placement, self.cores)?;
            return self.aggregation.add(vec![outcomes], None);
        };
        if let Some((layout, connections)) = &self.group {
            let group = multi_connection::run(plan, layout, *connections, self.cores)?;
            self.attempts_repeated += group.repeats;
            return self.aggregation.add_multi_connection(group);
        }
        if let Some(breakdown) = &mut self.breakdown {
            let whole = breakdown.take(self.cores, progress)?;
            return self.aggregation.add(vec![whole], None);
        }
        if plan.test != Test::Nhalf {
            let outcomes = pair::run(&self.job, &self.placement, self.cores)?;
            return self.aggregation.add(vec![outcomes], None);
        }
        let sizes = sweep_sizes(plan.level);
        let mut sweep = Vec::new();
        for &size_bytes in &sizes {
            progress(sweep.len() as f64 / sizes.len() as f64);
            let job = Job::Messages(Plan { size_bytes, ..plan.clone() });
            sweep.push(pair::run(&job, &self.placement, self.cores)?);
        }
        let memcpy = match plan.level {
            Level::Msg if !plan.request.joins_nodes() => Some(self.memcpy(plan)?),
            _ => None,
        };
        self.aggregation.add(sweep, memcpy)
    }

    /// Measures how fast a cache line crosses between the two cores now, in a few milliseconds. A virtual machine may
    /// change that by the second. Absent if it cannot be measured.
    fn cacheline_ns(&self) -> Option<f64> {
        let plan = MemoryPlan::short(memory::Test::Cacheline, CACHELINE_BLOCK_US, CACHELINE_BLOCKS);
        pair::run(&Job::Memory(plan), &Placement::Processes, self.cores).ok()?.source.median_reading()
    }

    /// Measures memcpy now. The message layer's N½ is relative to its rate.
    fn memcpy(&self, plan: &Plan) -> Result<Outcome> {
        let job = Job::Memory(MemoryPlan {
            spec: memory::Spec::new(memory::Test::Memcpy),
            block_us: plan.block_us,
            warmup_blocks: plan.warmup_blocks,
            blocks: plan.blocks,
            deadline_seconds: plan.deadline_seconds,
        });
        Ok(pair::run(&job, &Placement::Processes, self.cores)?.source)
    }

    /// Percentiles of the last pair's half-RTTs, where its test times round trips.
    pub fn percentiles_of_last_pair(&self) -> Option<Percentiles> {
        self.aggregation.percentiles_of_last_pair()
    }

    /// True once the cell has all its pairs.
    pub fn is_complete(&self) -> bool {
        self.pairs_taken() >= PAIRS
    }

    /// Pairs taken so far.
    pub fn pairs_taken(&self) -> u32 {
        self.aggregation.pairs()
    }

    /// The expected time of one more pair.
    pub fn pair_duration(&self) -> Duration {
        let blocks = |block_us: u64, blocks: u32| Duration::from_micros(block_us * u64::from(blocks));
        let of_pair = match &self.job {
            Job::Messages(plan) => {
                let idle = if plan.level == Level::Msg { msg::idle_peers(plan) } else { 0 };
                let warmup = blocks(plan.warmup_block_us(), plan.warmup_blocks);
                PAIR_START + PEER_START * idle + warmup + blocks(plan.block_us, plan.blocks)
            }
            Job::Memory(plan) => PAIR_START + blocks(plan.block_us, plan.blocks + plan.warmup_blocks),
            Job::Web(plan) => PAIR_START + Duration::from_micros(plan.pair_us()),
        };
        let start = self
            .group
            .as_ref()
            .map_or(Duration::ZERO, |(_, connections)| multi_connection::start(*connections));
        start + of_pair * self.pairs_in_one()
    }

    /// The number of pairs of processes behind one pair of a cell.
    fn pairs_in_one(&self) -> u32 {
        match (&self.job, &self.breakdown) {
            (_, Some(breakdown)) => breakdown.pairs(),
            (Job::Messages(plan), None) if plan.test == Test::Nhalf => {
                nhalf::sizes(plan.level.carrier().longest_bytes).len() as u32
            }
            _ => 1,
        }
    }

    /// The cell of the pairs taken so far. For placement in namespaces, its environment states whether they drop
    /// fragments of incomplete datagrams soon.
    ///
    /// # Errors
    /// No pair has been taken, or its two ends contradict each other.
    pub fn cell(&self) -> Result<Cell> {
        let mut cell = self.aggregation.cell()?;
        if let Some(Ethernet { frame_link, .. }) = self.ethernet {
            cell.level = ethernet::LEVEL.to_owned();
            let interface_mtu_bytes =
                frame_link.wire.map(|_| ("interface_mtu_bytes".to_owned(), frame_link.mtu_bytes.into()));
            cell.details.extend(interface_mtu_bytes);
        }
        if let Some(breakdown) = &self.breakdown {
            cell.test = Test::Breakdown.name().to_owned();
            let account = serde_json::to_value(breakdown.account(self.cores)?)?;
            cell.details.insert(breakdown::NAME.to_owned(), account);
        }
        cell.parameters.clone_from(&self.parameters);
        cell.parameters.insert("pairs".to_owned(), self.pairs_taken().into());
        if self.attempts_repeated > 0 {
            cell.details.insert("attempts_repeated".to_owned(), self.attempts_repeated.into());
        }
        if let Some(segments) = self.segments {
            let counts = [segments.sent, segments.again].map(Value::from);
            cell.details.extend(segments::DETAILS.map(str::to_owned).into_iter().zip(counts));
        }
        cell.cacheline = self.beside.flatten();
        cell.link.clone_from(&self.link);
        cell.between.clone_from(&self.between);
        if let Placement::Namespaces(namespaces) = &self.placement {
            cell.environment = json!({ "forgets_fragments": namespaces.forgets_fragments() });
        }
        cell.moments.clone_from(&self.moments);
        Ok(cell)
    }

    /// The cores of this machine that it uses.
    pub fn cores_used(&self) -> Vec<u32> {
        [self.cores.source, self.cores.target].into_iter().flatten().collect()
    }
}

/// The lengths of an N½ sweep in random order, so that drift of the machine is not taken for an effect of length.
fn sweep_sizes(level: Level) -> Vec<u64> {
    use rand::seq::SliceRandom;
    let mut sizes = nhalf::sizes(level.carrier().longest_bytes);
    sizes.shuffle(&mut rand::rng());
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Request)) -> String {
        let mut request = Request::new("tcp", "latency");
        change(&mut request);
        match Measurement::prepare(request, &mut Topology::default()) {
            Ok(_) => panic!("this should have been refused"),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn invalid_combinations_are_refused_in_one_line_with_valid_ones() {
        let refusals = [
            (
                refusal(|r| r.level = "tpc".into()),
                "choose one of memory, msg, unix, tcp, sock, udp, eth, mpi, web",
            ),
            (
                refusal(|r| (r.level, r.link) = ("eth".into(), Some("shm".into()))),
                "choose one of one-process, two-processes, udp, veth",
            ),
            (
                refusal(|r| {
                    (r.level, r.link) = ("eth".into(), Some("udp".into()));
                    r.security = Some("none".into());
                }),
                "choose one of encrypted, plain",
            ),
            (
                refusal(|r| {
                    (r.level, r.link) = ("eth".into(), Some("udp".into()));
                    r.mtu_bytes = Some(1279);
                }),
                "give --mtu 1280 to 65521",
            ),
            (
                refusal(|r| (r.level, r.security) = ("eth".into(), Some("plain".into()))),
                "--security does not apply to eth latency: leave it out, or use --link udp",
            ),
            (
                refusal(|r| (r.level, r.protocol) = ("eth".into(), Some("ip".into()))),
                "choose one of tcp, udp",
            ),
            (
                refusal(|r| (r.level, r.between) = ("eth".into(), Some("threads".into()))),
                "leave out --between",
            ),
            (refusal(|r| r.coalesce = Some(false)), "--coalesce does not apply"),
            (
                refusal(|r| (r.level, r.link) = ("msg".into(), Some("tcp".into()))),
                "unknown link `tcp`: level msg has shm, udp",
            ),
            (refusal(|r| r.test = "lag".into()), "choose one of latency, stream"),
            (
                refusal(|r| (r.level, r.test) = ("mpi".into(), "overhead".into())),
                "level mpi has no test `overhead`: choose one of latency, stream, bidir, rr, nhalf, alltoall, allreduce",
            ),
            (
                refusal(|r| (r.level, r.test) = ("eth".into(), "alltoall".into())),
                "level eth has no test `alltoall`: choose one of latency, stream",
            ),
            (
                refusal(|r| (r.level, r.test) = ("mpi".into(), "web-file".into())),
                "level mpi has no test `web-file`: choose one of latency, stream, bidir, rr, nhalf, alltoall, allreduce",
            ),
            (
                refusal(|r| (r.test, r.spin, r.connections) = ("hotspot".into(), Some(true), Some(2))),
                "2 ends that poll would take turns on one core",
            ),
            (refusal(|r| r.size_bytes = Some(0)), "a --size of 1 to"),
            (
                refusal(|r| {
                    (r.test, r.size_bytes, r.connections) = ("streams".into(), Some(8 << 20), Some(64))
                }),
                "64 connections with messages of 8MiB would keep too much memory: give a --size of up to 4194304 bytes",
            ),
            (
                refusal(|r| {
                    (r.level, r.test) = ("msg".into(), "fanin".into());
                    (r.size_bytes, r.connections) = (Some((64 << 20) - 1), Some(5));
                }),
                "fewer --connections",
            ),
            (refusal(|r| r.time_seconds = Some(f64::NAN)), "--time"),
            (refusal(|r| r.integrity = Some(true)), "--integrity does not apply"),
            (refusal(|r| r.load = Some(0)), "--load is out of bounds: give 1 to 256"),
            (refusal(|r| (r.level, r.between) = ("sock".into(), Some("threads".into()))), "joins programs"),
            (refusal(|r| (r.level, r.epoll) = ("udp".into(), true)), "--epoll does not apply"),
            (refusal(|r| (r.epoll, r.spin) = (true, Some(true))), "--spin does not apply"),
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
}
