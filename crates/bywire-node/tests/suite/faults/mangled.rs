//! All operations of two programs over a link that corrupts, drops and reorders packets.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bywire::{Confirm, DisconnectReason, Event, Key, Peer, Port, Priority, Rights, TransferId};
use bywire_testing::draw::Random;
use bywire_testing::test_network::{Machine, TestNetwork};
use bywire_testing::{number, repetitions};

use super::ends::{connect, next, open, options, pattern};
use super::is_long;
use super::mangler::Mangler;

const LANES: [Priority; 2] = [Priority::Low, Priority::High];
/// The longest message.
const MESSAGE_BYTES_MAX: usize = 200_000;
/// Buffers that are posted for each lane.
const BUFFERS: usize = 4;
/// Operations of one end that are in progress at once.
const DEPTH: usize = 12;
/// Each put has a range of its own.
const PUT_BYTES: usize = 40_000;

/// The amount of work of each end.
#[derive(Clone, Copy)]
struct Amount {
    /// In each lane.
    messages: u64,
    puts: usize,
    gets: usize,
    datagrams: u64,
}

/// The message with a number in a lane. Both ends can compute it.
fn message(seed: u64, lane: usize, number: u64) -> Vec<u8> {
    let seed = seed ^ (lane as u64) << 60 ^ number << 8;
    let length = match number % 5 {
        0 => 1 + Random(seed).below(56),
        1 | 2 => 57 + Random(seed).below(4000),
        3 => 5000 + Random(seed).below(40_000),
        _ => Random(seed).below(MESSAGE_BYTES_MAX),
    };
    pattern(length, seed)
}

fn put_bytes(seed: u64, number: usize) -> Vec<u8> {
    pattern(PUT_BYTES - number, seed ^ 1 << 50 ^ number as u64)
}

/// A datagram begins with its number.
fn datagram(seed: u64, number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(Random(seed ^ number).below(3000), seed ^ 2 << 50 ^ number));
    bytes
}

/// One of the two ends. Both do the same.
struct End {
    port: Port,
    peer: Peer,
    amount: Amount,
    /// The seed of what this end sends, and of what it receives.
    seeds: [u64; 2],
    /// The peer puts into this region, and gets from it.
    region: Key,
    peer_region: Key,
    sent: [u64; 2],
    received: [u64; 2],
    puts: usize,
    notes: Vec<bool>,
    gets: usize,
    under_way: HashMap<TransferId, Vec<u8>>,
    datagrams: Vec<bool>,
    datagrams_sent: u64,
    is_peer_done: bool,
}

/// The offset of the bytes for gets: behind the ranges of all puts.
fn readable(amount: Amount) -> usize {
    amount.puts * PUT_BYTES
}

const READABLE_BYTES: usize = 400_000;

fn readable_bytes(seed: u64) -> Vec<u8> {
    pattern(READABLE_BYTES, seed ^ 3 << 50)
}

impl End {
    /// Exchanges the keys of the regions with the peer.
    fn meet(mut port: Port, peer: Peer, amount: Amount, seeds: [u64; 2]) -> Self {
        for lane in LANES {
            for _ in 0..BUFFERS {
                port.post_receive(lane, vec![0; MESSAGE_BYTES_MAX]).expect("token");
            }
        }
        let mut memory = vec![0; readable(amount)];
        memory.extend(readable_bytes(seeds[0]));
        let region = port.register(memory, Rights { read: true, write: true }).expect("a region");
        port.send(peer, Priority::Low, &region.0.to_le_bytes()).expect("room");
        // Messages of the other lane and datagrams may overtake the key.
        let mut early = Vec::new();
        let first = loop {
            match next(&mut port) {
                Event::Message(first) if first.priority == Priority::Low => break first,
                other => early.push(other),
            }
        };
        let peer_region = Key(u64::from_le_bytes(first.payload[..].try_into().expect("a key")));
        let (notes, datagrams) = (vec![false; amount.puts], vec![false; amount.datagrams as usize]);
        let mut end = Self {
            port,
            peer,
            amount,
            seeds,
            region,
            peer_region,
            sent: [0; 2],
            received: [0; 2],
            puts: 0,
            notes,
            gets: 0,
            under_way: HashMap::new(),
            datagrams,
            datagrams_sent: 0,
            is_peer_done: false,
        };
        early.into_iter().for_each(|event| end.take(event));
        end
    }

    fn has_begun_all(&self) -> bool {
        let Amount { messages, puts, gets, datagrams } = self.amount;
        self.sent == [messages; 2]
            && self.puts == puts
            && self.gets == gets
            && self.datagrams_sent == datagrams
    }

    fn is_done(&self) -> bool {
        self.has_begun_all()
            && self.under_way.is_empty()
            && self.received == [self.amount.messages; 2]
            && self.notes.iter().all(|is_there| *is_there)
    }

    /// Begins one operation of a random kind, if any of that kind is left.
    fn begin(&mut self, random: &mut Random) {
        let Amount { messages, puts, gets, datagrams } = self.amount;
        let kind = random.below(5);
        match kind {
            0 | 1 if self.sent[kind] < messages => {
                let bytes = message(self.seeds[0], kind, self.sent[kind]);
                let confirm = if random.below(2) == 0 { Confirm::Copied } else { Confirm::Delivered };
                let expected = bytes.clone();
                let id = self.port.send_buffer(self.peer, LANES[kind], bytes, confirm).expect("token");
                self.under_way.insert(id, expected);
                self.sent[kind] += 1;
            }
            2 if self.puts < puts => {
                let (number, bytes) = (self.puts, put_bytes(self.seeds[0], self.puts));
                let target = (self.peer_region, (number * PUT_BYTES) as u64);
                let note = (number as u64).to_le_bytes();
                let lane = LANES[random.below(2)];
                let expected = bytes.clone();
                let id = self.port.put(self.peer, lane, target, bytes, Some(&note)).expect("token");
                self.under_way.insert(id, expected);
                self.puts += 1;
            }
            3 if self.gets < gets => {
                let from = random.below(READABLE_BYTES);
                let length = random.below(READABLE_BYTES - from).min(100_000);
                let expected = readable_bytes(self.seeds[1])[from..from + length].to_vec();
                let source = (self.peer_region, (readable(self.amount) + from) as u64);
                let lane = LANES[random.below(2)];
                let id = self.port.get(self.peer, lane, source, vec![0; length]).expect("token");
                self.under_way.insert(id, expected);
                self.gets += 1;
            }
            4 if self.datagrams_sent < datagrams => {
                let bytes = datagram(self.seeds[0], self.datagrams_sent);
                self.port.send_datagram(self.peer, LANES[random.below(2)], &bytes).expect("connected");
                self.datagrams_sent += 1;
            }
            _ => {}
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Message(message) => self.take_message(message),
            Event::Datagram(found) => {
                let number = u64::from_le_bytes(found.payload[..8].try_into().expect("its number"));
                assert!(found.payload[..] == datagram(self.seeds[1], number), "datagram {number}");
                let is_known = &mut self.datagrams[number as usize];
                assert!(!std::mem::replace(is_known, true), "datagram {number} came twice");
            }
            Event::Notified { note, .. } => {
                let number = u64::from_le_bytes(note[..].try_into().expect("a number")) as usize;
                assert!(!std::mem::replace(&mut self.notes[number], true), "note {number} came twice");
                self.check_put(number);
            }
            Event::Sent { id, buffer, result }
            | Event::Put { id, buffer, result }
            | Event::Got { id, buffer, result } => {
                assert_eq!(result, Ok(()));
                let expected = self.under_way.remove(&id).expect("it ends once");
                assert!(buffer.as_ref() == expected, "its memory");
            }
            Event::Room { .. } | Event::BufferNeeded { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn take_message(&mut self, found: bywire::Message) {
        let lane = LANES.iter().position(|lane| *lane == found.priority).expect("a lane");
        let number = self.received[lane];
        if lane == 0 && number == self.amount.messages {
            assert_eq!(found.payload[..], b"done"[..]);
            self.is_peer_done = true;
            return;
        }
        assert!(found.payload[..] == message(self.seeds[1], lane, number), "message {number} of lane {lane}");
        self.received[lane] += 1;
        match found.payload.into_buffer() {
            Some(buffer) if buffer.as_ref().len() == MESSAGE_BYTES_MAX => {
                self.port.post_receive(LANES[lane], buffer).expect("token");
            }
            _ => {}
        }
    }

    /// Checks that all of a put is in the region, and nothing beyond it.
    fn check_put(&self, number: usize) {
        let expected = put_bytes(self.seeds[1], number);
        let range = &self.port.region(self.region).expect("ours")[number * PUT_BYTES..][..PUT_BYTES];
        assert!(range[..expected.len()] == expected, "put {number}");
        assert!(range[expected.len()..].iter().all(|byte| *byte == 0), "behind put {number}");
    }

    /// Does all the work. Returns the number of datagrams that arrived.
    fn work(&mut self) -> usize {
        let mut random = Random(self.seeds[0]);
        while !self.is_done() {
            while !self.has_begun_all() && self.under_way.len() < DEPTH {
                self.begin(&mut random);
            }
            let event = next(&mut self.port);
            self.take(event);
        }
        (0..self.amount.puts).for_each(|number| self.check_put(number));
        assert!(
            self.port.region(self.region).expect("ours")[readable(self.amount)..]
                == readable_bytes(self.seeds[0])
        );
        self.datagrams.iter().filter(|is_there| **is_there).count()
    }
}

/// The accepting end: several short connections, and then the main one.
fn answer(mut port: Port, amount: Amount, seeds: [u64; 2]) -> usize {
    loop {
        let Event::Connected(peer) = next(&mut port) else { continue };
        match next(&mut port) {
            Event::Message(message) if message.payload[..] == b"short"[..] => {
                port.send(peer, message.priority, &message.payload).expect("room");
                wait_for_end(&mut port, DisconnectReason::Closed);
            }
            Event::Message(message) => {
                assert_eq!(message.payload[..], b"all"[..]);
                let mut end = End::meet(port, peer, amount, seeds);
                let arrived = end.work();
                end.port.send(peer, Priority::Low, b"done").expect("room");
                wait_for_end(&mut end.port, DisconnectReason::Closed);
                return arrived;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Waits for the disconnection. Only late datagrams may come before it.
fn wait_for_end(port: &mut Port, expected: DisconnectReason) {
    loop {
        match next(port) {
            Event::Disconnected { reason, .. } => return assert_eq!(reason, expected),
            Event::Datagram(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Makes short connections. Returns the longest time from a connect to the echo.
fn meet_often(port: &mut Port, here: &Machine) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..8 {
        let began = Instant::now();
        let peer = connect(port, here, "b/answering");
        port.send(peer, Priority::High, b"short").expect("room");
        match next(port) {
            Event::Message(message) => assert_eq!(message.payload[..], b"short"[..]),
            other => panic!("{other:?}"),
        }
        longest = longest.max(began.elapsed());
        port.disconnect(peer);
        wait_for_end(port, DisconnectReason::Here);
    }
    longest
}

fn mangle(seed: u64, is_encrypted: bool) {
    let Some(mut network) = TestNetwork::without_services(2) else { return };
    let mut fabric = network.fabric();
    fabric.is_encrypted = is_encrypted;
    network.machines.iter().for_each(|machine| machine.write(&fabric));
    let mangler = Mangler::join(&network, seed);
    network.machines.iter_mut().for_each(Machine::start);
    let [here, there] = &network.machines[..] else { unreachable!() };
    let amount = match is_long() {
        true => Amount { messages: 150, puts: 60, gets: 60, datagrams: 200 },
        false => Amount { messages: 80, puts: 32, gets: 32, datagrams: 110 },
    };
    let seeds = [seed ^ 1 << 40, seed ^ 2 << 40];
    let answering = open(there, options(&there.runtime(), "answering"));
    let answering = std::thread::spawn(move || answer(answering, amount, [seeds[1], seeds[0]]));
    let mut port = open(here, options(&here.runtime(), "asking"));
    let longest = meet_often(&mut port, here);
    let began = Instant::now();
    let peer = connect(&mut port, here, "b/answering");
    port.send(peer, Priority::Low, b"all").expect("room");
    let mut end = End::meet(port, peer, amount, seeds);
    let here_arrived = end.work();
    while !end.is_peer_done {
        let event = next(&mut end.port);
        end.take(event);
    }
    let took = began.elapsed();
    end.port.disconnect(peer);
    wait_for_end(&mut end.port, DisconnectReason::Here);
    let there_arrived = answering.join().expect("everything is correct");
    println!(
        "seed {seed}, encrypted: {is_encrypted}: all within {took:?}; the longest short connection {longest:?}; \
         {here_arrived} and {there_arrived} of {} datagrams",
        amount.datagrams
    );
    let counts = mangler.take_out();
    assert!(counts.frames > 10_000, "too few frames: {}", counts.frames);
}

fn seeds() -> std::ops::Range<u64> {
    let first = number("BYWIRE_SEED", 1);
    first..first + repetitions("BYWIRE_SEEDS", [1, 1, 100])
}

#[test]
fn everything_crosses_a_lossy_link_encrypted() {
    seeds().for_each(|seed| mangle(seed, true));
}

#[test]
fn everything_crosses_a_lossy_link_unencrypted() {
    seeds().for_each(|seed| mangle(seed, false));
}
