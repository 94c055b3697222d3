//! Echo requests of this machine's programs to other nodes, for `bywire ping`. What they cost is on their user's account, and each
//! program has a bounded number under way.

use std::collections::{HashMap, VecDeque};

use bywire_sys::clock;
use bywire_wire::handshake::PublicKey;
use bywire_wire::service::{NotPinged, Notice};

use crate::broker::PortId;

use super::Service;

/// The most echo requests of one program that wait for their replies.
const UNDER_WAY_MAX: usize = 1024;
/// How long a reply is awaited.
const REPLY_NS: u64 = 10_000_000_000;
/// The bits of a number that tell the requests of one program apart.
const NUMBER_BITS: u32 = 16;

/// The programs that ask for echoes.
#[derive(Debug, Default)]
pub(super) struct Pings(HashMap<PortId, Pinging>);

#[derive(Debug, Default)]
struct Pinging {
    /// The nodes that it asks, with the request that waits for the channel.
    nodes: HashMap<PublicKey, Option<Waiting>>,
    /// The oldest first.
    under_way: VecDeque<UnderWay>,
    next: u16,
}

/// A request that waits for its channel, and the length of its echo.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    request: u32,
    bytes: u16,
}

/// A request that has left.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    number: u64,
    node: PublicKey,
    request: u32,
    sent_ns: u64,
}

impl Pinging {
    /// Notes a request that leaves now, and returns its number. `None`: there are too many.
    fn send(&mut self, now_ns: u64, id: PortId, node: PublicKey, request: u32) -> Option<u64> {
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
    pub(super) fn remove(&mut self, node: &PublicKey) -> Vec<(PortId, u32)> {
        let mut waited = Vec::new();
        for (id, pinging) in &mut self.0 {
            if let Some(Some(waiting)) = pinging.nodes.remove(node) {
                waited.push((*id, waiting.request));
            }
        }
        waited
    }

    /// A program has gone. Returns the nodes that it has asked.
    fn end(&mut self, id: PortId) -> Vec<PublicKey> {
        self.0.remove(&id).map_or(Vec::new(), |pinging| pinging.nodes.into_keys().collect())
    }

    /// Takes the request with this number, which this node has answered.
    fn take(&mut self, number: u64, node: PublicKey) -> Option<(PortId, UnderWay)> {
        let id = number >> NUMBER_BITS;
        let under_way = &mut self.0.get_mut(&id)?.under_way;
        let is_it = |sent: &UnderWay| sent.number == number && sent.node == node;
        Some((id, under_way.remove(under_way.iter().position(is_it)?)?))
    }
}

impl Service<'_> {
    /// A program asks for an echo of another node.
    pub(super) fn ping(&mut self, now_ns: u64, id: PortId, node: &str, request: u32, bytes: u16) {
        if let Err(reason) = self.begin_ping(now_ns, id, node, Waiting { request, bytes }) {
            self.tell(id, &Notice::NotPinged { request, reason });
        }
    }

    fn begin_ping(&mut self, now_ns: u64, id: PortId, node: &str, waiting: Waiting) -> Result<(), NotPinged> {
        let found = self.fabric.nodes.iter().find(|found| found.name == node);
        let node = found.ok_or(NotPinged::UnknownNode)?.key;
        if node == self.key.public() {
            return Err(NotPinged::OwnNode);
        }
        let pinging = self.pings.0.entry(id).or_default();
        let is_up = self.link.status(&node).is_some_and(|status| status.channel.is_some());
        if !pinging.nodes.contains_key(&node) {
            pinging.nodes.insert(node, None);
            self.broker.hold(node);
            self.link.hurry(now_ns, &node);
        }
        if is_up {
            return self.send_ping(id, node, waiting);
        }
        // Only the latest one leaves when the channel is up.
        pinging.nodes.insert(node, Some(waiting));
        Ok(())
    }

    fn send_ping(&mut self, id: PortId, node: PublicKey, waiting: Waiting) -> Result<(), NotPinged> {
        let now_ns = clock::nanoseconds();
        let Some(pinging) = self.pings.0.get_mut(&id) else { return Ok(()) };
        let number = pinging.send(now_ns, id, node, waiting.request).ok_or(NotPinged::TooMany)?;
        // One without room is lost, as it could be on the network.
        let _ = self.link.send_echo(now_ns, &node, number, waiting.bytes.into());
        Ok(())
    }

    /// The channel to a node is up: requests that waited for it leave.
    pub(super) fn send_waiting_pings(&mut self, node: PublicKey) {
        let mut ready = Vec::new();
        for (id, pinging) in &mut self.pings.0 {
            if let Some(waiting) = pinging.nodes.get_mut(&node).and_then(Option::take) {
                ready.push((*id, waiting));
            }
        }
        for (id, waiting) in ready {
            if let Err(reason) = self.send_ping(id, node, waiting) {
                self.tell(id, &Notice::NotPinged { request: waiting.request, reason });
            }
        }
    }

    /// A node has answered an echo request.
    pub(super) fn take_echo(&mut self, node: PublicKey, number: u64) {
        let Some((id, UnderWay { request, sent_ns, .. })) = self.pings.take(number, node) else { return };
        let Some(channel) = self.link.status(&node).and_then(|status| status.channel) else { return };
        let rtt_ns = clock::nanoseconds().saturating_sub(sent_ns);
        self.tell(id, &Notice::Pong { request, rtt_ns, address: channel.address });
    }

    /// A node is no longer in the fabric.
    pub(super) fn end_pings_of(&mut self, node: &PublicKey) {
        for (id, request) in self.pings.remove(node) {
            self.tell(id, &Notice::NotPinged { request, reason: NotPinged::UnknownNode });
        }
    }

    /// A program has gone.
    pub(super) fn end_pings_by(&mut self, id: PortId) {
        for node in self.pings.end(id) {
            self.broker.let_go(node);
        }
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
