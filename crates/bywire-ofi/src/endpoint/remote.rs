//! Another endpoint, and the way to it.

use bywire::{ConnectError, DisconnectReason, NoFabric, Peer, Refusal};
use bywire_match::PeerId;

use crate::abi::{FI_ECONNREFUSED, FI_ECONNRESET, FI_EHOSTUNREACH, FI_EIO, FI_ESHUTDOWN};
use crate::name::EndpointName;

/// Another endpoint, or this one.
#[derive(Debug)]
pub struct Remote {
    pub name: EndpointName,
    pub id: PeerId,
    pub link: Link,
    /// A connection that it has made while this end makes one.
    pub spare: Option<Peer>,
    /// Places of regions that it may put into now.
    pub exposed: u32,
    /// Its first index in the address vector.
    pub address: Option<u64>,
    /// Since when a connection is tried again for a reason that may not last for ever.
    pub tried_since_ns: Option<u64>,
}

/// The way to a remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing has been sent yet.
    Idle,
    /// A connection did not come about. It is tried again.
    Waiting,
    Connecting(Peer),
    /// This end has made a connection, and waits for the answer to its greeting.
    Greeting(Peer),
    Open(Peer),
    /// This endpoint itself.
    Own,
    /// Its connections are being ended. The error is that of what is under way.
    Ending(i32),
    Ended(i32),
}

impl Link {
    /// Is it neither open nor over?
    pub fn is_on_its_way(self) -> bool {
        matches!(self, Self::Idle | Self::Waiting | Self::Connecting(_) | Self::Greeting(_))
    }
}

/// What operations with a peer fail with after its end.
pub fn error_of(reason: DisconnectReason) -> i32 {
    match reason {
        DisconnectReason::Closed | DisconnectReason::Here => FI_ESHUTDOWN,
        DisconnectReason::Refused(_) => FI_ECONNREFUSED,
        DisconnectReason::NotConnected(error) => error_of_connect(&error),
        DisconnectReason::Broken | DisconnectReason::Corrupted => FI_EIO,
        _ => FI_ECONNRESET,
    }
}

pub fn error_of_connect(error: &ConnectError) -> i32 {
    match error {
        ConnectError::NoPort | ConnectError::NotAdmitted | ConnectError::Refused(_) => FI_ECONNREFUSED,
        _ => FI_EHOSTUNREACH,
    }
}

/// Why a connection is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Memory or descriptors at one end.
    Resources,
    /// The service of this machine, which may be starting again.
    Service,
    /// The other end's port, of which a service does not know that was started again, until its program calls.
    Port,
    /// An answer of the other end. Its program may not have called for long, and the service gives up each try after some seconds.
    Answer,
}

/// Is it worth another try, and why?
pub fn lack_of(error: &ConnectError) -> Option<Lack> {
    match error {
        ConnectError::TooManyPeers
        | ConnectError::MemoryKept
        | ConnectError::System(_)
        | ConnectError::Refused(Refusal::NoResources | Refusal::TooManyPeers)
        | ConnectError::NoFabric(NoFabric::NoResources) => Some(Lack::Resources),
        ConnectError::NoFabric(NoFabric::NotRunning | NoFabric::Silent) => Some(Lack::Service),
        ConnectError::Unreachable | ConnectError::TimedOut => Some(Lack::Answer),
        _ => None,
    }
}

pub fn lack_there(reason: DisconnectReason) -> Option<Lack> {
    match reason {
        DisconnectReason::Refused(refusal) => lack_of(&ConnectError::Refused(refusal)),
        DisconnectReason::NotConnected(ConnectError::NoPort) => Some(Lack::Port),
        DisconnectReason::NotConnected(error) => lack_of(&error),
        _ => None,
    }
}
