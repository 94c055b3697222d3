//! Many nodes around a switch: the total throughput, how evenly it is shared, and the memory of the receivers.
//!
//! Every node has its own link. The switch has a queue for each of its ports and drops packets that do not fit. Packets
//! count with the bytes that `bywire-wire` makes. The headers of UDP, IP and Ethernet are not modelled.

use std::collections::VecDeque;
use std::sync::Arc;

use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options, Receipt};
use bywire_wire::frame::Lane;
use bywire_wire::keys::{SECRET_BYTES, Security, Side};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::events::Events;

/// The bytes that are sent at a time. More are added once less than that waits.
const PIECE_BYTES: u64 = 64 * 1024;
/// The longest time until a program looks for received bytes.
const LOOKS_NS: u64 = 5_000;
/// All nodes begin within this time.
const BEGIN_NS: u64 = 1_000_000;

/// The pairs of nodes that communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// This many nodes send to one.
    FanIn(usize),
    /// Each of this many nodes sends to every other one.
    AllToAll(usize),
}

/// A switch, its links, and their traffic.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// Who sends to whom.
    pub traffic: Traffic,
    /// The rate of each link, in bits per second.
    pub bits_per_second: u64,
    /// The bytes of the switch's queue for one port.
    pub queue_bytes: u64,
    /// The propagation time of one link.
    pub link_ns: u64,
    /// The packet size.
    pub packet_bytes: u16,
    /// The bytes that may wait at the receiver, for each source.
    pub window: u64,
    /// The time before the measurement.
    pub warm_up_ns: u64,
    /// The time of the measurement.
    pub measured_ns: u64,
}

/// The results.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The program's bytes that arrived, as a share of the rate of the receivers' links.
    pub goodput: f64,
    /// Jain's index: 1 if every flow has the same share, 1/n if one of n has all.
    pub jain: f64,
    /// The least and the greatest share of a flow, relative to an even share.
    pub shares: [f64; 2],
    /// The median and the 99th percentile of the time for a piece of 64 KiB, in microseconds, as its sender sees it.
    pub piece_us: [u64; 2],
    /// Packets that the switch dropped, as a share of those that reached it.
    pub dropped: f64,
    /// The most bytes that were in the lanes of one node at once.
    pub memory_bytes: usize,
}

enum Event {
    /// A packet reaches the switch.
    Switch { to: usize, bytes: Vec<u8> },
    /// A packet reaches its end.
    Arrive { to: usize, bytes: Vec<u8> },
    /// An end has work to do.
    Wake { end: usize },
}

/// The queue of a link or of a port of the switch: when the last waiting bit will have left.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    busy_until_ns: u64,
}

impl Line {
    /// When a packet will have left, after everything that waits.
    fn send(&mut self, now_ns: u64, bytes: usize, bits_per_second: u64) -> u64 {
        let time_ns = bytes as u64 * 8 * 1_000_000_000 / bits_per_second;
        self.busy_until_ns = self.busy_until_ns.max(now_ns) + time_ns;
        self.busy_until_ns
    }

    /// Bytes that wait.
    fn waiting_bytes(self, now_ns: u64, bits_per_second: u64) -> u64 {
        let waits_ns = self.busy_until_ns.saturating_sub(now_ns);
        (u128::from(waits_ns) * u128::from(bits_per_second) / 8_000_000_000) as u64
    }
}

/// A machine with one link.
#[derive(Clone, Debug, Default)]
struct Node {
    /// To the switch, and from it.
    lines: [Line; 2],
    /// Bytes in the lanes of its ends, now and at most.
    held_bytes: usize,
    held_bytes_max: usize,
}

/// One end of one connection. The other one is beside it.
struct End {
    connection: Connection<Arc<[u8]>>,
    node: usize,
    is_source: bool,
    is_target: bool,
    inbox: Vec<Vec<u8>>,
    wake_ns: Option<u64>,
    /// When each piece under way was added.
    pieces: VecDeque<u64>,
    consumed: u64,
}

struct Simulation {
    plan: Switch,
    random: StdRng,
    now_ns: u64,
    events: Events<Event>,
    nodes: Vec<Node>,
    /// The two ends of each connection, one after the other.
    ends: Vec<End>,
    piece: Arc<[u8]>,
    batch: Batch,
    /// Packets that reached the switch, and those that it dropped.
    packets: [u64; 2],
    piece_us: Vec<u64>,
}

impl Traffic {
    /// The nodes, and those of them that receive.
    fn nodes(self) -> (usize, usize) {
        match self {
            Self::FanIn(sources) => (sources + 1, 1),
            Self::AllToAll(nodes) => (nodes, nodes),
        }
    }

    /// The nodes of each connection. The first one is a source.
    fn connections(self) -> Vec<[usize; 2]> {
        match self {
            Self::FanIn(sources) => (1..=sources).map(|source| [source, 0]).collect(),
            Self::AllToAll(nodes) => {
                let pairs = (0..nodes).flat_map(|first| (0..first).map(move |second| [first, second]));
                pairs.collect()
            }
        }
    }
}

impl Switch {
    /// Lets all sources send for the planned time.
    pub fn run(&self, seed: u64) -> Outcome {
        let mut simulation = Simulation::new(*self, seed);
        simulation.until(self.warm_up_ns);
        let before: Vec<u64> = simulation.ends.iter().map(|end| end.consumed).collect();
        simulation.piece_us.clear();
        simulation.packets = [0; 2];
        simulation.until(self.warm_up_ns + self.measured_ns);
        let targets = simulation.ends.iter().zip(before).filter(|(end, _)| end.is_target);
        let flows: Vec<_> = targets.map(|(end, before)| (end.consumed - before) as f64).collect();
        simulation.outcome(&flows)
    }

    /// Both ends of a connection between two nodes.
    fn ends(&self, connection: usize, nodes: [usize; 2]) -> [End; 2] {
        let is_mutual = matches!(self.traffic, Traffic::AllToAll(_));
        [Side::Initiator, Side::Responder].map(|side| {
            let mut secret = [0; SECRET_BYTES];
            secret[..8].copy_from_slice(&(connection as u64).to_le_bytes());
            let options = Options {
                side,
                security: Security::Plain,
                secret: secret.into(),
                connection: connection as u32,
                peer_connection: connection as u32,
                windows: [self.window; 3],
                peer_windows: [self.window; 3],
                route_bytes: self.packet_bytes,
            };
            let is_first = side == Side::Initiator;
            End {
                connection: Connection::new(options),
                node: nodes[usize::from(!is_first)],
                is_source: is_first || is_mutual,
                is_target: !is_first || is_mutual,
                inbox: Vec::new(),
                wake_ns: None,
                pieces: VecDeque::new(),
                consumed: 0,
            }
        })
    }
}

impl Simulation {
    fn new(plan: Switch, seed: u64) -> Self {
        let connections = plan.traffic.connections().into_iter().enumerate();
        let mut simulation = Self {
            plan,
            random: StdRng::seed_from_u64(seed),
            now_ns: 0,
            events: Events::default(),
            nodes: vec![Node::default(); plan.traffic.nodes().0],
            ends: connections.flat_map(|(number, nodes)| plan.ends(number, nodes)).collect(),
            piece: vec![0; PIECE_BYTES as usize].into(),
            batch: Batch::new(64 * 1024, 64),
            packets: [0; 2],
            piece_us: Vec::new(),
        };
        for end in 0..simulation.ends.len() {
            let is_source = simulation.ends[end].is_source;
            let at_ns = if is_source { simulation.random.random_range(0..BEGIN_NS) } else { 0 };
            simulation.wake(end, at_ns);
        }
        simulation
    }

    fn outcome(mut self, flows: &[f64]) -> Outcome {
        let sum: f64 = flows.iter().sum();
        let squares: f64 = flows.iter().map(|flow| flow * flow).sum();
        let even = sum / flows.len() as f64;
        let seconds = self.plan.measured_ns as f64 / 1e9;
        let possible = self.plan.traffic.nodes().1 as f64 * self.plan.bits_per_second as f64 / 8.0 * seconds;
        self.piece_us.sort_unstable();
        let at = |share: f64| {
            let index = (self.piece_us.len() as f64 * share) as usize;
            self.piece_us.get(index).copied().unwrap_or(0)
        };
        let [came, dropped] = self.packets;
        Outcome {
            goodput: sum / possible,
            jain: sum * sum / (flows.len() as f64 * squares),
            shares: [
                flows.iter().copied().fold(f64::MAX, f64::min) / even,
                flows.iter().copied().fold(0.0, f64::max) / even,
            ],
            piece_us: [at(0.5), at(0.99)],
            dropped: dropped as f64 / came.max(1) as f64,
            memory_bytes: self.nodes.iter().map(|node| node.held_bytes_max).max().unwrap_or(0),
        }
    }

    fn until(&mut self, end_ns: u64) {
        while let Some((at_ns, event)) = self.events.pop_before(end_ns) {
            self.now_ns = at_ns;
            match event {
                Event::Switch { to, bytes } => self.forward(to, bytes),
                Event::Arrive { to, bytes } => {
                    self.ends[to].inbox.push(bytes);
                    let looks_ns = at_ns + self.random.random_range(0..LOOKS_NS);
                    self.wake(to, looks_ns);
                }
                Event::Wake { end } if self.ends[end].wake_ns == Some(at_ns) => {
                    self.ends[end].wake_ns = None;
                    self.act(end);
                }
                Event::Wake { .. } => {}
            }
        }
    }

    /// The switch forwards a packet or drops it.
    fn forward(&mut self, to: usize, bytes: Vec<u8>) {
        let rate = self.plan.bits_per_second;
        let port = &mut self.nodes[self.ends[to].node].lines[1];
        self.packets[0] += 1;
        if port.waiting_bytes(self.now_ns, rate) + bytes.len() as u64 > self.plan.queue_bytes {
            self.packets[1] += 1;
            return;
        }
        let at_ns = port.send(self.now_ns, bytes.len(), rate) + self.plan.link_ns;
        self.events.add(at_ns, Event::Arrive { to, bytes });
    }

    fn act(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let end = &mut self.ends[index];
        let held_bytes = end.connection.memory_bytes();
        for mut packet in std::mem::take(&mut end.inbox) {
            let receipt = end.connection.receive(now_ns, &mut packet);
            assert!(!matches!(receipt, Receipt::Violation(_)), "{receipt:?}");
        }
        if end.is_target {
            let (first, second) = end.connection.peek(Lane::Low);
            let bytes = (first.len() + second.len()) as u64;
            end.connection.take(Lane::Low, bytes);
            end.consumed += bytes;
            let node = &mut self.nodes[end.node];
            node.held_bytes = node.held_bytes + end.connection.memory_bytes() - held_bytes;
            node.held_bytes_max = node.held_bytes_max.max(node.held_bytes);
        }
        if end.is_source {
            while end.connection.take_back(Lane::Low).is_some() {
                let began_ns = end.pieces.pop_front().unwrap_or(now_ns);
                self.piece_us.push((now_ns - began_ns) / 1000);
            }
            // One piece is being sent, and one waits.
            while end.pieces.len() < 2 && end.connection.send(Lane::Low, self.piece.clone()).is_ok() {
                end.pieces.push_back(now_ns);
            }
        }
        loop {
            self.batch.clear();
            self.ends[index].connection.transmit(now_ns, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            self.send(index);
        }
        if let Some(at_ns) = self.ends[index].connection.next_timeout_ns() {
            self.wake(index, at_ns.max(now_ns + 1));
        }
    }

    /// Sends a batch to the switch.
    fn send(&mut self, from: usize) {
        let link = &mut self.nodes[self.ends[from].node].lines[0];
        for packet in self.batch.packets() {
            let at_ns = link.send(self.now_ns, packet.len(), self.plan.bits_per_second) + self.plan.link_ns;
            self.events.add(at_ns, Event::Switch { to: from ^ 1, bytes: packet.to_vec() });
        }
    }

    fn wake(&mut self, index: usize, at_ns: u64) {
        let end = &mut self.ends[index];
        if end.wake_ns.is_none_or(|earlier_ns| at_ns < earlier_ns) {
            end.wake_ns = Some(at_ns);
            self.events.add(at_ns, Event::Wake { end: index });
        }
    }
}
