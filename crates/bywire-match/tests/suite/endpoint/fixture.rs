//! Two endpoints, and a link between them.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use bywire_match::head::HEAD_BYTES_MAX;
use bywire_match::{Endpoint, Event, Frame, Limits, PeerId, Selector, Send, SendId, Sink, TransferId};

/// The longest frame.
pub const FRAGMENT_BYTES: usize = 512;

/// Small limits.
pub fn limits() -> Limits {
    Limits {
        eager_bytes: 1_000,
        requests: 20,
        window_bytes: 4_000,
        window_bytes_max: 16_000,
        growth_bytes_max: 64_000,
        ..Limits::default()
    }
}

pub fn message(tag: u64, length: u64) -> Send {
    Send { tag, data: None, length, is_synchronous: false }
}

/// A receive from any source.
pub fn any(tag: u64) -> Selector {
    Selector { source: None, tag, ignore: 0 }
}

/// A part of the payload that a message of `length` bytes has.
pub fn payload(length: u64, range: Range<u64>) -> Vec<u8> {
    range.map(|offset| (offset * 31 + length) as u8).collect()
}

/// The buffer of a receive.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer {
    pub name: u32,
    pub bytes: Vec<u8>,
    capacity: u64,
}

impl Buffer {
    pub fn new(name: u32, capacity: u64) -> Self {
        Self { name, bytes: Vec::new(), capacity }
    }
}

impl Sink for Buffer {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn write(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        assert!(self.bytes.len() as u64 <= self.capacity);
    }
}

/// A handle of a send: its length, from which its bytes follow, and a name.
pub type Name = (u64, u64);

/// An endpoint with a peer.
pub struct Node {
    pub endpoint: Endpoint<Name, Buffer>,
    pub peer: PeerId,
    /// Does it expose buffers, or ask for pieces?
    pub exposes: bool,
    regions: HashMap<u64, TransferId>,
    /// Events that were taken to answer those of long messages.
    taken: VecDeque<Event<Name, Buffer>>,
}

impl Node {
    pub fn new(limits: Limits) -> Self {
        let mut endpoint = Endpoint::new(limits);
        let peer = endpoint.add_peer().expect("room for one");
        Self { endpoint, peer, exposes: true, regions: HashMap::new(), taken: VecDeque::new() }
    }

    /// The next event.
    pub fn poll(&mut self) -> Option<Event<Name, Buffer>> {
        self.taken.pop_front().or_else(|| self.endpoint.poll_event())
    }

    /// Exposes the buffers of receives that have matched long messages.
    pub fn answer_exposes(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            let Event::Expose { transfer, bytes, .. } = event else {
                self.taken.push_back(event);
                continue;
            };
            assert!(bytes > limits().eager_bytes.min((FRAGMENT_BYTES - HEAD_BYTES_MAX) as u64));
            let key = 1_000 + self.regions.len() as u64;
            self.regions.insert(key, transfer);
            assert!(self.endpoint.grant(transfer, self.exposes.then_some(key)));
            assert!(!self.endpoint.grant(transfer, None));
        }
    }

    /// The frames that leave. Puts find room only if `puts` is there.
    fn transmit(&mut self, mut puts: Option<&mut Vec<Put>>) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.endpoint.transmit(self.peer, |frame| {
            let bytes = match frame {
                Frame::Message { head, payload: None } => head.to_vec(),
                Frame::Message { head, payload: Some((length, _)) } => {
                    [head, &payload(*length, 0..*length)].concat()
                }
                Frame::Piece { head, payload: (length, _), range } => {
                    [head, &payload(*length, range)].concat()
                }
                Frame::Put { send, payload: (whole, _), length, key, note } => {
                    let Some(puts) = &mut puts else { return false };
                    puts.push(Put { send, bytes: payload(*whole, 0..length), key, note });
                    return true;
                }
            };
            assert!(bytes.len() <= FRAGMENT_BYTES);
            frames.push(bytes);
            true
        });
        frames
    }
}

struct Put {
    send: SendId,
    bytes: Vec<u8>,
    key: u64,
    note: [u8; 8],
}

/// Two nodes that are connected.
pub struct Pair {
    pub source: Node,
    pub target: Node,
    names: u64,
}

impl Pair {
    pub fn new(limits: Limits) -> Self {
        let [source, target] = [0, 1].map(|_| {
            let mut node = Node::new(limits);
            node.endpoint.connected(node.peer, FRAGMENT_BYTES);
            node
        });
        Self { source, target, names: 0 }
    }

    pub fn send(&mut self, message: Send) {
        self.names += 1;
        let name = (message.length, self.names);
        self.source.endpoint.send(self.source.peer, message, name).expect("room for a send");
    }

    /// Carries everything until nothing is left to carry.
    pub fn exchange(&mut self) {
        loop {
            self.source.answer_exposes();
            self.target.answer_exposes();
            if !self.carry(true) {
                break;
            }
        }
    }

    /// Carries frames only, and takes no events.
    pub fn exchange_messages(&mut self) {
        while self.carry(false) {}
    }

    fn carry(&mut self, with_puts: bool) -> bool {
        let mut has_carried = false;
        for _ in 0..2 {
            let mut puts = Vec::new();
            let frames = self.source.transmit(with_puts.then_some(&mut puts));
            has_carried |= !frames.is_empty() || !puts.is_empty();
            let Node { endpoint, peer, regions, .. } = &mut self.target;
            frames.iter().for_each(|frame| endpoint.arrive(*peer, frame).expect("a valid frame"));
            for Put { send, bytes, key, note } in puts {
                endpoint.sink(regions[&key]).expect("a receive that waits").write(&bytes);
                endpoint.notified(*peer, &note).expect("a valid note");
                self.source.endpoint.put_done(send, true);
            }
            std::mem::swap(&mut self.source, &mut self.target);
        }
        has_carried
    }
}
