//! Contestants: the laboratory's own requests, and adapters of everything else. Each takes one fresh pair at a time, and yields
//! cells.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bywire_analysis::statistics::{bootstrap_median_over_pairs, median, median_over_pairs};
use bywire_measure::bench::{Entry, Prepare, Sampler, Subject};
use bywire_measure::machine_probe::{self, now_unix_seconds};
use bywire_measure::measure::{Measurement, PAIRS, Request, Topology};
use bywire_measure::pin;
pub use bywire_results::cell::Unit;
use bywire_results::cell::{Block, CELL_SCHEMA, Cell};
use bywire_results::details::COMMAND;
use bywire_results::level::FIGURE;
use bywire_results::moment::Moment;
use serde_json::json;

pub use crate::figures::Metric;
use crate::figures::{CONTESTANT, METRIC, METRICS, ROUNDS, by};

/// A contestant that failed this often is left out of further rounds.
const FAILURES_MAX: u32 = 3;
/// Messages of up to this are counted as well as their bytes.
pub const SHORT_BYTES: u64 = 64;
/// The beginning of an error about words that are no request.
pub const NO_REQUEST: &str = "no request of `bywire measure`";
/// The expected time of a pair of an adapter.
const PAIR: Duration = Duration::from_secs(2);
/// A fixed seed, so that the interval of a stored cell can be reproduced.
const BOOTSTRAP_SEED: u64 = 0x6279_7769_7265;
/// A pair of a settled connection takes so long: blocks are half a second then, as there is CPU to be published.
const SETTLED_PAIR_SECONDS: f64 = 2.0;
/// Its warm-up and this one of its blocks make up the second that is left out.
const SETTLING_BLOCKS: usize = 1;

/// Figures of one pair.
pub type Samples = Vec<(Metric, f64)>;

/// Makes what a contestant needs, and returns its work.
type Preparation = Box<dyn FnOnce(&mut Topology) -> Result<Work>>;

/// Something that can be measured by one fresh pair of processes at a time.
pub struct Contestant {
    /// The command that measures it alone, for readers.
    pub command: String,
    expected: Duration,
    prepare: Preparation,
}

/// The source of a contestant's pairs.
enum Work {
    /// A request whose pairs share namespaces.
    Kept(Box<Measurement>),
    /// A request in namespaces of its own each time.
    Apart(Box<Apart>),
    /// A rival, a bare loop, or anything else that no level measures.
    Adapter {
        unit: Unit,
        take: Box<dyn FnMut() -> Result<Samples>>,
        blocks: BTreeMap<Metric, Vec<Block>>,
        moments: Vec<Moment>,
    },
}

/// A request in namespaces of its own each time, and the cell of the pairs so far.
struct Apart {
    request: Request,
    /// So many pairs of the laboratory's become one.
    pairs: u32,
    /// Whether the mean of what follows the beginning of a connection counts.
    settles: bool,
    merged: Option<Cell>,
}

impl Contestant {
    /// `words` of `bywire measure` with `pair_seconds` for each pair. A latency also yields [`Metric::Mean`] and [`Metric::P999`], a
    /// stream of short messages [`Metric::Messages`].
    pub fn laboratory(words: &str, pair_seconds: f64) -> Result<Self> {
        Self::requested(words, pair_seconds, 1, |request, topology| {
            Ok(Work::Kept(Box::new(Measurement::prepare(request, topology)?)))
        })
    }

    /// `words` over a fresh carrier each time. Transactions also yield [`Metric::HalfRtt`], a stream [`Metric::Demand`].
    pub fn fresh(words: &str, pair_seconds: f64) -> Result<Self> {
        Self::apart(words, pair_seconds, 1, false)
    }

    /// `words` as `bywire measure` takes them: over all of its fresh pairs.
    pub fn whole(words: &str, pair_seconds: f64) -> Result<Self> {
        Self::apart(words, pair_seconds, PAIRS, false)
    }

    /// A stream after the first second of its connection, as the mean of what follows: what iperf3 tells with `-O 1`.
    pub fn settled(words: &str) -> Result<Self> {
        Self::apart(words, SETTLED_PAIR_SECONDS, 1, true)
    }

    fn apart(words: &str, pair_seconds: f64, pairs: u32, settles: bool) -> Result<Self> {
        Self::requested(words, pair_seconds, pairs, move |request, _| {
            Ok(Work::Apart(Box::new(Apart { request, pairs, settles, merged: None })))
        })
    }

    fn requested(
        words: &str,
        pair_seconds: f64,
        pairs: u32,
        prepare: impl FnOnce(Request, &mut Topology) -> Result<Work> + 'static,
    ) -> Result<Self> {
        let request = Request::of_words(words).with_context(|| format!("{NO_REQUEST}: {words}"))?;
        let request = Request { time_seconds: Some(pair_seconds * f64::from(PAIRS)), ..request };
        let expected = Entry::from(request.clone()).subject.expected * pairs;
        let command = request.command();
        Ok(Self { command, expected, prepare: Box::new(move |topology| prepare(request, topology)) })
    }

    /// Anything else: `take` takes a pair. `unit` is that of [`Metric::Value`].
    pub fn adapter<F: FnMut() -> Result<Samples> + 'static>(command: &str, unit: Unit, take: F) -> Self {
        let work = Work::Adapter { unit, take: Box::new(take), blocks: BTreeMap::new(), moments: Vec::new() };
        Self { command: command.to_owned(), expected: PAIR, prepare: Box::new(|_| Ok(work)) }
    }

    /// An adapter with a single figure.
    pub fn of_value<F: FnMut() -> Result<f64> + 'static>(command: &str, unit: Unit, mut take: F) -> Self {
        Self::adapter(command, unit, move || Ok(vec![(Metric::Value, take()?)]))
    }
}

/// Everything that is measured in one run: contestants by name, or the reason why one is missing.
#[derive(Default)]
pub struct Contest(pub Vec<(String, Result<Contestant>)>);

impl Contest {
    /// Adds a contestant, or the reason why it is missing.
    pub fn add(&mut self, name: impl Into<String>, contestant: Result<Contestant>) {
        self.0.push((name.into(), contestant));
    }

    /// The entries of a session. An absence names the contestant.
    pub fn entries(self) -> Vec<Entry> {
        let entry = |(name, contestant): (String, Result<Contestant>)| {
            let expected = contestant.as_ref().map_or(Duration::ZERO, |contestant| contestant.expected);
            let subject = Subject { level: name.clone(), test: None, shape: name.clone(), expected };
            let prepare: Prepare = Box::new(move |topology| {
                let Contestant { command, prepare, .. } = contestant?;
                let work = prepare(topology)?;
                Ok(Box::new(Pairs { name, command, rounds: Vec::new(), metrics: BTreeMap::new(), work }))
            });
            Entry { subject, failures_max: FAILURES_MAX, prepare }
        };
        self.0.into_iter().map(entry).collect()
    }
}

/// The pairs of a contestant so far: the round that each was taken in, and its figures besides the value.
struct Pairs {
    name: String,
    command: String,
    rounds: Vec<u32>,
    metrics: BTreeMap<Metric, Vec<Option<f64>>>,
    work: Work,
}

impl Sampler for Pairs {
    fn take_pair(&mut self, attempt: u32) -> Result<()> {
        let pair = self.pairs_taken();
        let samples = match &mut self.work {
            Work::Kept(measurement) => {
                measurement.take_pair()?;
                // This pair counts even if it has no value.
                self.rounds.push(attempt);
                further_figures(measurement, pair)?
            }
            Work::Apart(apart) => apart.take(pair)?,
            Work::Adapter { take, blocks, moments, .. } => {
                let (source, target) = pin::two_cores();
                let probe = || machine_probe::read(Some(source), Some(target));
                let (began_unix_seconds, before, started) = (now_unix_seconds(), probe(), Instant::now());
                let samples = take()?;
                let seconds = started.elapsed().as_secs_f64();
                for (metric, value) in samples {
                    let block = Block { pair, value, seconds, operations: 1, ..Block::default() };
                    blocks.entry(metric).or_default().push(block);
                }
                moments.push(Moment { pair, began_unix_seconds, before, after: probe() });
                Samples::new()
            }
        };
        self.rounds.resize(pair as usize + 1, attempt);
        for (metric, value) in samples {
            let values = self.metrics.entry(metric).or_default();
            values.resize(pair as usize, None);
            values.push(Some(value));
        }
        Ok(())
    }

    fn pairs_taken(&self) -> u32 {
        self.rounds.len() as u32
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let mut cells = match &self.work {
            Work::Kept(measurement) => vec![measurement.cell()?],
            Work::Apart(apart) => apart.merged.iter().cloned().map(with_value).collect(),
            Work::Adapter { unit, blocks, moments, .. } => {
                let cell = |(metric, blocks): (&Metric, &Vec<Block>)| {
                    let mut cell = with_value(Cell {
                        schema: CELL_SCHEMA.to_owned(),
                        level: FIGURE.to_owned(),
                        test: by(&self.name, *metric).to_string(),
                        unit: metric.unit().unwrap_or(*unit),
                        blocks: blocks.clone(),
                        moments: moments.clone(),
                        environment: json!({}),
                        ..Cell::default()
                    });
                    cell.details.insert(METRIC.to_owned(), metric.to_string().into());
                    cell
                };
                blocks.iter().map(cell).collect()
            }
        };
        for cell in &mut cells {
            cell.details.insert(CONTESTANT.to_owned(), self.name.as_str().into());
            cell.details.insert(COMMAND.to_owned(), self.command.as_str().into());
            cell.details.insert(ROUNDS.to_owned(), json!(self.rounds));
            if !self.metrics.is_empty() {
                let metrics = self.metrics.iter().map(|(metric, values)| (metric.to_string(), json!(values)));
                cell.details.insert(METRICS.to_owned(), metrics.collect());
            }
        }
        Ok(cells)
    }
}

/// The figures of the last pair besides its value.
fn further_figures(measurement: &Measurement, pair: u32) -> Result<Samples> {
    let cell = measurement.cell()?;
    let blocks: Vec<&Block> = cell.blocks.iter().filter(|block| block.pair == pair).collect();
    ensure!(!blocks.is_empty(), "this pair has no value");
    let middle =
        |of: &dyn Fn(&Block) -> f64| median(&blocks.iter().map(|block| of(block)).collect::<Vec<_>>());
    Ok(match cell.test.as_str() {
        "latency" => {
            let mean = middle(&|block| 1e9 * block.seconds / block.operations as f64 / 2.0);
            let percentiles = measurement.percentiles_of_last_pair();
            let tail = percentiles.map(|percentiles| (Metric::P999, percentiles.p999));
            std::iter::once((Metric::Mean, mean)).chain(tail).collect()
        }
        "stream" if cell.size_bytes.is_some_and(|bytes| bytes <= SHORT_BYTES) => {
            let size = cell.size_bytes.unwrap_or(1) as f64;
            vec![(Metric::Messages, middle(&|block| block.value / size))]
        }
        _ => Samples::new(),
    })
}

impl Apart {
    /// Takes a pair, adds it to the cell, and returns its further figures.
    fn take(&mut self, pair: u32) -> Result<Samples> {
        let mut measurement = Measurement::prepare(self.request.clone(), &mut Topology::default())?;
        (0..self.pairs).try_for_each(|_| measurement.take_pair())?;
        let mut cell = measurement.cell()?;
        if self.settles {
            cell.blocks = vec![mean_block(cell.blocks.get(SETTLING_BLOCKS..).unwrap_or_default())];
            // Compared with no other cell of the same request.
            cell.parameters.insert("settled".to_owned(), true.into());
        }
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
        Ok(half_rtt.into_iter().chain(demand).collect())
    }
}

/// Everything that blocks of rates moved over all the time they took.
pub fn mean_block(blocks: &[Block]) -> Block {
    let seconds: f64 = blocks.iter().map(|block| block.seconds).sum();
    let disturbed = blocks.iter().map(|block| &block.disturbed).find(|disturbed| !disturbed.is_empty());
    Block {
        value: blocks.iter().map(|block| block.value * block.seconds).sum::<f64>() / seconds,
        seconds,
        operations: blocks.iter().map(|block| block.operations).sum(),
        disturbed: disturbed.cloned().unwrap_or_default(),
        ..Block::default()
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

#[cfg(test)]
mod tests {
    use bywire_results::cell::Session;

    use super::*;
    use crate::figures::{Figure, Figures, value};

    /// The session that rounds of these contestants make, without a store.
    fn session<const N: usize>(contestants: [(&str, Contestant); N], rounds: u32) -> Session {
        let mut contest = Contest::default();
        contestants.into_iter().for_each(|(name, contestant)| contest.add(name, Ok(contestant)));
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

    /// Yields the last value first, and fails where one is negative.
    fn counting(mut values: Vec<f64>) -> Contestant {
        Contestant::of_value("counts", Unit::Nanoseconds, move || {
            values.pop().filter(|value| *value > 0.0).context("worn out")
        })
    }

    #[test]
    fn ratios_and_differences_compare_medians_and_show_the_rounds() {
        let counted =
            [("above", counting(vec![30.0, 20.0, 10.0])), ("below", counting(vec![10.0, 10.0, 20.0]))];
        let session = session(counted, 3);
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
        let counted = [("weak", counting(vec![1.0, -1.0, 2.0])), ("strong", counting(vec![4.0, 8.0, 1.0]))];
        let session = session(counted, 3);
        let figures = Figures::of(&session);
        assert_eq!(figures.rounds().figure(value("weak")).map(|figure| figure.value), Some(1.5));
        let ratio = figures.rounds().ratio(value("weak"), value("strong")).expect("two rounds");
        assert_eq!([ratio.low, ratio.high], [0.25, 2.0]);
    }

    #[test]
    fn each_figure_of_an_adapter_is_a_cell_with_its_unit() {
        let take = || Ok(vec![(Metric::Long, 4e9), (Metric::NHalf, 300.0)]);
        let session = session([("bare", Contestant::adapter("a command", Unit::Nanoseconds, take))], 2);
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
        let block = |value: f64, seconds: f64| Block { value, seconds, ..Block::default() };
        assert_eq!(mean_block(&[block(4.0, 1.0), block(1.0, 3.0)]).value, 1.75);
    }

    #[test]
    fn a_request_is_read_from_words_and_its_command_contains_every_option() {
        let command = |words| Contestant::laboratory(words, 0.4).map(|contestant| contestant.command);
        let words = "msg latency --size 8 --integrity on --no-spin";
        assert_eq!(command(words).unwrap(), format!("bywire measure {words} --time 2"));
        let words = "memory cacheline --lines 256";
        assert_eq!(Request::of_words(words).unwrap().command(), format!("bywire measure {words}"));
        for wrong in ["msg", "msg latency --sise 8", "msg latency --size", "msg latency --spin 8"] {
            assert!(Request::of_words(wrong).is_err(), "{wrong}");
        }
    }
}
