//! Incoming connections, and the meaning of a port's ready descriptors.

use std::os::fd::OwnedFd;

use bywire_sys::socket::Socket;
use bywire_sys::{Errno, limits, wake};

use crate::message::peer::Peer;

/// Incoming connections that have not introduced themselves.
pub(super) struct Incoming {
    pub waiting: Vec<(u64, Socket)>,
    pub next: u64,
    /// Closed when descriptors have run out, so that one connection can be accepted and turned away.
    pub reserve: Option<OwnedFd>,
    /// Ends a pause. Nothing else would tell when connections can be let in again.
    pub timer: wake::Timer,
}

/// The meaning of a ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// The port has signalled itself.
    Wakeup,
    Doorbell,
    Listener,
    /// A pause is over.
    Timer,
    /// Packets from other machines.
    Udp,
    /// This machine's node.
    Node,
    /// Something is due with other machines.
    Clock,
    /// A peer's socket or process, by its slot and the low bits of its generation.
    Peer {
        index: u32,
        generation: u32,
    },
    /// An incoming connection, by its number.
    Incoming(u64),
}

impl Tag {
    pub fn bits(self) -> u64 {
        match self {
            Self::Doorbell => 0,
            Self::Wakeup => 1,
            Self::Timer => 2,
            Self::Udp => 3,
            Self::Node => 4,
            Self::Clock => 5,
            Self::Listener => 1 << 62,
            Self::Peer { index, generation } => {
                2 << 62 | u64::from(generation & 0x3fff_ffff) << 32 | u64::from(index)
            }
            Self::Incoming(number) => 3 << 62 | (number & !(3 << 62)),
        }
    }

    pub fn from_bits(bits: u64) -> Self {
        match bits >> 62 {
            0 => match bits {
                0 => Self::Doorbell,
                2 => Self::Timer,
                3 => Self::Udp,
                4 => Self::Node,
                5 => Self::Clock,
                _ => Self::Wakeup,
            },
            1 => Self::Listener,
            2 => Self::Peer { index: bits as u32, generation: (bits >> 32) as u32 & 0x3fff_ffff },
            _ => Self::Incoming(bits & !(3 << 62)),
        }
    }
}

pub(super) fn tag_of(peer: Peer) -> u64 {
    Tag::Peer { index: peer.index, generation: peer.generation }.bits()
}

impl Incoming {
    pub fn new() -> Result<Self, Errno> {
        let (reserve, timer) = (Some(limits::reserve_descriptor()?), wake::Timer::new()?);
        Ok(Self { waiting: Vec::new(), next: 0, reserve, timer })
    }
}
