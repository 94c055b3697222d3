//! What a program asks of an endpoint, what the endpoint tells it, and what crosses the link.

use std::ops::Range;

use crate::head::Malformed;
use crate::slab::PeerId;
use crate::unexpected::Envelope;

/// The buffer of a receive.
pub trait Sink {
    /// The most bytes that it takes.
    fn capacity(&self) -> u64;

    /// Appends bytes of a payload. All calls together never exceed the capacity.
    fn write(&mut self, payload: &[u8]);

    /// Takes the whole of a payload, instead of any call of [`Sink::write`]. Nothing is appended to it.
    #[inline(always)]
    fn fill(&mut self, payload: &[u8]) {
        self.write(payload);
    }
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// Its tag.
    pub tag: u64,
    /// A word for the receiver's program.
    pub data: Option<u64>,
    /// The bytes of its payload.
    pub length: u64,
    /// Does it complete only after a receive has matched it?
    pub is_synchronous: bool,
}

/// A receive that waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiveId(pub(crate) u64);

/// A message that is set aside for its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(pub(crate) u64);

/// A send whose payload a put carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendId(pub(crate) u64);

/// A receive whose payload is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub(crate) u64);

/// The reason why an operation has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A limit of [`crate::Limits`] is reached.
    #[error("as many are under way as the limits permit: take events first")]
    Full,
    /// No such peer.
    #[error("the peer has been forgotten")]
    UnknownPeer,
    /// The peer has ended.
    #[error("the connection to the peer has ended")]
    Ended,
    /// The payload is longer than [`crate::head::LENGTH_MAX`].
    #[error("a message has at most 2^40 bytes")]
    TooLong,
    /// The message has been received or discarded.
    #[error("the message is not claimed any more")]
    NoClaim,
}

/// What an endpoint tells its driver.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<S, R> {
    /// A send has completed: its buffer may be used again.
    Sent {
        /// The program's handle.
        send: S,
        /// Its target.
        peer: PeerId,
    },
    /// A send has failed, because its peer has ended or has refused a put.
    SendFailed {
        /// The program's handle.
        send: S,
        /// Its target.
        peer: PeerId,
    },
    /// A receive has completed.
    Received {
        /// The program's handle.
        receive: R,
        /// The message.
        envelope: Envelope,
        /// The bytes of the payload that are in the receive's buffer. Fewer than it has if the buffer was too short.
        written: u64,
    },
    /// A receive has failed, because the peer that it names, or whose message it has matched, has ended.
    ReceiveFailed {
        /// The program's handle.
        receive: R,
        /// The peer.
        peer: PeerId,
    },
    /// A receive has matched a long message. The driver exposes the receive's buffer to the peer, and calls
    /// [`crate::Endpoint::grant`].
    Expose {
        /// The receive: [`crate::Endpoint::sink`] has its buffer.
        transfer: TransferId,
        /// The source.
        peer: PeerId,
        /// The bytes that will be put, from the beginning of the buffer on.
        bytes: u64,
    },
}

/// What the link has to carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a, S> {
    /// A message, an answer or credit. The bytes are the head and then all of the payload.
    Message {
        /// The head.
        head: &'a [u8],
        /// The send that has the payload, if there is one.
        payload: Option<&'a S>,
    },
    /// A piece of a long payload. It may be overtaken by messages. The bytes are the head and then a part of the payload.
    Piece {
        /// The head.
        head: &'a [u8],
        /// The send that has the payload.
        payload: &'a S,
        /// The part.
        range: Range<u64>,
    },
    /// A put of a long payload, after which the driver calls [`crate::Endpoint::put_done`].
    Put {
        /// The send, as `put_done` wants it.
        send: SendId,
        /// The send that has the payload.
        payload: &'a S,
        /// The bytes to put, from the payload's first one on.
        length: u64,
        /// The region of the peer, from its beginning on.
        key: u64,
        /// The note that follows the data.
        note: [u8; 8],
    },
}

/// A rule that a peer has broken. The driver ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame that is none.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A frame of a peer without a connection.
    #[error("a frame arrived from a peer without a connection")]
    Unconnected,
    /// More eager bytes than the window has.
    #[error("the peer has sent more eager bytes than its window has")]
    Window,
    /// More unanswered requests than the limit.
    #[error("the peer has sent more unanswered requests than the limit")]
    Requests,
    /// An answer to no send.
    #[error("the peer has answered a message that does not wait for it")]
    UnknownSend,
    /// A payload for no receive.
    #[error("the peer has sent a payload that nothing waits for")]
    UnknownReceive,
    /// A grant or a piece that is too long, or an empty piece.
    #[error("the peer has granted or sent a length that is wrong")]
    Length,
    /// More credit than any window has.
    #[error("the peer has given more credit than any window has")]
    Credit,
}
