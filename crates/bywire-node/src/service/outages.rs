//! When the host names of a node that does not answer are looked up again: it may have another address now.

use std::collections::HashMap;

use bywire_wire::handshake::PublicKey;

/// The first pause, and the longest one.
const PAUSE_NS: u64 = 5_000_000_000;
const PAUSE_NS_MAX: u64 = 300_000_000_000;

/// Nodes that do not answer.
#[derive(Debug, Default)]
pub(super) struct Outages(HashMap<PublicKey, Outage>);

#[derive(Debug)]
struct Outage {
    next_ns: u64,
    pause_ns: u64,
}

impl Outages {
    /// A node does not answer from now on.
    pub(super) fn begin(&mut self, now_ns: u64, node: PublicKey) {
        let next_ns = now_ns.saturating_add(PAUSE_NS);
        self.0.entry(node).or_insert(Outage { next_ns, pause_ns: PAUSE_NS });
    }

    /// A node answers, or no request waits for it any more.
    pub(super) fn end(&mut self, node: &PublicKey) {
        self.0.remove(node);
    }

    /// When [`Self::take_due`] yields something.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.0.values().map(|outage| outage.next_ns).min()
    }

    /// Nodes whose names are to be looked up now. The next time comes after twice the pause.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Vec<PublicKey> {
        let due = self.0.iter_mut().filter(|(_, outage)| outage.next_ns <= now_ns);
        let take = |(node, outage): (&PublicKey, &mut Outage)| {
            outage.pause_ns = PAUSE_NS_MAX.min(2 * outage.pause_ns);
            outage.next_ns = now_ns.saturating_add(outage.pause_ns);
            *node
        };
        due.map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_an_unreachable_node_are_resolved_again_with_backoff() {
        let node = PublicKey([1; 32]);
        let mut outages = Outages::default();
        outages.begin(0, node);
        outages.begin(1, node);
        let mut times = Vec::new();
        while times.len() < 9 {
            let next_ns = outages.next_ns().expect("it is away");
            assert_eq!(outages.take_due(next_ns - 1), []);
            assert_eq!(outages.take_due(next_ns), [node]);
            times.push(next_ns / 1_000_000_000);
        }
        assert_eq!(times, [5, 15, 35, 75, 155, 315, 615, 915, 1215]);
        outages.end(&node);
        assert_eq!(outages.next_ns(), None);
    }
}
