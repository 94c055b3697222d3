//! Nodes in memory, and a network between them that loses, repeats and delays.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bywire_wire::channel::{Channels, DownReason, Event, Options};
use bywire_wire::handshake::{Identity, PrivateKey, PublicKey};
use bywire_wire::packet::PacketKind;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// Numbers from a seed (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.next() as u8);
    }
}

/// A node, with the events that it has reported.
pub struct Node {
    pub channels: Channels,
    pub key: PrivateKey,
    pub address: SocketAddr,
    pub events: Vec<Event>,
    numbers: Numbers,
}

/// A packet in flight.
#[derive(Clone)]
pub struct Packet {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
}

/// Faults of the network in percent, and the delay of packets.
#[derive(Clone, Copy)]
pub struct Faults {
    pub lost: u64,
    pub repeated: u64,
    pub delay_ns: (u64, u64),
}

pub type Attacker = Box<dyn FnMut(&Packet) -> Option<u64>>;

pub const CLEAN: Faults = Faults { lost: 0, repeated: 0, delay_ns: (50_000, 50_001) };

pub struct Simulation {
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    pub faults: Faults,
    /// All packets that were sent.
    pub recorded: Vec<Packet>,
    pub numbers: Numbers,
    /// Pairs of addresses between which no packet passes, in this direction.
    pub cut: Vec<(SocketAddr, SocketAddr)>,
    /// Handshakes pass all the same.
    pub is_cut_for_data_only: bool,
    /// No handshake passes.
    pub are_handshakes_cut: bool,
    /// An attacker on the path, who is shown each packet: how much later it arrives, or `None` if it does not.
    pub attacker: Option<Attacker>,
    flying: BTreeMap<(u64, u64), Packet>,
    serial: u64,
}

pub fn key_of(node: usize) -> PrivateKey {
    let mut bytes = [0; 32];
    Numbers(node as u64 + 1000).fill(&mut bytes);
    PrivateKey::new(bytes)
}

pub fn address_of(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8 + 1], 7248))
}

pub fn identity_of(node: usize, start: u64) -> Identity {
    Identity { key: key_of(node), shared_secret: None, boot_id: [node as u8; 16], incarnation: start }
}

impl Simulation {
    /// Nodes that know each other.
    pub fn new(nodes: usize, seed: u64) -> Self {
        let mut simulation = Self {
            now_ns: SECOND,
            nodes: Vec::new(),
            faults: CLEAN,
            recorded: Vec::new(),
            numbers: Numbers(seed),
            cut: Vec::new(),
            is_cut_for_data_only: false,
            are_handshakes_cut: false,
            attacker: None,
            flying: BTreeMap::new(),
            serial: 0,
        };
        for node in 0..nodes {
            let made = simulation.make(node, nodes, identity_of(node, 1));
            simulation.nodes.push(made);
        }
        simulation
    }

    fn make(&mut self, node: usize, nodes: usize, identity: Identity) -> Node {
        let key = identity.key.clone();
        let mut channels = Channels::new(identity, Options { has_aes: node != 1 });
        for other in (0..nodes).filter(|other| *other != node) {
            assert!(channels.add(self.now_ns, key_of(other).public(), vec![address_of(other)]));
        }
        let numbers = Numbers(self.numbers.next());
        Node { channels, key, address: address_of(node), events: Vec::new(), numbers }
    }

    /// The service of a node is killed and starts again.
    pub fn restart(&mut self, node: usize, identity: Identity) {
        let nodes = self.nodes.len();
        let events = std::mem::take(&mut self.nodes[node].events);
        self.nodes[node] = self.make(node, nodes, identity);
        self.nodes[node].events = events;
    }

    /// From now on a machine has a copy of another one's key. It knows all others, and none knows it by its address.
    pub fn copy_key(&mut self, to: usize, of: usize) {
        let identity = Identity { key: key_of(of), ..identity_of(to, 1) };
        let mut channels = Channels::new(identity, Options::default());
        for other in (0..self.nodes.len()).filter(|other| ![to, of].contains(other)) {
            assert!(channels.add(self.now_ns, key_of(other).public(), vec![address_of(other)]));
            self.nodes[other].channels.remove(self.now_ns, &key_of(to).public());
        }
        (self.nodes[to].channels, self.nodes[to].key) = (channels, key_of(of));
    }

    pub fn key(&self, node: usize) -> PublicKey {
        self.nodes[node].key.public()
    }

    pub fn connect(&mut self, from: usize, to: usize) {
        let to = self.key(to);
        self.nodes[from].channels.connect(self.now_ns, &to).expect("the node is known");
        self.collect(from);
    }

    pub fn send(&mut self, from: usize, to: usize, message: &[u8]) {
        let to = self.key(to);
        self.nodes[from].channels.send(self.now_ns, &to, message).expect("the node is up");
        self.collect(from);
    }

    pub fn is_up(&self, at: usize, node: usize) -> bool {
        self.nodes[at].channels.status(&self.key(node)).is_some_and(|status| status.channel.is_some())
    }

    /// The messages that one node has received from another.
    pub fn messages(&self, at: usize, of: usize) -> Vec<Vec<u8>> {
        let of = self.key(of);
        let messages = self.nodes[at].events.iter().filter_map(|event| match event {
            Event::Message { node, bytes } if *node == of => Some(bytes.clone()),
            _ => None,
        });
        messages.collect()
    }

    pub fn downs(&self, at: usize) -> Vec<DownReason> {
        let downs = self.nodes[at].events.iter().filter_map(|event| match event {
            Event::Down { reason, .. } => Some(*reason),
            _ => None,
        });
        downs.collect()
    }

    pub fn ups(&self, at: usize) -> usize {
        self.nodes[at].events.iter().filter(|event| matches!(event, Event::Up { .. })).count()
    }

    /// Delivers a packet to a node.
    pub fn give(&mut self, node: usize, from: SocketAddr, bytes: &[u8]) {
        let Node { channels, numbers, .. } = &mut self.nodes[node];
        channels.receive(self.now_ns, &mut |random| numbers.fill(random), from, &mut bytes.to_vec());
        self.collect(node);
    }

    /// Takes packets and events of a node.
    pub fn collect(&mut self, node: usize) {
        let mut out = Vec::new();
        let Node { channels, numbers, address, events, .. } = &mut self.nodes[node];
        channels.transmit(self.now_ns, &mut |random| numbers.fill(random), &mut out);
        events.extend(std::iter::from_fn(|| channels.next_event(self.now_ns)));
        let from = *address;
        for (path, bytes) in out {
            self.send_packet(Packet { from, to: path.peer, bytes });
        }
    }

    pub fn send_packet(&mut self, packet: Packet) {
        self.recorded.push(packet.clone());
        let Faults { lost, repeated, delay_ns } = self.faults;
        let copies = 1 + usize::from(self.numbers.below(100) < repeated);
        for _ in 0..copies {
            let is_cut = self.cut.contains(&(packet.from, packet.to))
                && (packet.bytes[0] == PacketKind::Data as u8 || !self.is_cut_for_data_only);
            let is_handshake = packet.bytes[0] != PacketKind::Data as u8;
            if is_cut || (is_handshake && self.are_handshakes_cut) || self.numbers.below(100) < lost {
                continue;
            }
            let held_ns = self.attacker.as_mut().map_or(Some(0), |attacker| attacker(&packet));
            let Some(held_ns) = held_ns else { continue };
            let at_ns = self.now_ns + held_ns + delay_ns.0 + self.numbers.below(delay_ns.1 - delay_ns.0);
            self.serial += 1;
            self.flying.insert((at_ns, self.serial), packet.clone());
        }
    }

    /// Advances to the next event. `false`: there is none before `until_ns`, and the time is `until_ns` now.
    pub fn step(&mut self, until_ns: u64) -> bool {
        let timeouts = self.nodes.iter().map(|node| node.channels.next_timeout_ns());
        let timeouts: Vec<_> = timeouts.map(|at_ns| at_ns.unwrap_or(u64::MAX).max(self.now_ns)).collect();
        let arrival_ns = self.flying.first_key_value().map_or(u64::MAX, |((at_ns, _), _)| *at_ns);
        let next_ns = timeouts.iter().copied().chain([arrival_ns]).min().unwrap_or(u64::MAX);
        if next_ns > until_ns {
            self.now_ns = until_ns;
            return false;
        }
        self.now_ns = next_ns;
        if arrival_ns <= next_ns {
            let (_, packet) = self.flying.pop_first().expect("it was just there");
            if let Some(node) = self.nodes.iter().position(|node| node.address == packet.to) {
                self.give(node, packet.from, &packet.bytes);
            }
            return true;
        }
        for (node, _) in timeouts.iter().enumerate().filter(|(_, at_ns)| **at_ns <= next_ns) {
            self.collect(node);
        }
        true
    }

    pub fn run(&mut self, for_ns: u64) {
        let until_ns = self.now_ns + for_ns;
        let mut steps = 0;
        while self.step(until_ns) {
            steps += 1;
            assert!(steps < 1_000_000, "two nodes never fall silent");
        }
    }

    /// Runs until a condition holds. Fails if that takes longer than `within_ns` of simulated time.
    #[track_caller]
    pub fn await_that(&mut self, what: &str, within_ns: u64, mut is_true: impl FnMut(&Self) -> bool) {
        let until_ns = self.now_ns + within_ns;
        while !is_true(self) {
            assert!(self.step(until_ns), "not within {} ms: {what}", within_ns / MS);
        }
    }

    /// Two nodes that are connected.
    pub fn pair(seed: u64) -> Self {
        let mut simulation = Self::new(2, seed);
        simulation.connect(0, 1);
        simulation
            .await_that("both are up", SECOND, |simulation| simulation.is_up(0, 1) && simulation.is_up(1, 0));
        simulation
    }
}
