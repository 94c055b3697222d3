//! An end of RMA stands whatever a peer sends: frames of any form, answers to what it never got, operations without end. Memory
//! outside what is registered is not touched, each operation ends exactly once, and another peer is not affected.
#![no_main]

mod input;

use std::collections::{BTreeMap, BTreeSet};

use bywire_match::rma::head::Head;
use bywire_match::rma::{Access, AccessId, Denied, Event, Frame, Limits, Memory, Place, PutId, Rma, Source};
use bywire_match::{PeerId, Refused, Sink};
use libfuzzer_sys::fuzz_target;

use input::Input;

const LIMITS: Limits = Limits {
    peers: 64,
    operations: 50,
    short_bytes: 150,
    unanswered: 8,
    puts_of_reads: 4,
    puts_of_reads_of_peer: 3,
};
const FRAGMENT_BYTES: usize = 256;
const REGION_BYTES: u64 = 1_000;

impl Input<'_> {
    /// Small numbers often, large ones sometimes.
    fn word(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            253 => u64::from(self.byte()) << 32,
            252 => u64::from(self.byte()) << 8,
            small => u64::from(small),
        }
    }
}

/// Regions by key. Those with an odd key may only be read.
#[derive(Default)]
struct Regions(BTreeMap<u64, Vec<u8>>);

impl Memory for Regions {
    fn check(&self, access: Access, place: Place) -> Result<(), Denied> {
        if !self.0.contains_key(&place.key) {
            return Err(Denied::NoMemory);
        }
        if access == Access::Write && place.key % 2 == 1 {
            return Err(Denied::NoRight);
        }
        let end = place.offset.checked_add(place.length).ok_or(Denied::OutOfBounds)?;
        if end <= REGION_BYTES { Ok(()) } else { Err(Denied::OutOfBounds) }
    }

    fn write(&mut self, place: Place, payload: &[u8]) {
        assert_eq!(place.length, payload.len() as u64);
        assert!(place.key.is_multiple_of(2), "memory that may only be read is written");
        let region = self.0.get_mut(&place.key).expect("memory that is not registered is written");
        region[place.offset as usize..][..payload.len()].copy_from_slice(payload);
    }
}

struct Buffer {
    name: u64,
    capacity: u64,
    written: u64,
}

impl Sink for Buffer {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn write(&mut self, payload: &[u8]) {
        self.written += payload.len() as u64;
        assert!(self.written <= self.capacity, "a buffer was overrun");
    }
}

/// An end with a hostile peer and a good one.
struct Fixture {
    rma: Rma<(u64, u64), Buffer>,
    hostile: PeerId,
    good: PeerId,
    regions: Regions,
    next: u64,
    /// Operations that have not ended.
    under_way: BTreeSet<u64>,
    exposes: Vec<AccessId>,
    exposed: BTreeSet<AccessId>,
    puts: Vec<PutId>,
    /// Numbers that the end has told the hostile peer.
    known: Vec<u64>,
    peers: usize,
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let mut fixture = Fixture::new();
    while !input.0.is_empty() {
        fixture.act(&mut input);
        assert_eq!(fixture.rma.under_way(), fixture.under_way.len());
    }
    fixture.finish();
});

impl Fixture {
    fn new() -> Self {
        let mut rma = Rma::new(LIMITS);
        let [hostile, good] = [0, 1].map(|_| {
            let peer = rma.add_peer().expect("room for two");
            rma.connected(peer, FRAGMENT_BYTES);
            peer
        });
        let regions = Regions((0..4).map(|key| (key, vec![0; REGION_BYTES as usize])).collect());
        let (under_way, exposes, exposed, puts, known) = Default::default();
        Self { rma, hostile, good, regions, next: 0, under_way, exposes, exposed, puts, known, peers: 2 }
    }

    fn act(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0 => self.hear(input.bytes()),
            1..=6 => {
                // Most heads are valid only without a payload.
                let payload = if input.byte() & 1 == 0 { 0 } else { usize::from(input.byte()) };
                let frame = [&self.head(input).to_bytes()[..], &vec![1; payload]].concat();
                self.hear(&frame);
            }
            7 => self.write(input),
            8 => self.read(input),
            9 | 10 => self.transmit(usize::from(input.byte()) % 8),
            11 => self.take_events(usize::from(input.byte()) % 8),
            12 => self.grant(input),
            13 => {
                let note = [&[input.byte() % 4][..], &self.number(input).to_le_bytes()].concat();
                if self.rma.notified(self.hostile, &note[..usize::from(input.byte()) % 10]).is_err() {
                    self.end();
                }
            }
            14 => {
                let key = u64::from(input.byte() % 6);
                if self.regions.0.remove(&key).is_some() {
                    self.rma.withdraw(key);
                } else {
                    self.regions.0.insert(key, vec![0; REGION_BYTES as usize]);
                }
            }
            _ => {
                if let Some(put) = self.puts.pop() {
                    self.rma.put_done(put, input.byte() & 1 == 0);
                }
            }
        }
    }

    /// A number that the end has told, or any.
    fn number(&mut self, input: &mut Input) -> u64 {
        let place = usize::from(input.byte());
        self.known.get(place).copied().unwrap_or_else(|| input.word())
    }

    fn head(&mut self, input: &mut Input) -> Head {
        let flags = input.byte();
        let (number, key, word) = (self.number(input), u64::from(input.byte() % 6), input.word());
        let (offset, length) = (input.word(), input.word() % (1 << 40));
        let optional = (flags & 16 != 0).then_some(word);
        let reason = [Denied::NoMemory, Denied::OutOfBounds, Denied::NoRight][usize::from(flags >> 5) % 3];
        match flags % 9 {
            0 => Head::Write { key, offset, data: optional },
            1 => Head::Request { operation: word, key, offset, length, data: optional },
            2 => Head::Grant { operation: number, access: word, region: optional },
            3 => Head::Piece { access: number },
            4 => Head::Written { operation: number },
            5 => Head::Read { operation: word, key, offset, length, region: optional },
            6 => Head::Data { operation: number },
            7 => Head::Done { writes: word },
            _ => Head::Refusal { operation: (flags & 16 != 0).then_some(number), reason },
        }
    }

    fn hear(&mut self, frame: &[u8]) {
        let Self { rma, hostile, regions, .. } = self;
        if rma.arrive(*hostile, frame, regions).is_err() {
            self.end();
        }
    }

    /// The connection to the hostile peer ends, and another one comes.
    fn end(&mut self) {
        // The link has given back what it was putting.
        for put in std::mem::take(&mut self.puts) {
            self.rma.put_done(put, false);
        }
        self.rma.disconnected(self.hostile);
        if self.peers < LIMITS.peers {
            self.peers += 1;
            self.hostile = self.rma.add_peer().expect("room for another one");
            self.rma.connected(self.hostile, FRAGMENT_BYTES);
        }
    }

    fn target(&self, flags: u8) -> PeerId {
        if flags & 2 == 0 { self.hostile } else { self.good }
    }

    fn begun<T>(&mut self, result: Result<(), (Refused, T)>) {
        match result {
            Ok(()) => drop(self.under_way.insert(self.next)),
            Err((reason, _)) => assert!(matches!(reason, Refused::Full | Refused::Ended), "{reason}"),
        }
    }

    fn write(&mut self, input: &mut Input) {
        let (flags, length) = (input.byte(), input.word() % 5_000);
        let (target, place) = (self.target(flags), Place { key: 0, offset: 0, length });
        self.next += 1;
        let result = self.rma.write(target, place, None, (self.next, length));
        self.begun(result);
    }

    fn read(&mut self, input: &mut Input) {
        let (flags, length) = (input.byte(), input.word() % 5_000);
        let (target, place) = (self.target(flags), Place { key: 0, offset: 0, length });
        self.next += 1;
        let buffer = Buffer { name: self.next, capacity: length, written: 0 };
        let region = (flags & 4 != 0 && length > 0).then_some(9);
        let result = self.rma.read(target, place, region, buffer);
        self.begun(result);
    }

    fn transmit(&mut self, room: usize) {
        let Self { rma, hostile, regions, known, puts, .. } = self;
        let mut left = room;
        rma.transmit(*hostile, |frame| {
            if left == 0 {
                return false;
            }
            left -= 1;
            let source = match frame {
                Frame::Message { head, source } | Frame::Piece { head, source } => {
                    match Head::parse(head) {
                        Ok((Head::Request { operation, .. } | Head::Read { operation, .. }, _)) => {
                            known.push(operation);
                        }
                        Ok((Head::Grant { access, .. }, _)) => known.push(access),
                        parsed => assert!(parsed.is_ok(), "a frame that is none"),
                    }
                    source
                }
                Frame::Put { id, source, .. } => {
                    puts.push(id);
                    source
                }
            };
            match source {
                Source::Nothing => {}
                Source::Write((_, length), range) => assert!(range.end <= *length, "longer than the write"),
                Source::Registered(place) => {
                    assert_eq!(regions.check(Access::Read, place), Ok(()), "it is not registered");
                }
            }
            true
        });
        known.truncate(256);
    }

    fn take_events(&mut self, most: usize) {
        for _ in 0..most {
            let Some(event) = self.rma.poll_event() else { return };
            let name = match event {
                Event::Expose { access, .. } => {
                    self.exposes.push(access);
                    continue;
                }
                Event::Withdraw { access } => {
                    assert!(self.exposed.remove(&access), "it was not exposed");
                    continue;
                }
                Event::Accessed { .. } => continue,
                Event::Written { write, .. } | Event::WriteFailed { write, .. } => write.0,
                Event::Read { read, .. } | Event::ReadFailed { read, .. } => read.name,
            };
            assert!(self.under_way.remove(&name), "{name} ended twice");
        }
    }

    fn grant(&mut self, input: &mut Input) {
        if let Some(access) = self.exposes.pop() {
            let region = (input.byte() & 1 == 0).then_some(7);
            if self.rma.grant(access, region) && region.is_some() {
                self.exposed.insert(access);
            }
        }
    }

    /// The good peer goes on as if nothing had been. Then everything ends.
    fn finish(mut self) {
        self.take_events(usize::MAX);
        self.regions.0.insert(8, vec![0; REGION_BYTES as usize]);
        let head = Head::Write { key: 8, offset: 3, data: None }.to_bytes();
        let frame = [&head[..], b"hello"].concat();
        self.rma.arrive(self.good, &frame, &mut self.regions).expect("the good peer has nothing under way");
        assert_eq!(&self.regions.0[&8][3..8], b"hello");
        self.end();
        self.rma.disconnected(self.hostile);
        self.rma.disconnected(self.good);
        self.take_events(usize::MAX);
        assert!(self.under_way.is_empty(), "never ended: {:?}", self.under_way);
        assert!(self.exposed.is_empty(), "never withdrawn: {:?}", self.exposed);
    }
}
