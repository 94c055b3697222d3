//! The block loop that all tests run. The source begins and ends each block in band. Both ends read their CPU accounts
//! between blocks, outside of what is timed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::clock::{Clock, monotonic_ns};
use crate::cpu::{Snapshot, processes_seconds, thread_seconds};
use crate::disturbance;
use crate::endpoint::{Endpoint, Interest, Kind, Mark, Received, TIMEOUT, receive_in_time};
use crate::plan::{Details, End, Outcome, Part, Plan};

/// A test, written once over [`Endpoint`]. Ends that do not play blocks refuse to.
pub trait Workload {
    /// Plays a block of the source. Returns once the target has answered its `End`.
    fn source<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        let (test, level) = (block_loop.plan.test, block_loop.plan.level);
        bail!("{test} is an operation of all ranks, which level {level} does not have")
    }

    /// Plays a block of the target. Returns once it has answered the source's `End`.
    fn target<E: Endpoint>(block_loop: &mut BlockLoop<E>) -> Result<Part> {
        Self::source(block_loop)
    }

    /// A block's value, from the parts of both ends, in the unit of the test.
    fn value(plan: &Plan, source: &Part, target: &Part) -> Option<f64>;

    /// The test's further results, from the blocks of all pairs.
    fn details(_plan: &Plan, _blocks: &Blocks, _details: &mut Results) {}
}

/// Both ends' blocks of all pairs of a cell.
pub struct Blocks<'a> {
    /// The source's and the target's part of each block.
    pub both: Vec<(&'a Part, &'a Part)>,
    /// Every round trip in ns; absent where none was timed.
    pub round_trips: Option<Histogram<u64>>,
}

impl Blocks<'_> {
    /// The sum of `of` over both ends' parts.
    pub fn sum(&self, of: impl Fn(&Part, &Part) -> f64) -> f64 {
        self.both.iter().map(|(source, target)| of(source, target)).sum()
    }

    /// The sum of `of` over the sources' parts.
    pub fn source(&self, of: impl Fn(&Part) -> f64) -> f64 {
        self.sum(|source, _| of(source))
    }

    /// The sum of `of` over the targets' parts.
    pub fn target(&self, of: impl Fn(&Part) -> f64) -> f64 {
        self.sum(|_, target| of(target))
    }
}

/// Named results of a cell, units in the names.
#[derive(Debug, Default)]
pub struct Results(pub Details);

impl Results {
    /// Adds a measured result, if it is finite.
    pub fn set(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.0.insert(name.to_owned(), value.into());
        }
    }

    /// Adds a count.
    pub fn count(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), (value as u64).into());
    }

    /// Counts the round trips whose answers were lost, on a level that may lose messages.
    pub fn count_lost(&mut self, plan: &Plan, blocks: &Blocks) {
        if plan.level.carrier().is_lossy {
            self.count("round_trips_lost", blocks.source(|part| part.lost as f64));
        }
    }

    /// Adds quantiles of the round trips, such as `WHAT_p50_ns`.
    pub fn quantiles(&mut self, what: &str, blocks: &Blocks, quantiles: &[(&str, f64)]) {
        for (name, share) in quantiles {
            if let Some(all) = &blocks.round_trips {
                self.set(&format!("{what}_{name}_ns"), all.value_at_quantile(*share) as f64);
            }
        }
    }
}

/// The time of a one-way transfer in a block: the longer of send time and receive time. Messages that are lost were
/// sent in the send time too. Messages that are still buffered when all are sent make the receive time longer. If
/// nothing is lost, the source's own time includes the delivery.
pub fn transfer_seconds(from: &Part, to: &Part) -> f64 {
    from.seconds.max(to.arrival_seconds)
}

/// The detail with the process id of an end, by which a breakdown samples it. No cell stores it.
pub const PROCESS: &str = "process";
/// How long an end of a lossy level waits for an answer before it repeats its request.
pub const ASK_AGAIN: Duration = Duration::from_millis(20);

/// The blocks of one end, and the CPU account over those that are kept.
pub struct Record {
    /// The round trips of the running block in ns.
    pub round_trips: Histogram<u64>,
    kept_round_trips: Histogram<u64>,
    warmup_blocks: usize,
    parts: Vec<Part>,
    span: Option<[Snapshot; 2]>,
}

impl Record {
    /// The record of an end that has played no block of this plan yet.
    pub fn new(plan: &Plan) -> Self {
        let (round_trips, kept_round_trips) = (histogram(), histogram());
        let warmup_blocks = plan.warmup_blocks as usize;
        Self { round_trips, kept_round_trips, warmup_blocks, parts: Vec::new(), span: None }
    }

    /// Adds a block, and its round trips if it is kept.
    pub fn add(&mut self, mut part: Part, before: Snapshot, after: Snapshot) -> Result<()> {
        part.disturbed = disturbance::reasons(&before, &after);
        if self.parts.len() >= self.warmup_blocks {
            self.kept_round_trips.add(&self.round_trips)?;
            let began = self.span.take().map_or(before, |[began, _]| began);
            self.span = Some([began, after]);
        }
        if !self.round_trips.is_empty() {
            self.round_trips.clear();
        }
        self.parts.push(part);
        Ok(())
    }

    /// The report of `end`, which has played all blocks.
    pub fn outcome(mut self, end: End, details: Details) -> Outcome {
        let blocks = self.parts.split_off(self.warmup_blocks);
        let span =
            self.span.map(|[began, ended]| (began.until(&ended), began.lost_until(&ended).wall_seconds));
        let (cpu, cpu_seconds) = span.unwrap_or_default();
        let round_trips = buckets(&self.kept_round_trips);
        Outcome { end, blocks, warmup: self.parts, round_trips, cpu, cpu_seconds, details }
    }
}

/// One end's loop over the blocks of a pair.
pub struct BlockLoop<'a, E> {
    pub(crate) plan: &'a Plan,
    pub(crate) end: End,
    pub(crate) lanes: &'a mut [E],
    /// The clock that blocks are timed by.
    pub(crate) clock: Clock,
    /// The tag of this block's `Begin` and `End`.
    pub(crate) tag: u32,
    pub(crate) started_ns: u64,
    pub(crate) stop_ns: u64,
    pub(crate) record: Record,
    core: Option<u32>,
}

/// The length of a block that is kept, or of one that warms up.
fn block_ns(plan: &Plan, is_kept: bool) -> u64 {
    1000 * if is_kept { plan.block_us } else { plan.warmup_block_us() }
}

impl<'a, E: Endpoint> BlockLoop<'a, E> {
    /// Runs `play` once for each block, in step with the other end, and collects its results. The calling thread is
    /// pinned to `core`. Begin and end travel on the last lane.
    pub fn run(
        plan: &'a Plan,
        end: End,
        core: Option<u32>,
        lanes: &'a mut [E],
        play: impl Fn(&mut Self) -> Result<Part>,
    ) -> Result<Outcome> {
        let (clock, record) = (Clock::shared(), Record::new(plan));
        let mut own = Self { plan, end, lanes, clock, tag: 0, started_ns: 0, stop_ns: 0, record, core };
        for index in 0..plan.warmup_blocks + plan.blocks {
            // All sources wait here after the warm-up, which takes them different times.
            if index == plan.warmup_blocks {
                own.await_beginning();
            }
            own.tag = index & 0x1f;
            let before = own.begin()?;
            let carriers_before = own.carriers_seconds();
            let (began_ns, cpu_before) = (monotonic_ns(), thread_seconds());
            own.started_ns = clock.now_ns();
            own.stop_ns = own.started_ns + block_ns(plan, index >= plan.warmup_blocks);
            let part = play(&mut own)?;
            let cpu_seconds = thread_seconds() - cpu_before;
            let carriers_cpu_seconds = own.carriers_seconds() - carriers_before;
            let part = Part { began_ns, cpu_seconds, carriers_cpu_seconds, ..part };
            own.record.add(part, before, Snapshot::take(core))?;
        }
        own.finish()?;
        let mut details = own.lanes.first().map_or_else(Details::default, Endpoint::details);
        details.insert(PROCESS.into(), std::process::id().into());
        Ok(own.record.outcome(end, details))
    }

    /// The time in seconds from the beginning of this block to a later moment.
    pub fn seconds_until(&self, now_ns: u64) -> f64 {
        (now_ns - self.started_ns) as f64 * 1e-9
    }

    /// Sleeps until all sources begin. A late source begins at once. Its times show that.
    fn await_beginning(&self) {
        let begin_ns = self.plan.begin_ns.filter(|_| self.end == End::Source);
        if let Some(left_ns) = begin_ns.and_then(|begin_ns| begin_ns.checked_sub(monotonic_ns())) {
            std::thread::sleep(Duration::from_nanos(left_ns));
        }
    }

    /// Agrees on the start of a block with the other end. Both read their accounts before the source starts its clock.
    fn begin(&mut self) -> Result<Snapshot> {
        let Self { plan, end, core, tag, .. } = *self;
        let (control, length) = self.control();
        if end == End::Source {
            ask(control, length, Kind::Begin, Kind::Begun, tag)?;
            return Ok(Snapshot::take(core));
        }
        await_asked(plan, control, length, Kind::Begin, tag)?;
        let before = Snapshot::take(core);
        control.send(length, Mark::new(Kind::Begun, tag))?;
        Ok(before)
    }

    /// The CPU time so far of the carrying processes. The source reads it for both ends.
    fn carriers_seconds(&self) -> f64 {
        match self.end {
            End::Source => processes_seconds(&self.plan.carriers),
            End::Target => 0.0,
        }
    }

    /// Ends the pair. Without this, a target on a lossy level could not know that its last answer arrived.
    fn finish(&mut self) -> Result<()> {
        let Self { plan, end, .. } = *self;
        let (control, length) = self.control();
        if end == End::Source {
            let answered = ask(control, length, Kind::Finish, Kind::Finished, 0);
            // The target may have ended already, with its last answer lost. Its outcome does not come this way.
            return if E::RELIABLE { answered } else { Ok(()) };
        }
        await_asked(plan, control, length, Kind::Finish, 0)?;
        control.send(length, Mark::new(Kind::Finished, 0))?;
        if E::RELIABLE {
            // The level may still carry the answer, which would be lost with this process. The source ends once it has
            // the answer.
            let _source_gone = control.receive();
        }
        Ok(())
    }

    /// The last lane and the length that this end sends on it.
    pub fn control(&mut self) -> (&mut E, usize) {
        let lane = self.lanes.len() - 1;
        (&mut self.lanes[lane], self.plan.lengths(lane).sent_by(self.end))
    }
}

/// Sends `question` and waits for `answer` with the same tag. Repeats the question where messages may be lost.
pub fn ask<E: Endpoint>(end: &mut E, length: usize, question: Kind, answer: Kind, tag: u32) -> Result<()> {
    let (question, answer) = (Mark::new(question, tag), Mark::new(answer, tag));
    end.send(length, question)?;
    if E::RELIABLE {
        let received = receive_in_time(end)?;
        ensure!(received.mark == answer, unexpected(received.mark));
        return Ok(());
    }
    let started = Instant::now();
    let mut asked = started;
    while started.elapsed() < TIMEOUT {
        match end.try_receive()? {
            Some(received) if received.mark == answer => return Ok(()),
            Some(_) => continue,
            None => end.wait(Interest::Receive, ASK_AGAIN)?,
        }
        if asked.elapsed() >= ASK_AGAIN {
            end.send(length, question)?;
            asked = Instant::now();
        }
    }
    bail!("the peer has not answered for {} s", TIMEOUT.as_secs())
}

/// Waits for the source's `question` with `tag`. Late repetitions of the block before are answered again.
fn await_asked<E: Endpoint>(plan: &Plan, end: &mut E, length: usize, question: Kind, tag: u32) -> Result<()> {
    let until_ns = idle_deadline_ns(plan, monotonic_ns());
    while monotonic_ns() < until_ns {
        let Some(Received { mark, .. }) = end.receive()? else { continue };
        match mark.kind() {
            _ if mark == Mark::new(question, tag) => return Ok(()),
            _ if E::RELIABLE => bail!(unexpected(mark)),
            Kind::End => end.send(length, Mark::new(Kind::Ended, mark.tag()))?,
            // The source repeats its question if `Begun` is lost, so it has received every earlier answer.
            _ => {}
        }
    }
    bail!("the source has not begun a block for {} s", TIMEOUT.as_secs())
}

/// Answers a repeated `Begin` of the block with `tag`, or refuses a message that is not valid here.
pub fn answer_again<E: Endpoint>(end: &mut E, length: usize, mark: Mark, tag: u32) -> Result<()> {
    ensure!(!E::RELIABLE, unexpected(mark));
    if mark == Mark::new(Kind::Begin, tag) {
        end.send(length, Mark::new(Kind::Begun, tag))?;
    }
    Ok(())
}

/// Fails on a message that does not have the agreed length.
#[inline]
pub fn whole(received: &Received, length: usize) -> Result<()> {
    ensure!(
        received.length == length,
        "a message of {} bytes arrived where {length} were due",
        received.length
    );
    Ok(())
}

/// Why a message with `mark` cannot be right at this point.
pub fn unexpected(mark: Mark) -> String {
    let (kind, tag) = (mark.kind(), mark.tag());
    format!("a message arrived out of step ({kind:?} {tag}): both ends must be of one version")
}

/// When an end that has received nothing since `since_ns` gives up, by the machine's monotonic clock. The timeout
/// starts when all begin, at the earliest.
pub fn idle_deadline_ns(plan: &Plan, since_ns: u64) -> u64 {
    since_ns.max(plan.begin_ns.unwrap_or(0)).saturating_add(TIMEOUT.as_nanos() as u64)
}

/// The counts of an end while it plays a block.
#[derive(Default)]
pub struct Tally {
    /// The counts.
    pub part: Part,
    /// When the first and the last payload message arrived. The block's end does not count, because it may be a
    /// repetition.
    arrived_ns: Option<(u64, u64)>,
    /// A value that depends on every byte received, so that reading them cannot be optimised away.
    sum: u64,
}

impl Tally {
    /// Counts the bytes of a message that has been read.
    #[inline]
    pub fn read(&mut self, received: &Received) {
        self.part.received_bytes += received.length as u64;
        self.sum = self.sum.wrapping_add(received.sum);
    }

    /// Notes that a payload message has arrived by now.
    #[inline]
    pub fn arrived(&mut self, now_ns: u64) {
        let first_ns = self.arrived_ns.map_or(now_ns, |(first_ns, _)| first_ns);
        self.arrived_ns = Some((first_ns, now_ns));
    }

    /// The end's part of a block that took this long.
    pub fn part(mut self, seconds: f64) -> Part {
        std::hint::black_box(self.sum);
        self.part.seconds = seconds;
        self.part.arrival_seconds =
            self.arrived_ns.map_or(0.0, |(first_ns, last_ns)| (last_ns - first_ns) as f64 * 1e-9);
        self.part
    }
}

/// Fails once nothing has moved for [`TIMEOUT`]. Loops that poll use it.
#[derive(Default)]
pub struct IdleTimeout(Option<Instant>);

impl IdleTimeout {
    /// Begins another round of a loop, with whether anything has moved in the last one.
    pub fn round(&mut self, has_moved: bool) -> Result<()> {
        match self.0 {
            _ if has_moved => self.0 = None,
            None => self.0 = Some(Instant::now()),
            Some(since) if since.elapsed() > TIMEOUT => {
                bail!("nothing has moved for {} s", TIMEOUT.as_secs())
            }
            Some(_) => std::hint::spin_loop(),
        }
        Ok(())
    }
}

/// An empty histogram of nanoseconds: 1 ns to a minute at three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds that the crate documents")
}

/// The filled buckets of a histogram as (value, count).
pub fn buckets(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram
        .iter_recorded()
        .map(|bucket| (bucket.value_iterated_to(), bucket.count_since_last_iteration()))
        .collect()
}

/// The histogram with these filled buckets.
pub fn filled<'a>(buckets: impl IntoIterator<Item = &'a (u64, u64)>) -> Histogram<u64> {
    let mut histogram = histogram();
    for &(value, count) in buckets {
        histogram.saturating_record_n(value, count);
    }
    histogram
}

/// The number of messages of `length` bytes between two readings of the clock.
pub fn stride(length: usize) -> u64 {
    if length < 4096 { 16 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolution::tests::plan_of;

    fn plan(block_us: u64, begin_ns: Option<u64>) -> Plan {
        Plan { block_us, begin_ns, ..plan_of("unix rr") }
    }

    #[test]
    fn the_timeout_begins_at_the_common_start() {
        let timeout_ns = TIMEOUT.as_nanos() as u64;
        let late_ns = 60_000_000_000;
        for (begin_ns, start_ns) in [(None, 7), (Some(5), 7), (Some(late_ns), late_ns)] {
            assert_eq!(idle_deadline_ns(&plan(1000, begin_ns), 7), start_ns + timeout_ns);
        }
        assert_eq!(idle_deadline_ns(&plan(1000, Some(u64::MAX)), 7), u64::MAX);
    }

    #[test]
    fn a_warm_up_block_is_short() {
        for (block_us, warmup_ns) in [(20_000, 20_000_000), (5_000_000, 100_000_000)] {
            let lengths_ns = [false, true].map(|is_kept| block_ns(&plan(block_us, None), is_kept));
            assert_eq!(lengths_ns, [warmup_ns, block_us * 1000]);
        }
    }
}
