//! Engines, the links between them, and what happens to both.

use bywire_stream::{Lane, ResetReason, Side, Streams};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::end::{End, World};
use super::link::LinkLane;
use super::scenario::{HEALED_AT_NS, Scenario};
use super::tally::Counts;
use crate::events::Events;

/// The time in which everything must end once faults have stopped.
const BOUND_NS: u64 = 300_000_000_000;
/// The time after which an engine knows that the other one is gone.
const NOTICE_NS: u64 = 5_000_000;
const LANES: [Lane; 2] = [Lane::High, Lane::Low];

enum Event {
    Arrive {
        connection: usize,
        life: u32,
        from: usize,
        lane: Lane,
    },
    Wake {
        connection: usize,
        side: usize,
    },
    Kill,
    Restart,
    ShutDown {
        connection: usize,
    },
    /// An end knows that the connection is lost.
    Notice {
        connection: usize,
        life: u32,
        side: usize,
    },
}

/// A connection between two engines, or between two places of one.
struct Connection {
    ends: [End; 2],
    /// By sender and lane.
    lanes: [[LinkLane; 2]; 2],
    /// How often the connection has been made again.
    life: u32,
    wakes: [Option<u64>; 2],
}

pub struct Simulation {
    world: World,
    events: Events<Event>,
    connections: Vec<Connection>,
    killed: Option<usize>,
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        let scenario = Scenario::of(seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0xb17e);
        let engines = scenario.engines;
        let pairs = (0..engines).flat_map(|first| (first + 1..engines).map(move |second| (first, second)));
        let pairs: Vec<(usize, usize)> = if engines == 1 { vec![(0, 0)] } else { pairs.collect() };
        let connections = pairs.into_iter().map(|(first, second)| Connection {
            ends: [first, second].map(|engine| End::new(engine, random.random_range(0..=scenario.streams))),
            lanes: Default::default(),
            life: 0,
            wakes: [None; 2],
        });
        let connections = connections.collect();
        let world = World { scenario, random, now_ns: 0, book: Vec::new(), counts: Counts::default() };
        let mut simulation = Self { world, events: Events::default(), connections, killed: None };
        (0..simulation.connections.len()).for_each(|connection| simulation.connect(connection));
        if let Some((at_ns, back_ns)) = simulation.world.scenario.kill {
            simulation.events.add(at_ns, Event::Kill);
            simulation.events.add(back_ns, Event::Restart);
        }
        if let Some(at_ns) = simulation.world.scenario.shut_down {
            let connection = simulation.world.random.random_range(0..simulation.connections.len());
            simulation.events.add(at_ns, Event::ShutDown { connection });
        }
        simulation
    }

    /// Lets time advance until nothing happens any more.
    pub fn run(mut self) -> Result<Counts, String> {
        while let Some((at_ns, event)) = self.events.pop() {
            if at_ns > HEALED_AT_NS + BOUND_NS {
                return Err("the healed simulation goes on, and not all has ended".to_owned());
            }
            self.world.now_ns = at_ns;
            self.happen(event)?;
        }
        for connection in &mut self.connections {
            for end in &mut connection.ends {
                end.finish(&mut self.world)?;
            }
        }
        for (number, entry) in self.world.book.iter().enumerate() {
            entry.check().map_err(|reason| format!("stream {number}: {reason}"))?;
        }
        Ok(self.world.counts)
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive { connection, life, from, lane } => {
                if self.connections[connection].life == life {
                    self.arrive(connection, from, lane)?;
                }
            }
            Event::Wake { connection, side } => {
                if self.connections[connection].wakes[side] == Some(self.world.now_ns) {
                    self.connections[connection].wakes[side] = None;
                    self.act(connection, side)?;
                }
            }
            Event::Kill => self.kill()?,
            Event::Restart => {
                self.killed = None;
                (0..self.connections.len()).for_each(|connection| self.connect(connection));
            }
            Event::ShutDown { connection } => self.shut_down(connection)?,
            Event::Notice { connection, life, side } => {
                if self.connections[connection].life == life {
                    self.lose(connection, side)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a connection if both of its engines are there and neither has the old one.
    fn connect(&mut self, connection: usize) {
        let link = &mut self.connections[connection];
        let is_there = |end: &End| end.machine.is_none() && self.killed != Some(end.engine);
        if !link.ends.iter().all(is_there) {
            return;
        }
        link.life += 1;
        link.lanes.iter_mut().flatten().for_each(LinkLane::clear);
        for (end, side) in link.ends.iter_mut().zip([Side::First, Side::Second]) {
            end.machine = Some(Streams::new(side, self.world.scenario.limits));
        }
        [0, 1].iter().for_each(|side| self.wake(connection, *side, self.world.now_ns));
    }

    fn arrive(&mut self, connection: usize, from: usize, lane: Lane) -> Result<(), String> {
        let link = &mut self.connections[connection];
        let Some(message) = link.lanes[from][lane as usize].receive(self.world.now_ns) else {
            return Err("the link has lost a message".to_owned());
        };
        let is_closed = link.ends[1 - from].receive(lane, &message, &mut self.world)?;
        if is_closed {
            return self.lose(connection, 1 - from);
        }
        // The receiver looks soon, and the sender has room.
        for side in [0, 1] {
            let at_ns = self.world.now_ns + self.world.random.random_range(0..20_000);
            self.wake(connection, side, at_ns);
        }
        Ok(())
    }

    fn act(&mut self, connection: usize, side: usize) -> Result<(), String> {
        self.connections[connection].ends[side].act(&mut self.world)?;
        let next_ns = self.connections[connection].ends[side].next_ns();
        if self.world.scenario.flushes
            && let Some(machine) = &mut self.connections[connection].ends[side].machine
        {
            machine.flush();
        }
        self.transmit(connection, side)?;
        if let Some(at_ns) = next_ns {
            self.wake(connection, side, at_ns.max(self.world.now_ns + 1));
        }
        Ok(())
    }

    fn transmit(&mut self, connection: usize, side: usize) -> Result<(), String> {
        let link = &mut self.connections[connection];
        for lane in LANES {
            loop {
                let way = &mut link.lanes[side][lane as usize];
                if !way.has_room(&self.world.scenario) {
                    self.world.counts.note("link: full");
                    break;
                }
                let Some(message) = link.ends[side].transmit(lane, &self.world)? else { break };
                let World { scenario, random, now_ns, counts, .. } = &mut self.world;
                let at_ns = way.send(*now_ns, lane, message, scenario, random, counts);
                self.events.add(at_ns, Event::Arrive { connection, life: link.life, from: side, lane });
            }
        }
        Ok(())
    }

    /// An engine dies, and the others hear of it later.
    fn kill(&mut self) -> Result<(), String> {
        let engine = self.world.random.random_range(0..self.world.scenario.engines);
        self.world.counts.note("engines: killed");
        self.killed = Some(engine);
        for connection in 0..self.connections.len() {
            let link = &mut self.connections[connection];
            if link.ends.iter().all(|end| end.engine != engine) {
                continue;
            }
            link.lanes.iter_mut().flatten().for_each(LinkLane::clear);
            link.life += 1;
            for side in [0, 1] {
                if link.ends[side].engine == engine {
                    link.ends[side].lose(&mut self.world)?;
                } else {
                    let notice = Event::Notice { connection, life: link.life, side };
                    self.events.add(self.world.now_ns + NOTICE_NS, notice);
                }
            }
        }
        Ok(())
    }

    fn shut_down(&mut self, connection: usize) -> Result<(), String> {
        let side = self.world.random.random_range(0..2);
        let link = &mut self.connections[connection];
        let Some(machine) = &mut link.ends[side].machine else { return Ok(()) };
        self.world.counts.note("engines: connections shut down");
        machine.shut_down(ResetReason::Stopped);
        // The last message leaves even if the link is full.
        if let Some(message) = link.ends[side].transmit(Lane::High, &self.world)? {
            let World { scenario, random, now_ns, counts, .. } = &mut self.world;
            let at_ns = link.lanes[side][0].send(*now_ns, Lane::High, message, scenario, random, counts);
            self.events
                .add(at_ns, Event::Arrive { connection, life: link.life, from: side, lane: Lane::High });
        }
        if link.ends[side].has_output(Lane::High) || link.ends[side].has_output(Lane::Low) {
            return Err("a connection that was shut down goes on".to_owned());
        }
        link.ends[side].lose(&mut self.world)
    }

    fn lose(&mut self, connection: usize, side: usize) -> Result<(), String> {
        self.connections[connection].ends[side].lose(&mut self.world)?;
        self.connect(connection);
        Ok(())
    }

    /// Wakes an end at this time, or earlier.
    fn wake(&mut self, connection: usize, side: usize, at_ns: u64) {
        let wake = &mut self.connections[connection].wakes[side];
        if wake.is_none_or(|earlier_ns| at_ns < earlier_ns) {
            *wake = Some(at_ns);
            self.events.add(at_ns, Event::Wake { connection, side });
        }
    }
}
