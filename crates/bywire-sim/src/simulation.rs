//! Two ends, a path in each direction, and time.

use std::fmt;

use bywire_wire::batch::Batch;
use bywire_wire::connection::State;
use bywire_wire::frame::LANES;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::bytes::Source;
use crate::counts::Counts;
use crate::end::End;
use crate::events::Events;
use crate::network::{Packet, Path};
use crate::scenario::{HEALED_AT_NS, Scenario};
use crate::trace::Trace;

/// How long the search for the packet size may continue when nothing else is sent: ten sizes, three probes each, and a
/// probe at least once a second.
const SEARCH_NS: u64 = 10 * 3 * 1_000_000_000;
/// The number of calls at one moment after which an end counts as making no progress.
const TURNS_MAX: u32 = 10_000;
/// The most packets of the peer of a closed connection.
const PINGS_MAX: u32 = 1000;

/// The number of trace lines that are shown of a failed run.
const LINES: usize = 80;

/// A broken invariant, or a run to be looked at.
#[derive(Debug)]
pub struct Failure {
    /// The seed and the time.
    pub scenario: Box<Scenario>,
    /// The invariant.
    pub reason: String,
    /// The last events before it.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let seed = self.scenario.seed;
        writeln!(formatter, "the last {} lines of what happened:", self.trace.len())?;
        for line in &self.trace {
            writeln!(formatter, "{line}")?;
        }
        write!(formatter, "{}", self.scenario)?;
        writeln!(formatter, "seed {seed}: {}", self.reason)?;
        write!(formatter, "BYWIRE_SEED={seed} BYWIRE_SEEDS=1 cargo test -p bywire-sim --test suite seeds::")
    }
}

enum Event {
    Arrive {
        to: usize,
        packet: Packet,
    },
    Wake {
        end: usize,
    },
    /// The connection is made again, and this end has it from now on.
    Renew {
        end: usize,
        from_ns: u64,
    },
}

struct Simulation {
    scenario: Scenario,
    random: StdRng,
    now_ns: u64,
    /// When everything must have arrived.
    bound_ns: u64,
    events: Events<Event>,
    ends: [End; 2],
    wakes: [Option<u64>; 2],
    paths: [Path; 2],
    batch: Batch,
    counts: Counts,
    trace: Option<Trace>,
    turns: u32,
}

/// Runs the scenario of a seed, and returns the counts.
///
/// # Errors
/// [`Failure`], with its trace. The same seed repeats the run.
pub fn run(seed: u64) -> Result<Counts, Failure> {
    let mut simulation = Simulation::new(Scenario::of(seed), None);
    if simulation.live().is_ok() {
        return Ok(simulation.counts);
    }
    let (mut history, again) = run_traced(seed, LINES);
    history.reason = again.err().unwrap_or_else(|| "failed once, and not when it was run again".to_owned());
    Err(history)
}

/// Runs the scenario of a seed and shows its last events, even if it succeeds.
pub fn run_traced(seed: u64, lines: usize) -> (Failure, Result<Counts, String>) {
    let mut simulation = Simulation::new(Scenario::of(seed), Some(lines));
    let end = simulation.live();
    let trace = simulation.trace.map(Trace::into_lines).unwrap_or_default();
    let reason = end.as_ref().err().map_or("everything holds", |reason| reason).to_owned();
    (Failure { scenario: Box::new(simulation.scenario), reason, trace }, end.map(|()| simulation.counts))
}

impl Simulation {
    fn new(scenario: Scenario, lines: Option<usize>) -> Self {
        let mut random = StdRng::seed_from_u64(scenario.seed ^ 0x5eed);
        let [parted, stalled, late] = [(); 3].map(|()| random.random_range(0..2));
        let paths = [0, 1].map(|index| Path::new(&mut random, scenario.partition_ns > 0 && index == parted));
        let ends = [0, 1].map(|end| {
            let from_ns = if end == late { scenario.late_ns } else { 0 };
            let stalls = scenario.stall_ns > 0 && end == stalled;
            End::new(Source { end, life: 0 }, from_ns, &scenario, stalls, &mut random)
        });
        let mut simulation = Self {
            bound_ns: u64::MAX,
            trace: lines.map(|lines| Trace::new(&scenario, lines)),
            scenario,
            random,
            now_ns: 0,
            events: Events::default(),
            ends,
            wakes: [None; 2],
            paths,
            batch: Batch::new(64 * 1024, 16),
            counts: Counts::default(),
            turns: 0,
        };
        [0, 1].iter().for_each(|end| simulation.wake(*end, 0));
        simulation.plan_crash();
        simulation
    }

    /// One end crashes and restarts, and its peer is told. Both make the connection again.
    fn plan_crash(&mut self) {
        let Some(at_ns) = self.scenario.crash_ns else { return };
        let end = self.random.random_range(0..2);
        let [back_ns, told_ns] = self.scenario.back_ns.map(|after_ns| at_ns + after_ns);
        self.events.add(at_ns, Event::Renew { end, from_ns: back_ns });
        self.events.add(told_ns, Event::Renew { end: 1 - end, from_ns: told_ns });
        self.counts.add_fault("simulation: an end that crashes", 1);
    }

    fn live(&mut self) -> Result<(), String> {
        let [first, second] = self.scenario.path_bytes;
        for (name, happens) in [
            ("simulation: an end that stalls", self.scenario.stall_ns > 0),
            ("simulation: a low lane that stands", self.scenario.is_low_standing),
            ("network: paths that become narrower", second < first),
        ] {
            self.counts.add_fault(name, happens.into());
        }
        let life = u32::from(self.scenario.crash_ns.is_some());
        let bound_ns = self.scenario.bound_ns();
        self.bound_ns = HEALED_AT_NS + bound_ns;
        self.until("all is delivered", |simulation| {
            simulation.ends.iter().all(|end| end.source.life == life && end.is_done(&simulation.scenario))
        })?;
        let took_ns = self.now_ns.saturating_sub(HEALED_AT_NS);
        self.counts.note_time(took_ns * 1000 / bound_ns, self.scenario.seed);
        self.bound_ns = self.now_ns + SEARCH_NS;
        // Programs consume everything. Then only acknowledgements are left, and finally nothing.
        for end in [0, 1] {
            LANES.iter().for_each(|lane| self.ends[end].connection.request_credit_report(*lane));
            self.wake(end, self.now_ns);
        }
        self.until("nothing is to be done", |simulation| {
            let is_idle = |end: &End| end.next_ns(simulation.now_ns, &simulation.scenario).is_none();
            simulation.ends.iter().all(is_idle)
                && simulation.wakes.iter().all(|wake| wake.is_none_or(|at| at < simulation.now_ns))
        })?;
        let [first, second] = &self.ends;
        first.check_end(second)?;
        second.check_end(first)?;
        let came = self.ends.iter().map(|end| end.datagrams() as u64).sum::<u64>();
        let never = 2 * u64::from(self.scenario.datagrams) - came;
        self.counts.add_fault("simulation: datagrams that never came", never);
        self.close()?;
        let counts = self.ends.each_ref().map(|end| *end.connection.counts());
        counts.iter().for_each(|counts| self.counts.add_connection(counts));
        Ok(())
    }

    /// One end closes over a lossy path, and repeats the close. If all repetitions are lost, the other end asks until
    /// it knows.
    fn close(&mut self) -> Result<(), String> {
        self.ends[0].connection.close(7);
        let mut pings = 0;
        loop {
            let is_open = self.ends[1].connection.state() == State::Open;
            let timeouts = self.ends.each_ref().map(|end| end.connection.next_timeout_ns());
            if timeouts[0].is_none() && is_open {
                pings += 1;
                self.ends[1].connection.ping();
            } else if timeouts == [None; 2] {
                break;
            }
            if pings == PINGS_MAX {
                return Err("an end never learnt of the close".to_owned());
            }
            self.now_ns = self.now_ns.max(timeouts.into_iter().flatten().min().unwrap_or(0));
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
            self.now_ns += 50_000;
        }
        let state = self.ends[1].connection.state();
        (state == State::ClosedByPeer(7)).then_some(()).ok_or(format!("the close came as {state:?}"))
    }

    /// Lets time advance.
    fn until(&mut self, what: &str, is_reached: impl Fn(&Self) -> bool) -> Result<(), String> {
        loop {
            if is_reached(self) {
                return Ok(());
            }
            let Some((at_ns, event)) = self.events.pop() else {
                return Err(format!("nothing happens any more before {what}"));
            };
            if at_ns > self.bound_ns {
                let bound_ms = self.bound_ns / 1_000_000;
                return Err(format!("{bound_ms} ms are over before {what}"));
            }
            self.turns = if at_ns == self.now_ns { self.turns + 1 } else { 0 };
            if self.turns > TURNS_MAX {
                return Err("an end wants to act at once, again and again, and does nothing".to_owned());
            }
            self.now_ns = at_ns;
            match event {
                Event::Arrive { to, packet } => {
                    self.ends[to].arrive(at_ns, packet, &self.scenario, &mut self.counts);
                    // A batch is what arrives before the program's next turn.
                    let looks_ns = self.now_ns + self.random.random_range(0..30_000);
                    self.wake(to, looks_ns);
                }
                Event::Wake { end } if self.wakes[end] == Some(at_ns) => {
                    self.wakes[end] = None;
                    self.act(end)?;
                }
                Event::Wake { .. } => {}
                Event::Renew { end, from_ns } => self.renew(end, from_ns),
            }
        }
    }

    fn renew(&mut self, end: usize, from_ns: u64) {
        let Source { life, .. } = self.ends[end].source;
        self.counts.add_connection(self.ends[end].connection.counts());
        let source = Source { end, life: life + 1 };
        self.ends[end] = End::new(source, from_ns, &self.scenario, false, &mut self.random);
        self.wakes[end] = None;
        self.wake(end, from_ns);
        if let Some(trace) = &mut self.trace {
            trace.note(self.now_ns, &format!("end {end} begins again, from {} µs on", from_ns / 1000));
        }
    }

    fn act(&mut self, end: usize) -> Result<(), String> {
        let now_ns = self.now_ns;
        if let Some(until_ns) = self.ends[end].idle_until_ns(now_ns, &self.scenario) {
            self.wake(end, until_ns);
            return Ok(());
        }
        let taken = self.ends[end].receive(now_ns, &mut self.counts)?;
        if let Some(trace) = self.trace.as_mut().filter(|_| taken[0] > 0) {
            trace.taken(now_ns, &self.ends[end], taken);
        }
        self.ends[end].work(now_ns, &self.scenario, &mut self.random, &mut self.counts)?;
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
        if first.source.life == second.source.life {
            first.check(second, &self.scenario)?;
            second.check(first, &self.scenario)?;
        }
        if let Some(at_ns) = self.ends[end].next_ns(now_ns, &self.scenario) {
            self.wake(end, at_ns.max(now_ns));
        }
        Ok(())
    }

    /// Passes a batch to the path.
    fn carry(&mut self, from: usize) {
        let batch = std::mem::replace(&mut self.batch, Batch::new(64 * 1024, 16));
        let source = self.ends[from].source;
        for packet in batch.packets() {
            let (scenario, random) = (&self.scenario, &mut self.random);
            let path = &mut self.paths[from];
            let carried = path.carry(self.now_ns, packet, scenario, random, &mut self.counts);
            if let Some(trace) = &mut self.trace {
                trace.sent(self.now_ns, source, packet, &carried, scenario);
            }
            for (at_ns, mut packet) in carried {
                packet.life = source.life;
                self.events.add(at_ns, Event::Arrive { to: 1 - from, packet });
            }
        }
        self.batch = batch;
    }

    /// Wakes an end at this time, or earlier.
    fn wake(&mut self, end: usize, at_ns: u64) {
        if self.wakes[end].is_none_or(|earlier_ns| at_ns < earlier_ns) {
            self.wakes[end] = Some(at_ns);
            self.events.add(at_ns, Event::Wake { end });
        }
    }
}
