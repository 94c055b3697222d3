//! Contestants: the laboratory's own requests, and adapters of everything else. Each takes one fresh pair at a time, and yields
//! cells.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bywire_analysis::statistics::{bootstrap_median_over_pairs, median, median_over_pairs};
use bywire_measure::bench::{Entry, Prepare, Sampler};
use bywire_measure::machine_probe::{self, now_unix_seconds};
use bywire_measure::measure::{Measurement, PAIRS, Request, Topology};
use bywire_measure::pin;
use bywire_results::cell::{Block, CELL_SCHEMA, Cell, CpuBothEnds, Unit};
use bywire_results::details::COMMAND;
use bywire_results::level::FIGURE;
use bywire_results::moment::Moment;
use bywire_results::parameter::Parameters;
use serde_json::json;

use crate::figures::{CONTESTANT, METRIC, METRICS, ROUNDS};
use crate::series::{Metric, by};

/// A contestant that failed this often is left out of further rounds.
const FAILURES_MAX: u32 = 3;

/// Messages of up to this are counted as well as their bytes.
pub const SHORT_BYTES: u64 = 64;

/// The expected time of a pair of an adapter.
const PAIR: Duration = Duration::from_secs(2);

/// A fixed seed, so that the interval of a stored cell can be reproduced.
const BOOTSTRAP_SEED: u64 = 0x6279_7769_7265;

/// Figures of one pair.
pub type Samples = Vec<(Metric, f64)>;

/// Something that can be measured by one fresh pair of processes at a time.
pub enum Contestant {
    /// A request to the laboratory.
    Laboratory(Box<Laboratory>),
    /// A rival, a bare loop, or anything else that no level measures.
    Adapter(Adapter),
}

/// A request, and how its pairs become figures.
pub struct Laboratory {
    request: Request,
    manner: Manner,
}

/// How the pairs of a request are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// One after the other, in namespaces that contestants share.
    Kept,
    /// Each time so many in namespaces of their own, as one.
    Fresh(u32),
    /// Each in namespaces of its own; the mean of what follows the first of its blocks.
    Settled,
}

/// A command for readers, and what takes a pair.
pub struct Adapter {
    command: String,
    unit: Unit,
    take: Box<dyn FnMut() -> Result<Samples>>,
}

impl Contestant {
    /// `request` with `pair_seconds` for each pair. A latency also yields [`Metric::Mean`] and [`Metric::P999`], a stream of short
    /// messages [`Metric::Messages`].
    pub fn laboratory(request: Request, pair_seconds: f64) -> Self {
        Self::requested(request, pair_seconds, Manner::Kept)
    }

    /// `request` over a fresh carrier each time. Transactions also yield [`Metric::HalfRtt`], a stream [`Metric::Demand`].
    pub fn fresh(request: Request, pair_seconds: f64) -> Self {
        Self::requested(request, pair_seconds, Manner::Fresh(1))
    }

    /// `request` as `bywire measure` takes it: over all of its fresh pairs.
    pub fn whole(request: Request, pair_seconds: f64) -> Self {
        Self::requested(request, pair_seconds, Manner::Fresh(PAIRS))
    }

    /// A stream after the first second of its connection, as the mean of what follows: what iperf3 tells with `-O 1`.
    pub fn settled(request: Request) -> Self {
        Self::requested(request, SETTLED_PAIR_SECONDS, Manner::Settled)
    }

    fn requested(request: Request, pair_seconds: f64, manner: Manner) -> Self {
        let request = Request { time_seconds: Some(pair_seconds * f64::from(PAIRS)), ..request };
        Self::Laboratory(Box::new(Laboratory { request, manner }))
    }

    /// Anything else: `take` takes a pair. `unit` is that of [`Metric::Value`].
    pub fn adapter(
        command: impl Into<String>,
        unit: Unit,
        take: impl FnMut() -> Result<Samples> + 'static,
    ) -> Self {
        Self::Adapter(Adapter { command: command.into(), unit, take: Box::new(take) })
    }

    /// An adapter with a single figure.
    pub fn of_value(
        command: impl Into<String>,
        unit: Unit,
        mut take: impl FnMut() -> Result<f64> + 'static,
    ) -> Self {
        Self::adapter(command, unit, move || Ok(vec![(Metric::Value, take()?)]))
    }

    /// The command that measures it alone.
    pub fn command(&self) -> String {
        match self {
            Self::Laboratory(laboratory) => laboratory.request.command(),
            Self::Adapter(adapter) => adapter.command.clone(),
        }
    }
}

/// Everything that is measured in one run.
#[derive(Default)]
pub struct Contest(Vec<(String, Result<Contestant>)>);

impl Contest {
    /// Adds a contestant, or the reason why it is missing.
    pub fn add(&mut self, name: impl Into<String>, contestant: Result<Contestant>) {
        self.0.push((name.into(), contestant));
    }

    /// Leaves out every contestant whose name is not kept.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|(name, _)| is_kept(name));
    }

    /// The contestants by name.
    pub fn entrants(&self) -> impl Iterator<Item = (&str, &Result<Contestant>)> {
        self.0.iter().map(|(name, contestant)| (name.as_str(), contestant))
    }

    /// The entries of a session.
    pub fn entries(self) -> Vec<Entry> {
        self.0.into_iter().map(|(name, contestant)| entry(name, contestant)).collect()
    }
}

/// The entry of a session. An absence names the contestant.
fn entry(name: String, contestant: Result<Contestant>) -> Entry {
    let pairs = |manner| if let Manner::Fresh(pairs) = manner { pairs } else { 1 };
    let expected = match &contestant {
        Ok(Contestant::Laboratory(laboratory)) => {
            Entry::from(laboratory.request.clone()).expected * pairs(laboratory.manner)
        }
        Ok(Contestant::Adapter(_)) => PAIR,
        Err(_) => Duration::ZERO,
    };
    let contestant_name = name.clone();
    let prepare: Prepare = Box::new(move |places| sampler(contestant_name, contestant?, places));
    Entry { level: name.clone(), test: None, shape: name, expected, failures_max: FAILURES_MAX, prepare }
}

fn sampler(name: String, contestant: Contestant, places: &mut Topology) -> Result<Box<dyn Sampler>> {
    let taken = Taken { name, command: contestant.command(), ..Taken::default() };
    Ok(match contestant {
        Contestant::Laboratory(laboratory) => match *laboratory {
            Laboratory { request, manner: Manner::Kept } => {
                Box::new(Kept { measurement: Measurement::prepare(request, places)?, taken })
            }
            Laboratory { request, manner } => Box::new(Fresh { request, manner, merged: None, taken }),
        },
        Contestant::Adapter(adapter) => {
            Box::new(Adapted { adapter, taken, blocks: BTreeMap::new(), moments: Vec::new() })
        }
    })
}

/// The figures of each pair besides the value, and the round that it was taken in.
#[derive(Default)]
struct Taken {
    name: String,
    command: String,
    rounds: Vec<u32>,
    metrics: BTreeMap<Metric, Vec<Option<f64>>>,
}

impl Taken {
    /// Begins a pair that was taken in `round`.
    fn begin(&mut self, round: u32) {
        self.rounds.push(round);
    }

    /// Adds figures of this pair.
    fn add(&mut self, samples: Samples) {
        let pair = self.rounds.len().saturating_sub(1);
        for (metric, value) in samples {
            let values = self.metrics.entry(metric).or_default();
            values.resize(pair, None);
            values.push(Some(value));
        }
    }

    /// `cell` with what figures read of it.
    fn told(&self, mut cell: Cell) -> Cell {
        cell.details.insert(CONTESTANT.to_owned(), self.name.as_str().into());
        cell.details.insert(COMMAND.to_owned(), self.command.as_str().into());
        cell.details.insert(ROUNDS.to_owned(), json!(self.rounds));
        if !self.metrics.is_empty() {
            let metrics = self.metrics.iter().map(|(metric, values)| (metric.to_string(), json!(values)));
            cell.details.insert(METRICS.to_owned(), metrics.collect());
        }
        cell
    }
}

struct Kept {
    measurement: Measurement,
    taken: Taken,
}

impl Sampler for Kept {
    fn take_pair(&mut self, attempt: u32) -> Result<()> {
        let pair = self.measurement.pairs_taken();
        self.measurement.take_pair()?;
        self.taken.begin(attempt);
        let cell = self.measurement.cell()?;
        let blocks: Vec<&Block> = cell.blocks.iter().filter(|block| block.pair == pair).collect();
        ensure!(!blocks.is_empty(), "this pair has no value");
        let middle =
            |of: &dyn Fn(&Block) -> f64| median(&blocks.iter().map(|block| of(block)).collect::<Vec<_>>());
        let mut samples = Samples::new();
        match cell.test.as_str() {
            "latency" => {
                let mean = middle(&|block| 1e9 * block.seconds / block.operations as f64 / 2.0);
                samples.push((Metric::Mean, mean));
                let percentiles = self.measurement.percentiles_of_last_pair();
                samples.extend(percentiles.map(|of| (Metric::P999, of.p999)));
            }
            "stream" if cell.size_bytes.is_some_and(|bytes| bytes <= SHORT_BYTES) => {
                let size = cell.size_bytes.unwrap_or(1) as f64;
                samples.push((Metric::Messages, middle(&|block| block.value / size)));
            }
            _ => {}
        }
        self.taken.add(samples);
        Ok(())
    }

    fn pairs_taken(&self) -> u32 {
        self.measurement.pairs_taken()
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        Ok(vec![self.taken.told(self.measurement.cell()?)])
    }
}

/// A pair of a settled connection takes so long: blocks are half a second then, as there is CPU to be published.
const SETTLED_PAIR_SECONDS: f64 = 2.0;

/// Its warm-up and this one of its blocks make up the second that is left out.
const SETTLING_BLOCKS: usize = 1;

struct Fresh {
    request: Request,
    manner: Manner,
    merged: Option<Cell>,
    taken: Taken,
}

impl Sampler for Fresh {
    fn take_pair(&mut self, attempt: u32) -> Result<()> {
        let mut measurement = Measurement::prepare(self.request.clone(), &mut Topology::default())?;
        let pairs = if let Manner::Fresh(pairs) = self.manner { pairs } else { 1 };
        (0..pairs).try_for_each(|_| measurement.take_pair())?;
        let mut cell = measurement.cell()?;
        if self.manner == Manner::Settled {
            cell.blocks = vec![mean_block(cell.blocks.get(SETTLING_BLOCKS..).unwrap_or_default())];
            // Compared with no other cell of the same request.
            cell.parameters.insert("settled".to_owned(), true.into());
        }
        let pair = self.pairs_taken();
        cell.blocks.iter_mut().for_each(|block| block.pair = pair);
        let after = cell.moments.last().map(|last| last.after);
        cell.moments.truncate(1);
        for moment in &mut cell.moments {
            *moment = Moment { pair, after: after.unwrap_or(moment.after), ..*moment };
        }
        let value = median(&cell.blocks.iter().map(|block| block.value).collect::<Vec<_>>());
        let half_rtt = (cell.test == "rr").then(|| (Metric::HalfRtt, 0.5e9 / value));
        let demand = cell.service_demand_us_per_kb().map(|demand| (Metric::Demand, demand));
        if let Some(merged) = self.merged.take() {
            cell.blocks = [merged.blocks, cell.blocks].concat();
            cell.moments = [merged.moments, cell.moments].concat();
        }
        cell.parameters.insert("pairs".to_owned(), (pair + 1).into());
        self.merged = Some(cell);
        self.taken.begin(attempt);
        self.taken.add(half_rtt.into_iter().chain(demand).collect());
        Ok(())
    }

    fn pairs_taken(&self) -> u32 {
        self.taken.rounds.len() as u32
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        Ok(self.merged.iter().map(|cell| self.taken.told(with_value(cell.clone()))).collect())
    }
}

/// Everything that blocks of rates moved over all the time they took.
fn mean_block(blocks: &[Block]) -> Block {
    let seconds: f64 = blocks.iter().map(|block| block.seconds).sum();
    Block {
        pair: 0,
        value: blocks.iter().map(|block| block.value * block.seconds).sum::<f64>() / seconds,
        seconds,
        operations: blocks.iter().map(|block| block.operations).sum(),
        disturbed: blocks
            .iter()
            .find(|block| !block.disturbed.is_empty())
            .map_or(Vec::new(), |block| block.disturbed.clone()),
        outlier: false,
    }
}

/// `cell` with the median over its pairs.
fn with_value(cell: Cell) -> Cell {
    let by_pair: Vec<(u32, f64)> = cell.blocks.iter().map(|block| (block.pair, block.value)).collect();
    Cell {
        value: median_over_pairs(&by_pair),
        ci95: bootstrap_median_over_pairs(&by_pair, BOOTSTRAP_SEED),
        mean: None,
        percentiles: None,
        histogram: Vec::new(),
        ..cell
    }
}

struct Adapted {
    adapter: Adapter,
    taken: Taken,
    blocks: BTreeMap<Metric, Vec<Block>>,
    moments: Vec<Moment>,
}

impl Sampler for Adapted {
    fn take_pair(&mut self, attempt: u32) -> Result<()> {
        let (source, target) = pin::two_cores();
        let probe = || machine_probe::read(Some(source), Some(target));
        let (began_unix_seconds, before, started) = (now_unix_seconds(), probe(), Instant::now());
        let samples = (self.adapter.take)()?;
        let seconds = started.elapsed().as_secs_f64();
        let pair = self.pairs_taken();
        for (metric, value) in samples {
            let (operations, disturbed, outlier) = (1, Vec::new(), false);
            let block = Block { pair, value, seconds, operations, disturbed, outlier };
            self.blocks.entry(metric).or_default().push(block);
        }
        self.moments.push(Moment { pair, began_unix_seconds, before, after: probe() });
        self.taken.begin(attempt);
        Ok(())
    }

    fn pairs_taken(&self) -> u32 {
        self.taken.rounds.len() as u32
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let cell = |(metric, blocks): (&Metric, &Vec<Block>)| {
            let series = by(&self.taken.name, *metric);
            let mut cell = with_value(Cell {
                schema: CELL_SCHEMA.to_owned(),
                level: FIGURE.to_owned(),
                test: series.to_string(),
                link: None,
                between: String::new(),
                size_bytes: None,
                parameters: Parameters::default(),
                value: 0.0,
                unit: metric.unit().unwrap_or(self.adapter.unit),
                ci95: None,
                mean: None,
                percentiles: None,
                histogram: Vec::new(),
                blocks: blocks.clone(),
                moments: self.moments.clone(),
                cpu: CpuBothEnds::default(),
                cacheline: None,
                failure: None,
                details: Default::default(),
                environment: json!({}),
            });
            cell.details.insert(METRIC.to_owned(), metric.to_string().into());
            self.taken.told(cell)
        };
        Ok(self.blocks.iter().map(cell).collect())
    }
}

#[cfg(test)]
mod tests {
    use bywire_results::cell::Session;

    use super::*;
    use crate::figures::{Figure, Figures};
    use crate::series::value;

    /// The session that rounds of these contestants make, without a store.
    fn session(contest: Contest, rounds: u32) -> Session {
        let mut session = Session::default();
        for entry in contest.entries() {
            let mut sampler = (entry.prepare)(&mut Topology::default()).expect("an adapter");
            for round in 0..rounds {
                let _failed = sampler.take_pair(round);
            }
            session.cells.extend(sampler.cells().expect("cells"));
        }
        session
    }

    fn counting(mut values: Vec<f64>) -> Result<Contestant> {
        Ok(Contestant::of_value("counts", Unit::Nanoseconds, move || match values.pop() {
            Some(value) if value > 0.0 => Ok(value),
            _ => anyhow::bail!("worn\nout"),
        }))
    }

    #[test]
    fn ratios_and_differences_compare_medians_and_show_the_rounds() {
        let mut contest = Contest::default();
        contest.add("above", counting(vec![30.0, 20.0, 10.0]));
        contest.add("below", counting(vec![10.0, 10.0, 20.0]));
        let session = session(contest, 3);
        let figures = Figures::of(&session);
        let [above, below] = [value("above"), value("below")];
        let all = figures.rounds();
        assert_eq!(all.ratio(above, below), Some(Figure { value: 2.0, low: 0.5, high: 3.0 }));
        assert_eq!(all.difference(above, below), Some(Figure { value: 10.0, low: -10.0, high: 20.0 }));
        assert_eq!(all.figure(above), Some(Figure { value: 20.0, low: 10.0, high: 30.0 }));
        assert_eq!(all.ratio(above, value("nobody")), None);
    }

    #[test]
    fn a_failed_round_is_no_ratio_and_the_others_keep_theirs() {
        let mut contest = Contest::default();
        contest.add("weak", counting(vec![1.0, -1.0, 2.0]));
        contest.add("strong", counting(vec![4.0, 8.0, 1.0]));
        let session = session(contest, 3);
        let figures = Figures::of(&session);
        assert_eq!(figures.rounds().figure(value("weak")).map(|figure| figure.value), Some(1.5));
        let ratio = figures.rounds().ratio(value("weak"), value("strong")).expect("two rounds");
        assert_eq!([ratio.low, ratio.high], [0.25, 2.0]);
    }

    #[test]
    fn each_figure_of_an_adapter_is_a_cell_with_its_unit() {
        let mut contest = Contest::default();
        let take = || Ok(vec![(Metric::Long, 4e9), (Metric::NHalf, 300.0)]);
        contest.add("bare", Ok(Contestant::adapter("a command", Unit::Nanoseconds, take)));
        let session = session(contest, 2);
        let cells: Vec<_> =
            session.cells.iter().map(|cell| (cell.test.as_str(), cell.unit, cell.value)).collect();
        assert_eq!(cells, [("bare N½", Unit::Bytes, 300.0), ("bare long", Unit::BytesPerSecond, 4e9)]);
        let figures = Figures::of(&session);
        let shown = figures.rounds().figure(by("bare", Metric::NHalf)).map(|figure| figure.value);
        assert_eq!(shown, Some(300.0));
        assert_eq!(figures.rounds().figure(value("bare")), None);
    }

    #[test]
    fn a_mean_rate_weighs_blocks_by_their_time() {
        let block = |value: f64, seconds: f64| Block {
            pair: 0,
            value,
            seconds,
            operations: 1,
            disturbed: Vec::new(),
            outlier: false,
        };
        assert_eq!(mean_block(&[block(4.0, 1.0), block(1.0, 3.0)]).value, 1.75);
    }

    #[test]
    fn the_command_contains_every_option_of_the_request() {
        let request = Request {
            size_bytes: Some(8),
            integrity: Some(true),
            spin: Some(false),
            ..Request::new("msg", "latency")
        };
        assert_eq!(
            Contestant::laboratory(request, 0.4).command(),
            "bywire measure msg latency --size 8 --integrity on --no-spin --time 2"
        );
        let request = Request { lines: Some(256), time_seconds: None, ..Request::new("memory", "cacheline") };
        assert_eq!(request.command(), "bywire measure memory cacheline --lines 256");
    }
}
