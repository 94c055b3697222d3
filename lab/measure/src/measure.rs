//! One measurement: a request in the words of the command line becomes pairs, and the pairs one cell.

use std::time::Duration;

use anyhow::Result;
use bywire_command::exit_status::Misuse;
use bywire_command::provider;
use bywire_pairing::launch;
use bywire_results::cell::{Cacheline, Cell, Percentiles};
use bywire_results::parameter::Parameters;
use rand::seq::SliceRandom;
use serde_json::{Value, json};

use crate::aggregation::Aggregation;
use crate::breakdown::{self, Breakdown};
use crate::budget::Blocks;
pub use crate::budget::{PAIRS, parse_time, time};
use crate::ethernet::{self, Ethernet};
use crate::load::Load;
use crate::machine_probe::{self, Moment, now_unix_seconds};
use crate::mpi::{self, Choice, Tools};
use crate::options::MTU_BYTES;
pub use crate::options::Request;
use crate::placement::{Cores, Placement};
use crate::plan::{Job, Level, MemoryPlan, Plan, Test};
use crate::registry::{self, MEMORY};
use crate::resolution::{self, CONNECTIONS};
pub use crate::resolution::{anywhere, time_min_of};
use crate::segments::{self, Segments};
pub use crate::topology::Topology;
use crate::transport::msg;
use crate::workload::nhalf;
use crate::{environment, memory, multi_connection, pair, web};

/// The expected time for the processes of a pair to start and end, without idle peers.
const PAIR_START: Duration = Duration::from_millis(45);

/// The expected additional time for each idle peer, at both ends together.
const PEER_START: Duration = Duration::from_millis(4);

/// A cache line is timed over this many blocks of this length beside a cell.
const CACHELINE_BLOCKS: u32 = 3;
const CACHELINE_BLOCK_US: u64 = 500;

/// Measures one cell from beginning to end. `progress` gets the finished share of the whole. Fails with one line: the
/// request is invalid or not possible here, or what failed.
pub fn run(request: Request, progress: &mut dyn FnMut(f64)) -> Result<Cell> {
    let mut measurement = Measurement::prepare(request, &mut Topology::default())?;
    while !measurement.is_complete() {
        let taken = f64::from(measurement.pairs_taken());
        measurement.take_pair_telling(&mut |share| progress((taken + share) / f64::from(PAIRS)))?;
    }
    let mut cell = measurement.cell()?;
    let mut machine = environment::describe(&measurement.cores.known().collect::<Vec<_>>());
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
    /// The number of connections, if there are several at once.
    connections: Option<u32>,
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
    /// requests. Fails with one line: what is invalid or not possible here, and what to do.
    pub fn prepare(request: Request, topology: &mut Topology) -> Result<Self> {
        registry::level(&request.level)?;
        if request.level == web::LEVEL {
            return Self::of_web(&request, topology);
        }
        if request.level == MEMORY {
            return Self::of_memory(&request);
        }
        let ethernet = Ethernet::asked(&request).map_err(Misuse::of)?;
        let level = ethernet.as_ref().map_or(request.level.as_str(), |ethernet| ethernet.protocol.name());
        let level: Level = level.parse().map_err(Misuse::of)?;
        // First, because the level knows its tests.
        let mpi = Choice::asked(&request).map_err(Misuse::of)?;
        let test: Test = request.test.parse().map_err(Misuse::of)?;
        resolution::check_bounds(&request, level, test).map_err(Misuse::of)?;
        if let Some(choice) = mpi {
            Tools::of(choice.implementation)?;
            if choice.link == mpi::Link::Bywire {
                provider::directory()?;
            }
        }
        let of_ethernet = ethernet.as_ref().map(|ethernet| ethernet.frame_link);
        let frame_link = of_ethernet.or(mpi.and_then(|choice| choice.frame_link(request.mtu_bytes)));
        let apart = frame_link.is_some()
            || request.joins_nodes()
            || request.is_relayed()
            || (test.is_multi_connection() && request.nodes.is_some());
        let usually = if apart { "namespaces" } else { "processes" };
        let between = request.between.clone().unwrap_or_else(|| usually.to_owned());
        let network = topology.network(&request, level, test, &between, of_ethernet)?;
        let placement = match (&network, frame_link) {
            (Some(network), _) => multi_connection::nodes(network, test, 0),
            (None, Some(frame_link)) => topology.namespaces(frame_link)?,
            (None, None) => topology.open(&request, level, &between)?,
        };
        if level == Level::Sock {
            // Checked before anything is started.
            launch::find_library().map_err(|error| Misuse(error.to_string()))?;
        }
        let connections = test.is_multi_connection().then(|| request.connections.unwrap_or(CONNECTIONS));
        let cores = resolution::choose_cores(request.cores, &placement).map_err(Misuse::of)?;
        let plan = Plan { mpi, ..resolution::plan(&request, level, test, &placement).map_err(Misuse::of)? };
        let parameters = resolution::parameters(&request, &plan, &placement);
        let breakdown = (test == Test::Breakdown).then(|| Breakdown::new(&plan, &placement)).transpose()?;
        // The whole message of a breakdown is a ping-pong.
        let test = if test == Test::Breakdown { Test::Latency } else { test };
        let times_cacheline = level.carrier().times_cacheline && cores.apart() && !request.joins_nodes();
        Ok(Self {
            load: request.load.unwrap_or(0),
            parameters,
            ethernet,
            beside: times_cacheline.then_some(None),
            breakdown,
            connections,
            link: Some(resolution::link(&request, level, &placement).to_owned()),
            between,
            ..Self::of(Job::Messages(Plan { test, ..plan }), placement, cores)
        })
    }

    /// A measurement without anything beside its pairs.
    fn of(job: Job, placement: Placement, cores: Cores) -> Self {
        Self {
            aggregation: Aggregation::new(job.clone()),
            job,
            placement,
            connections: None,
            cores,
            parameters: Parameters::default(),
            link: None,
            between: String::new(),
            ethernet: None,
            beside: None,
            load: 0,
            attempts_repeated: 0,
            segments: None,
            breakdown: None,
            moments: Vec::new(),
        }
    }

    fn of_memory(request: &Request) -> Result<Self> {
        let test: memory::Test = request.test.parse().map_err(Misuse::of)?;
        let usual = memory::Spec::new(test);
        request.refuse_inapplicable()?;
        let spec = memory::Spec {
            size_bytes: request.size_bytes.unwrap_or(usual.size_bytes),
            lines: request.lines.unwrap_or(usual.lines),
            both_cores: request.both_cores,
            ..usual
        };
        spec.check().map_err(Misuse::of)?;
        // With both cores at once, two threads of one process measure. Only hand-offs are between two processes.
        let between = if spec.needs_target() && !test.is_rate() { "processes" } else { "" };
        let lines = (test == memory::Test::Cacheline).then_some(spec.lines);
        let plan = MemoryPlan::of(spec, &Blocks::within(time(request.time_seconds, 1)?));
        let cores = resolution::choose_cores(request.cores, &Placement::Processes).map_err(Misuse::of)?;
        Ok(Self {
            parameters: Request { lines, ..request.clone() }.parameters(),
            between: between.to_owned(),
            ..Self::of(Job::Memory(plan), Placement::Processes, cores)
        })
    }

    /// A web server is measured in pairs like everything else, but by a plan of its own.
    fn of_web(request: &Request, topology: &mut Topology) -> Result<Self> {
        let mut plan = web::Plan::of(request).map_err(Misuse::of)?;
        // Checked before anything is started.
        if let Some(path) = &request.trace_out {
            web::Trace::write(&plan, path).map_err(Misuse::of)?;
        }
        let frame_link = plan.link.frame_link().map(|link| {
            let mtu_bytes = request.mtu_bytes.unwrap_or(MTU_BYTES);
            let [coalesce, segmentation] =
                [request.coalesce, request.segmentation].map(|on| on.unwrap_or(true));
            ethernet::frame_link(link, mtu_bytes, coalesce, segmentation).map_err(Misuse::of)
        });
        let placement = match frame_link.transpose()? {
            Some(frame_link) => topology.namespaces(frame_link)?,
            None => Placement::Processes,
        };
        plan.bind = placement.target_address();
        plan.carriers = placement.carriers().to_vec();
        let cores = resolution::choose_cores(request.cores, &placement).map_err(Misuse::of)?;
        let between =
            if matches!(placement, Placement::Namespaces { .. }) { "namespaces" } else { "processes" };
        Ok(Self {
            parameters: resolution::web_parameters(request, &plan),
            link: Some(plan.link.name().to_owned()),
            between: between.to_owned(),
            ..Self::of(Job::Web(plan), placement, cores)
        })
    }

    /// Runs one more fresh pair (for N½ one for each length of the sweep). Fails with one line from the end that
    /// failed. The pairs taken before stay.
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
            self.segments = Some(self.segments.unwrap_or_default().and(after.since(before)));
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
        let (placement, cores) = (&self.placement, self.cores);
        let mut memcpy = None;
        let outcomes = match (&self.job, self.connections, &mut self.breakdown) {
            (Job::Messages(plan), Some(connections), _) => {
                let group = multi_connection::run(plan, placement, connections, cores)?;
                self.attempts_repeated += group.repeats;
                return self.aggregation.add_multi_connection(group);
            }
            (_, _, Some(breakdown)) => vec![breakdown.take(cores, progress)?],
            (Job::Messages(plan), ..) if plan.test == Test::Nhalf => {
                // In random order, so that drift of the machine is not taken for an effect of length.
                let mut sizes = nhalf::sizes(plan.level.carrier().longest_bytes);
                sizes.shuffle(&mut rand::rng());
                let mut sweep = Vec::new();
                for &size_bytes in &sizes {
                    progress(sweep.len() as f64 / sizes.len() as f64);
                    let job = Job::Messages(Plan { size_bytes, ..plan.clone() });
                    sweep.push(pair::run(&job, placement, cores)?);
                }
                // The message layer's N½ is relative to the rate of memcpy at that time.
                if plan.level == Level::Msg && !plan.request.joins_nodes() {
                    let (block_us, warmup, kept) = (plan.block_us, plan.warmup_blocks, plan.blocks);
                    let spec = memory::Spec::new(memory::Test::Memcpy);
                    let job = Job::Memory(MemoryPlan::of(spec, &Blocks { block_us, warmup, kept }));
                    memcpy = Some(pair::run(&job, &Placement::Processes, cores)?.source);
                }
                sweep
            }
            _ => vec![pair::run(&self.job, placement, cores)?],
        };
        self.aggregation.add(outcomes, memcpy)
    }

    /// Measures how fast a cache line crosses between the two cores now, in a few milliseconds. A virtual machine may
    /// change that by the second. Absent if it cannot be measured.
    fn cacheline_ns(&self) -> Option<f64> {
        let plan = MemoryPlan::short(memory::Test::Cacheline, CACHELINE_BLOCK_US, CACHELINE_BLOCKS);
        pair::run(&Job::Memory(plan), &Placement::Processes, self.cores).ok()?.source.median_reading()
    }

    /// Percentiles of the last pair's half-RTTs, where its test times round trips.
    pub fn percentiles_of_last_pair(&self) -> Option<Percentiles> {
        self.aggregation.percentiles_of_last_pair()
    }

    /// Returns whether the cell has all its pairs.
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
        let of_group = self.connections.map(multi_connection::start);
        let pairs_in_one = match (&self.job, &self.breakdown) {
            (_, Some(breakdown)) => breakdown.pairs(),
            (Job::Messages(plan), None) => resolution::streams(plan.test, plan.level.carrier().longest_bytes),
            _ => 1,
        };
        of_group.unwrap_or_default() + of_pair * pairs_in_one
    }

    /// The cell of the pairs taken so far. For placement in namespaces, its environment states whether they drop
    /// fragments of incomplete datagrams soon. Fails if no pair has been taken, or if its two ends contradict each
    /// other.
    pub fn cell(&self) -> Result<Cell> {
        let mut cell = self.aggregation.cell()?;
        if let Some(Ethernet { frame_link, .. }) = self.ethernet {
            cell.level = ethernet::LEVEL.to_owned();
            if frame_link.wire.is_some() {
                cell.details.insert("interface_mtu_bytes".to_owned(), frame_link.mtu_bytes.into());
            }
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
        if let Placement::Namespaces { network, .. } = &self.placement {
            cell.environment = json!({ "forgets_fragments": network.forgets_fragments() });
        }
        cell.moments.clone_from(&self.moments);
        Ok(cell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS_OF_MPI: &str = "choose one of latency, stream, bidir, rr, nhalf, alltoall, allreduce";

    fn check(request: Request, part: &str) {
        let described = format!("{request:?}");
        let Err(refusal) = Measurement::prepare(request, &mut Topology::default()) else {
            panic!("this should have been refused: {described}")
        };
        let refusal = format!("{refusal:#}");
        assert!(refusal.contains(part) && !refusal.contains('\n'), "{refusal}");
    }

    #[test]
    fn invalid_combinations_are_refused_in_one_line_with_valid_ones() {
        for (words, part) in [
            ("tpc latency", "choose one of memory, msg, unix, tcp, sock, udp, eth, mpi, web"),
            ("eth latency --link shm", "choose one of one-process, two-processes, udp, veth"),
            ("eth latency --link udp --security none", "choose one of encrypted, plain"),
            ("eth latency --link udp --mtu 1279", "--mtu 1279 is out of bounds: give 1280 to 65521"),
            (
                "eth latency --security plain",
                "--security does not apply to eth latency: leave it out, or use --link udp",
            ),
            ("eth latency --protocol ip", "choose one of tcp, udp"),
            ("eth latency --between threads", "leave out --between"),
            ("tcp latency --coalesce off", "--coalesce does not apply"),
            ("msg latency --link tcp", "unknown link `tcp`: level msg has shm, udp"),
            ("tcp lag", "choose one of latency, stream"),
            ("mpi overhead", &format!("level mpi has no test `overhead`: {TESTS_OF_MPI}")),
            ("eth alltoall", "level eth has no test `alltoall`: choose one of latency, stream"),
            ("mpi web-file", &format!("level mpi has no test `web-file`: {TESTS_OF_MPI}")),
            ("tcp hotspot --spin --connections 2", "2 ends that poll would take turns on one core"),
            ("tcp latency --size 0", "a --size of 1 to"),
            (
                "tcp streams --size 8M --connections 64",
                "64 connections with messages of 8MiB would keep too much memory: give a --size of up to 4194304 bytes",
            ),
            ("msg fanin --size 67108863 --connections 5", "fewer --connections"),
            ("tcp latency --integrity on", "--integrity does not apply"),
            ("tcp latency --load 0", "--load 0 is out of bounds: give 1 to 256"),
            ("sock latency --between threads", "joins programs"),
            (
                "sock latency --domain unx",
                "unknown domain `unx` (did you mean `unix`?): choose one of inet, unix",
            ),
            ("udp latency --epoll", "--epoll does not apply"),
            ("tcp latency --epoll --spin", "--spin does not apply"),
            ("tcp latency --mtu 9000", "--between namespaces"),
            ("tcp latency --cores 0,9999", "core 9999"),
            ("tcp latency --cores 0,0", "both ends would take turns on core 0"),
            ("tcp nhalf --time 0.08", "give 0.09 to 3600 seconds, so that 18 lengths in each of 5 pairs"),
            ("udp latency --size 65508", "1 to 65507"),
            ("unix latency --between namespaces", "processes of one machine"),
        ] {
            check(Request::of_words(words).unwrap(), part);
        }
        let tcp = || Request::new("tcp", "latency");
        let too_short = "give 0.005 to 3600 seconds, so that 5 pairs";
        check(Request { time_seconds: Some(0.004), ..tcp() }, too_short);
        check(Request { time_seconds: Some(f64::NAN), ..tcp() }, "--time");
        check(Request { between: Some("no such host".to_owned()), ..tcp() }, "cannot resolve");
    }
}
