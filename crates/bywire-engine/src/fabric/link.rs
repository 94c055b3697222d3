//! One connection of messages with the engine of another machine, and the streams on it.

use std::collections::{HashMap, VecDeque};

use bywire::{Peer, Port, Priority, SendError};
use bywire_stream::{Lane, Limits, MESSAGE_BYTES_MIN, OpenError, ResetReason, Side, StreamId, Streams};

use super::matching::{Ends, Question};

/// The longest message. With the heads of its packets it fits into one call of the kernel, which takes up to 64 KiB.
pub const MESSAGE_BYTES: usize = 60 << 10;
const _: () = assert!(MESSAGE_BYTES >= MESSAGE_BYTES_MIN);
/// Messages of each lane that are made before others have their turn.
const MESSAGES_AT_ONCE: usize = 32;

/// The use of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It asks about the connection of this name.
    Question(u64, Question),
    /// It carries the connection of this name.
    Connection(u64),
    /// It carried one whose program has ended. Its other direction may go on. `stopped_at`: in the kernel, from this offset on,
    /// and bytes that come before that is known are void.
    Orphan { stopped_at: Option<u64> },
}

/// A connection of messages with another engine.
#[derive(Debug)]
pub struct Link {
    pub peer: Peer,
    /// The node of that engine.
    pub node: String,
    pub streams: Streams,
    pub uses: HashMap<StreamId, Use>,
    /// Questions that were not sent yet.
    asks: VecDeque<(u64, Ends, Question)>,
    /// A message of each lane for which there was no room.
    unsent: [Vec<u8>; 2],
}

impl Link {
    /// No streams yet. The engine that has made the connection is the first side.
    pub fn new(peer: Peer, node: String, side: Side) -> Self {
        Self {
            peer,
            node,
            streams: Streams::new(side, Limits::default()),
            uses: HashMap::new(),
            asks: VecDeque::new(),
            unsent: Default::default(),
        }
    }

    /// Asks the other engine about a connection, once there is room.
    pub fn ask(&mut self, name: u64, ends: Ends, question: Question) {
        self.asks.push_back((name, ends, question));
    }

    /// Forgets questions about a connection that were not sent yet.
    pub fn ask_no_more(&mut self, name: u64) {
        self.asks.retain(|(asked, ..)| *asked != name);
    }

    fn open_asked(&mut self, window_bytes: u64) {
        while let Some((name, ends, question)) = self.asks.front().copied() {
            let room = if question == Question::Carry { window_bytes } else { 0 };
            match self.streams.open(&ends.describe(question), room) {
                Ok(stream) => self.uses.insert(stream, Use::Question(name, question)),
                // An answer makes room.
                Err(OpenError::NotReady | OpenError::Pending | OpenError::Full) => return,
                Err(_) => None,
            };
            self.asks.pop_front();
        }
    }

    /// Sends what there is, as far as there is room: `read` copies bytes of a connection's stream. Returns whether anything was
    /// sent.
    ///
    /// # Errors
    /// The error of a link that is over.
    pub fn transmit(
        &mut self,
        port: &mut Port,
        window_bytes: u64,
        buffer: &mut [u8],
        mut read: impl FnMut(u64, u64, &mut [u8]),
    ) -> Result<bool, SendError> {
        self.open_asked(window_bytes);
        let mut has_sent = false;
        for (lane, priority) in [(Lane::High, Priority::High), (Lane::Low, Priority::Low)] {
            for _ in 0..MESSAGES_AT_ONCE {
                let unsent = std::mem::take(&mut self.unsent[lane as usize]);
                let message = if unsent.is_empty() {
                    let length = self.make_message(lane, buffer, &mut read);
                    &buffer[..length]
                } else {
                    &unsent[..]
                };
                if message.is_empty() {
                    break;
                }
                match port.send(self.peer, priority, message) {
                    Ok(()) => has_sent = true,
                    Err(SendError::Full | SendError::Connecting) => {
                        let is_new = unsent.is_empty();
                        self.unsent[lane as usize] = if is_new { message.to_vec() } else { unsent };
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(has_sent)
    }

    fn make_message(
        &mut self,
        lane: Lane,
        buffer: &mut [u8],
        mut read: impl FnMut(u64, u64, &mut [u8]),
    ) -> usize {
        if !self.streams.has_output(lane) {
            return 0;
        }
        let uses = &self.uses;
        self.streams.transmit(lane, buffer, |stream, offset, target| {
            if let Some(Use::Connection(name)) = uses.get(&stream) {
                read(*name, offset, target);
            }
        })
    }

    /// Closes a stream without a connection once both of its directions are over. Bytes that nobody takes are answered by a
    /// reset, as a closed end answers them.
    pub fn check_orphan(&mut self, stream: StreamId, is_lost: bool) {
        let is_over = self.streams.progress(stream).is_none_or(|progress| progress.is_over);
        if is_lost || is_over {
            self.uses.remove(&stream);
            // One that is gone needs neither.
            let _ = match is_lost {
                true => self.streams.reset(stream, ResetReason::Aborted),
                false => self.streams.close(stream),
            };
        }
    }
}
