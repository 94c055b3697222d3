//! Connections that require to be carried: their programs wait for that, so their ends wait for an engine that is away.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::nodes::Nodes;
use super::{CALL_SOON, Fabric};
use crate::pairing_client::PairingClient;

impl Fabric {
    /// The time until a connection has waited long enough, if there is one.
    pub fn patience(&self) -> Option<Duration> {
        let patience = self.required.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        if self.unreached.is_empty() { patience } else { patience.map(|patience| patience.min(CALL_SOON)) }
    }

    /// The addresses of other nodes that the pairing service knows.
    pub fn told_nodes(&self) -> &HashSet<IpAddr> {
        &self.told_nodes
    }

    /// Its descriptor can be read when the nodes may have changed.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Tells the pairing service of nodes that have come and gone.
    pub fn tell_nodes(&mut self, pairing: &mut PairingClient) {
        let found = self.nodes.others();
        found.difference(&self.told_nodes).for_each(|address| pairing.note_node(*address, true));
        self.told_nodes.difference(&found).for_each(|address| pairing.note_node(*address, false));
        self.told_nodes = found;
    }

    /// Calls the engines again that connections require and that were not there.
    pub(super) fn call_again(&mut self, pairing: &mut PairingClient) {
        for node in std::mem::take(&mut self.unreached) {
            if self.link_to(&node, CALL_SOON).is_some() {
                self.reached(&node, pairing);
            } else {
                self.unreached.insert(node);
            }
        }
    }

    /// The engine of this node can be asked from here on.
    pub(super) fn reached(&mut self, node: &str, pairing: &mut PairingClient) {
        self.unreached.remove(node);
        for action in self.matching.reached(node) {
            self.act(action, pairing);
        }
    }

    /// Resets connections that require to be carried, and have waited for the other end for long enough.
    pub(super) fn end_unmet(&mut self, pairing: &mut PairingClient) -> bool {
        let mut has_ended = false;
        while let Some((due, name)) = self.required.front().copied()
            && due <= Instant::now()
        {
            self.required.pop_front();
            let is_carried = self.connections.get(&name).is_some_and(|entry| entry.stream.is_some());
            if !is_carried && self.has(name) {
                self.counts.unmet += 1;
                self.lose(name, pairing);
                has_ended = true;
            }
        }
        has_ended
    }
}
