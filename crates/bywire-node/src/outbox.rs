//! Messages to other nodes that wait for room in their channels, and on whose account they are.
//!
//! A request for a connection is on the account of its user here, who may have a number of them waiting for each node. Every
//! other message is on the account of the node that gets it: an answer, a question, or the report of an end. A node that takes
//! nothing loses its channel, and the connections are compared when it has the next one. So no user of this machine fills the
//! queue to a slow node, and no node that takes nothing keeps a user from connecting to other nodes.

use std::collections::{HashMap, VecDeque};

use bywire_sys::share::block;
use bywire_wire::handshake::PublicKey;

/// The most messages to one node.
const MESSAGES_MAX: usize = 16_384;
/// The most requests of one user to one node.
const REQUESTS_OF_USER_MAX: usize = 256;
/// The memory of a waiting message besides its bytes.
const MESSAGE_BYTES: usize = 64;

/// A message, and the user whose request it is.
#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    user: Option<u32>,
}

/// The messages to one node.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// The memory of those that are not requests of users.
    owed_bytes: usize,
    /// How many requests each user has. Numbers that may be subordinate ones of one person count as one.
    requests: HashMap<u32, usize>,
}

/// The messages to all nodes.
#[derive(Debug, Default)]
pub struct Outbox {
    queues: HashMap<PublicKey, Queue>,
}

impl Outbox {
    /// Adds a message, which is a request of `user` if one is given. `false`: more waits for the node now than it may have.
    pub fn push(
        &mut self,
        node: PublicKey,
        bytes: Vec<u8>,
        user: Option<u32>,
        owed_bytes_max: usize,
    ) -> bool {
        let queue = self.queues.entry(node).or_default();
        match user {
            Some(user) => *queue.requests.entry(block(user)).or_default() += 1,
            None => queue.owed_bytes += bytes.len() + MESSAGE_BYTES,
        }
        queue.messages.push_back(Message { bytes, user });
        queue.messages.len() <= MESSAGES_MAX && (user.is_some() || queue.owed_bytes <= owed_bytes_max)
    }

    /// Forgets the messages to a node.
    pub fn forget(&mut self, node: &PublicKey) {
        self.queues.remove(node);
    }

    /// May a user ask this node for something now?
    pub fn may_ask(&self, node: &PublicKey, user: u32) -> bool {
        let count = self.queues.get(node).and_then(|queue| queue.requests.get(&block(user)));
        count.is_none_or(|count| *count < REQUESTS_OF_USER_MAX)
    }

    /// Passes messages to `send`, those to each node in their order, until it has no room for that node.
    pub fn drain(&mut self, mut send: impl FnMut(&PublicKey, &[u8]) -> bool) {
        for (node, queue) in &mut self.queues {
            while let Some(Message { bytes, user }) = queue.messages.front() {
                if !send(node, bytes) {
                    break;
                }
                match user {
                    Some(user) => discharge(&mut queue.requests, block(*user)),
                    None => queue.owed_bytes -= bytes.len() + MESSAGE_BYTES,
                }
                queue.messages.pop_front();
            }
        }
        self.queues.retain(|_, queue| !queue.messages.is_empty());
    }
}

fn discharge(requests: &mut HashMap<u32, usize>, user: u32) {
    if let Some(count) = requests.get_mut(&user) {
        *count -= 1;
        if *count == 0 {
            requests.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [PublicKey; 2] = [PublicKey([1; 32]), PublicKey([2; 32])];
    const OWED_BYTES_MAX: usize = 10_000;

    #[test]
    fn what_a_node_is_owed_is_bounded_by_its_bytes_and_by_its_count() {
        for length in [1, 1000] {
            let mut outbox = Outbox::default();
            let mut push = |node| outbox.push(node, vec![0; length], None, OWED_BYTES_MAX);
            let count = (0..MESSAGES_MAX).take_while(|_| push(NODES[0])).count();
            assert_eq!(count, OWED_BYTES_MAX / (length + MESSAGE_BYTES));
            assert!(push(NODES[1]), "the other one has an account of its own");
            outbox.forget(&NODES[0]);
            assert!(outbox.push(NODES[0], vec![0; length], None, OWED_BYTES_MAX));
        }
    }

    #[test]
    fn requests_are_on_the_account_of_their_user_at_each_node() {
        let mut outbox = Outbox::default();
        let [slow, other] = NODES;
        for number in 0..REQUESTS_OF_USER_MAX as u32 {
            // Both numbers may belong to one person.
            assert!([100_000, 100_001].iter().all(|user| outbox.may_ask(&slow, *user)));
            assert!(outbox.push(slow, vec![0; 4096], Some(100_000 + number % 2), 0), "the node owes nothing");
        }
        assert!(!outbox.may_ask(&slow, 100_002) && outbox.may_ask(&slow, 1000));
        assert!(outbox.may_ask(&other, 100_000), "a node that takes nothing keeps nobody from others");
        let mut sent = 0;
        outbox.drain(|_, _| {
            sent += 1;
            sent <= 10
        });
        assert_eq!(outbox.queues[&slow].messages.len(), REQUESTS_OF_USER_MAX - 10);
        assert!(outbox.may_ask(&slow, 100_000));
        outbox.drain(|_, _| true);
        assert!(outbox.queues.is_empty());
    }
}
