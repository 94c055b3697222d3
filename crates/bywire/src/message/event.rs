//! Events that a port reports to its program, in the order in which they happened.

use bywire_ring::geometry::INLINE_BYTES;

use crate::message::buffer::{Buffer, Payload, bytes_of};
use crate::message::error::{DisconnectReason, TransferError};
use crate::message::lend::Lent;
use crate::message::peer::{Peer, Priority, TransferId};

/// One whole message.
#[derive(Debug)]
pub struct Message {
    /// The sender. [`crate::Port::peer_info`] describes it until its [`Event::Disconnected`] is taken, even after its
    /// death.
    pub peer: Peer,
    /// Its lane.
    pub priority: Priority,
    /// Its bytes.
    pub payload: Payload,
}

/// The words of a slot.
pub(crate) type Words = [u64; INLINE_BYTES / 8];

/// A message that came in a slot of a ring, without a buffer.
#[derive(Clone, Copy, Debug)]
pub struct ShortMessage {
    /// The sender.
    pub peer: Peer,
    /// Its lane.
    pub priority: Priority,
    pub(crate) words: Words,
    pub(crate) length: u16,
}

impl ShortMessage {
    /// Its bytes, and how many of them are the message's.
    #[inline(always)]
    pub fn bytes(&self) -> ([u8; INLINE_BYTES], usize) {
        (bytes_of(&self.words), usize::from(self.length).min(INLINE_BYTES))
    }
}

/// What [`crate::Port::poll_short`] has found.
#[derive(Debug)]
pub enum Polled {
    /// Nothing.
    Nothing,
    /// A short message.
    Short(ShortMessage),
    /// Another event.
    Event(Event),
}

/// Something that happened at a port.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A message. A long one is in the posted buffer that it took. After the end of a peer, a message that was whole
    /// in its ring comes without a posted buffer too. It is then in the library's own memory, like a short message.
    Message(Message),
    /// A datagram. It arrives at most once, in no order.
    Datagram(Message),
    /// A message that the peer lent instead of copying it.
    Lent(Lent),
    /// A peer has connected, or has accepted our `connect_start`.
    Connected(Peer),
    /// A peer is gone. Nothing more comes from it, and its handle is dead.
    Disconnected {
        /// The peer.
        peer: Peer,
        /// The reason.
        reason: DisconnectReason,
    },
    /// An asynchronous send is over, and its buffer may be used again.
    Sent {
        /// The transfer.
        id: TransferId,
        /// The memory that was given to the library.
        buffer: Buffer,
        /// The outcome.
        result: Result<(), TransferError>,
    },
    /// A put is over. Without an error, the target has the data. On one machine this comes before messages that the target has
    /// sent after its [`Event::Notified`], unless a get's data or more than 64 answers are in front of it. After
    /// [`TransferError::Disconnected`], or if the key was revoked during the put, some of the data may have arrived. After other
    /// errors nothing was touched there.
    Put {
        /// The transfer.
        id: TransferId,
        /// The memory that was given to the library.
        buffer: Buffer,
        /// The outcome.
        result: Result<(), TransferError>,
    },
    /// A get is over. Without an error, the buffer holds the data.
    Got {
        /// The transfer.
        id: TransferId,
        /// The memory that was given to the library.
        buffer: Buffer,
        /// The outcome.
        result: Result<(), TransferError>,
    },
    /// A peer has put data into a region of ours, with a note.
    Notified {
        /// The peer.
        peer: Peer,
        /// The note, up to 32 bytes. The data was visible before it.
        note: Payload,
    },
    /// There is room again after a send that found the lane [`crate::SendError::Full`]. Reported once, so try to send
    /// before waiting again.
    Room {
        /// The peer that has room.
        peer: Peer,
        /// The lane that has room.
        priority: Priority,
    },
    /// A long message waits, and no posted buffer is large enough. The sender is held back until one is posted.
    /// Reported once, and again if a buffer posted since is too small. (Not reported for another user that has its
    /// share of the posted buffers already.)
    BufferNeeded {
        /// The sender.
        peer: Peer,
        /// Its lane.
        priority: Priority,
        /// The message's length.
        length_bytes: u64,
    },
}
