//! Two programs, the network between them, and the end of the connection.

use std::collections::VecDeque;

use bywire::harness::{End, windows_of};
use bywire::{DisconnectReason, PortOptions};
use bywire_wire::batch::Batch;
use bywire_wire::connection::{Options, Receipt};
use bywire_wire::keys::Side;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::expected::{Direction, REGION_BYTES};
use super::program::Program;
use super::tally::Counts;
use crate::events::Events;
use crate::network::{Packet, Path};
use crate::scenario::{HEALED_AT_NS, Scenario};

/// The time in which everything must end once faults have stopped.
const BOUND_NS: u64 = 30_000_000_000;
/// The number of calls at one moment after which an end counts as making no progress.
const TURNS_MAX: u32 = 10_000;
/// The time after which the service reports the end of the other process.
const NOTICE_NS: u64 = 50_000_000;
/// The memory of an end besides its windows: copies that have not left, spare chunks, and incomplete messages.
const COPIED_BYTES_MAX: usize = 2 << 20;
/// The most events that a program takes at once.
const EVENTS_AT_ONCE: u32 = 50;

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// One end closes when everything is done.
    Done,
    /// An end closes while transfers are under way, and continues until everything that it has sent is acknowledged.
    Leave,
    /// An end is killed.
    Death,
}

enum Event {
    Arrive {
        to: usize,
        packet: Packet,
    },
    Wake {
        end: usize,
    },
    /// One end closes or is killed.
    End,
    /// The service reports that the other end has ended.
    Notice,
}

pub struct Simulation {
    scenario: Scenario,
    random: StdRng,
    now_ns: u64,
    events: Events<Event>,
    programs: [Program; 2],
    /// The paths from each end to the other.
    directions: [Direction; 2],
    inboxes: [VecDeque<Packet>; 2],
    /// When each end wakes next.
    wakes: [Option<u64>; 2],
    paths: [Path; 2],
    memory_max: usize,
    ending: Ending,
    is_leaving: bool,
    is_dead: bool,
    counts: Counts,
    /// The counts of the network, which `crates/bywire-sim/tests/suite/seeds.rs` checks.
    faults: crate::counts::Counts,
    turns: u32,
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        let scenario = Scenario::of(seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0xe8c4);
        let mut port = PortOptions::default();
        for lane in &mut port.geometry.lanes {
            (lane.slots, lane.bulk_bytes) = (8, 1 << random.random_range(14..17));
        }
        port.geometry.fragment_bytes = [512, 4096][random.random_range(0..2)];
        port.remote_fragment_bytes = if seed.is_multiple_of(2) { 20_000 } else { 0 };
        port.send_tokens = [4, 64, 256][random.random_range(0..3)];
        let windows = windows_of(&port);
        let programs = [Side::Initiator, Side::Responder].map(|side| {
            let end = End::new(options(side, windows, &scenario), &port, port.message_bytes_max);
            Program::new(usize::from(side == Side::Responder), end, &mut random)
        });
        let paths = [0, 1].map(|index| Path::new(&mut random, scenario.partition_ns > 0 && index == 0));
        let lanes = windows.iter().map(|window| window.next_power_of_two()).sum::<u64>() as usize;
        let ending = match random.random_range(0..4) {
            0 | 1 => Ending::Leave,
            2 => Ending::Death,
            _ => Ending::Done,
        };
        let mut simulation = Self {
            scenario,
            random,
            now_ns: 0,
            events: Events::default(),
            programs,
            directions: [0, 1].map(|_| Direction::new(vec![0; REGION_BYTES])),
            inboxes: Default::default(),
            wakes: [None; 2],
            paths,
            memory_max: lanes + (4 << 20) + COPIED_BYTES_MAX,
            ending,
            is_leaving: false,
            is_dead: false,
            counts: Counts::default(),
            faults: crate::counts::Counts::default(),
            turns: 0,
        };
        [0, 1].iter().for_each(|end| simulation.wake(*end, 0));
        if ending != Ending::Done {
            let at_ns = simulation.random.random_range(0..2 * HEALED_AT_NS);
            simulation.events.add(at_ns, Event::End);
        }
        simulation
    }

    /// Lets time advance until everything has ended.
    pub fn live(mut self) -> Result<Counts, String> {
        while !self.programs.iter().all(|program| program.end.is_over()) {
            let Some((at_ns, event)) = self.events.pop() else {
                return Err("nothing happens any more, and not all has ended".to_owned());
            };
            if at_ns > HEALED_AT_NS + BOUND_NS {
                return Err("the healed simulation goes on, and not all has ended".to_owned());
            }
            self.turns = if at_ns == self.now_ns { self.turns + 1 } else { 0 };
            if self.turns > TURNS_MAX {
                return Err("an end wants to act at once, again and again, and does nothing".to_owned());
            }
            self.now_ns = at_ns;
            match event {
                Event::Arrive { to, packet } => self.arrive(to, packet),
                Event::Wake { end } if self.wakes[end] == Some(at_ns) => {
                    self.wakes[end] = None;
                    self.act(end)?;
                }
                Event::Wake { .. } => {}
                Event::End => self.end(),
                Event::Notice => self.programs[1].end.drain_and_end(DisconnectReason::Died),
            }
        }
        self.take_all(0)?;
        self.take_all(1)?;
        self.check_end()?;
        Ok(self.counts)
    }

    fn arrive(&mut self, to: usize, packet: Packet) {
        let waiting: usize = self.inboxes[to].iter().map(|packet| packet.bytes.len()).sum();
        if waiting + packet.bytes.len() <= self.scenario.socket_bytes {
            self.inboxes[to].push_back(packet);
        }
        let looks_ns = self.now_ns + self.random.random_range(0..30_000);
        self.wake(to, looks_ns);
    }

    /// Closes or kills an end.
    fn end(&mut self) {
        if self.programs.iter().any(|program| program.end.is_over()) {
            return;
        }
        self.programs[0].stop();
        if self.ending == Ending::Death {
            self.is_dead = true;
            self.counts.add("connections ended by a death", 1);
            self.programs[0].end.end(DisconnectReason::Here);
            self.events.add(self.now_ns + NOTICE_NS, Event::Notice);
        } else {
            self.is_leaving = true;
            self.counts.add("connections ended by a leave", 1);
            self.programs[0].end.begin_close();
            self.wake(0, self.now_ns);
        }
    }

    fn act(&mut self, end: usize) -> Result<(), String> {
        if self.programs[end].end.is_over() {
            return Ok(());
        }
        self.receive(end)?;
        self.take_some(end)?;
        self.programs[end].post(self.now_ns, &mut self.counts);
        self.work(end)?;
        if self.programs[end].end.open_large_window() {
            self.counts.add("large windows", 1);
        }
        if self.random.random_bool(0.1) {
            self.programs[end].end.before_sleep();
        }
        self.send(end);
        self.leave(end);
        let held = self.programs[end].end.memory_bytes();
        if held > self.memory_max {
            return Err(format!("end {end} holds {held} bytes"));
        }
        if let Some(at_ns) = self.next_ns(end) {
            self.wake(end, at_ns.max(self.now_ns));
        }
        Ok(())
    }

    fn receive(&mut self, end: usize) -> Result<(), String> {
        while let Some(mut packet) = self.inboxes[end].pop_front() {
            let receipt = self.programs[end].end.receive_packet(self.now_ns, &mut packet.bytes);
            match receipt {
                Receipt::Taken if packet.is_damaged => return Err("a damaged packet was taken".to_owned()),
                Receipt::Violation(violation) => {
                    return Err(format!("an honest peer broke a rule: {violation}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn take_some(&mut self, end: usize) -> Result<(), String> {
        for _ in 0..self.random.random_range(0..EVENTS_AT_ONCE) {
            if !self.take_one(end)? {
                break;
            }
        }
        Ok(())
    }

    fn take_all(&mut self, end: usize) -> Result<(), String> {
        while self.take_one(end)? {}
        Ok(())
    }

    fn take_one(&mut self, end: usize) -> Result<bool, String> {
        let Some(event) = self.programs[end].end.poll() else { return Ok(false) };
        let [first, second] = &mut self.directions;
        let directions = if end == 0 { (second, first) } else { (first, second) };
        let (random, counts) = (&mut self.random, &mut self.counts);
        self.programs[end].take(self.now_ns, event, directions, random, counts)?;
        Ok(true)
    }

    fn work(&mut self, end: usize) -> Result<(), String> {
        while self.programs[end].is_busy() && self.random.random_bool(0.6) {
            let peer = self.programs[1 - end].keys;
            let (random, counts) = (&mut self.random, &mut self.counts);
            self.programs[end].begin(&mut self.directions[end], peer, random, counts)?;
            if self.programs[end].end.must_transmit() {
                self.send(end);
            }
        }
        Ok(())
    }

    /// Passes departing packets to the path.
    fn send(&mut self, from: usize) {
        loop {
            let mut batch = Batch::new(64 * 1024, 16);
            self.programs[from].end.transmit(self.now_ns, &mut batch);
            if batch.is_empty() {
                return;
            }
            for packet in batch.packets() {
                let (path, faults) = (&mut self.paths[from], &mut self.faults);
                let carried = path.carry(self.now_ns, packet, &self.scenario, &mut self.random, faults);
                for (at_ns, packet) in carried {
                    self.events.add(at_ns, Event::Arrive { to: 1 - from, packet });
                }
            }
        }
    }

    /// Ends the connection when it is time.
    fn leave(&mut self, end: usize) {
        let is_idle = self.directions.iter().all(|direction| direction.messages_left() == 0)
            && self.programs.iter().all(|program| program.is_done() && program.end.is_drained());
        if end == 0 && self.ending == Ending::Done && is_idle && !self.is_leaving {
            self.is_leaving = true;
            self.counts.add("connections ended when all was done", 1);
            self.programs[0].end.begin_close();
        }
        if end == 0 && self.is_leaving && self.programs[0].end.is_drained() {
            self.programs[0].end.end(DisconnectReason::Here);
            self.send(0);
            // The report of the service, in case the packet with the close is lost.
            self.events.add(self.now_ns + NOTICE_NS, Event::Notice);
        }
    }

    /// When an end has work to do.
    fn next_ns(&mut self, end: usize) -> Option<u64> {
        let program = &self.programs[end];
        let soon_ns = self.now_ns + self.random.random_range(1..100_000);
        let has_work = program.is_busy() || program.end.has_input() && !self.is_leaving_here(end);
        let is_ending = end == 0 && self.ending == Ending::Done && program.is_done();
        let again_ns = (has_work || is_ending).then_some(soon_ns);
        [again_ns, program.next_post_ns(), program.end.next_timeout_ns()].into_iter().flatten().min()
    }

    fn is_leaving_here(&self, end: usize) -> bool {
        end == 0 && self.is_leaving
    }

    /// Wakes an end at this time, or earlier.
    fn wake(&mut self, end: usize, at_ns: u64) {
        if self.wakes[end].is_none_or(|earlier_ns| at_ns < earlier_ns) {
            self.wakes[end] = Some(at_ns);
            self.events.add(at_ns, Event::Wake { end });
        }
    }

    /// Checks the final state, when both ends know of the end.
    fn check_end(&mut self) -> Result<(), String> {
        let [first, second] = &self.programs;
        if !(first.is_ended() && second.is_ended()) {
            return Err("a transfer never ended".to_owned());
        }
        let [from_first, from_second] = &mut self.directions;
        for (direction, target) in [(&mut *from_first, second), (&mut *from_second, first)] {
            let (taken, never) = direction.datagrams();
            self.counts.add("datagrams received", taken);
            self.counts.add("datagrams that never came", never);
            if self.ending == Ending::Done || !self.is_dead && !self.is_leaving {
                let left = direction.messages_left();
                if left > 0 {
                    return Err(format!("{left} messages never came"));
                }
                let region = target.end.region(target.keys.shared).ok_or("the region is gone")?;
                direction.settle(region)?;
            }
        }
        let left = from_first.messages_left();
        if self.is_dead {
            self.counts.add("messages that a death has lost", left as u64);
        } else if left > 0 {
            return Err(format!("{left} messages of an end that left never came"));
        }
        Ok(())
    }
}

fn options(side: Side, windows: [u64; 3], scenario: &Scenario) -> Options {
    let index = u32::from(side == Side::Responder);
    let mut secret = [0; 32];
    secret[..8].copy_from_slice(&scenario.seed.to_le_bytes());
    Options {
        side,
        security: scenario.security,
        secret: secret.into(),
        connection: 100 + index,
        peer_connection: 101 - index,
        windows,
        peer_windows: windows,
        route_bytes: scenario.route_bytes,
    }
}
