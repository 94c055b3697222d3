//! Echo requests of this machine's programs to other nodes, for `bywire ping`. What they cost is on their user's account.

use std::collections::hash_map::Entry;

use bywire_sys::clock;
use bywire_wire::handshake::PublicKey;
use bywire_wire::service::{NotPinged, Notice};

use super::Service;
use super::pings::{UnderWay, Waiting};
use crate::broker::PortId;

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
        if let Entry::Vacant(vacant) = pinging.nodes.entry(node) {
            vacant.insert(None);
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
        self.tell(id, &Notice::Pong { request, rtt_ns, address: channel.path.peer });
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
