//! What a port tells its program, in the order in which it happened.

use crate::message::buffer::{Buffer, Payload};
use crate::message::error::{DisconnectReason, TransferError};
use crate::message::lend::Lent;
use crate::message::peer::{Peer, Priority, TransferId};

/// One message, whole.
#[derive(Debug)]
pub struct Message {
    /// From whom; [`crate::Port::peer_info`] tells more, of a peer that has died as well, until its
    /// [`Event::Disconnected`] is taken.
    pub peer: Peer,
    /// On which lane.
    pub priority: Priority,
    /// Its bytes.
    pub payload: Payload,
}

/// Something that happened at a port.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A message. A long one lies in the posted buffer that it took. Of a peer that has ended, what was whole in its ring
    /// comes without one as well: then in memory of the library's own, as short ones do.
    Message(Message),
    /// A datagram: at most once, in no order.
    Datagram(Message),
    /// A message that the peer lent instead of copying it.
    Lent(Lent),
    /// A peer has connected, or the answer to `connect_start` has come.
    Connected(Peer),
    /// A peer is gone; nothing more will come from it, and its handle is dead.
    Disconnected {
        /// Which.
        peer: Peer,
        /// Why.
        reason: DisconnectReason,
    },
    /// An asynchronous send is over, and its buffer free again.
    Sent {
        /// Which.
        id: TransferId,
        /// The memory that was given to the library.
        buffer: Buffer,
        /// What became of it.
        result: Result<(), TransferError>,
    },
    /// A put is over: the target has the data, or nothing was touched there.
    Put {
        /// Which.
        id: TransferId,
        /// The memory that was given to the library.
        buffer: Buffer,
        /// What became of it.
        result: Result<(), TransferError>,
    },
    /// A get is over: the buffer holds the data.
    Got {
        /// Which.
        id: TransferId,
        /// The memory that was given to the library.
        buffer: Buffer,
        /// What became of it.
        result: Result<(), TransferError>,
    },
    /// A peer has put data into a region of ours and wants us to know.
    Notified {
        /// Who.
        peer: Peer,
        /// Up to 32 bytes that came along, visible after the data.
        note: Payload,
    },
    /// There is room again after a send that found the lane [`crate::SendError::Full`]. It is said once,
    /// so try before waiting again.
    Room {
        /// Towards whom.
        peer: Peer,
        /// On which lane.
        priority: Priority,
    },
    /// A long message waits, and no posted buffer is large enough. It is reported once; the sender is
    /// held back until one is posted. (Not reported: a foreign user's that waits for another of its own.)
    BufferNeeded {
        /// Who sends.
        peer: Peer,
        /// On which lane.
        priority: Priority,
        /// How long the message is.
        length_bytes: u64,
    },
}
