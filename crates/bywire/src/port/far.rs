//! One peer on another machine, and how its connection comes and goes.

use std::net::SocketAddr;

use bywire_wire::service::{Identity, Kept};

use crate::message::address::Address;
use crate::message::error::DisconnectReason;
use crate::message::share::ForeignUser;
use crate::wire::connection::Connection;

/// One peer on another machine.
pub(crate) struct Far {
    pub wire: Connection,
    /// Where its packets go.
    pub to: SocketAddr,
    /// This end's number, and the other end's.
    pub number: u32,
    pub peer_number: u32,
    pub identity: Identity,
    pub is_ready: bool,
    pub is_touched: bool,
    pub is_recent: bool,
    /// It has asked for a large window, and there is none for its user.
    pub is_window_refused: bool,
    /// Something of our own could not go on.
    pub failed: Option<DisconnectReason>,
    /// When its own node last vouched that it lives, although nothing comes from it.
    pub vouched_ns: u64,
    /// When its node was last asked.
    pub inquired_ns: u64,
}

/// A connection that is being made.
pub(crate) struct Call {
    pub address: Address,
    pub number: u32,
    pub stage: Stage,
    /// The peer's user, if this end was called and that is a foreign one.
    pub foreign_user: Option<ForeignUser>,
    /// Is the outcome reported as an event, because no call waits for it?
    pub announce: bool,
    pub is_caller: bool,
}

/// How far a connection is.
pub(crate) enum Stage {
    /// The node has not answered our registration yet.
    Held,
    /// The node has been asked.
    Asked,
    /// We have agreed to the offer with this number.
    Accepted(u32),
    /// Both nodes agree. The first packet of the peer is awaited.
    Proving { far: Box<Far>, since_ns: u64 },
}

/// A connection that this end has ended. What was sent goes on until it is acknowledged or the time is up.
pub(crate) struct Leaving {
    pub far: Box<Far>,
    pub until_ns: u64,
}

impl Far {
    /// What the node is told of it after a restart of its own.
    pub fn kept(&self) -> Kept {
        let (connection, peer_connection) = (self.number, self.peer_number);
        Kept { connection, peer_connection, peer: self.identity.clone() }
    }
}
