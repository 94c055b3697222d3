//! A tagged endpoint stands whatever a peer sends: frames of any form, answers to what it never got, floods of messages that
//! nobody receives. Its memory is bounded, each operation ends exactly once, and another peer is not affected.
#![no_main]

mod input;

use std::collections::BTreeSet;

use bywire_match::head::Head;
use bywire_match::{
    ClaimId, Endpoint, Event, Frame, Limits, PeerId, ReceiveId, Refused, Selector, Send, SendId, Sink,
    TransferId,
};
use libfuzzer_sys::fuzz_target;

use input::Input;

const LIMITS: Limits = Limits {
    peers: 2,
    sends: 50,
    receives: 50,
    eager_bytes: 300,
    requests: 8,
    window_bytes: 1_000,
    window_bytes_max: 8_000,
    growth_bytes_max: 3_000,
};
const FRAGMENT_BYTES: usize = 256;

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

/// An endpoint with a hostile peer and a good one.
struct Fixture {
    endpoint: Endpoint<u64, Buffer>,
    hostile: PeerId,
    good: PeerId,
    next: u64,
    /// Sends and receives that have not ended.
    under_way: BTreeSet<u64>,
    receives: Vec<(ReceiveId, u64)>,
    claims: Vec<ClaimId>,
    exposes: Vec<TransferId>,
    puts: Vec<SendId>,
    /// Numbers that the endpoint has told the hostile peer.
    known: Vec<u64>,
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input(bytes);
    let mut fixture = Fixture::new();
    while !input.0.is_empty() {
        fixture.act(&mut input);
        fixture.check();
    }
    fixture.finish();
});

impl Fixture {
    fn new() -> Self {
        let mut endpoint = Endpoint::new(LIMITS);
        let [hostile, good] = [0, 1].map(|_| {
            let peer = endpoint.add_peer().expect("room for two");
            endpoint.connected(peer, FRAGMENT_BYTES);
            peer
        });
        let (receives, claims, exposes, puts, known) = Default::default();
        let under_way = BTreeSet::new();
        Self { endpoint, hostile, good, next: 0, under_way, receives, claims, exposes, puts, known }
    }

    fn act(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0 => self.hear(input.bytes()),
            1..=5 => {
                // Most heads are valid only without a payload.
                let payload = if input.byte() & 1 == 0 { 0 } else { usize::from(input.byte()) };
                let frame = [&self.head(input).to_bytes()[..], &vec![1; payload]].concat();
                self.hear(&frame);
            }
            6 => self.send(input),
            7 | 8 => self.receive(input),
            9 => self.claim(input),
            10 => self.cancel(input),
            11 => self.transmit(usize::from(input.byte()) % 8),
            12 => self.take_events(usize::from(input.byte()) % 8),
            13 => self.grant(input),
            14 => {
                let note = self.number(input).to_le_bytes();
                if self.endpoint.notified(self.hostile, &note[..usize::from(input.byte()) % 9]).is_err() {
                    self.end();
                }
            }
            _ => {
                if let Some(put) = self.puts.pop() {
                    self.endpoint.put_done(put, input.byte() & 1 == 0);
                }
            }
        }
    }

    /// A number that the endpoint has told, or any.
    fn number(&mut self, input: &mut Input) -> u64 {
        let place = usize::from(input.byte());
        self.known.get(place).copied().unwrap_or_else(|| input.word())
    }

    fn head(&mut self, input: &mut Input) -> Head {
        let flags = input.byte();
        let (number, tag, word) = (self.number(input), u64::from(input.byte() % 4), input.word());
        let data = (flags & 8 != 0).then_some(word);
        let length = word % (1 << 40);
        match flags % 6 {
            0 => Head::Eager { tag, data, synchronous: (flags & 16 != 0).then_some(word) },
            1 => Head::Request { tag, data, send: word, length },
            2 => Head::Grant { send: number, receive: word, length, key: (flags & 16 != 0).then_some(word) },
            3 => Head::Piece { receive: number },
            4 => Head::Acknowledgement { send: number },
            _ => Head::Credit { bytes: length },
        }
    }

    fn hear(&mut self, frame: &[u8]) {
        let before = (self.endpoint.unexpected_bytes(), self.endpoint.unexpected_messages());
        if self.endpoint.arrive(self.hostile, frame).is_err() {
            let after = (self.endpoint.unexpected_bytes(), self.endpoint.unexpected_messages());
            assert_eq!(before, after, "a frame that breaks a rule has changed something");
            self.end();
        }
    }

    /// The connection to the hostile peer ends, and it comes again.
    fn end(&mut self) {
        self.endpoint.disconnected(self.hostile);
        self.endpoint.forget(self.hostile);
        self.hostile = self.endpoint.add_peer().expect("the room of the other one");
        self.endpoint.connected(self.hostile, FRAGMENT_BYTES);
    }

    fn selector(&self, input: &mut Input) -> Selector {
        let flags = input.byte();
        let source = [None, Some(self.hostile), Some(self.good), None][usize::from(flags % 4)];
        Selector { source, tag: u64::from(flags >> 4 & 3), ignore: u64::from(flags >> 6) }
    }

    fn send(&mut self, input: &mut Input) {
        let (flags, length) = (input.byte(), input.word() % 5_000);
        let send = Send { tag: 1, data: None, length, is_synchronous: flags & 1 != 0 };
        let target = if flags & 2 == 0 { self.hostile } else { self.good };
        self.next += 1;
        match self.endpoint.send(target, send, self.next) {
            Ok(()) => drop(self.under_way.insert(self.next)),
            Err((reason, _)) => assert_eq!(reason, Refused::Full),
        }
    }

    fn buffer(&mut self, input: &mut Input) -> Buffer {
        self.next += 1;
        Buffer { name: self.next, capacity: input.word() % 5_000, written: 0 }
    }

    fn receive(&mut self, input: &mut Input) {
        let (selector, buffer) = (self.selector(input), self.buffer(input));
        match self.endpoint.receive(selector, buffer) {
            Ok(waits) => {
                self.under_way.insert(self.next);
                self.receives.extend(waits.map(|id| (id, self.next)));
            }
            Err((reason, _)) => assert_eq!(reason, Refused::Full),
        }
    }

    fn claim(&mut self, input: &mut Input) {
        match input.byte() % 3 {
            0 => {
                let selector = self.selector(input);
                let peeked = self.endpoint.peek(&selector);
                let claimed = self.endpoint.claim(&selector);
                assert_eq!(peeked, claimed.map(|(_, envelope)| envelope));
                self.claims.extend(claimed.map(|(claim, _)| claim));
            }
            1 => {
                if let Some(claim) = self.claims.pop() {
                    self.endpoint.discard(claim);
                }
            }
            _ => {
                let Some(claim) = self.claims.pop() else { return };
                let buffer = self.buffer(input);
                if self.endpoint.receive_claimed(claim, buffer).is_ok() {
                    self.under_way.insert(self.next);
                }
            }
        }
    }

    fn cancel(&mut self, input: &mut Input) {
        let place = usize::from(input.byte());
        if place < self.receives.len() {
            let (id, name) = self.receives.swap_remove(place);
            if let Some(buffer) = self.endpoint.cancel(id) {
                assert_eq!(buffer.name, name);
                assert!(self.under_way.remove(&name), "a receive that has ended was cancelled");
            }
        }
    }

    fn transmit(&mut self, room: usize) {
        let (mut left, known, puts) = (room, &mut self.known, &mut self.puts);
        self.endpoint.transmit(self.hostile, |frame| {
            if left == 0 {
                return false;
            }
            left -= 1;
            match frame {
                Frame::Message { head, .. } | Frame::Piece { head, .. } => match Head::parse(head) {
                    Ok((Head::Request { send, .. } | Head::Eager { synchronous: Some(send), .. }, _)) => {
                        known.push(send)
                    }
                    Ok((Head::Grant { receive, .. }, _)) => known.push(receive),
                    parsed => assert!(parsed.is_ok(), "a frame that is none"),
                },
                Frame::Put { send, length, .. } => {
                    assert!(length < 5_000, "longer than the send");
                    puts.push(send);
                }
            }
            true
        });
        known.truncate(256);
    }

    fn take_events(&mut self, most: usize) {
        for _ in 0..most {
            let Some(event) = self.endpoint.poll_event() else { return };
            let name = match event {
                Event::Expose { transfer, bytes, .. } => {
                    assert!(bytes < 5_000, "longer than the buffer");
                    self.exposes.push(transfer);
                    continue;
                }
                Event::Sent { send, .. } | Event::SendFailed { send, .. } => send,
                Event::ReceiveFailed { receive, .. } => receive.name,
                Event::Received { receive, envelope, written } => {
                    assert!(written <= envelope.length.min(receive.capacity));
                    receive.name
                }
            };
            assert!(self.under_way.remove(&name), "{name} ended twice");
        }
    }

    fn grant(&mut self, input: &mut Input) {
        if let Some(transfer) = self.exposes.pop() {
            self.endpoint.grant(transfer, (input.byte() & 1 == 0).then_some(7));
        }
    }

    fn check(&self) {
        let most = LIMITS.growth_bytes_max + 2 * LIMITS.window_bytes;
        assert!(self.endpoint.unexpected_bytes() <= most, "{} bytes", self.endpoint.unexpected_bytes());
        // Requests, and messages that have used their windows.
        let messages = u64::from(2 * LIMITS.requests) + most / bywire_match::ENVELOPE_BYTES;
        assert!(self.endpoint.unexpected_messages() as u64 <= messages);
        let (sends, receives) = self.endpoint.under_way();
        assert_eq!(sends + receives, self.under_way.len());
    }

    /// The good peer goes on as if nothing had been. Then everything ends.
    fn finish(mut self) {
        self.take_events(usize::MAX);
        for (id, name) in std::mem::take(&mut self.receives) {
            if self.endpoint.cancel(id).is_some() {
                self.under_way.remove(&name);
            }
        }
        let head = Head::Eager { tag: 77, data: None, synchronous: None }.to_bytes();
        let frame = [&head[..], b"hello"].concat();
        self.endpoint.arrive(self.good, &frame).expect("the good peer has used nothing of its window");
        let selector = Selector { source: Some(self.good), tag: 77, ignore: 0 };
        assert_eq!(self.endpoint.peek(&selector).map(|envelope| envelope.length), Some(5));
        self.end();
        self.endpoint.forget(self.good);
        self.take_events(usize::MAX);
        assert!(self.under_way.is_empty(), "never ended: {:?}", self.under_way);
        assert_eq!((self.endpoint.unexpected_bytes(), self.endpoint.unexpected_messages()), (0, 0));
    }
}
