//! Messages between two services. Each arrives once and in order while neither service has given up the other, over any
//! number of channels.
//!
//! ```text
//! high lane   sequence of the first message u64 · (length u16 · bytes)*
//! ```

use std::collections::VecDeque;

use crate::connection::Connection;
use crate::frame::Lane;
use crate::planted::{self, Bug};

use super::limits::{MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX};

/// Why a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no channel to the node.
    #[error("there is no channel to the node")]
    NotUp,
    /// It is empty, or longer than [`super::MESSAGE_BYTES_MAX`].
    #[error("a message between services has 1 to 4096 bytes")]
    Length,
    /// Too many bytes or messages wait: see [`super::QUEUE_BYTES_MAX`] and [`super::QUEUE_MESSAGES_MAX`].
    #[error("too many messages wait for the node")]
    Full,
}

/// The identity of a session: the time between `Up` and `Down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// This service's number for it, which it uses for no other session.
    pub own: u32,
    /// The other service's number.
    pub peer: u32,
    /// The other service's incarnation.
    pub incarnation: Incarnation,
}

/// The incarnation of a service, from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// Differs between starts of the machine.
    pub boot_id: [u8; 16],
    /// Differs between starts of the service.
    pub number: u64,
}

/// The state of a session, which outlives channels.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    /// Messages that the peer has not received yet, each preceded by its length.
    waiting: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    /// The sequence of the first of them.
    first: u64,
    /// The sequence of the next message from the peer.
    expected: u64,
}

/// The state of one channel of a session.
#[derive(Debug, Default)]
pub struct Stream {
    /// The sequence of the next message to be sent in it. `None` before the first.
    next: Option<u64>,
    /// The offsets at which the messages in it end.
    ends: VecDeque<u64>,
    /// The sequence of the next message to be received from it, once known.
    incoming: Option<u64>,
}

/// The peer has sent bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Session {
    pub fn new(id: SessionId) -> Self {
        Self { id, waiting: VecDeque::new(), waiting_bytes: 0, first: 0, expected: 0 }
    }

    /// Keeps a message until the peer has received it.
    pub fn push(&mut self, message: &[u8]) -> Result<(), SendError> {
        if message.is_empty() || message.len() > MESSAGE_BYTES_MAX {
            return Err(SendError::Length);
        }
        let is_full =
            self.waiting_bytes + message.len() > QUEUE_BYTES_MAX || self.waiting.len() >= QUEUE_MESSAGES_MAX;
        if is_full {
            return Err(SendError::Full);
        }
        self.waiting_bytes += message.len();
        self.waiting.push_back([&(message.len() as u16).to_le_bytes()[..], message].concat());
        Ok(())
    }

    /// Adds to a channel the messages that are not in it yet. `true`: there were some.
    pub fn send(&mut self, stream: &mut Stream, connection: &mut Connection<Vec<u8>>) -> bool {
        let first = self.first;
        let Some(behind) = stream.next.unwrap_or(first).checked_sub(first) else { return false };
        let mut has_sent = false;
        for message in self.waiting.iter().skip(behind as usize) {
            if stream.next.is_none() {
                // A lane carries 2^62 bytes, so this never happens.
                let _ = connection.send(Lane::High, first.to_le_bytes().to_vec());
            }
            let Ok(end) = connection.send(Lane::High, message.clone()) else { break };
            stream.ends.push_back(end);
            stream.next = Some(stream.next.unwrap_or(first) + 1);
            has_sent = true;
        }
        has_sent
    }

    /// Forgets the messages that the peer has received through a channel.
    pub fn collect(&mut self, stream: &mut Stream, connection: &mut Connection<Vec<u8>>) {
        while connection.take_back(Lane::High).is_some() {}
        let arrived = connection.acknowledged(Lane::High);
        while stream.ends.front().is_some_and(|end| *end <= arrived) {
            stream.ends.pop_front();
            let message = self.waiting.pop_front().unwrap_or_default();
            self.waiting_bytes -= message.len().saturating_sub(2);
            self.first += 1;
        }
    }

    /// The next message that has arrived through a channel.
    pub fn receive(
        &mut self,
        stream: &mut Stream,
        connection: &mut Connection<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Malformed> {
        let sequence = match stream.incoming {
            Some(sequence) => sequence,
            None => {
                let Some(first) = read::<8>(connection) else { return Ok(None) };
                let first = u64::from_le_bytes(first);
                // A peer continues a session at its present position, or before it.
                if first > self.expected {
                    return Err(Malformed);
                }
                connection.take(Lane::High, 8);
                *stream.incoming.insert(first)
            }
        };
        let mut sequence = sequence;
        while let Some(message) = next_message(connection)? {
            let is_new = sequence == self.expected || planted::is(Bug::MessageTwice);
            sequence += 1;
            stream.incoming = Some(sequence);
            if is_new {
                self.expected = sequence;
                return Ok(Some(message));
            }
        }
        Ok(None)
    }
}

fn next_message(connection: &mut Connection<Vec<u8>>) -> Result<Option<Vec<u8>>, Malformed> {
    let Some(length) = read::<2>(connection) else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes(length));
    if length == 0 || length > MESSAGE_BYTES_MAX {
        return Err(Malformed);
    }
    let (front, back) = connection.peek(Lane::High);
    if front.len() + back.len() < 2 + length {
        return Ok(None);
    }
    let message: Vec<u8> = front.iter().chain(back).skip(2).take(length).copied().collect();
    connection.take(Lane::High, 2 + length as u64);
    Ok(Some(message))
}

fn read<const LENGTH: usize>(connection: &Connection<Vec<u8>>) -> Option<[u8; LENGTH]> {
    let (front, back) = connection.peek(Lane::High);
    let mut bytes = [0; LENGTH];
    let mut source = front.iter().chain(back);
    bytes.iter_mut().try_for_each(|byte| source.next().map(|source| *byte = *source))?;
    Some(bytes)
}
