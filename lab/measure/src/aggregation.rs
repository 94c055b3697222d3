//! Aggregates what the two ends of each pair measured into one cell.

use anyhow::{Context, Result, ensure};
use bywire_analysis::statistics::{
    bootstrap_median_over_pairs, median, median_over_pairs, percentiles, tukey_outliers,
};
use bywire_results::cell::{Block, CELL_SCHEMA, Cell, CpuBothEnds, CpuEnd, Percentiles, Unit};
use bywire_results::details::{LOST_SHARE, RATES_BY_SIZE};
use bywire_results::level::MEMORY;
use hdrhistogram::Histogram;
use serde_json::json;

use crate::multi_connection::{self, GroupWork, MultiConnection, fairness, limit};
use crate::plan::{Details, Job, MemoryPlan, Outcome, Outcomes, Part, Plan, Test};
use crate::workload::block_loop::{Blocks, PROCESS, Results, buckets, filled, histogram, transfer_seconds};
use crate::workload::{self, nhalf};
use crate::{disturbance, size, web};

/// A fixed seed, so that the interval of a stored cell can be reproduced.
const BOOTSTRAP_SEED: u64 = 0x6279_7769_7265;

/// The share of memcpy that a message layer's plateau is set against for N½, when it is larger.
const MEMCPY_SHARE: f64 = 0.4;

/// The pairs of one cell so far.
pub struct Aggregation {
    /// The measurement of each pair. A sweep has several pairs of processes in one.
    job: Job,
    /// For each pair its outcomes: one, or one for each length of a sweep.
    pairs: Vec<Vec<Outcomes>>,
    /// Per pair of a sweep: memcpy at the same time.
    memcpy: Vec<Outcome>,
    /// For each group, its work while all of it ran.
    together: Vec<GroupWork>,
}

impl Aggregation {
    pub fn new(job: Job) -> Self {
        Self { job, pairs: Vec::new(), memcpy: Vec::new(), together: Vec::new() }
    }

    pub fn pairs(&self) -> u32 {
        self.pairs.len() as u32
    }

    /// Adds one pair, after a check that its ends agree. A sweep of the message layer brings memcpy, measured at the
    /// same time.
    pub fn add(&mut self, outcomes: Vec<Outcomes>, memcpy: Option<Outcome>) -> Result<()> {
        for outcomes in &outcomes {
            self.check(outcomes)?;
        }
        self.pairs.push(outcomes);
        self.memcpy.extend(memcpy);
        Ok(())
    }

    pub fn add_multi_connection(&mut self, group: MultiConnection) -> Result<()> {
        self.add(group.outcomes, None)?;
        self.together.push(group.together);
        Ok(())
    }

    fn check(&self, outcomes: &Outcomes) -> Result<()> {
        ensure!(!outcomes.source.blocks.is_empty(), "the source reports no block");
        let Job::Messages(plan) = &self.job else { return Ok(()) };
        let source = &outcomes.source.blocks;
        let target = &outcomes.target.as_ref().context("the target has not reported")?.blocks;
        let (sources, targets) = (source.len(), target.len());
        ensure!(sources == targets, "the source reports {sources} blocks and the target {targets}");
        let loses_nothing = !plan.level.carrier().is_lossy && plan.test.is_one_way();
        for (source, target) in source.iter().zip(target).filter(|_| loses_nothing) {
            let (sent, arrived) = (source.sent_bytes, target.received_bytes);
            ensure!(sent == arrived, "{sent} bytes were sent, and {arrived} arrived");
        }
        Ok(())
    }

    /// The cell, without its link, place, parameters and environment.
    pub fn cell(&self) -> Result<Cell> {
        let mut details = Details::default();
        let (level, test, unit, size_bytes, mut blocks) = match &self.job {
            Job::Messages(plan) => {
                let size_bytes = (plan.test != Test::Nhalf).then_some(plan.size_bytes);
                let blocks = self.message_blocks(plan, &mut details)?;
                (plan.level.name(), plan.test.name(), plan.test.kind().unit, size_bytes, blocks)
            }
            Job::Web(plan) => {
                details = web::open_load::details(self.all().map(|(_, outcomes)| outcomes))?;
                let blocks = self.blocks(|client, _| Some(client.operations as f64 / client.seconds));
                let size_bytes = (plan.test == web::Test::File).then_some(plan.size_bytes);
                (web::LEVEL, plan.test.name(), Unit::TransactionsPerSecond, size_bytes, blocks)
            }
            Job::Memory(MemoryPlan { spec, .. }) => {
                let blocks = self.blocks(|source, _| source.reading);
                let size_bytes = spec.test.is_rate().then_some(spec.size_bytes);
                (MEMORY, spec.test.name(), spec.test.unit(), size_bytes, blocks)
            }
        };
        let parts = self.all().flat_map(|(pair, all)| all.source.warmup.iter().map(move |part| (pair, part)));
        let warmup = parts.map(|(pair, Part { seconds, operations, .. })| {
            json!({ "pair": pair, "seconds": seconds, "operations": operations })
        });
        details.insert("warmup_blocks".into(), warmup.collect());
        let by_pair: Vec<(u32, f64)> = blocks.iter().map(|block| (block.pair, block.value)).collect();
        let values: Vec<f64> = by_pair.iter().map(|(_, value)| *value).collect();
        blocks.iter_mut().zip(tukey_outliers(&values)).for_each(|(block, outlier)| block.outlier = outlier);
        ensure!(!by_pair.is_empty(), "{level} {test}: no block has a value");
        let is_timed = self.plan().is_some_and(|plan| plan.test.kind().shows_round_trips);
        let timed = self.round_trips().filter(|_| is_timed);
        let half_rtts = timed.iter().flat_map(buckets).map(|(value, count)| (value as f64 / 2.0, count));
        Ok(Cell {
            schema: CELL_SCHEMA.to_owned(),
            level: level.to_owned(),
            test: test.to_owned(),
            size_bytes,
            value: median_over_pairs(&by_pair),
            unit,
            ci95: bootstrap_median_over_pairs(&by_pair, BOOTSTRAP_SEED),
            mean: timed.as_ref().map(|histogram| histogram.mean() / 2.0),
            percentiles: timed.as_ref().map(|_| percentiles(&weighed_round_trips(&self.pairs), 0.5)),
            histogram: half_rtts.collect(),
            blocks,
            cpu: self.cpu(),
            details,
            environment: json!({}),
            ..Cell::default()
        })
    }

    /// The plan of messages of one size.
    fn plan(&self) -> Option<&Plan> {
        match &self.job {
            Job::Messages(plan) if plan.test != Test::Nhalf => Some(plan),
            _ => None,
        }
    }

    fn all(&self) -> impl Iterator<Item = (u32, &Outcomes)> {
        let numbered = self.pairs.iter().enumerate();
        numbered.flat_map(|(pair, all)| all.iter().map(move |outcomes| (pair as u32, outcomes)))
    }

    /// Both ends of every pair that has two.
    fn ends(&self) -> impl Iterator<Item = (&Outcome, &Outcome)> {
        self.all().filter_map(|(_, outcomes)| Some((&outcomes.source, outcomes.target.as_ref()?)))
    }

    /// The blocks of every pair, by the value that `value` makes of both ends' parts.
    fn blocks(&self, value: impl Fn(&Part, &Part) -> Option<f64>) -> Vec<Block> {
        let none = Part::default();
        let mut blocks = Vec::new();
        for (pair, outcomes) in self.all() {
            for (index, source) in outcomes.source.blocks.iter().enumerate() {
                let target = outcomes.target.as_ref().and_then(|target| target.blocks.get(index));
                let target = target.unwrap_or(&none);
                blocks.extend(value(source, target).filter(|value| value.is_finite()).map(|value| Block {
                    pair,
                    value,
                    seconds: transfer_seconds(source, target),
                    operations: source.operations,
                    disturbed: disturbance::of_block(source, target),
                    ..Block::default()
                }));
            }
        }
        blocks
    }

    /// One block for each pair: the N½ of its sweep.
    fn sweep_blocks(&self, plan: &Plan, details: &mut Details) -> Result<Vec<Block>> {
        let mut blocks = Vec::new();
        let mut references = Vec::new();
        let mut curve = std::collections::BTreeMap::<u64, Vec<f64>>::new();
        for (pair, sweep) in self.pairs.iter().enumerate() {
            let points: Vec<(u64, f64)> = sweep.iter().filter_map(|outcomes| point(plan, outcomes)).collect();
            for &(size, rate) in &points {
                curve.entry(size).or_default().push(rate);
            }
            let memcpy = self.memcpy.get(pair);
            let floor = MEMCPY_SHARE * memcpy.and_then(Outcome::median_reading).unwrap_or(0.0);
            let (n_half, reference) = nhalf::of_sweep(&points, floor);
            references.push(reference);
            let parts = || sweep.iter().flat_map(|outcomes| &outcomes.source.blocks);
            blocks.extend(n_half.map(|value| Block {
                pair: pair as u32,
                value,
                seconds: parts().map(|part| part.seconds).sum(),
                operations: parts().map(|part| part.operations).sum(),
                disturbed: disturbance::of_sweep(sweep, memcpy),
                outlier: false,
            }));
        }
        ensure!(
            !blocks.is_empty(),
            "N½ was not found: no length below {} reaches half of {:.3} GB/s for the first time",
            size::show(curve.keys().next_back().copied().unwrap_or(0)),
            median(&references) / 1e9
        );
        let without = self.pairs.len() - blocks.len();
        if without > 0 {
            details.insert("sweeps_without_n_half".into(), without.into());
        }
        let parts: Vec<Vec<String>> = self.pairs.iter().flatten().flat_map(disturbance::by_block).collect();
        details.insert("blocks_of_streams".into(), parts.len().into());
        let disturbed = parts.iter().filter(|reasons| !reasons.is_empty()).count();
        details.insert("blocks_of_streams_disturbed".into(), disturbed.into());
        let curve: Vec<_> = curve.iter().map(|(size, rates)| json!([size, median(rates)])).collect();
        details.insert(RATES_BY_SIZE.to_owned(), curve.into());
        details.insert("reference_bytes_per_second".into(), median(&references).into());
        if !self.memcpy.is_empty() {
            let rates: Vec<f64> = self.memcpy.iter().filter_map(Outcome::median_reading).collect();
            details.insert("memcpy_bytes_per_second".into(), median(&rates).into());
        }
        Ok(blocks)
    }

    /// The blocks in which all connections of a group ran, and what each of them did.
    fn multi_connection_blocks(&self, plan: &Plan, details: &mut Details) -> Vec<Block> {
        let mut blocks = Vec::new();
        for (pair, (outcomes, together)) in self.pairs.iter().zip(&self.together).enumerate() {
            blocks.extend(together.slices.iter().map(|slice| Block {
                pair: pair as u32,
                value: slice.value,
                seconds: together.slice_seconds,
                operations: slice.operations.round() as u64,
                disturbed: disturbance::of_pairs(outcomes),
                outlier: false,
            }));
        }
        let connections = self.together.first().map_or(0, |group| group.connections.len());
        let over_pairs =
            |of: &dyn Fn(&GroupWork) -> f64| median(&self.together.iter().map(of).collect::<Vec<_>>());
        let each: Vec<f64> =
            (0..connections).map(|connection| over_pairs(&|group| group.connections[connection])).collect();
        let unit = if plan.test == Test::Hotspot { "ns" } else { "bytes_per_second" };
        let least = each.iter().copied().fold(f64::INFINITY, f64::min);
        details.insert(format!("least_{unit}"), least.into());
        details.insert(format!("most_{unit}"), each.iter().copied().fold(0.0, f64::max).into());
        details.insert("fairness_jain".into(), over_pairs(&|group| fairness(&group.work_per_second)).into());
        details.insert(format!("connections_{unit}"), each.into());
        if plan.test == Test::Hotspot {
            let sum = over_pairs(&|group| group.work_per_second.iter().sum());
            details.insert("summed_transactions_per_second".into(), sum.into());
        }
        self.loss_details(plan, details);
        let limit = self.pairs.iter().rev().find_map(|outcomes| limit(connections as u32, outcomes));
        details.extend(limit.map(|limit| ("limited_by".to_owned(), limit.into())));
        blocks
    }

    fn message_blocks(&self, plan: &Plan, details: &mut Details) -> Result<Vec<Block>> {
        if plan.test == Test::Nhalf {
            return self.sweep_blocks(plan, details);
        }
        self.granted_details(details);
        if plan.test.is_multi_connection() {
            return Ok(self.multi_connection_blocks(plan, details));
        }
        let both =
            self.ends().flat_map(|(source, target)| source.blocks.iter().zip(&target.blocks)).collect();
        let blocks = Blocks { both, round_trips: self.round_trips() };
        let mut results = Results::default();
        results.set("elapsed_seconds", blocks.source(|part| part.seconds));
        workload::details(plan, &blocks, &mut results);
        details.append(&mut results.0);
        self.loss_details(plan, details);
        Ok(self.blocks(|source, target| workload::value(plan, source, target)))
    }

    /// The share of all payload that did not arrive, on a level that may lose messages.
    fn loss_details(&self, plan: &Plan, details: &mut Details) {
        if !plan.level.carrier().is_lossy || !plan.test.is_one_way() {
            return;
        }
        let sent: u64 = self.ends().map(|(source, _)| source.sum(|part| part.sent_bytes)).sum();
        let received: u64 = self.ends().map(|(_, target)| target.sum(|part| part.received_bytes)).sum();
        if sent > 0 {
            // An end that receives a repeated `End` counts it twice.
            let lost = (1.0 - received as f64 / sent as f64).max(0.0);
            details.insert(LOST_SHARE.to_owned(), lost.into());
        }
    }

    /// The values that the kernel granted and that the ends counted. Names of buffers, and of what the target counted,
    /// begin with the end's name.
    fn granted_details(&self, details: &mut Details) {
        let Some((_, outcomes)) = self.all().next() else {
            return;
        };
        let told = |details: &Details| (**details).clone().into_iter().filter(|(name, _)| name != PROCESS);
        details.extend(told(&outcomes.source.details).map(|(name, value)| {
            let is_of_buffer = name.ends_with("_socket_bytes");
            (if is_of_buffer { format!("source_{name}") } else { name }, value)
        }));
        let target = outcomes.target.iter().flat_map(|target| told(&target.details));
        details.extend(target.map(|(name, value)| (format!("target_{name}"), value)));
    }

    /// Every round trip of every pair, in ns. Absent if none was timed.
    fn round_trips(&self) -> Option<Histogram<u64>> {
        let all = filled(self.all().flat_map(|(_, outcomes)| &outcomes.source.round_trips));
        (!all.is_empty()).then_some(all)
    }

    /// Percentiles of half of the last pair's round trips, if it has timed any.
    pub fn percentiles_of_last_pair(&self) -> Option<Percentiles> {
        let round_trips = weighed_round_trips(&self.pairs[self.pairs.len().checked_sub(1)?..]);
        (!round_trips.is_empty()).then(|| percentiles(&round_trips, 0.5))
    }

    fn cpu(&self) -> CpuBothEnds {
        let plan = self.plan();
        let is_web = matches!(self.job, Job::Web(_));
        let transactions = plan.map_or(is_web, |plan| plan.test.kind().counts_transactions);
        let bytes = plan.is_some_and(|plan| plan.test.is_one_way());
        let carriers = plan.map_or(&[][..], |plan| &plan.carriers);
        let carriers = if let Job::Web(plan) = &self.job { &plan.carriers } else { carriers };
        let end = |of: fn(&Outcomes) -> Option<&Outcome>, moved: fn(&Part) -> u64| {
            let outcomes: Vec<&Outcome> = self.all().filter_map(|(_, outcomes)| of(outcomes)).collect();
            self.together(cpu_end(&outcomes, transactions, bytes.then_some(moved)), of)
        };
        CpuBothEnds {
            carriers: (!carriers.is_empty()).then(|| self.carriers_end(transactions, bytes)),
            source: end(|outcomes| Some(&outcomes.source), |part| part.sent_bytes),
            target: end(|outcomes| outcomes.target.as_ref(), |part| part.received_bytes),
            same_machine: self.all().all(|(_, outcomes)| outcomes.same_machine),
        }
    }

    /// The cost of an end of one connection, or of that end of all connections of a group, which share its core.
    fn together(&self, end: CpuEnd, of: fn(&Outcomes) -> Option<&Outcome>) -> CpuEnd {
        if !self.plan().is_some_and(|plan| plan.test.is_multi_connection()) {
            return end;
        }
        let of_group = |group: &Vec<Outcomes>| {
            multi_connection::attributed(&group.iter().filter_map(of).collect::<Vec<_>>())
        };
        let shares: Vec<f64> = self.pairs.iter().filter_map(of_group).collect();
        let attributed = (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64);
        let unattributed = end.machine_busy.zip(attributed).map(|(busy, share)| busy - share);
        CpuEnd { attributed, unattributed, ..end }
    }

    /// The CPU cost of the processes that carry the messages, over the blocks of all pairs, for transactions or for
    /// bytes received.
    fn carriers_end(&self, transactions: bool, bytes: bool) -> CpuEnd {
        // The first of several connections reads them for all.
        let watched = || self.pairs.iter().filter_map(|all| all.first()).map(|first| &first.source);
        let cpu_seconds: f64 = watched().map(|end| end.sum(|part| part.carriers_cpu_seconds)).sum();
        let seconds: f64 = watched().map(|end| end.sum(|part| part.seconds)).sum();
        let work: f64 = match self.plan() {
            Some(plan) if plan.test.is_multi_connection() => {
                self.pairs.iter().map(|group| multi_connection::work_beside_first(plan.test, group)).sum()
            }
            _ if bytes => {
                self.ends().map(|(_, target)| target.sum(|part| part.received_bytes)).sum::<u64>() as f64
            }
            _ => self.all().map(|(_, all)| all.source.sum(|part| part.operations)).sum::<u64>() as f64,
        };
        let per = |work: f64| (work > 0.0).then(|| cpu_seconds * 1e6 / work);
        CpuEnd {
            attributed: (seconds > 0.0).then(|| cpu_seconds / seconds),
            service_demand_us_per_kb: per(work / 1024.0).filter(|_| bytes),
            service_demand_us_per_transaction: per(work).filter(|_| transactions),
            ..CpuEnd::default()
        }
    }
}

/// A sweep's point: its length and the median rate of one pair's blocks.
fn point(plan: &Plan, outcomes: &Outcomes) -> Option<(u64, f64)> {
    let target = &outcomes.target.as_ref()?.blocks;
    let parts = || outcomes.source.blocks.iter().zip(target);
    let rates: Vec<f64> =
        parts().filter_map(|(source, target)| workload::value(plan, source, target)).collect();
    let (source, _) = parts().next()?;
    Some((source.sent_bytes / source.operations.max(1), median(&rates)))
}

/// Every round trip of these pairs, in ns, with every pair weighing the same, as in the median over pairs: a fast pair
/// makes many times the round trips of a slow one, and with them the median would lie beyond most of the percentiles.
fn weighed_round_trips(pairs: &[Vec<Outcomes>]) -> Histogram<u64> {
    let of_pair =
        |pair: &Vec<Outcomes>| filled(pair.iter().flat_map(|outcomes| &outcomes.source.round_trips));
    let pairs: Vec<Histogram<u64>> = pairs.iter().map(of_pair).collect();
    let most = pairs.iter().map(Histogram::len).max().unwrap_or(0);
    let mut all = histogram();
    for pair in pairs.iter().filter(|pair| !pair.is_empty()) {
        let weight = most as f64 / pair.len() as f64;
        for (value, count) in buckets(pair) {
            all.saturating_record_n(value, (count as f64 * weight).round() as u64);
        }
    }
    all
}

/// One end's CPU cost over all pairs, weighted by their durations. A value that the kernel's counters are too coarse
/// for in any pair is absent: the longer pairs alone may be those that something held up.
fn cpu_end(outcomes: &[&Outcome], transactions: bool, bytes: Option<fn(&Part) -> u64>) -> CpuEnd {
    let mean = |of: fn(&CpuEnd) -> Option<f64>| {
        let shares: Vec<f64> = outcomes.iter().map(|outcome| of(&outcome.cpu)).collect::<Option<_>>()?;
        let seconds: f64 = outcomes.iter().map(|outcome| outcome.cpu_seconds).sum();
        let weighed = shares.iter().zip(outcomes).map(|(share, outcome)| share * outcome.cpu_seconds);
        (seconds > 0.0).then(|| weighed.sum::<f64>() / seconds)
    };
    let parts = || outcomes.iter().flat_map(|outcome| &outcome.blocks);
    let cpu_us: f64 = parts().map(|part| part.cpu_seconds * 1e6).sum();
    let per = |work: f64| (work > 0.0).then(|| cpu_us / work);
    CpuEnd {
        core: outcomes.first().and_then(|outcome| outcome.cpu.core),
        machine_busy: mean(|cpu| cpu.machine_busy),
        steal: mean(|cpu| cpu.steal),
        attributed: mean(|cpu| cpu.attributed),
        unattributed: mean(|cpu| cpu.unattributed),
        service_demand_us_per_kb: bytes
            .and_then(|bytes| per(parts().map(|part| bytes(part) as f64 / 1024.0).sum())),
        service_demand_us_per_transaction: per(parts().map(|part| part.operations as f64).sum())
            .filter(|_| transactions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disturbance::tests::{outcome, outcomes};
    use crate::plan::End;
    use crate::resolution::tests::plan_of;

    fn of_pair(plan: Plan, pair: Vec<Outcomes>) -> Aggregation {
        let mut aggregation = Aggregation::new(Job::Messages(plan));
        aggregation.add(pair, None).unwrap();
        aggregation
    }

    fn aggregation(test: Test, pair: Vec<Outcomes>) -> Aggregation {
        of_pair(Plan { carriers: vec![1], ..plan_of(&format!("tcp {test}")) }, pair)
    }

    /// A second of 1,000 operations, from `began_ns` on. Each end had `share` of a core, and carriers had all of
    /// `carried`.
    fn busy(began_ns: u64, share: f64, carried: f64) -> Outcomes {
        let part = Part { began_ns, seconds: 1.0, operations: 1000, cpu_seconds: share, ..Part::default() };
        let cpu = CpuEnd { attributed: Some(share), machine_busy: Some(0.9), ..CpuEnd::default() };
        let end = |end, carriers_cpu_seconds| Outcome {
            blocks: vec![Part { carriers_cpu_seconds, ..part.clone() }],
            cpu: cpu.clone(),
            cpu_seconds: 1.0,
            ..outcome(end, &[])
        };
        Outcomes::of(end(End::Source, carried), end(End::Target, 0.0))
    }

    fn is_near(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-9)
    }

    #[test]
    fn no_median_lies_above_its_90th_percentile_however_many_samples_a_fast_pair_has() {
        let pair = |round_trip_ns: u64, count| {
            let reading = Some(round_trip_ns as f64 / 2.0);
            let mut outcomes = outcomes(&[false], &[false]);
            outcomes.source.blocks[0].reading = reading;
            outcomes.source.round_trips = vec![(round_trip_ns, count)];
            vec![outcomes]
        };
        let mut aggregation = aggregation(Test::Latency, pair(200, 1_000_000));
        for slow in [pair(200, 1_000_000), pair(2000, 1000), pair(2000, 1000), pair(2000, 1000)] {
            aggregation.add(slow, None).unwrap();
        }
        let cell = aggregation.cell().unwrap();
        let percentiles = cell.percentiles.unwrap();
        assert_eq!(cell.value, 1000.0);
        assert!(percentiles.p90 >= cell.value && percentiles.p5 <= cell.value, "{percentiles:?}");
    }

    #[test]
    fn threads_of_one_end_and_carriers_may_use_more_than_one_core() {
        let cpu = aggregation(Test::Rr, vec![busy(0, 1.25, 1.31)]).cpu();
        assert!(is_near(cpu.source.attributed, 1.25) && is_near(cpu.target.attributed, 1.25), "{cpu:?}");
        let carriers = cpu.carriers.unwrap();
        assert!(is_near(carriers.attributed, 1.31), "{carriers:?}");
        assert!(is_near(carriers.service_demand_us_per_transaction, 1310.0), "{carriers:?}");
    }

    #[test]
    fn processor_time_of_connections_is_scaled_to_the_common_time() {
        // Each had a quarter of a second alone, so the core worked for 1.25 s in 1.25 s rather than in 1 s.
        let group = vec![busy(0, 0.625, 1.31), busy(250_000_000, 0.625, 0.0)];
        let cpu = aggregation(Test::Hotspot, group).cpu();
        assert!(is_near(cpu.source.attributed, 1.0) && is_near(cpu.source.unattributed, -0.1), "{cpu:?}");
        // The common time has all round trips of the first connection's second, and three quarters of the other's.
        let carriers = cpu.carriers.unwrap();
        assert!(is_near(carriers.attributed, 1.31), "{carriers:?}");
        assert!(is_near(carriers.service_demand_us_per_transaction, 1.31e6 / 1750.0), "{carriers:?}");
    }

    /// A plan for datagrams, and a pair of one block. Of ten bytes sent in a second one arrived, within a hundredth of
    /// it.
    fn lossy(test: Test) -> (Plan, Outcomes) {
        let plan = plan_of(&format!("udp {test}"));
        let mut outcomes = outcomes(&[false], &[false]);
        let (source, target) = (&mut outcomes.source.blocks[0], outcomes.target.as_mut().unwrap());
        let part =
            Part { seconds: 1.0, operations: 1000, sent_bytes: 1_000_000, send_errors: 7, ..Part::default() };
        *source = Part { received_bytes: 50_000, reading: Some(1.0), cpu_seconds: 0.1, ..part };
        target.blocks[0] = Part {
            seconds: if test == Test::Bidir { 0.5 } else { 0.01 },
            operations: 100,
            received_bytes: 100_000,
            cpu_seconds: 0.1,
            ..Part::default()
        };
        (plan, outcomes)
    }

    /// The value and these details of a cell of such a pair, whose messages arrived in so many seconds at each end.
    fn rates(test: Test, [source, target]: [f64; 2], names: &[&str]) -> Vec<f64> {
        let (plan, mut outcomes) = lossy(test);
        outcomes.source.blocks[0].arrival_seconds = source;
        outcomes.target.as_mut().unwrap().blocks[0].arrival_seconds = target;
        let cell = of_pair(plan, vec![outcomes]).cell().unwrap();
        let details = names.iter().map(|name| cell.details[*name].as_f64().unwrap());
        std::iter::once(cell.value).chain(details).collect()
    }

    const STREAM: [&str; 3] = ["received_bytes_per_second", "sent_bytes_per_second", "elapsed_seconds"];
    const BIDIR: [&str; 2] = ["forward_bytes_per_second", "back_bytes_per_second"];
    const INTERLEAVE: [&str; 1] = ["long_transfer_bytes_per_second"];

    #[test]
    fn received_bytes_count_over_the_longer_of_send_and_receive_time() {
        assert_eq!(rates(Test::Stream, [0.0; 2], &STREAM), [1e5, 1e5, 1e6, 1.0]);
        assert_eq!(rates(Test::Stream, [0.0; 2], &["send_errors"]), [1e5, 7.0]);
        assert_eq!(rates(Test::Bidir, [0.0; 2], &BIDIR), [2e5, 1e5, 1e5]);
        assert_eq!(rates(Test::Interleave, [0.0; 2], &INTERLEAVE), [1.0, 1e5]);
    }

    #[test]
    fn buffered_messages_have_not_arrived_at_the_end_of_the_send_time() {
        assert_eq!(rates(Test::Stream, [4.0, 2.0], &STREAM[..2]), [5e4, 5e4, 1e6]);
        assert_eq!(rates(Test::Bidir, [4.0, 2.0], &BIDIR), [62_500.0, 5e4, 12_500.0]);
        assert_eq!(rates(Test::Interleave, [4.0, 2.0], &INTERLEAVE), [1.0, 5e4]);
        let (plan, mut outcomes) = lossy(Test::Nhalf);
        outcomes.target.as_mut().unwrap().blocks[0].arrival_seconds = 2.0;
        assert_eq!(point(&plan, &outcomes), Some((1000, 5e4)));
    }

    #[test]
    fn with_losses_the_cost_of_all_ends_is_per_received_kb() {
        let (plan, outcomes) = lossy(Test::Stream);
        let mut cell = of_pair(plan, vec![outcomes]).cell().unwrap();
        assert_eq!(cell.details[LOST_SHARE], 0.9);
        // A tenth of a second at either end: for 1 MB at the sender, and for 100 kB at the receiver.
        let us_per_kb = |bytes: f64| 0.1e6 / (bytes / 1024.0);
        let close = |said: Option<f64>, due: f64| (said.unwrap() / due - 1.0).abs() < 1e-9;
        assert!(close(cell.cpu.source.service_demand_us_per_kb, us_per_kb(1e6)), "{:?}", cell.cpu);
        assert!(close(cell.service_demand_us_per_kb(), 2.0 * us_per_kb(1e5)), "{:?}", cell.cpu);
        cell.details.insert(LOST_SHARE.to_owned(), 1.0.into());
        assert_eq!(cell.service_demand_us_per_kb(), None, "for nothing");
    }
}
