//! One endpoint, its program's buffers, and the model of its queues.

use std::ops::Range;

use bywire_match::{ClaimId, Endpoint, Limits, PeerId, ReceiveId, Selector, Sink, TransferId};

use super::model::{Model, Wanted};

/// The buffer of a receive.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// The number of the receive.
    pub receive: usize,
    pub capacity: u64,
    pub bytes: Vec<u8>,
}

impl Sink for Buffer {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn write(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        assert!(self.bytes.len() as u64 <= self.capacity, "a buffer was overrun");
    }
}

/// The bytes of a message's payload.
pub fn payload(message: usize, range: Range<u64>) -> Vec<u8> {
    range.map(|offset| (message as u64 * 59 + offset * 7 + (offset >> 8)) as u8).collect()
}

/// A node. The handle of a send is the message's number.
pub struct Node {
    pub endpoint: Endpoint<usize, Buffer>,
    /// Its peers by their numbers, itself included.
    pub peers: Vec<PeerId>,
    pub model: Model,
    /// Messages that it has set aside.
    pub claims: Vec<(ClaimId, usize)>,
    /// Receives whose buffer it has to expose.
    pub exposes: Vec<TransferId>,
    /// Receives that have waited.
    pub receives: Vec<(ReceiveId, usize)>,
    /// Sends and receives whose events it has not taken.
    pub under_way: (usize, usize),
}

impl Node {
    pub fn new(limits: Limits, nodes: usize) -> Self {
        let mut endpoint = Endpoint::new(limits);
        let peers = (0..nodes).map(|_| endpoint.add_peer().expect("room for all nodes")).collect();
        let (model, claims, exposes, receives) = Default::default();
        Self { endpoint, peers, model, claims, exposes, receives, under_way: (0, 0) }
    }

    /// What the endpoint calls a wish.
    pub fn selector(&self, wanted: Wanted) -> Selector {
        let Wanted { source, tag, ignore } = wanted;
        Selector { source: source.map(|node| self.peers[node]), tag, ignore }
    }
}
