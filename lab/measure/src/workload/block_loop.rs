//! The block loop that all tests run. The source begins and ends each block in band. Both ends read their CPU accounts
//! between blocks, outside of what is timed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;

use crate::clock::{Clock, monotonic_ns};
use crate::cpu::{Snapshot, processes_seconds, thread_seconds};
use crate::disturbance;
use crate::endpoint::{Endpoint, Interest, Kind, Mark, Received, TIMEOUT, receive_in_time};
use crate::plan::{Details, End, Outcome, Part, Plan};

/// A test, written once over [`Endpoint`].
pub trait Workload {
    /// Plays the source.
    fn source<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome>;

    /// Plays the target.
    fn target<E: Endpoint>(block_loop: BlockLoop, lanes: &mut [E]) -> Result<Outcome>;

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
}

/// The time of a one-way transfer in a block: the longer of send time and receive time. Messages that are lost were
/// sent in the send time too. Messages that are still buffered when all are sent make the receive time longer. If
/// nothing is lost, the source's own time includes the delivery.
pub fn transfer_seconds(from: &Part, to: &Part) -> f64 {
    from.seconds.max(to.arrival_seconds)
}

/// Counts the round trips whose answers were lost, on a level that may lose messages.
pub fn count_lost(plan: &Plan, blocks: &Blocks, details: &mut Results) {
    if plan.level.carrier().is_lossy {
        details.count("round_trips_lost", blocks.source(|part| part.lost as f64));
    }
}

/// The detail with the process id of an end, by which a breakdown samples it. No cell stores it.
pub const PROCESS: &str = "process";

/// How long an end of a lossy level waits for an answer before it repeats its request.
pub const ASK_AGAIN: Duration = Duration::from_millis(20);

/// One end's loop over the blocks of a pair.
pub struct BlockLoop<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The clock that blocks are timed by.
    pub clock: Clock,
    end: End,
    core: Option<u32>,
}

/// One block of the loop.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// The tag of this block's `Begin` and `End`.
    pub tag: u32,
    /// False while warming up.
    pub kept: bool,
}

impl<'a> BlockLoop<'a> {
    /// The loop of `end`, whose thread is pinned to `core`.
    pub fn new(plan: &'a Plan, end: End, core: Option<u32>) -> Self {
        Self { plan, clock: Clock::shared(), end, core }
    }

    /// The end that this loop plays.
    pub fn end(&self) -> End {
        self.end
    }

    /// When a block that starts now is to stop, by the loop's clock.
    pub fn stop_ns(&self, block: Block) -> u64 {
        let block_us = if block.kept { self.plan.block_us } else { self.plan.warmup_block_us() };
        self.clock.now_ns() + block_us * 1000
    }

    /// Runs `body` once for each block, in step with the other end, and collects its results.
    ///
    /// Begin and end travel on the last lane. A source's body must not return before the target has answered its
    /// `End`, nor a target's before it has answered.
    pub fn run<E: Endpoint>(
        self,
        lanes: &mut [E],
        mut body: impl FnMut(&Self, &mut [E], Block) -> Result<Part>,
    ) -> Result<Outcome> {
        let mut parts = Vec::new();
        let total = self.plan.warmup_blocks + self.plan.blocks;
        let mut first: Option<(u64, Snapshot)> = None;
        let mut last = None;
        for index in 0..total {
            // All sources wait here after the warm-up, which takes them different times.
            if index == self.plan.warmup_blocks {
                self.await_beginning();
            }
            let block = Block { tag: index & 0x1f, kept: index >= self.plan.warmup_blocks };
            let before = self.begin(lanes, block)?;
            let carriers_before = self.carriers_seconds();
            let began_ns = self.clock.now_ns();
            let began_at_ns = monotonic_ns();
            let cpu_before = thread_seconds();
            let mut part = body(&self, lanes, block)?;
            part.began_ns = began_at_ns;
            part.cpu_seconds = thread_seconds() - cpu_before;
            part.carriers_cpu_seconds = self.carriers_seconds() - carriers_before;
            let after = Snapshot::take(self.core);
            part.disturbed = disturbance::reasons(&before, &after);
            if block.kept {
                first.get_or_insert((began_ns, before));
                last = Some((self.clock.now_ns(), after));
            }
            parts.push(part);
        }
        self.finish(lanes)?;
        let blocks = parts.split_off(self.plan.warmup_blocks as usize);
        let (cpu, cpu_seconds) = match (first, last) {
            (Some(first), Some(last)) => (first.1.until(&last.1), (last.0 - first.0) as f64 * 1e-9),
            _ => Default::default(),
        };
        let details = self.details(lanes);
        Ok(Outcome { blocks, warmup: parts, cpu, cpu_seconds, details, ..Outcome::of(self.end) })
    }

    /// The same with a histogram for each block. The outcome's round trips are the sum over the kept blocks.
    pub fn run_timed<E: Endpoint>(
        self,
        lanes: &mut [E],
        mut body: impl FnMut(&Self, &mut [E], Block, &mut Histogram<u64>) -> Result<Part>,
    ) -> Result<Outcome> {
        let (mut all, mut round_trips) = (histogram(), histogram());
        let mut outcome = self.run(lanes, |block_loop, lanes, block| {
            round_trips.clear();
            let part = body(block_loop, lanes, block, &mut round_trips)?;
            if block.kept {
                all.add(&round_trips)?;
            }
            Ok(part)
        })?;
        outcome.round_trips = buckets(&all);
        Ok(outcome)
    }

    /// What the level granted, and the process id.
    fn details<E: Endpoint>(&self, lanes: &[E]) -> Details {
        let mut details = lanes.first().map_or_else(Details::default, Endpoint::details);
        details.insert(PROCESS.into(), std::process::id().into());
        details
    }

    /// Sleeps until all sources begin. A late source begins at once. Its times show that.
    fn await_beginning(&self) {
        let begin_ns = self.plan.begin_ns.filter(|_| self.end == End::Source);
        if let Some(left_ns) = begin_ns.and_then(|begin_ns| begin_ns.checked_sub(monotonic_ns())) {
            std::thread::sleep(Duration::from_nanos(left_ns));
        }
    }

    /// Agrees on the start of a block with the other end. Both read their accounts before the source starts its clock.
    fn begin<E: Endpoint>(&self, lanes: &mut [E], block: Block) -> Result<Snapshot> {
        let (control, lengths) = self.control(lanes);
        match self.end {
            End::Source => {
                ask(control, lengths, Kind::Begin, Kind::Begun, block.tag)?;
                Ok(Snapshot::take(self.core))
            }
            End::Target => {
                await_asked(self.plan, control, lengths, Kind::Begin, block.tag)?;
                let before = Snapshot::take(self.core);
                control.send(lengths, Mark::new(Kind::Begun, block.tag))?;
                Ok(before)
            }
        }
    }

    /// The CPU time so far of the carrying processes. The source reads it for both ends.
    fn carriers_seconds(&self) -> f64 {
        match self.end {
            End::Source => processes_seconds(&self.plan.carriers),
            End::Target => 0.0,
        }
    }

    /// Ends the pair. Without this, a target on a lossy level could not know that its last answer arrived.
    fn finish<E: Endpoint>(&self, lanes: &mut [E]) -> Result<()> {
        let (control, length) = self.control(lanes);
        match self.end {
            End::Source if E::RELIABLE => ask(control, length, Kind::Finish, Kind::Finished, 0),
            // The target may have ended already, with its last answer lost. Its outcome does not come this way.
            End::Source => {
                let _gone = ask(control, length, Kind::Finish, Kind::Finished, 0);
                Ok(())
            }
            End::Target => {
                await_asked(self.plan, control, length, Kind::Finish, 0)?;
                control.send(length, Mark::new(Kind::Finished, 0))?;
                if E::RELIABLE {
                    // The level may still carry the answer, which would be lost with this process. The source ends once
                    // it has the answer.
                    let _source_gone = control.receive();
                }
                Ok(())
            }
        }
    }

    /// The last lane and the length that this end sends on it.
    pub fn control<'b, E>(&self, lanes: &'b mut [E]) -> (&'b mut E, usize) {
        let lane = lanes.len() - 1;
        let length = self.plan.lengths(lane).sent_by(self.end);
        (&mut lanes[lane], length)
    }
}

/// Sends `question` and waits for `answer` with the same tag. Repeats the question where messages may be lost.
pub fn ask<E: Endpoint>(end: &mut E, length: usize, question: Kind, answer: Kind, tag: u32) -> Result<()> {
    let (question, answer) = (Mark::new(question, tag), Mark::new(answer, tag));
    end.send(length, question)?;
    if E::RELIABLE {
        let received = receive_in_time(end)?;
        if received.mark != answer {
            bail!(unexpected(received.mark));
        }
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
        let Some(received) = end.receive()? else {
            continue;
        };
        let mark = received.mark;
        if mark == Mark::new(question, tag) {
            return Ok(());
        }
        match mark.kind() {
            _ if E::RELIABLE => bail!(unexpected(mark)),
            Kind::End => end.send(length, Mark::new(Kind::Ended, mark.tag()))?,
            // The source repeats its question if `Begun` is lost, so it has received every earlier answer.
            _ => {}
        }
    }
    bail!("the source has not begun a block for {} s", TIMEOUT.as_secs())
}

/// Answers a repeated `Begin` of a block, or refuses a message that is not valid here.
pub fn answer_again<E: Endpoint>(end: &mut E, length: usize, mark: Mark, block: Block) -> Result<()> {
    if E::RELIABLE {
        bail!(unexpected(mark));
    }
    if mark == Mark::new(Kind::Begin, block.tag) {
        end.send(length, Mark::new(Kind::Begun, block.tag))?;
    }
    Ok(())
}

/// Fails on a message that does not have the agreed length.
#[inline]
pub fn whole(received: &Received, length: usize) -> Result<()> {
    if received.length != length {
        bail!("a message of {} bytes arrived where {length} were due", received.length);
    }
    Ok(())
}

/// Why a message with `mark` cannot be right at this point.
pub fn unexpected(mark: Mark) -> String {
    format!(
        "a message arrived out of step ({:?} {}): both ends must be of one version",
        mark.kind(),
        mark.tag()
    )
}

/// When an end that has received nothing since `since_ns` gives up, by the machine's monotonic clock. The timeout
/// starts when all begin, at the earliest.
pub fn idle_deadline_ns(plan: &Plan, since_ns: u64) -> u64 {
    since_ns.max(plan.begin_ns.unwrap_or(0)).saturating_add(TIMEOUT.as_nanos() as u64)
}

/// When the first and the last payload message of a block arrived. The block's end does not count, because it may be a
/// repetition.
#[derive(Default)]
pub struct Arrivals(Option<(u64, u64)>);

impl Arrivals {
    /// Notes that a message has arrived by now.
    pub fn note(&mut self, now_ns: u64) {
        let first_ns = self.0.map_or(now_ns, |(first_ns, _)| first_ns);
        self.0 = Some((first_ns, now_ns));
    }

    /// The time from the first to the last arrival.
    pub fn seconds(&self) -> f64 {
        self.0.map_or(0.0, |(first_ns, last_ns)| (last_ns - first_ns) as f64 * 1e-9)
    }
}

/// Fails once nothing has moved for [`TIMEOUT`]. Loops that poll use it.
pub struct IdleTimeout(Option<Instant>);

impl IdleTimeout {
    /// Something has moved now.
    pub fn start() -> Self {
        Self(None)
    }

    /// Nothing moved in this round.
    pub fn idle(&mut self) -> Result<()> {
        match self.0 {
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

/// The number of messages of `length` bytes between two readings of the clock.
pub fn stride(length: usize) -> u64 {
    if length < 4096 { 16 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Request;
    use crate::placement::Placement;
    use crate::plan::{Level, Test};
    use crate::resolution;

    fn plan(block_us: u64, begin_ns: Option<u64>) -> Plan {
        let plan =
            resolution::plan(&Request::new("unix", "rr"), Level::Unix, Test::Rr, &Placement::Processes);
        Plan { block_us, begin_ns, ..plan.unwrap() }
    }

    #[test]
    fn the_timeout_begins_at_the_common_start() {
        let timeout_ns = TIMEOUT.as_nanos() as u64;
        assert_eq!(idle_deadline_ns(&plan(1000, None), 7), 7 + timeout_ns);
        assert_eq!(idle_deadline_ns(&plan(1000, Some(5)), 7), 7 + timeout_ns);
        assert_eq!(idle_deadline_ns(&plan(1000, Some(60_000_000_000)), 7), 60_000_000_000 + timeout_ns);
        assert_eq!(idle_deadline_ns(&plan(1000, Some(u64::MAX)), 7), u64::MAX);
    }

    #[test]
    fn a_warm_up_block_is_short() {
        for (block_us, warmup_ns) in [(20_000, 20_000_000), (5_000_000, 100_000_000)] {
            let plan = plan(block_us, None);
            let block_loop = BlockLoop::new(&plan, End::Source, None);
            let before_ns = block_loop.clock.now_ns();
            let stops = [false, true].map(|kept| block_loop.stop_ns(Block { tag: 0, kept }));
            let after_ns = block_loop.clock.now_ns();
            for (stop_ns, length_ns) in stops.into_iter().zip([warmup_ns, block_us * 1000]) {
                assert!((before_ns + length_ns..=after_ns + length_ns).contains(&stop_ns), "{block_us}");
            }
        }
    }
}
