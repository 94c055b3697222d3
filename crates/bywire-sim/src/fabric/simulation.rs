//! The day: machines, the network between them, faults, and what has to be so after each phase.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use bywire_node::fabric::Fabric;
use bywire_wire::handshake::PublicKey;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::machine::{Machine, Packet};
use super::program::EndState;
use super::scenario::{
    HEALED_NS, IDLE_NS, MACHINES, MET_NS, MINUTE_NS, PHASE_NS, PHASES, SECOND_NS, SETTLED_NS, Scenario,
};
use super::tally::Counts;
use crate::events::Events;

/// The machine that keeps the fabric file. It is never removed.
const KEEPER: usize = 0;
/// The addresses that machines may have.
const ADDRESSES: u8 = 2 * MACHINES as u8;
/// The events of one millisecond after which a machine counts as making no progress.
const TURNS_MAX: u32 = 20_000;
const MS_NS: u64 = 1_000_000;
/// What a failure tells of what happened before.
const HISTORY: usize = 60;

/// What happens at some time.
enum Event {
    Arrive(Packet),
    Wake(usize),
    /// The next fault of a phase is near: programs call, so that it meets connections in the making.
    Near(u64),
    Fault,
    /// The program of a machine calls another one.
    Call(usize),
    /// A part of a machine starts again, unless it was started meanwhile.
    StartService(usize),
    StartProgram(usize),
    Start(usize),
    /// A removed machine is turned off for good.
    TurnOff(usize),
    /// The address of a machine is corrected in the fabric file.
    CorrectAddress(usize),
    Heal,
    CheckSettled,
    CheckMet,
    CheckIdle,
}

/// The time of faults, and the steps of the check that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Faults,
    Settling,
    Meeting,
    Idle,
}

pub struct Simulation {
    scenario: Scenario,
    random: StdRng,
    now_ns: u64,
    events: Events<Event>,
    machines: Vec<Machine>,
    /// The packets between two machines, in this direction, are lost until then.
    cut: BTreeMap<(usize, usize), u64>,
    bad_until_ns: u64,
    step: Step,
    /// Pairs of members of which the first one has not reached the second one yet.
    unmet: BTreeSet<(usize, usize)>,
    counts: Counts,
    history: VecDeque<String>,
    /// Events since this time.
    turns: (u64, u32),
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        let scenario = Scenario::of(seed);
        let mut random = StdRng::seed_from_u64(seed ^ 0xda7);
        let machines: Vec<Machine> = (0..MACHINES)
            .map(|number| {
                let has_aes = scenario.without_aes >> number & 1 == 0;
                Machine::new(number, address(number as u8), has_aes, &mut random)
            })
            .collect();
        let mut simulation = Self {
            scenario,
            random,
            now_ns: SECOND_NS,
            events: Events::default(),
            machines,
            cut: BTreeMap::new(),
            bad_until_ns: 0,
            step: Step::Faults,
            unmet: BTreeSet::new(),
            counts: Counts::default(),
            history: VecDeque::new(),
            turns: (0, 0),
        };
        simulation.begin();
        simulation
    }

    fn begin(&mut self) {
        let members = &self.machines[..self.scenario.members];
        let fabric = Fabric {
            name: "simulated".to_owned(),
            serial: 1,
            keeper: Some(self.machines[KEEPER].name.clone()),
            is_encrypted: true,
            nodes: members.iter().map(Machine::node).collect(),
        };
        for number in 0..self.scenario.members {
            self.machines[number].fabric = Some(fabric.clone());
            self.machines[number].start(self.now_ns, &mut self.random);
        }
        for number in 0..MACHINES {
            self.wake(number, self.now_ns);
            self.call_later(number);
        }
        for phase in 0..PHASES {
            let began_ns = self.now_ns + phase * PHASE_NS;
            self.events.add(began_ns, Event::Near(phase));
            self.events.add(began_ns + HEALED_NS, Event::Heal);
        }
    }

    /// Lets the day pass.
    pub fn live(mut self) -> Result<Counts, String> {
        let end_ns = self.now_ns + PHASES * PHASE_NS;
        while let Some((at_ns, event)) = self.events.pop_before(end_ns) {
            self.now_ns = at_ns;
            let (since_ns, turns) = self.turns;
            self.turns = if at_ns < since_ns + MS_NS { (since_ns, turns + 1) } else { (at_ns, 0) };
            let outcome = match self.turns {
                (_, TURNS_MAX..) => Err("a machine wants to act at once, again and again".to_owned()),
                _ => self.happen(event),
            };
            outcome.map_err(|reason| self.failure(&reason))?;
        }
        Ok(self.counts)
    }

    fn failure(&self, reason: &str) -> String {
        let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
        let at_s = self.now_ns as f64 / SECOND_NS as f64;
        format!("after {at_s:.3} s: {reason}\n{}{}", self.scenario, history.join("\n"))
    }

    fn note(&mut self, text: String) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(format!("{:>10.3} s: {text}", self.now_ns as f64 / SECOND_NS as f64));
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Arrive(packet) => return self.arrive(packet),
            Event::Wake(number) if self.machines[number].wake_ns == Some(self.now_ns) => {
                self.machines[number].wake_ns = None;
                return self.act(number);
            }
            Event::Wake(_) => {}
            Event::Call(number) => {
                if self.step == Step::Faults {
                    self.call_any(number);
                }
                self.call_later(number);
            }
            Event::Near(phase) => {
                for number in 0..MACHINES {
                    if self.step == Step::Faults && self.random.random_bool(0.5) {
                        self.call_any(number);
                    }
                }
                let soon_ns = self.random.random_range(0..8 * self.scenario.delay_ns[1]);
                self.events.add(self.now_ns + soon_ns, Event::Fault);
                // The next phase has its own.
                let next_ns = self.now_ns + self.random.random_range(1..2 * self.scenario.fault_ns);
                if next_ns < SECOND_NS + (phase + 1) * PHASE_NS {
                    self.events.add(next_ns, Event::Near(phase));
                }
            }
            Event::Fault => {
                if self.step == Step::Faults {
                    self.fault();
                }
            }
            Event::StartService(number) => self.start(number, Machine::start_service),
            Event::StartProgram(number) => self.start(number, Machine::start_program),
            Event::Start(number) => self.start(number, Machine::start),
            Event::TurnOff(number) => {
                if !self.is_member(number) {
                    self.note(format!("machine {number} is turned off"));
                    self.machines[number].turn_off(&mut self.random);
                }
            }
            // A healed fabric has the right addresses.
            Event::CorrectAddress(_) if self.step != Step::Faults => {}
            Event::CorrectAddress(number) => {
                self.counts.note("faults: addresses changed in the file");
                self.correct_addresses(&[number]);
            }
            Event::Heal => self.heal(),
            Event::CheckSettled => {
                self.check_settled()?;
                self.begin_meeting();
            }
            Event::CheckMet => {
                self.check_met()?;
                self.begin_idling();
            }
            Event::CheckIdle => {
                self.check_idle()?;
                self.step = Step::Faults;
            }
        }
        Ok(())
    }

    fn start(&mut self, number: usize, start: fn(&mut Machine, u64, &mut StdRng)) {
        // A machine that is off, or that was removed meanwhile, has its own start.
        if self.machines[number].fabric.is_some() && self.is_member(number) {
            start(&mut self.machines[number], self.now_ns, &mut self.random);
            self.wake(number, self.now_ns);
        }
    }

    // Machines.

    fn act(&mut self, number: usize) -> Result<(), String> {
        let machine = &mut self.machines[number];
        if self.now_ns < machine.stalled_ns {
            let until_ns = machine.stalled_ns;
            self.wake(number, until_ns);
            return Ok(());
        }
        let (random, counts) = (&mut self.random, &mut self.counts);
        let packets = machine.act(self.now_ns, &self.scenario, random, counts)?;
        packets.into_iter().for_each(|packet| self.carry(number, packet));
        self.take_results(number);
        if let Some(at_ns) = self.machines[number].next_ns(&self.scenario) {
            self.wake(number, at_ns.max(self.now_ns + 1));
        }
        Ok(())
    }

    /// Wakes a machine at this time, or earlier.
    fn wake(&mut self, number: usize, at_ns: u64) {
        let wake_ns = &mut self.machines[number].wake_ns;
        if wake_ns.is_none_or(|earlier_ns| at_ns < earlier_ns) {
            *wake_ns = Some(at_ns);
            self.events.add(at_ns, Event::Wake(number));
        }
    }

    /// Notes which calls of a program have ended, and repeats those that have to succeed.
    fn take_results(&mut self, number: usize) {
        let Some(program) = &mut self.machines[number].program else { return };
        let (met, missed) = (std::mem::take(&mut program.met), std::mem::take(&mut program.missed));
        if self.step != Step::Meeting {
            return;
        }
        let number_of = |name: &str| usize::from(name.as_bytes()[0] - b'a');
        for name in met {
            self.unmet.remove(&(number, number_of(&name)));
        }
        let again: Vec<String> =
            missed.into_iter().filter(|name| self.unmet.contains(&(number, number_of(name)))).collect();
        if let Some(program) = self.machines[number].program.as_mut().filter(|_| !again.is_empty()) {
            again.iter().for_each(|name| program.call(name, None));
            self.wake(number, self.now_ns + SECOND_NS / 10);
        }
    }

    fn call_later(&mut self, number: usize) {
        let at_ns = self.now_ns + self.random.random_range(1..2 * self.scenario.call_ns);
        self.events.add(at_ns, Event::Call(number));
    }

    /// The program of a machine calls any node of its file, or one that no file has.
    fn call_any(&mut self, number: usize) {
        let machine = &mut self.machines[number];
        let (Some(program), Some(service)) = (&mut machine.program, &machine.service) else { return };
        let nodes: Vec<&str> = service.fabric.nodes.iter().map(|node| node.name.as_str()).collect();
        let others: Vec<&str> = nodes.into_iter().filter(|name| *name != machine.name).collect();
        let name = match self.random.random_range(0..=10 * others.len()) {
            0 => "nobody",
            place => others[(place - 1) % others.len()],
        };
        // Some programs do not wait for the answer.
        let is_impatient = self.random.random_bool(0.3);
        let gives_up_ns =
            is_impatient.then(|| self.now_ns + self.random.random_range(0..8 * self.scenario.delay_ns[1]));
        program.call(name, gives_up_ns);
        self.wake(number, self.now_ns);
    }

    // The network.

    fn carry(&mut self, number: usize, packet: Packet) {
        self.counts.note("packets: sent");
        let to = self.holder(packet.to.ip());
        let is_cut =
            to.is_some_and(|to| self.cut.get(&(number, to)).is_some_and(|until| self.now_ns < *until));
        if is_cut {
            self.counts.note("packets: lost between machines that cannot reach each other");
            return;
        }
        let [lost, doubled, damaged] =
            if self.now_ns < self.bad_until_ns { self.scenario.bad } else { [0; 3] };
        let mut happens = |chance: u32| chance > 0 && self.random.random_range(0..1000) < chance;
        if happens(lost) {
            return;
        }
        let (is_doubled, is_damaged) = (happens(doubled), happens(damaged));
        if is_doubled {
            let at_ns = self.arrival_ns();
            let Packet { from, to, is_damaged, ref bytes } = packet;
            let copy = Packet { from, to, is_damaged, bytes: bytes.clone() };
            self.events.add(at_ns, Event::Arrive(copy));
        }
        let mut packet = packet;
        if is_damaged {
            packet.is_damaged = true;
            let place = self.random.random_range(0..packet.bytes.len());
            packet.bytes[place] ^= 1 << self.random.random_range(0..8);
        }
        let at_ns = self.arrival_ns();
        self.events.add(at_ns, Event::Arrive(packet));
    }

    fn arrival_ns(&mut self) -> u64 {
        let [least, most] = self.scenario.delay_ns;
        self.now_ns + self.random.random_range(least..most)
    }

    /// The machine that has an address now.
    fn holder(&self, ip: IpAddr) -> Option<usize> {
        self.machines.iter().position(|machine| machine.ip == ip && machine.is_on())
    }

    fn arrive(&mut self, packet: Packet) -> Result<(), String> {
        let Some(number) = self.holder(packet.to.ip()) else {
            self.counts.note("packets: for an address without a machine");
            return Ok(());
        };
        let machine = &mut self.machines[number];
        if self.now_ns < machine.stalled_ns {
            return Ok(());
        }
        machine.receive(self.now_ns, packet, &mut self.random)?;
        self.act(number)
    }

    // The fabric file.

    fn file(&self) -> &Fabric {
        self.machines[KEEPER].fabric.as_ref().expect("the keeper has one from the start")
    }

    fn is_member(&self, number: usize) -> bool {
        self.file().named(&self.machines[number].public_key).is_some()
    }

    fn members(&self) -> Vec<usize> {
        (0..MACHINES).filter(|number| self.is_member(*number)).collect()
    }

    /// The keeper changes the file.
    fn change_file(&mut self, change: impl FnOnce(&mut Fabric)) {
        let mut fabric = self.file().clone();
        change(&mut fabric);
        fabric.serial += 1;
        self.machines[KEEPER].use_file(self.now_ns, &fabric);
        self.wake(KEEPER, self.now_ns);
    }

    /// The keeper writes the present addresses of machines into the file.
    fn correct_addresses(&mut self, numbers: &[usize]) {
        let present: Vec<_> = numbers.iter().map(|number| self.machines[*number].node()).collect();
        self.change_file(|fabric| {
            for node in present {
                let known = fabric.nodes.iter_mut().find(|known| known.key == node.key);
                known.into_iter().for_each(|known| known.addresses.clone_from(&node.addresses));
            }
        });
    }

    // Faults.

    fn fault(&mut self) {
        let members = self.members();
        let any = members[self.random.random_range(0..members.len())];
        let later_ns = self.now_ns + self.random.random_range(1..10 * MINUTE_NS);
        match self.random.random_range(0..14) {
            0 | 1 => self.join(),
            2 if any != KEEPER && members.len() > 2 => self.remove(any),
            2 | 3 => {
                self.note(format!("the service of machine {any} is killed"));
                self.counts.note("faults: services killed");
                self.machines[any].lose_service(self.now_ns);
                self.events.add(later_ns, Event::StartService(any));
            }
            4 => {
                self.note(format!("the service of machine {any} ends"));
                self.counts.note("faults: services ended");
                if let Some(mut service) = self.machines[any].lose_service(self.now_ns) {
                    let from = (IpAddr::V4(self.machines[any].ip), bywire_node::fabric::UDP_PORT).into();
                    for (to, bytes) in service.close(self.now_ns, &mut self.random) {
                        self.carry(any, Packet { from, to, is_damaged: false, bytes });
                    }
                }
                self.events.add(later_ns, Event::StartService(any));
            }
            5 => {
                self.note(format!("machine {any} is restarted"));
                self.counts.note("faults: machines restarted");
                self.machines[any].turn_off(&mut self.random);
                self.events.add(later_ns, Event::Start(any));
            }
            6 | 7 => {
                self.note(format!("the program of machine {any} is restarted"));
                self.counts.note("faults: programs restarted");
                self.machines[any].lose_program(self.now_ns);
                self.wake(any, self.now_ns);
                let soon_ns = self.now_ns + self.random.random_range(1..20 * SECOND_NS);
                self.events.add(soon_ns, Event::StartProgram(any));
            }
            8 | 9 => self.change_address(any),
            10 => self.part(any),
            11 => {
                self.note(format!("machine {any} is isolated for {} s", self.seconds_until(later_ns)));
                self.counts.note("faults: machines isolated");
                for other in (0..MACHINES).filter(|other| *other != any) {
                    self.cut.extend([((any, other), later_ns), ((other, any), later_ns)]);
                }
            }
            12 => {
                let until_ns = self.now_ns + self.random.random_range(1..2 * MINUTE_NS);
                self.note(format!("machine {any} stalls for {} s", self.seconds_until(until_ns)));
                self.counts.note("faults: machines stalled");
                self.machines[any].stalled_ns = until_ns;
            }
            _ => {
                self.note(format!("the network is bad for {} s", self.seconds_until(later_ns)));
                self.counts.note("faults: bad times of the network");
                self.bad_until_ns = later_ns;
            }
        }
    }

    fn seconds_until(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.now_ns) / SECOND_NS
    }

    fn join(&mut self) {
        let Some(number) = (0..MACHINES).find(|number| !self.is_member(*number)) else { return };
        let is_known = self.machines[number].fabric.is_some();
        self.note(format!("machine {number} joins"));
        let name = if is_known { "faults: machines joined again" } else { "faults: machines joined" };
        self.counts.note(name);
        let node = self.machines[number].node();
        self.change_file(|fabric| fabric.nodes.push(node));
        // A machine that still runs learns of it from the keeper.
        if !self.machines[number].is_on() || self.random.random_bool(0.5) {
            let fabric = self.file().clone();
            self.machines[number].turn_off(&mut self.random);
            self.machines[number].fabric = Some(fabric);
            self.machines[number].start(self.now_ns, &mut self.random);
        }
        self.wake(number, self.now_ns);
    }

    /// A machine is removed. It does not know, and goes on for a while.
    fn remove(&mut self, number: usize) {
        self.note(format!("machine {number} is removed"));
        self.counts.note("faults: machines removed");
        let key = self.machines[number].public_key;
        self.change_file(|fabric| fabric.nodes.retain(|node| node.key != key));
        let off_ns = self.now_ns + self.random.random_range(1..30 * MINUTE_NS);
        self.events.add(off_ns, Event::TurnOff(number));
    }

    fn change_address(&mut self, number: usize) {
        let free: Vec<Ipv4Addr> = (0..ADDRESSES)
            .map(address)
            .filter(|ip| self.machines.iter().all(|other| other.ip != *ip))
            .collect();
        let ip = free[self.random.random_range(0..free.len())];
        self.note(format!("machine {number} moves from {} to {ip}", self.machines[number].ip));
        self.counts.note("faults: addresses changed");
        self.machines[number].ip = ip;
        if self.random.random_bool(0.5) {
            let at_ns = self.now_ns + self.random.random_range(1..5 * MINUTE_NS);
            self.events.add(at_ns, Event::CorrectAddress(number));
        }
    }

    /// Two machines cannot reach each other, or only in one direction.
    fn part(&mut self, number: usize) {
        let other = (number + self.random.random_range(1..MACHINES)) % MACHINES;
        let until_ns = self.now_ns + self.random.random_range(1..10 * MINUTE_NS);
        let is_one_way = self.random.random_bool(0.3);
        let way = if is_one_way { "to" } else { "between it and" };
        let seconds = self.seconds_until(until_ns);
        self.note(format!("machine {number}: no packets {way} machine {other} for {seconds} s"));
        self.counts.note("faults: partitions of two machines");
        self.cut.insert((number, other), until_ns);
        if !is_one_way {
            self.cut.insert((other, number), until_ns);
        }
    }

    // What has to be so.

    fn heal(&mut self) {
        self.note("everything is healed".to_owned());
        self.step = Step::Settling;
        self.cut.clear();
        self.bad_until_ns = 0;
        for number in self.members() {
            self.machines[number].stalled_ns = 0;
            self.machines[number].start(self.now_ns, &mut self.random);
            self.wake(number, self.now_ns);
        }
        self.correct_addresses(&self.members());
        // Connections that are there now are compared.
        let checked_ns = self.now_ns + SETTLED_NS;
        let programs = self.machines.iter_mut().filter_map(|machine| machine.program.as_mut());
        programs.for_each(|program| program.keep_all(checked_ns + MET_NS + 1));
        self.events.add(checked_ns, Event::CheckSettled);
    }

    /// All members use the keeper's file, and no end of a connection is without the other.
    fn check_settled(&self) -> Result<(), String> {
        let members = self.members();
        let mut ends: BTreeMap<(u64, u32), EndState> = BTreeMap::new();
        for number in &members {
            let machine = &self.machines[*number];
            let (Some(service), Some(program)) = (&machine.service, &machine.program) else {
                return Err(format!("machine {number} does not run"));
            };
            if service.fabric != *self.file() {
                let serials = [service.fabric.serial, self.file().serial];
                return Err(format!(
                    "machine {number} uses the files {serials:?}: its own, and the keeper's"
                ));
            }
            if !program.is_registered {
                return Err(format!("the program of machine {number} is not registered"));
            }
            self.check_removed(*number)?;
            if let Some(name) = service.copied() {
                return Err(format!("machine {number} takes node {name} for two machines"));
            }
            ends.extend(program.ends().into_iter().map(|end| (end.own, end)));
        }
        for end in ends.values() {
            match ends.get(&end.peer) {
                None => return Err(format!("{end:?} has no other end")),
                Some(other) if other.peer != end.own => {
                    return Err(format!("{end:?} and {other:?} are not one connection"));
                }
                Some(other) if end.sent > other.received + 8 => {
                    return Err(format!("messages do not arrive: {end:?} and {other:?}"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// A member has nothing of machines that are no members.
    fn check_removed(&self, number: usize) -> Result<(), String> {
        let machine = &self.machines[number];
        let is_member = |key: &PublicKey| self.file().named(key).is_some();
        for other in self.machines.iter().filter(|other| !is_member(&other.public_key)) {
            let is_known = machine.service.as_ref().is_some_and(|service| service.knows(&other.public_key));
            let is_connected =
                machine.program.as_ref().is_some_and(|program| program.is_connected(&other.public_key));
            if is_known || is_connected {
                return Err(format!(
                    "machine {number} still knows machine {}, which was removed",
                    other.name
                ));
            }
        }
        Ok(())
    }

    /// Each member calls each other one.
    fn begin_meeting(&mut self) {
        self.step = Step::Meeting;
        let members = self.members();
        self.unmet = members
            .iter()
            .flat_map(|from| members.iter().map(|to| (*from, *to)))
            .filter(|(from, to)| from != to)
            .collect();
        for (from, to) in self.unmet.clone() {
            let name = self.machines[to].name.clone();
            if let Some(program) = &mut self.machines[from].program {
                (program.met, program.missed) = (Vec::new(), Vec::new());
                program.call(&name, None);
            }
            self.wake(from, self.now_ns);
        }
        self.events.add(self.now_ns + MET_NS, Event::CheckMet);
    }

    fn check_met(&self) -> Result<(), String> {
        match self.unmet.first() {
            Some((from, to)) => {
                Err(format!("machine {from} has not reached machine {to} in a healed fabric"))
            }
            None => self.check_settled(),
        }
    }

    /// All connections are closed.
    fn begin_idling(&mut self) {
        self.step = Step::Idle;
        for number in 0..MACHINES {
            if let Some(program) = &mut self.machines[number].program {
                program.close_all(self.now_ns);
            }
            self.wake(number, self.now_ns);
        }
        self.events.add(self.now_ns + IDLE_NS, Event::CheckIdle);
    }

    /// Nothing is left at members: no connection, no channel, and nothing to do.
    fn check_idle(&self) -> Result<(), String> {
        for number in self.members() {
            let machine = &self.machines[number];
            let remains = machine.service.as_ref().and_then(|service| service.remains());
            if let Some(remains) = remains {
                return Err(format!("of an idle fabric machine {number} keeps something: {remains}"));
            }
            if !machine.program.as_ref().is_some_and(|program| program.is_idle()) {
                return Err(format!("the idle program of machine {number} keeps connections or calls"));
            }
        }
        Ok(())
    }
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, number + 1)
}
