//! Connections about which other services ask while a port may still bring them along. Each service has its own list, so that
//! none takes the place of another's question.

use std::collections::HashMap;

use bywire_wire::handshake::PublicKey;
use bywire_wire::service_message::{ConnectionName, EndName};

/// The questions of each service: the end here, and the end there.
#[derive(Debug)]
pub(super) struct PendingChecks {
    of_nodes: HashMap<PublicKey, HashMap<EndName, EndName>>,
    count: usize,
    count_max: usize,
}

impl PendingChecks {
    /// No questions, and places for `count_max` of all services.
    pub fn new(count_max: usize) -> Self {
        Self { of_nodes: HashMap::new(), count: 0, count_max }
    }

    /// Remembers a question, unless its service has as many already as are left to others. It asks again later.
    pub fn add(&mut self, node: PublicKey, own: EndName, theirs: EndName) {
        let of_node = self.of_nodes.entry(node).or_default();
        if of_node.contains_key(&own) || of_node.len() < self.count_max - self.count {
            self.count += usize::from(of_node.insert(own, theirs).is_none());
        }
    }

    /// Removes a question that has an answer. `false`: there was none.
    pub fn take(&mut self, node: PublicKey, own: &EndName, theirs: &EndName) -> bool {
        let Some(of_node) = self.of_nodes.get_mut(&node) else { return false };
        let is_pending = of_node.get(own) == Some(theirs);
        if is_pending {
            of_node.remove(own);
            self.count -= 1;
        }
        is_pending
    }

    /// Forgets the questions of a service.
    pub fn forget(&mut self, node: PublicKey) {
        self.count -= self.of_nodes.remove(&node).map_or(0, |of_node| of_node.len());
    }

    /// Removes all questions. Each connection is named as in the answer.
    pub fn take_all(&mut self) -> impl Iterator<Item = (PublicKey, Vec<ConnectionName>)> + use<> {
        self.count = 0;
        let of_nodes = std::mem::take(&mut self.of_nodes);
        let name = |(own, theirs)| ConnectionName { receiver: theirs, sender: own };
        of_nodes.into_iter().map(move |(node, of_node)| (node, of_node.into_iter().map(name).collect()))
    }

    /// Is there no question?
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENDING_CHECKS_MAX: usize = 98_304;

    fn end(connection: u32) -> EndName {
        EndName { port: "render".to_owned(), incarnation: 1, connection }
    }

    #[test]
    fn one_service_may_ask_about_all_connections_and_none_takes_the_places_of_others() {
        let [greedy, other, next] = [1, 2, 3].map(|byte| PublicKey([byte; 32]));
        let mut checks = PendingChecks::new(PENDING_CHECKS_MAX);
        for number in 0..2 * PENDING_CHECKS_MAX as u32 {
            checks.add(greedy, end(number), end(number));
        }
        assert_eq!(checks.count, PENDING_CHECKS_MAX / 2);
        // About the same ends as the other one.
        for node in [other, next] {
            for number in 0..PENDING_CHECKS_MAX as u32 / 16 {
                checks.add(node, end(number), end(number + 1));
            }
        }
        assert!(checks.take(other, &end(7), &end(8)) && !checks.take(other, &end(7), &end(8)));
        assert!(!checks.take(next, &end(7), &end(7)) && checks.take(greedy, &end(7), &end(7)));
        checks.forget(greedy);
        assert_eq!(checks.count, PENDING_CHECKS_MAX / 8 - 1);
        let mut counts: Vec<_> = checks.take_all().map(|(_, connections)| connections.len()).collect();
        counts.sort_unstable();
        assert_eq!(counts, [PENDING_CHECKS_MAX / 16 - 1, PENDING_CHECKS_MAX / 16]);
        assert!(checks.is_empty());
    }
}
