//! What reaches the service of a node from the network: the payload of a handshake, the bytes of a channel by a node that holds
//! its keys, and packets of strangers who have seen every packet of two nodes before.
#![no_main]

use std::net::SocketAddr;
use std::sync::LazyLock;

use bywire_wire::batch::Batch;
use bywire_wire::channel::session::{Incarnation, Session, SessionId, Stream};
use bywire_wire::channel::{Channels, Event, GUEST_NS, MESSAGE_BYTES_MAX, Options};
use bywire_wire::connection::{self, Connection};
use bywire_wire::frame::Lane;
use bywire_wire::handshake::{HandshakePayload, Identity, PrivateKey, read_payload, write_payload};
use bywire_wire::keys::{Security, Side};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(HandshakePayload::Greeting(greeting)) = read_payload(bytes) {
        let written = write_payload::<100>(&greeting);
        assert_eq!(read_payload(&written), Some(HandshakePayload::Greeting(greeting)));
    }
    messages(bytes);
    Two::new(false).play(bytes);
    Two::new(true).play(bytes);
});

/// The secret of an invitation.
const SECRET: [u8; 32] = [3; 32];

const WINDOW: u64 = 64 * 1024;
const STEP_NS: u64 = 10_000_000;

/// A node that holds the keys of a channel writes these bytes into it.
fn messages(bytes: &[u8]) {
    let mut ends = [Side::Initiator, Side::Responder].map(|side| {
        Connection::new(connection::Options {
            side,
            security: Security::Plain,
            secret: [0; 32].into(),
            connection: 1,
            peer_connection: 1,
            windows: [0, WINDOW, 0],
            peer_windows: [0, WINDOW, 0],
            route_bytes: 1200,
        })
    });
    let incarnation = Incarnation { boot_id: [0; 16], number: 1 };
    let mut session = Session::new(SessionId { own: 0, peer: 0, incarnation });
    let mut stream = Stream::default();
    let _ = ends[0].send(Lane::High, bytes.to_vec());
    let (mut now_ns, mut taken) = (0u64, 0);
    while !ends[0].is_drained() && now_ns < 100 * STEP_NS {
        let mut batch = Batch::new(64 * 1024, 64);
        ends[0].transmit(now_ns, &mut batch);
        for packet in batch.packets() {
            ends[1].receive(now_ns, &mut packet.to_vec());
        }
        let is_over = loop {
            match session.receive(&mut stream, &mut ends[1]) {
                Ok(Some(message)) => {
                    assert!((1..=MESSAGE_BYTES_MAX).contains(&message.len()));
                    taken += 2 + message.len();
                }
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        if is_over {
            break;
        }
        batch.clear();
        ends[1].transmit(now_ns, &mut batch);
        for packet in batch.packets() {
            ends[0].receive(now_ns, &mut packet.to_vec());
        }
        now_ns += STEP_NS;
    }
    assert!(taken <= bytes.len());
}

/// Two nodes, and an attacker that replays, damages and invents packets.
struct Two {
    nodes: [Channels; 2],
    events: [Vec<Event>; 2],
    keys: [PrivateKey; 2],
    recorded: Vec<(usize, Vec<u8>)>,
    sent: [u8; 2],
    /// The second node is not in the table of the first one, and has an invitation.
    is_guest: bool,
    now_ns: u64,
    drawn: u64,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7248))
}

impl Two {
    fn new(is_guest: bool) -> Self {
        // Most of the work is in curves, so nothing is computed twice.
        static KEYS: LazyLock<[PrivateKey; 2]> =
            LazyLock::new(|| [1, 2].map(|byte| PrivateKey::new([byte; 32])));
        let keys = KEYS.clone();
        let nodes = [0, 1].map(|node| {
            let key = keys[node].clone();
            let shared_secret = (is_guest && node == 1).then_some(SECRET);
            let identity = Identity { key, shared_secret, boot_id: [0; 16], incarnation: 1 };
            let mut channels = Channels::new(identity, Options::default());
            if is_guest && node == 0 {
                channels.invite(SECRET).expect("it is the first one");
            } else {
                assert!(channels.add(0, keys[1 - node].public(), vec![address(1 - node)]));
            }
            channels
        });
        let events = [Vec::new(), Vec::new()];
        Self { nodes, events, keys, recorded: Vec::new(), sent: [0; 2], is_guest, now_ns: 0, drawn: 0 }
    }

    fn play(&mut self, bytes: &[u8]) {
        for operation in bytes.chunks_exact(3).take(64) {
            let node = usize::from(operation[0] & 1);
            let other = self.keys[1 - node].public();
            match operation[0] >> 1 & 7 {
                0 => {
                    let is_known = self.nodes[node].connect(self.now_ns, &other).is_ok();
                    assert!(is_known || self.is_guest && node == 0);
                }
                1 => {
                    let message = [self.sent[node]];
                    self.sent[node] += u8::from(self.nodes[node].send(self.now_ns, &other, &message).is_ok());
                }
                2 => self.now_ns += u64::from(operation[1]) * 50_000_000,
                3 => self.nodes[node].release(&other),
                // Packets arrive in any order, as often as the stranger likes, damaged or whole, from anywhere.
                kind => self.deliver(usize::from(operation[1]), (kind == 4).then_some(operation[2])),
            }
            self.collect();
        }
        self.deliver_bytes(0, bytes);
        self.collect();
        if self.is_guest {
            self.now_ns += GUEST_NS;
            self.collect();
            let guest = self.keys[1].public();
            assert!(self.nodes[0].status(&guest).is_none(), "a guest stays for a bounded time");
        }
        for events in &self.events {
            check(events);
        }
    }

    fn deliver(&mut self, back: usize, damage: Option<u8>) {
        let Some(at) = self.recorded.len().checked_sub(1 + back) else { return };
        let (to, mut bytes) = self.recorded[at].clone();
        if let Some(damage) = damage {
            let place = usize::from(damage) * bytes.len() / 256;
            bytes[place] ^= 1;
        }
        self.deliver_bytes(to, &bytes);
    }

    fn deliver_bytes(&mut self, to: usize, bytes: &[u8]) {
        let drawn = &mut self.drawn;
        let mut random = |bytes: &mut [u8]| fill(drawn, bytes);
        self.nodes[to].receive(self.now_ns, &mut random, address(1 - to), &mut bytes.to_vec());
    }

    fn collect(&mut self) {
        for node in 0..2 {
            let mut out = Vec::new();
            let drawn = &mut self.drawn;
            self.nodes[node].transmit(self.now_ns, &mut |bytes| fill(drawn, bytes), &mut out);
            assert!(out.len() <= 64);
            self.recorded.extend(out.into_iter().map(|(_, bytes)| (1 - node, bytes)));
            let channels = &mut self.nodes[node];
            let events = std::iter::from_fn(|| channels.next_event(self.now_ns));
            self.events[node].extend(events);
        }
    }
}

fn fill(drawn: &mut u64, bytes: &mut [u8]) {
    for byte in bytes {
        *drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (*drawn >> 56) as u8;
    }
}

/// Messages come between `Up` and `Down` only, once and in order.
fn check(events: &[Event]) {
    let (mut is_up, mut last) = (false, None);
    for event in events {
        match event {
            Event::Up { .. } => {
                assert!(!is_up);
                is_up = true;
            }
            Event::Down { .. } => {
                assert!(is_up);
                is_up = false;
            }
            Event::Message { bytes, .. } => {
                assert!(is_up && last.is_none_or(|last| bytes[0] > last));
                last = Some(bytes[0]);
            }
            _ => {}
        }
    }
}
