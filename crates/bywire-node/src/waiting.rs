//! Messages to other nodes that wait for room in their channels, and on whose account they are.
//!
//! A message that the request of a user here has caused is on the account of that user, whose programs have to wait once there
//! are many. Every other one is on the account of the node that gets it: an answer, or the report of an end. A node that takes
//! nothing loses its channel, and the connections are compared when it has the next one.

use std::collections::{HashMap, VecDeque};

use bywire_sys::share::block;
use bywire_wire::handshake::PublicKey;

/// The most messages to one node.
const MESSAGES_MAX: usize = 16_384;
/// Of the messages to all nodes, those that the requests of one user have caused. Behind that its programs have to wait.
const MESSAGES_OF_USER_MAX: usize = 256;
/// The memory of a waiting message besides its bytes.
const MESSAGE_BYTES: usize = 64;

/// A message, and the user whose request has caused it.
#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    user: Option<u32>,
}

/// The messages to one node.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// The memory of those that no user has caused.
    owed_bytes: usize,
}

/// The messages to all nodes.
#[derive(Debug, Default)]
pub struct Waiting {
    queues: HashMap<PublicKey, Queue>,
    /// How many of them each user has caused. Numbers that may be subordinate ones of one person count as one.
    caused: HashMap<u32, usize>,
}

impl Waiting {
    /// Adds a message, which the request of `user` has caused. `false`: more waits for the node now than it may have.
    pub fn push(
        &mut self,
        node: PublicKey,
        bytes: Vec<u8>,
        user: Option<u32>,
        owed_bytes_max: usize,
    ) -> bool {
        let queue = self.queues.entry(node).or_default();
        match user {
            Some(user) => *self.caused.entry(block(user)).or_default() += 1,
            None => queue.owed_bytes += bytes.len() + MESSAGE_BYTES,
        }
        queue.messages.push_back(Message { bytes, user });
        queue.messages.len() <= MESSAGES_MAX && (user.is_some() || queue.owed_bytes <= owed_bytes_max)
    }

    /// Forgets the messages to a node.
    pub fn forget(&mut self, node: &PublicKey) {
        for message in self.queues.remove(node).into_iter().flat_map(|queue| queue.messages) {
            discharge(&mut self.caused, message.user);
        }
    }

    /// May the requests of a user cause messages now?
    pub fn may_ask(&self, user: u32) -> bool {
        self.caused.get(&block(user)).is_none_or(|count| *count < MESSAGES_OF_USER_MAX)
    }

    /// Passes messages to `send`, those to each node in their order, until it has no room for that node.
    pub fn drain(&mut self, mut send: impl FnMut(&PublicKey, &[u8]) -> bool) {
        for (node, queue) in &mut self.queues {
            while let Some(Message { bytes, user }) = queue.messages.front() {
                if !send(node, bytes) {
                    break;
                }
                match user {
                    Some(_) => discharge(&mut self.caused, *user),
                    None => queue.owed_bytes -= bytes.len() + MESSAGE_BYTES,
                }
                queue.messages.pop_front();
            }
        }
        self.queues.retain(|_, queue| !queue.messages.is_empty());
    }
}

fn discharge(caused: &mut HashMap<u32, usize>, user: Option<u32>) {
    if let Some(user) = user.map(block)
        && let Some(count) = caused.get_mut(&user)
    {
        *count -= 1;
        if *count == 0 {
            caused.remove(&user);
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
            let mut waiting = Waiting::default();
            let mut push = |node| waiting.push(node, vec![0; length], None, OWED_BYTES_MAX);
            let count = (0..MESSAGES_MAX).take_while(|_| push(NODES[0])).count();
            assert_eq!(count, OWED_BYTES_MAX / (length + MESSAGE_BYTES));
            assert!(push(NODES[1]), "the other one has an account of its own");
            waiting.forget(&NODES[0]);
            assert!(waiting.push(NODES[0], vec![0; length], None, OWED_BYTES_MAX));
        }
    }

    #[test]
    fn requests_are_on_the_account_of_their_user() {
        let mut waiting = Waiting::default();
        // Both numbers may belong to one person.
        for number in 0..MESSAGES_OF_USER_MAX {
            assert!(waiting.may_ask(100_000) && waiting.may_ask(100_001));
            let user = 100_000 + (number % 2) as u32;
            assert!(waiting.push(NODES[number % 2], vec![0; 4096], Some(user), 0), "the nodes owe nothing");
        }
        assert!(!waiting.may_ask(100_000) && !waiting.may_ask(100_002) && waiting.may_ask(1000));
        waiting.forget(&NODES[1]);
        assert!(waiting.may_ask(100_001));
        let mut sent = 0;
        waiting.drain(|_, _| {
            sent += 1;
            sent <= 10
        });
        let left = waiting.queues[&NODES[0]].messages.len();
        assert_eq!(left, MESSAGES_OF_USER_MAX / 2 - 10);
        waiting.drain(|_, _| true);
        assert!(waiting.queues.is_empty() && waiting.caused.is_empty());
    }
}
