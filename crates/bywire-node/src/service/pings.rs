//! The echo requests of each program that are under way, for `bywire ping`: a bounded number.

use std::collections::{HashMap, VecDeque};

use bywire_wire::handshake::PublicKey;

use crate::broker::PortId;

/// The most echo requests of one program that wait for their replies.
const UNDER_WAY_MAX: usize = 1024;
/// How long a reply is awaited.
const REPLY_NS: u64 = 10_000_000_000;
/// The bits of a number that tell the requests of one program apart.
const NUMBER_BITS: u32 = 16;

/// The programs that ask for echoes.
#[derive(Debug, Default)]
pub(super) struct Pings(pub HashMap<PortId, Pinging>);

/// The requests of one program.
#[derive(Debug, Default)]
pub(super) struct Pinging {
    /// The nodes that it asks, with the request that waits for the channel.
    pub nodes: HashMap<PublicKey, Option<Waiting>>,
    /// The oldest first.
    under_way: VecDeque<UnderWay>,
    next: u16,
}

/// A request that waits for its channel, and the length of its echo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub request: u32,
    pub bytes: u16,
}

/// A request that has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    number: u64,
    node: PublicKey,
    pub request: u32,
    pub sent_ns: u64,
}

impl Pinging {
    /// Notes a request that leaves now, and returns its number. `None`: there are too many.
    pub fn send(&mut self, now_ns: u64, id: PortId, node: PublicKey, request: u32) -> Option<u64> {
        let is_over = |sent: &UnderWay| now_ns.saturating_sub(sent.sent_ns) > REPLY_NS;
        while self.under_way.front().is_some_and(is_over) {
            self.under_way.pop_front();
        }
        if self.under_way.len() >= UNDER_WAY_MAX {
            return None;
        }
        let number = (id << NUMBER_BITS) | u64::from(self.next);
        self.next = self.next.wrapping_add(1);
        self.under_way.push_back(UnderWay { number, node, request, sent_ns: now_ns });
        Some(number)
    }
}

impl Pings {
    /// A node has been removed. The requests that waited for it are returned.
    pub fn remove(&mut self, node: &PublicKey) -> Vec<(PortId, u32)> {
        let mut waited = Vec::new();
        for (id, pinging) in &mut self.0 {
            if let Some(Some(waiting)) = pinging.nodes.remove(node) {
                waited.push((*id, waiting.request));
            }
        }
        waited
    }

    /// A program has gone. Returns the nodes that it has asked.
    pub fn end(&mut self, id: PortId) -> Vec<PublicKey> {
        self.0.remove(&id).map_or(Vec::new(), |pinging| pinging.nodes.into_keys().collect())
    }

    /// Takes the request with this number, which this node has answered.
    pub fn take(&mut self, number: u64, node: PublicKey) -> Option<(PortId, UnderWay)> {
        let id = number >> NUMBER_BITS;
        let under_way = &mut self.0.get_mut(&id)?.under_way;
        let is_it = |sent: &UnderWay| sent.number == number && sent.node == node;
        Some((id, under_way.remove(under_way.iter().position(is_it)?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: PublicKey = PublicKey([1; 32]);
    const OTHER: PublicKey = PublicKey([2; 32]);

    #[test]
    fn a_reply_is_taken_once_and_only_from_the_node_that_was_asked() {
        let mut pings = Pings::default();
        let number = pings.0.entry(18).or_default().send(5, 18, NODE, 7).expect("the first");
        assert!(pings.take(number, OTHER).is_none() && pings.take(number + 1, NODE).is_none());
        let (id, taken) = pings.take(number, NODE).expect("under way");
        assert_eq!((id, taken.request, taken.sent_ns), (18, 7, 5));
        assert!(pings.take(number, NODE).is_none());
    }

    #[test]
    fn a_program_has_a_bounded_number_of_requests_under_way_and_old_ones_give_place() {
        let mut pinging = Pinging::default();
        for request in 0..UNDER_WAY_MAX as u32 {
            assert!(pinging.send(0, 18, NODE, request).is_some());
        }
        assert!(pinging.send(REPLY_NS, 18, NODE, 0).is_none());
        assert!(pinging.send(REPLY_NS + 1, 18, NODE, 0).is_some());
        assert_eq!(pinging.under_way.len(), 1);
    }
}
