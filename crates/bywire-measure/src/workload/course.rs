//! The course that all tests run: blocks that the source begins and ends in band, with both ends' accounts read between
//! blocks, outside of what is timed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use crate::clock::Clock;
use crate::cpu::{Snapshot, process_seconds};
use crate::endpoint::{Endpoint, Interest, Kind, Mark, PATIENCE, Received, receive_patiently};
use crate::plan::{Details, End, Outcome, Part, Plan};

/// A test, written once over [`Endpoint`].
pub trait Workload {
    /// Plays the source.
    fn source<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome>;

    /// Plays the target.
    fn target<E: Endpoint>(course: Course, lanes: &mut [E]) -> Result<Outcome>;

    /// A block's value out of both ends' parts, in the unit of the test.
    fn value(plan: &Plan, source: &Part, target: &Part) -> Option<f64>;

    /// What only this test yields, out of the blocks of all pairs.
    fn details(_plan: &Plan, _blocks: &Blocks, _details: &mut Results) {}
}

/// Both ends' blocks of all pairs of a cell.
pub struct Blocks<'a> {
    /// The sources' and the targets' parts of the same blocks.
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
    /// One that is measured, if it is a number.
    pub fn set(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.0.insert(name.to_owned(), value.into());
        }
    }

    /// One that is counted.
    pub fn count(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), (value as u64).into());
    }
}

/// The time of what `to` has of what `from` sent in a block: that in which it was sent, for what is lost, be it the whole
/// tail of the block, was sent in it too. What still stands in a buffer when all is sent has not arrived by then: where
/// reading took longer, that is the time. Where nothing is lost the source's own time covers all of it.
pub fn way_seconds(from: &Part, to: &Part) -> f64 {
    from.seconds.max(to.arrival_seconds)
}

/// The round trips of a block whose answers were lost, where they may be.
pub fn count_lost(plan: &Plan, blocks: &Blocks, details: &mut Results) {
    if plan.level.carrier().is_lossy {
        details.count("round_trips_lost", blocks.source(|part| part.lost as f64));
    }
}

/// The detail that names an end's process. It serves to watch the pair, and no cell stores it.
pub const PROCESS: &str = "process";

/// How long an end of a lossy level waits for an answer before it asks again.
pub const ASK_AGAIN: Duration = Duration::from_millis(20);

/// One end's way through the blocks of a pair.
pub struct Course<'a> {
    /// What was planned.
    pub plan: &'a Plan,
    /// The clock that blocks are timed by.
    pub clock: Clock,
    end: End,
    core: Option<u32>,
}

/// One block on the course.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// The tag of this block's `Begin` and `End`.
    pub tag: u32,
    /// False while warming up.
    pub kept: bool,
}

impl<'a> Course<'a> {
    /// That of `end`, whose thread is pinned to `core`.
    pub fn new(plan: &'a Plan, end: End, core: Option<u32>) -> Self {
        Self { plan, clock: Clock::shared(), end, core }
    }

    /// Which end this is.
    pub fn end(&self) -> End {
        self.end
    }

    /// When a block that starts now is to stop, by the course's clock.
    pub fn stop_ns(&self, turn: Turn) -> u64 {
        let block_us = if turn.kept { self.plan.block_us } else { self.plan.warmup_block_us() };
        self.clock.now_ns() + block_us * 1000
    }

    /// Runs `body` once for each block, in step with the other end, and gathers what it returns.
    ///
    /// Begin and end travel on the last lane. A source's body must not return before the target has answered its
    /// `End`, nor a target's before it has answered.
    pub fn run<E: Endpoint>(
        self,
        lanes: &mut [E],
        mut body: impl FnMut(&Self, &mut [E], Turn) -> Result<Part>,
    ) -> Result<Outcome> {
        let mut parts = Vec::new();
        let total = self.plan.warmup_blocks + self.plan.blocks;
        let mut first: Option<(u64, Snapshot)> = None;
        let mut last = None;
        for index in 0..total {
            // All sources wait here, after warming up: otherwise the time of warming up would move them apart.
            if index == self.plan.warmup_blocks {
                self.await_beginning();
            }
            let turn = Turn { tag: index & 0x1f, kept: index >= self.plan.warmup_blocks };
            let before = self.begin(lanes, turn)?;
            let carriers_before = self.carriers_seconds();
            let began_ns = self.clock.now_ns();
            let began_at_ns = monotonic_ns();
            let cpu_before = thread_seconds();
            let mut part = body(&self, lanes, turn)?;
            part.began_ns = began_at_ns;
            part.cpu_seconds = thread_seconds() - cpu_before;
            part.carriers_cpu_seconds = self.carriers_seconds() - carriers_before;
            let after = Snapshot::take(self.core);
            part.disturbed = before.disturbed_since(&after);
            if turn.kept {
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

    /// The same with a histogram for each block: those of the blocks that are kept, together, are the outcome's round trips.
    pub fn run_timed<E: Endpoint>(
        self,
        lanes: &mut [E],
        mut body: impl FnMut(&Self, &mut [E], Turn, &mut Histogram<u64>) -> Result<Part>,
    ) -> Result<Outcome> {
        let (mut all, mut block) = (histogram(), histogram());
        let mut outcome = self.run(lanes, |course, lanes, turn| {
            block.clear();
            let part = body(course, lanes, turn, &mut block)?;
            if turn.kept {
                all.add(&block)?;
            }
            Ok(part)
        })?;
        outcome.round_trips = buckets(&all);
        Ok(outcome)
    }

    /// What the level granted, and which process this is.
    fn details<E: Endpoint>(&self, lanes: &[E]) -> Details {
        let mut details = lanes.first().map_or_else(Details::new, Endpoint::details);
        details.insert(PROCESS.into(), std::process::id().into());
        details
    }

    /// Sleeps until all sources begin; one that comes late begins at once, and is found out by its times.
    fn await_beginning(&self) {
        let begin_ns = self.plan.begin_ns.filter(|_| self.end == End::Source);
        if let Some(left_ns) = begin_ns.and_then(|begin_ns| begin_ns.checked_sub(monotonic_ns())) {
            std::thread::sleep(Duration::from_nanos(left_ns));
        }
    }

    /// Joins the other end at the start of a block; the accounts are read before the source may start its clock.
    fn begin<E: Endpoint>(&self, lanes: &mut [E], turn: Turn) -> Result<Snapshot> {
        let (control, lengths) = self.control(lanes);
        match self.end {
            End::Source => {
                ask(control, lengths, Kind::Begin, Kind::Begun, turn.tag)?;
                Ok(Snapshot::take(self.core))
            }
            End::Target => {
                await_asked(self.plan, control, lengths, Kind::Begin, turn.tag)?;
                let before = Snapshot::take(self.core);
                control.send(lengths, Mark::new(Kind::Begun, turn.tag))?;
                Ok(before)
            }
        }
    }

    /// The CPU time so far of those who carry the messages; the source reads it for both ends.
    fn carriers_seconds(&self) -> f64 {
        match self.end {
            End::Source => self.plan.carriers.iter().map(|&process| process_seconds(process)).sum(),
            End::Target => 0.0,
        }
    }

    /// Lets the target go: without it a target on a lossy level could not know that its last answer arrived.
    fn finish<E: Endpoint>(&self, lanes: &mut [E]) -> Result<()> {
        let (control, length) = self.control(lanes);
        match self.end {
            End::Source if E::RELIABLE => ask(control, length, Kind::Finish, Kind::Finished, 0),
            // The target may be gone already, its last answer lost: its outcome arrives by another way.
            End::Source => {
                let _gone = ask(control, length, Kind::Finish, Kind::Finished, 0);
                Ok(())
            }
            End::Target => {
                await_asked(self.plan, control, length, Kind::Finish, 0)?;
                control.send(length, Mark::new(Kind::Finished, 0))?;
                if E::RELIABLE {
                    // A level may still be carrying the answer, which would end with this process: the source goes
                    // once it has it.
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

/// Sends `question` and waits for `answer` with the same tag; asks again where messages may be lost.
pub fn ask<E: Endpoint>(end: &mut E, length: usize, question: Kind, answer: Kind, tag: u32) -> Result<()> {
    let (question, answer) = (Mark::new(question, tag), Mark::new(answer, tag));
    end.send(length, question)?;
    if E::RELIABLE {
        let received = receive_patiently(end)?;
        if received.mark != answer {
            bail!(unexpected(received.mark));
        }
        return Ok(());
    }
    let started = Instant::now();
    let mut asked = started;
    while started.elapsed() < PATIENCE {
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
    bail!("the peer has not answered for {} s", PATIENCE.as_secs())
}

/// Waits for the source's `question` with `tag`. Late repetitions of the block before are answered again.
fn await_asked<E: Endpoint>(plan: &Plan, end: &mut E, length: usize, question: Kind, tag: u32) -> Result<()> {
    let until_ns = patient_until_ns(plan, monotonic_ns());
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
            // The source may give up on `Begun` only by asking again, so it has seen every earlier answer.
            _ => {}
        }
    }
    bail!("the source has not begun a block for {} s", PATIENCE.as_secs())
}

/// Answers a block's `Begin` again, whose first answer was lost, or refuses a message that has no place here.
pub fn answer_again<E: Endpoint>(end: &mut E, length: usize, mark: Mark, turn: Turn) -> Result<()> {
    if E::RELIABLE {
        bail!(unexpected(mark));
    }
    if mark == Mark::new(Kind::Begin, turn.tag) {
        end.send(length, Mark::new(Kind::Begun, turn.tag))?;
    }
    Ok(())
}

/// Fails on a message that is not of the length that both ends agreed on.
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

/// Until when an end is patient that has heard nothing since then, by the machine's monotonic clock: before all begin
/// nobody has to say anything.
pub fn patient_until_ns(plan: &Plan, since_ns: u64) -> u64 {
    since_ns.max(plan.begin_ns.unwrap_or(0)).saturating_add(PATIENCE.as_nanos() as u64)
}

/// When the first message of payload of a block arrived, and the last one. Its end does not count, for that may be asked
/// for again.
#[derive(Default)]
pub struct Arrivals(Option<(u64, u64)>);

impl Arrivals {
    /// One has arrived by now.
    pub fn note(&mut self, now_ns: u64) {
        let first_ns = self.0.map_or(now_ns, |(first_ns, _)| first_ns);
        self.0 = Some((first_ns, now_ns));
    }

    /// How long they took to arrive.
    pub fn seconds(&self) -> f64 {
        self.0.map_or(0.0, |(first_ns, last_ns)| (last_ns - first_ns) as f64 * 1e-9)
    }
}

/// Fails once nothing has moved for [`PATIENCE`]; for loops that poll.
pub struct Patience(Option<Instant>);

impl Patience {
    /// Something has moved just now.
    pub fn fresh() -> Self {
        Self(None)
    }

    /// Nothing moved in this round.
    pub fn idle(&mut self) -> Result<()> {
        match self.0 {
            None => self.0 = Some(Instant::now()),
            Some(since) if since.elapsed() > PATIENCE => {
                bail!("nothing has moved for {} s", PATIENCE.as_secs())
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

/// How many messages of `length` bytes may pass between two looks at the clock.
pub fn stride(length: usize) -> u64 {
    if length < 4096 { 16 } else { 1 }
}

/// The clock that all processes of a machine share.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The calling thread's own CPU time.
pub fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use crate::plan::{Level, Test};
    use crate::request::Request;
    use crate::resolution;

    fn plan(block_us: u64, begin_ns: Option<u64>) -> Plan {
        let plan = resolution::plan(&Request::new("unix", "rr"), Level::Unix, Test::Rr, &Place::Processes);
        Plan { block_us, begin_ns, ..plan.unwrap() }
    }

    #[test]
    fn patience_begins_when_all_begin() {
        let patience_ns = PATIENCE.as_nanos() as u64;
        assert_eq!(patient_until_ns(&plan(1000, None), 7), 7 + patience_ns);
        assert_eq!(patient_until_ns(&plan(1000, Some(5)), 7), 7 + patience_ns);
        assert_eq!(patient_until_ns(&plan(1000, Some(60_000_000_000)), 7), 60_000_000_000 + patience_ns);
        assert_eq!(patient_until_ns(&plan(1000, Some(u64::MAX)), 7), u64::MAX);
    }

    #[test]
    fn a_block_of_the_warm_up_is_short() {
        for (block_us, warmup_ns) in [(20_000, 20_000_000), (5_000_000, 100_000_000)] {
            let plan = plan(block_us, None);
            let course = Course::new(&plan, End::Source, None);
            let before_ns = course.clock.now_ns();
            let stops = [false, true].map(|kept| course.stop_ns(Turn { tag: 0, kept }));
            let after_ns = course.clock.now_ns();
            for (stop_ns, length_ns) in stops.into_iter().zip([warmup_ns, block_us * 1000]) {
                assert!((before_ns + length_ns..=after_ns + length_ns).contains(&stop_ns), "{block_us}");
            }
        }
    }
}
