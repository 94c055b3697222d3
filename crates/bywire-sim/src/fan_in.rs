//! Many nodes that send to one through a switch: the total throughput, and how evenly it is shared.
//!
//! Every node has its own link. The switch has a queue for each of its ports and drops packets that do not fit. Packets
//! count with the bytes that `bywire-wire` makes. The headers of UDP, IP and Ethernet are not modelled.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options, Receipt};
use bywire_wire::frame::Lane;
use bywire_wire::keys::{SECRET_BYTES, Security, Side};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The bytes that are sent at a time. More are added once less than that waits.
const PIECE_BYTES: u64 = 64 * 1024;
/// The longest time until a program looks for received bytes.
const LOOKS_NS: u64 = 5_000;

/// A switch and its links.
#[derive(Clone, Copy, Debug)]
pub struct FanIn {
    /// Nodes that send.
    pub sources: usize,
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
    /// The program's bytes that arrived, as a share of the link's rate.
    pub goodput: f64,
    /// Jain's index: 1 if every source has the same share, 1/n if one has all.
    pub jain: f64,
    /// The least and the greatest share of a source, relative to an even share.
    pub shares: [f64; 2],
    /// The median and the 99th percentile of the time for a piece of 64 KiB, in microseconds, as its sender sees it.
    pub piece_us: [u64; 2],
    /// Packets that the switch dropped, as a share of those that reached it.
    pub dropped: f64,
    /// The most bytes that were in lanes of the receiver at once.
    pub memory_bytes: usize,
}

enum Event {
    /// A packet reaches the switch.
    Switch { to_target: bool, flow: usize, bytes: Vec<u8> },
    /// A packet reaches its node.
    Arrive { at_target: bool, flow: usize, bytes: Vec<u8> },
    /// An end has work to do.
    Wake { at_target: bool, flow: usize },
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

/// One end of one connection.
struct End {
    connection: Connection<Arc<[u8]>>,
    inbox: Vec<Vec<u8>>,
    wake_ns: Option<u64>,
    /// Pieces under way, by their offsets, with the time when each was added.
    pieces: VecDeque<u64>,
    consumed: u64,
}

struct Simulation {
    plan: FanIn,
    random: StdRng,
    now_ns: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    waiting: Vec<Option<Event>>,
    free: Vec<usize>,
    /// Sources, and the target's end of each of their connections.
    ends: [Vec<End>; 2],
    /// From each source to the switch, and from the switch to each source.
    links: [Vec<Line>; 2],
    /// From the target to the switch, and from the switch to the target.
    target: [Line; 2],
    piece: Arc<[u8]>,
    batch: Batch,
    /// Packets that reached the switch, and those that it dropped.
    packets: [u64; 2],
    piece_us: Vec<u64>,
    memory_bytes: usize,
    held_bytes: usize,
}

impl FanIn {
    /// Lets all sources send for the planned time.
    pub fn run(&self, seed: u64) -> Outcome {
        let mut simulation = Simulation::new(*self, seed);
        simulation.until(self.warm_up_ns);
        let before: Vec<u64> = simulation.ends[1].iter().map(|end| end.consumed).collect();
        simulation.piece_us.clear();
        simulation.packets = [0; 2];
        simulation.until(self.warm_up_ns + self.measured_ns);
        let shares =
            simulation.ends[1].iter().zip(before).map(|(end, before)| (end.consumed - before) as f64);
        let shares: Vec<_> = shares.collect();
        simulation.outcome(&shares)
    }
}

fn end(plan: &FanIn, flow: usize, side: Side) -> End {
    let mut secret = [0; SECRET_BYTES];
    secret[..8].copy_from_slice(&(flow as u64).to_le_bytes());
    let connection = Connection::new(Options {
        side,
        security: Security::Plain,
        secret: secret.into(),
        connection: flow as u32,
        peer_connection: flow as u32,
        windows: [plan.window; 3],
        peer_windows: [plan.window; 3],
        route_bytes: plan.packet_bytes,
    });
    End { connection, inbox: Vec::new(), wake_ns: None, pieces: VecDeque::new(), consumed: 0 }
}

impl Simulation {
    fn new(plan: FanIn, seed: u64) -> Self {
        let ends = [Side::Initiator, Side::Responder]
            .map(|side| (0..plan.sources).map(|flow| end(&plan, flow, side)).collect());
        let mut simulation = Self {
            plan,
            random: StdRng::seed_from_u64(seed),
            now_ns: 0,
            order: 0,
            events: BinaryHeap::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            ends,
            links: [(); 2].map(|()| vec![Line::default(); plan.sources]),
            target: [Line::default(); 2],
            piece: vec![0; PIECE_BYTES as usize].into(),
            batch: Batch::new(64 * 1024, 64),
            packets: [0; 2],
            piece_us: Vec::new(),
            memory_bytes: 0,
            held_bytes: 0,
        };
        for flow in 0..plan.sources {
            // The sources begin within a millisecond of each other.
            let at_ns = simulation.random.random_range(0..1_000_000);
            simulation.wake(false, flow, at_ns);
            simulation.wake(true, flow, 0);
        }
        simulation
    }

    fn outcome(mut self, shares: &[f64]) -> Outcome {
        let sum: f64 = shares.iter().sum();
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        let even = sum / shares.len() as f64;
        let possible = self.plan.bits_per_second as f64 / 8.0 * self.plan.measured_ns as f64 / 1e9;
        self.piece_us.sort_unstable();
        let at = |share: f64| {
            let index = (self.piece_us.len() as f64 * share) as usize;
            self.piece_us.get(index).copied().unwrap_or(0)
        };
        let [came, dropped] = self.packets;
        Outcome {
            goodput: sum / possible,
            jain: sum * sum / (shares.len() as f64 * squares),
            shares: [
                shares.iter().copied().fold(f64::MAX, f64::min) / even,
                shares.iter().copied().fold(0.0, f64::max) / even,
            ],
            piece_us: [at(0.5), at(0.99)],
            dropped: dropped as f64 / came.max(1) as f64,
            memory_bytes: self.memory_bytes,
        }
    }

    fn until(&mut self, end_ns: u64) {
        while let Some(Reverse((at_ns, _, index))) =
            self.events.peek().copied().filter(|next| next.0.0 < end_ns)
        {
            self.events.pop();
            self.now_ns = at_ns;
            self.free.push(index);
            match self.waiting[index].take() {
                Some(Event::Switch { to_target, flow, bytes }) => self.forward(to_target, flow, bytes),
                Some(Event::Arrive { at_target, flow, bytes }) => {
                    self.ends[usize::from(at_target)][flow].inbox.push(bytes);
                    let looks_ns = at_ns + self.random.random_range(0..LOOKS_NS);
                    self.wake(at_target, flow, looks_ns);
                }
                Some(Event::Wake { at_target, flow }) => {
                    let end = &mut self.ends[usize::from(at_target)][flow];
                    if end.wake_ns == Some(at_ns) {
                        end.wake_ns = None;
                        self.act(at_target, flow);
                    }
                }
                None => {}
            }
        }
    }

    /// The switch forwards a packet or drops it.
    fn forward(&mut self, to_target: bool, flow: usize, bytes: Vec<u8>) {
        let rate = self.plan.bits_per_second;
        let port = if to_target { &mut self.target[1] } else { &mut self.links[1][flow] };
        self.packets[0] += 1;
        if port.waiting_bytes(self.now_ns, rate) + bytes.len() as u64 > self.plan.queue_bytes {
            self.packets[1] += 1;
            return;
        }
        let at_ns = port.send(self.now_ns, bytes.len(), rate) + self.plan.link_ns;
        self.add(at_ns, Event::Arrive { at_target: to_target, flow, bytes });
    }

    fn act(&mut self, at_target: bool, flow: usize) {
        let now_ns = self.now_ns;
        let end = &mut self.ends[usize::from(at_target)][flow];
        let held_bytes = end.connection.memory_bytes();
        for mut packet in std::mem::take(&mut end.inbox) {
            let receipt = end.connection.receive(now_ns, &mut packet);
            assert!(!matches!(receipt, Receipt::Violation(_)), "{receipt:?}");
        }
        if at_target {
            let (first, second) = end.connection.peek(Lane::Low);
            let bytes = (first.len() + second.len()) as u64;
            end.connection.take(Lane::Low, bytes);
            end.consumed += bytes;
            self.held_bytes = self.held_bytes + end.connection.memory_bytes() - held_bytes;
            self.memory_bytes = self.memory_bytes.max(self.held_bytes);
        } else {
            while end.connection.take_back(Lane::Low).is_some() {
                let began_ns = end.pieces.pop_front().unwrap_or(now_ns);
                self.piece_us.push((now_ns - began_ns) / 1000);
            }
            // One packet is being sent, and one waits.
            while end.pieces.len() < 2 && end.connection.send(Lane::Low, self.piece.clone()).is_ok() {
                end.pieces.push_back(now_ns);
            }
        }
        loop {
            self.batch.clear();
            let end = &mut self.ends[usize::from(at_target)][flow];
            end.connection.transmit(now_ns, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            self.send(at_target, flow);
        }
        let next_ns = self.ends[usize::from(at_target)][flow].connection.next_timeout_ns();
        if let Some(at_ns) = next_ns {
            self.wake(at_target, flow, at_ns.max(now_ns + 1));
        }
    }

    fn send(&mut self, from_target: bool, flow: usize) {
        let packets: Vec<Vec<u8>> = self.batch.packets().map(<[u8]>::to_vec).collect();
        for bytes in packets {
            let link = if from_target { &mut self.target[0] } else { &mut self.links[0][flow] };
            let at_ns = link.send(self.now_ns, bytes.len(), self.plan.bits_per_second) + self.plan.link_ns;
            self.add(at_ns, Event::Switch { to_target: !from_target, flow, bytes });
        }
    }

    fn wake(&mut self, at_target: bool, flow: usize, at_ns: u64) {
        let end = &mut self.ends[usize::from(at_target)][flow];
        if end.wake_ns.is_none_or(|earlier_ns| at_ns < earlier_ns) {
            end.wake_ns = Some(at_ns);
            self.add(at_ns, Event::Wake { at_target, flow });
        }
    }

    fn add(&mut self, at_ns: u64, event: Event) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        self.waiting[index] = Some(event);
        self.order += 1;
        self.events.push(Reverse((at_ns, self.order, index)));
    }
}
