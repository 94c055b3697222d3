//! Two ends, a path each way, and time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use bywire_wire::batch::Batch;
use bywire_wire::connection::State;
use bywire_wire::packet::Header;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::counts::Counts;
use crate::end::End;
use crate::network::{Packet, Path};
use crate::scenario::{HEALED_AT_NS, Scenario};

/// In the healed world everything has to end within this.
const BOUND_NS: u64 = 30_000_000_000;
/// An end that is asked so often at one moment makes no progress.
const TURNS_MAX: u32 = 10_000;
/// What is shown of a run that failed.
const TRACE_LINES: usize = 60;
/// How often the peer of a closed connection asks at most.
const PINGS_MAX: u32 = 1000;

/// A property that does not hold.
#[derive(Debug)]
pub struct Failure {
    /// Where.
    pub scenario: Box<Scenario>,
    /// What.
    pub reason: String,
    /// The last things that happened before.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let seed = self.scenario.seed;
        for line in &self.trace {
            writeln!(formatter, "{line}")?;
        }
        writeln!(formatter, "{:?}", self.scenario)?;
        writeln!(formatter, "seed {seed}: {}", self.reason)?;
        write!(formatter, "BYWIRE_SEED={seed} BYWIRE_SEEDS=1 cargo test -p bywire-sim --test seeds")
    }
}

enum Event {
    Arrive { to: usize, packet: Packet },
    Wake { end: usize },
}

struct World {
    scenario: Scenario,
    random: StdRng,
    now_ns: u64,
    events: BinaryHeap<(Reverse<(u64, u64)>, usize)>,
    /// By the number in `events`.
    waiting: Vec<Option<Event>>,
    free: Vec<usize>,
    order: u64,
    ends: [End; 2],
    wakes: [Option<u64>; 2],
    paths: [Path; 2],
    batch: Batch,
    counts: Counts,
    trace: Option<Vec<String>>,
    turns: u32,
}

/// Runs the scenario of a seed: what was counted.
///
/// # Errors
/// [`Failure`], with its trace, for which the seed is run again.
pub fn run(seed: u64) -> Result<Counts, Failure> {
    let attempt = |traces: bool| {
        let mut world = World::new(Scenario::of(seed), traces);
        let end = world.live();
        (world, end)
    };
    let (world, end) = attempt(false);
    if end.is_ok() {
        return Ok(world.counts);
    }
    let (world, again) = attempt(true);
    let reason = again.err().unwrap_or_else(|| "failed once, and not when it was run again".to_owned());
    let mut trace = world.trace.unwrap_or_default();
    trace.drain(..trace.len().saturating_sub(TRACE_LINES));
    Err(Failure { scenario: Box::new(world.scenario), reason, trace })
}

impl World {
    fn new(scenario: Scenario, traces: bool) -> Self {
        let mut random = StdRng::seed_from_u64(scenario.seed ^ 0x5eed);
        let parted = random.random_range(0..2);
        let stalled = random.random_range(0..2);
        let paths = [0, 1].map(|index| Path::new(&mut random, scenario.partition_ns > 0 && index == parted));
        let ends = [0, 1]
            .map(|index| End::new(index, &scenario, scenario.stall_ns > 0 && index == stalled, &mut random));
        let mut world = Self {
            scenario,
            random,
            now_ns: 0,
            events: BinaryHeap::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            order: 0,
            ends,
            wakes: [None; 2],
            paths,
            batch: Batch::new(64 * 1024, 16),
            counts: Counts::default(),
            trace: traces.then(Vec::new),
            turns: 0,
        };
        [0, 1].iter().for_each(|end| world.wake(*end, 0));
        world
    }

    fn live(&mut self) -> Result<(), String> {
        if self.scenario.stall_ns > 0 {
            self.counts.add_fault("world: an end that stalls", 1);
        }
        if self.scenario.is_low_standing {
            self.counts.add_fault("world: a low lane that stands", 1);
        }
        self.until("all is delivered", |world| world.ends.iter().all(|end| end.is_done(&world.scenario)))?;
        // What is left are acknowledgements, and then nothing.
        self.until("nothing is to be done", |world| {
            world.ends.iter().all(|end| end.next_ns(world.now_ns, &world.scenario).is_none())
        })?;
        let came = self.ends.iter().map(|end| end.datagrams() as u64).sum::<u64>();
        let never = 2 * u64::from(self.scenario.datagrams) - came;
        self.counts.add_fault("world: datagrams that never came", never);
        self.close()?;
        let counts = self.ends.each_ref().map(|end| *end.connection.counts());
        counts.iter().for_each(|counts| self.counts.add_connection(counts));
        Ok(())
    }

    /// One end closes, over a path that loses again; the other one asks until it knows.
    fn close(&mut self) -> Result<(), String> {
        self.ends[0].connection.close(7);
        let mut pings = 0;
        while self.ends[1].connection.state() == State::Open {
            if pings == PINGS_MAX {
                return Err("an end never learnt of the close".to_owned());
            }
            pings += 1;
            self.ends[1].connection.ping();
            for (from, to) in [(1, 0), (0, 1)] {
                self.batch.clear();
                self.ends[from].connection.transmit(self.now_ns, &mut self.batch);
                for packet in self.batch.packets() {
                    if self.random.random_bool(0.2) {
                        self.counts.add_fault("network: packets lost while one end closes", 1);
                        continue;
                    }
                    self.ends[to].connection.receive(self.now_ns, &mut packet.to_vec());
                }
            }
            self.now_ns += 50_000_000;
        }
        let state = self.ends[1].connection.state();
        (state == State::ClosedByPeer(7)).then_some(()).ok_or(format!("the close came as {state:?}"))
    }

    /// Lets time go on.
    fn until(&mut self, what: &str, is_reached: impl Fn(&Self) -> bool) -> Result<(), String> {
        loop {
            if is_reached(self) {
                return Ok(());
            }
            let Some((Reverse((at_ns, _)), index)) = self.events.pop() else {
                return Err(format!("nothing happens any more before {what}"));
            };
            if at_ns > HEALED_AT_NS + BOUND_NS {
                return Err(format!(
                    "{} s of a healed world are over before {what}",
                    BOUND_NS / 1_000_000_000
                ));
            }
            self.turns = if at_ns == self.now_ns { self.turns + 1 } else { 0 };
            if self.turns > TURNS_MAX {
                return Err("an end wants to act at once, again and again, and does nothing".to_owned());
            }
            self.now_ns = at_ns;
            self.free.push(index);
            match self.waiting[index].take() {
                Some(Event::Arrive { to, packet }) => {
                    self.ends[to].arrive(packet, &self.scenario, &mut self.counts);
                    // A batch is what comes until the program looks.
                    let looks_ns = self.now_ns + self.random.random_range(0..30_000);
                    self.wake(to, looks_ns);
                }
                Some(Event::Wake { end }) if self.wakes[end] == Some(at_ns) => {
                    self.wakes[end] = None;
                    self.act(end)?;
                }
                _ => {}
            }
        }
    }

    fn act(&mut self, end: usize) -> Result<(), String> {
        let now_ns = self.now_ns;
        if let Some(until_ns) = self.ends[end].stalled_until_ns(now_ns, &self.scenario) {
            self.wake(end, until_ns);
            return Ok(());
        }
        let taken = self.ends[end].receive(now_ns)?;
        self.note(end, || format!("takes in {taken} packets"));
        self.ends[end].work(now_ns, &self.scenario, &mut self.random)?;
        if self.random.random_bool(0.1) {
            self.ends[end].connection.before_sleep();
        }
        loop {
            self.ends[end].transmit(now_ns, &mut self.batch)?;
            if self.batch.is_empty() {
                break;
            }
            self.carry(end);
        }
        let [first, second] = &self.ends;
        first.check(second, &self.scenario)?;
        second.check(first, &self.scenario)?;
        if let Some(at_ns) = self.ends[end].next_ns(now_ns, &self.scenario) {
            self.wake(end, at_ns.max(now_ns));
        }
        Ok(())
    }

    /// Passes a batch to the path.
    fn carry(&mut self, from: usize) {
        let batch = std::mem::replace(&mut self.batch, Batch::new(64 * 1024, 16));
        for packet in batch.packets() {
            let now_ns = self.now_ns;
            let path = &mut self.paths[from];
            let carried = path.carry(now_ns, packet, &self.scenario, &mut self.random, &mut self.counts);
            if self.trace.is_some() {
                let (length, copies) = (packet.len(), carried.len());
                let number = Header::parse(packet).map(|header| header.number);
                self.note(from, || format!("sends {number:?} of {length} bytes, and {copies} come"));
            }
            for (at_ns, packet) in carried {
                self.add(at_ns, Event::Arrive { to: 1 - from, packet });
            }
        }
        self.batch = batch;
    }

    /// Wakes an end then, or earlier.
    fn wake(&mut self, end: usize, at_ns: u64) {
        if self.wakes[end].is_none_or(|earlier_ns| at_ns < earlier_ns) {
            self.wakes[end] = Some(at_ns);
            self.add(at_ns, Event::Wake { end });
        }
    }

    fn add(&mut self, at_ns: u64, event: Event) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        self.waiting[index] = Some(event);
        self.order += 1;
        self.events.push((Reverse((at_ns, self.order)), index));
    }

    fn note(&mut self, end: usize, what: impl FnOnce() -> String) {
        let now_us = self.now_ns / 1000;
        if let Some(trace) = &mut self.trace {
            let connection = &self.ends[end].connection;
            let (in_flight, window) = connection.flight();
            let moved: Vec<u64> =
                bywire_wire::frame::LANES.map(|lane| connection.acknowledged(lane)).to_vec();
            trace.push(format!(
                "{now_us:>10} µs  end {end} {}; in flight {in_flight} of {window}, acknowledged {moved:?}",
                what()
            ));
        }
    }
}
