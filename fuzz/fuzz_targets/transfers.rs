//! The transfers of a port stand whatever a peer sends that holds the keys of their connection: records of any form, bytes
//! that are none, datagrams, and credit that comes late. Each transfer of the port's own ends exactly once.
#![no_main]

mod input;

use std::collections::BTreeSet;

use bywire::harness::{End, windows_of};
use bywire::{Confirm, DisconnectReason, Event, Key, PortOptions, Priority, Rights, SendError};
use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options};
use bywire_wire::frame::{LANES, Lane};
use bywire_wire::keys::{Security, Side};
use bywire_wire::record::Head;
use libfuzzer_sys::fuzz_target;

use input::Input;

/// The bytes of a region, and the most of a message.
const REGION_BYTES: usize = 20_000;
/// The memory of an end besides its windows: copies that have not left, spare chunks, and incomplete messages.
const COPIED_BYTES_MAX: usize = 2 << 20;
/// The most bytes of the peer that wait in one lane for credit. Beyond them it adds nothing.
const BEHIND_BYTES_MAX: u64 = 1 << 20;

impl Input<'_> {
    /// Small numbers often, large ones sometimes.
    fn word(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            253 => u64::from(self.byte()) << 40,
            252 => u64::from(self.byte()) << 8,
            small => u64::from(small),
        }
    }

    fn priority(&mut self) -> Priority {
        if self.byte() & 1 == 0 { Priority::Low } else { Priority::High }
    }
}

/// A port's end, and a peer that does what the input says.
struct Fixture {
    end: End,
    peer: Connection<Vec<u8>>,
    now_ns: u64,
    /// Regions of the port: one for puts and gets, one for gets only, and one that may be revoked.
    keys: [Key; 3],
    under_way: BTreeSet<u64>,
    memory_max: usize,
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let mut fixture = Fixture::new();
    while !input.0.is_empty() && !fixture.end.is_over() {
        fixture.act(&mut input);
        fixture.exchange();
    }
    fixture.finish(input.byte());
});

impl Fixture {
    fn new() -> Self {
        let mut port = PortOptions::default();
        for lane in &mut port.geometry.lanes {
            (lane.slots, lane.bulk_bytes) = (8, 1 << 14);
        }
        port.message_bytes_max = REGION_BYTES as u64;
        let windows = windows_of(&port);
        let options = |side| Options {
            side,
            security: Security::Plain,
            secret: [0; 32].into(),
            connection: 1,
            peer_connection: 1,
            windows,
            peer_windows: windows,
            route_bytes: 1472,
        };
        let mut end = End::new(options(Side::Initiator), &port, REGION_BYTES as u64);
        let rights = [(true, true), (true, false), (true, true)].map(|(read, write)| Rights { read, write });
        let keys = rights.map(|rights| end.register(vec![7; REGION_BYTES], rights));
        let lanes = windows.iter().map(|window| window.next_power_of_two()).sum::<u64>() as usize;
        Self {
            end,
            peer: Connection::new(options(Side::Responder)),
            now_ns: 0,
            keys,
            under_way: BTreeSet::new(),
            memory_max: lanes + COPIED_BYTES_MAX,
        }
    }

    fn act(&mut self, input: &mut Input) {
        let what = input.byte();
        let lane = LANES[usize::from(what >> 4) % LANES.len()];
        match what & 15 {
            0 => self.push(lane, input.bytes().to_vec()),
            1..=5 => {
                let mut record = Vec::new();
                let (head, length) = self.head(input);
                head.write(&mut record);
                // The payload may be shorter or longer than the head says.
                let more = i64::from(input.byte() as i8);
                let length = (length.min(REGION_BYTES as u64 + 1) as i64 + more).max(0) as usize;
                record.resize(record.len() + length, input.byte());
                self.push(lane, record);
            }
            6 => {
                let datagram = vec![input.byte(); input.word() as usize % 70_000];
                self.peer.send_datagram(lane, &datagram);
            }
            7 => {
                let (first, second) = self.peer.peek(lane);
                let waiting = (first.len() + second.len()) as u64;
                self.peer.take(lane, waiting.min(input.word()));
            }
            8 => self.send(input),
            9 | 10 => self.begin(input),
            11 => {
                let length = input.word() as usize % (2 * REGION_BYTES);
                self.end.post_receive(input.priority(), vec![0; length]);
            }
            12 => self.take_events(usize::from(input.byte())),
            13 => drop(self.end.revoke(self.keys[2])),
            14 => self.now_ns += u64::from(input.byte()) * 1_000_000,
            _ => self.peer.ping(),
        }
    }

    /// Adds bytes to a lane of the peer.
    fn push(&mut self, lane: Lane, bytes: Vec<u8>) {
        let behind = self.peer.end(lane) - self.peer.acknowledged(lane);
        if behind < BEHIND_BYTES_MAX {
            self.peer.send(lane, bytes).expect("a lane carries 2^62 bytes");
        }
    }

    /// A head, and the bytes that follow it.
    fn head(&self, input: &mut Input) -> (Head, u64) {
        let flags = input.byte();
        let key = self.keys.get(usize::from(input.byte())).map_or_else(|| input.word(), |key| key.0);
        let (length, offset, transfer) = (input.word() % (1 << 40), input.word(), input.word());
        let note = (flags & 8 != 0).then_some(flags >> 4);
        match flags % 5 {
            0 => {
                let (is_long, is_prompt) = (flags & 8 != 0, flags & 16 != 0);
                (Head::Message { length, is_long, is_prompt }, length)
            }
            1 => {
                let rest = length + u64::from(note.unwrap_or(0));
                (Head::Put { length, key, offset, transfer, note }, rest)
            }
            2 => (Head::Get { key, offset, length, transfer }, 0),
            3 => (Head::Status { transfer, code: offset }, 0),
            _ => (Head::Got { length, transfer }, length),
        }
    }

    /// The port's program sends a short message or a datagram.
    fn send(&mut self, input: &mut Input) {
        let priority = input.priority();
        let bytes = vec![1; input.word() as usize % (self.end.fragment_bytes() + 1)];
        if input.byte() & 1 == 0 {
            let sent = self.end.send(priority, &bytes);
            assert!(matches!(sent, Ok(()) | Err(SendError::Full)), "{sent:?}");
        } else {
            self.end.send_datagram(priority, &bytes).expect("the connection is open");
        }
    }

    /// The port's program begins a transfer.
    fn begin(&mut self, input: &mut Input) {
        let (what, priority) = (input.byte(), input.priority());
        let memory = vec![2; input.word() as usize % REGION_BYTES];
        let target = (Key(input.word()), input.word());
        let begun = match what % 3 {
            0 => {
                let confirm = if what & 64 == 0 { Confirm::Copied } else { Confirm::Delivered };
                self.end.send_buffer(priority, memory, confirm)
            }
            1 => self.end.put(priority, target, memory, (what & 64 == 0).then_some(&b"note"[..])),
            _ => self.end.get(priority, target, memory),
        };
        match begun {
            Ok(id) => assert!(self.under_way.insert(id.0)),
            Err(unsent) => assert!(matches!(unsent.error, SendError::NoToken), "{}", unsent.error),
        }
    }

    /// Moves packets in both directions, without faults. The simulator has those.
    fn exchange(&mut self) {
        for _ in 0..4 {
            self.now_ns += 20_000;
            let mut batch = Batch::new(64 * 1024, 64);
            self.peer.transmit(self.now_ns, &mut batch);
            for packet in batch.packets() {
                self.end.receive_packet(self.now_ns, &mut packet.to_vec());
            }
            batch.clear();
            self.end.transmit(self.now_ns, &mut batch);
            for packet in batch.packets() {
                self.peer.receive(self.now_ns, &mut packet.to_vec());
            }
            while self.peer.pop_datagram().is_some() {}
        }
        assert!(self.end.memory_bytes() <= self.memory_max, "{} bytes", self.end.memory_bytes());
    }

    fn take_events(&mut self, most: usize) {
        for _ in 0..most {
            let Some(event) = self.end.poll() else { return };
            match event {
                Event::Message(message) => assert!(message.payload.len() <= REGION_BYTES),
                Event::Sent { id, .. } | Event::Put { id, .. } | Event::Got { id, .. } => {
                    assert!(self.under_way.remove(&id.0), "{id:?} ended twice");
                }
                Event::BufferNeeded { length_bytes, .. } => assert!(length_bytes <= REGION_BYTES as u64),
                _ => {}
            }
        }
    }

    /// Ends the connection in one of several ways.
    fn finish(mut self, how: u8) {
        match how % 3 {
            0 => self.end.drain_and_end(DisconnectReason::Died),
            1 => {
                self.end.begin_close();
                self.exchange();
            }
            _ => {
                self.peer.close(0);
                self.exchange();
            }
        }
        self.end.end(DisconnectReason::Here);
        self.take_events(usize::MAX);
        assert!(self.under_way.is_empty(), "never ended: {:?}", self.under_way);
        let constant = self.end.region(self.keys[1]).expect("it was not revoked");
        assert!(constant.iter().all(|byte| *byte == 7), "a region was written that may only be read");
    }
}
