//! What a port tells its program, in the order in which it happened.

use std::fmt;

use crate::address::{Address, PortName};
use crate::buffer::{Buffer, Payload};
use crate::error::{Gone, TransferError};
use crate::heap::Lent;

/// One connection of a port. Copies freely; a new incarnation of the same peer gets a new handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Peer {
    /// The handle as a number, for foreign interfaces.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The handle behind such a number; one that was never given out names no peer.
    pub fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// One of two independent lanes; neither can block the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// For the bulk of the traffic.
    Low = 0,
    /// For what must not wait behind it.
    High = 1,
}

/// Names an asynchronous transfer until its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferId(pub u64);

/// When a transfer counts as complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confirm {
    /// When the buffer may be used again.
    #[default]
    Copied,
    /// When the target port has consumed the message.
    Delivered,
}

/// Who a peer is, as attested by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its node and port.
    pub address: Address,
    /// Its process in our pid namespace, 0 when it lives in one that we cannot see.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// A number that differs between incarnations of the same port.
    pub incarnation: u64,
    /// The longest message that it takes, in bytes.
    pub message_bytes_max: u64,
    /// Are payloads checked end to end?
    pub integrity: bool,
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (pid {}, uid {})", self.address, self.pid, self.uid)
    }
}

impl PeerInfo {
    /// Its port on its node.
    pub fn port(&self) -> &PortName {
        &self.address.port
    }
}

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
        reason: Gone,
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
