//! Events that the machine reports, and errors by which it refuses.

use crate::id::StreamId;
use crate::record::{Malformed, Refusal, ResetReason};

/// The meaning of a received message for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The peer is there, and its limits are known. From now on streams can be opened.
    Ready,
    /// The peer has opened a stream. The caller answers by [`crate::Streams::accept`] or [`crate::Streams::refuse`].
    Opened {
        /// The stream.
        stream: StreamId,
        /// The description by the peer's engine, at most [`crate::DESCRIPTION_BYTES_MAX`] bytes. The peer may be hostile.
        description: &'a [u8],
    },
    /// The peer has accepted a stream.
    Accepted {
        /// The stream.
        stream: StreamId,
    },
    /// The peer has refused a stream, which is gone.
    Refused {
        /// The stream.
        stream: StreamId,
        /// The reason.
        reason: Refusal,
    },
    /// The peer's direction begins.
    Started {
        /// The stream.
        stream: StreamId,
        /// The offset of its first byte.
        offset: u64,
    },
    /// The next bytes of the peer's direction. The caller stores them: it has granted the room.
    Bytes {
        /// The stream.
        stream: StreamId,
        /// The offset of the first byte.
        offset: u64,
        /// The bytes, at least one.
        bytes: &'a [u8],
    },
    /// The peer's direction has ended.
    Half {
        /// The stream.
        stream: StreamId,
        /// The offset behind its last byte. All bytes before it have been reported.
        offset: u64,
    },
    /// The peer's direction returns to the kernel. This also answers [`crate::Streams::ask_back`].
    Back {
        /// The stream.
        stream: StreamId,
        /// The offset of the first byte that the kernel delivers. It may lie before bytes that have been reported: these are
        /// void, and never drained. It may also lie behind, and then the bytes before it follow.
        offset: u64,
    },
    /// The peer's reader wants this end's direction to return to the kernel. Nothing of it is sent until the caller answers
    /// by [`crate::Streams::back`]. A peer that asks after the direction has ended is not reported.
    BackAsked {
        /// The stream.
        stream: StreamId,
        /// The offset at which the reader has stopped. The answer may name it, or a higher one.
        offset: u64,
    },
    /// The peer's reader has drained bytes of this end's direction.
    Drained {
        /// The stream.
        stream: StreamId,
        /// The offset of the first byte that is not drained.
        offset: u64,
    },
    /// The peer has reset the stream, which is gone.
    Reset {
        /// The stream.
        stream: StreamId,
        /// The reason.
        reason: ResetReason,
    },
    /// The peer has closed the whole connection. All streams are lost: [`crate::Streams::live`] names them.
    Closed {
        /// The reason.
        reason: ResetReason,
    },
}

/// A rule that the peer has broken. The machine does nothing more, and the caller ends the connection of the two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Bytes that are no message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A message of another version of the format.
    #[error("the peer uses version {0} of the format of streams")]
    Version(u8),
    /// A record before the first one that every end sends, this one again, or one with impossible limits.
    #[error("the peer did not introduce itself exactly once, with possible limits")]
    Hello,
    /// An acknowledgement of messages that were not sent.
    #[error("the peer has acknowledged messages that were not sent")]
    Acknowledgement,
    /// More bytes wait for a message of the high lane than the limit.
    #[error("the peer has sent more ahead on the low lane than the limit")]
    Early,
    /// More streams than the limit.
    #[error("the peer has opened more streams than the limit")]
    Streams,
    /// More streams than the limit wait for an answer.
    #[error("the peer has opened more streams than may wait for an answer")]
    Opens,
    /// An identifier that is not the next one of its slot, or belongs to no stream.
    #[error("the peer has named a stream that is not there")]
    UnknownStream,
    /// A record that does not fit the state of its stream.
    #[error("the peer has sent a record that its stream's state does not allow")]
    State,
    /// An offset that does not continue where the direction was, or that was never sent.
    #[error("the peer has sent an offset that does not continue its stream")]
    Offset,
    /// Bytes beyond the credit.
    #[error("the peer has sent bytes beyond its credit")]
    Credit,
    /// Credit that takes back what was given.
    #[error("the peer has taken back credit")]
    CreditWithdrawn,
    /// Bytes or another end after the end of a direction.
    #[error("the peer has sent bytes behind the end of a direction")]
    AfterEnd,
}

/// The reason why a stream cannot be opened. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The peer has not introduced itself. [`Event::Ready`] reports when it has.
    #[error("the peer's engine has not introduced itself yet")]
    NotReady,
    /// The connection has ended.
    #[error("the connection to the peer's engine has ended")]
    Ended,
    /// The peer has to answer earlier ones first.
    #[error("too many streams wait for an answer of the peer's engine")]
    Pending,
    /// The limit of streams is reached.
    #[error("the limit of streams between the two engines is reached")]
    Full,
    /// The description is longer than [`crate::DESCRIPTION_BYTES_MAX`].
    #[error("the description of a stream has at most 512 bytes")]
    TooLong,
}

/// The reason why a call for a stream does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The stream is gone, or the whole connection is.
    #[error("the stream is gone")]
    Gone,
    /// The call does not fit the state of the stream.
    #[error("the stream's state does not allow this call")]
    State,
    /// The offset is not allowed here.
    #[error("the offset is not allowed here")]
    Offset,
}
