//! The table of a port's peers. Handles go stale when their peer has gone.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use bywire_ring::memory::Shared;
use bywire_sys::socket::Socket;

use crate::message::address::Address;
use crate::message::error::{DisconnectReason, SendError};
use crate::message::peer::{Peer, PeerInfo};
use crate::shm::connection::Connection;

#[derive(Default)]
pub(crate) struct Slots {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Information about peers whose end the program has not seen yet.
    departed: HashMap<Peer, PeerInfo>,
}

struct Entry {
    generation: u32,
    state: Slot,
}

pub(crate) enum Slot {
    Free {
        /// Why the last peer here is gone, for sends that come too late.
        last: Option<DisconnectReason>,
    },
    Connecting(Box<Connecting>),
    Connected(Box<Connection>),
}

/// A connection that we have begun and that the other end has not answered.
pub(crate) struct Connecting {
    pub socket: Socket,
    pub outbound: Shared,
    /// Our segment's descriptor while our introduction is unsent: the other end has to accept the connection first.
    pub unsent: Option<OwnedFd>,
    pub address: Address,
    /// Is the outcome reported as an event, because no call waits for it?
    pub announce: bool,
}

impl Slots {
    /// Peers in any state.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Indices that may be in use.
    pub fn indices(&self) -> std::ops::Range<u32> {
        0..self.entries.len() as u32
    }

    pub fn insert(&mut self, make: impl FnOnce(Peer) -> Slot) -> Peer {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, state: Slot::Free { last: None } });
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let peer = Peer { index, generation: entry.generation };
        entry.state = make(peer);
        peer
    }

    pub fn remove(&mut self, peer: Peer, reason: DisconnectReason) -> Option<Slot> {
        let entry =
            self.entries.get_mut(peer.index as usize).filter(|entry| entry.generation == peer.generation)?;
        if matches!(entry.state, Slot::Free { .. }) {
            return None;
        }
        self.free.push(peer.index);
        Some(std::mem::replace(&mut entry.state, Slot::Free { last: Some(reason) }))
    }

    /// Keeps a peer's information until [`Self::forget`].
    pub fn remember(&mut self, peer: Peer, info: PeerInfo) {
        self.departed.insert(peer, info);
    }

    /// Forgets a peer's information, as the program has seen its end.
    pub fn forget(&mut self, peer: Peer) {
        self.departed.remove(&peer);
    }

    /// Information about a peer, including a departed one that is still remembered.
    pub fn info(&self, peer: Peer) -> Option<&PeerInfo> {
        match self.peek(peer) {
            Some(Slot::Connected(connection)) => Some(&connection.info),
            _ => self.departed.get(&peer),
        }
    }

    pub fn replace(&mut self, peer: Peer, state: Slot) -> Option<Slot> {
        let entry =
            self.entries.get_mut(peer.index as usize).filter(|entry| entry.generation == peer.generation)?;
        Some(std::mem::replace(&mut entry.state, state))
    }

    #[inline(always)]
    pub fn connection_at(&mut self, index: u32) -> Option<&mut Connection> {
        match self.entries.get_mut(index as usize) {
            Some(Entry { state: Slot::Connected(connection), .. }) => Some(connection),
            _ => None,
        }
    }

    #[inline(always)]
    pub fn peek(&self, peer: Peer) -> Option<&Slot> {
        self.entries
            .get(peer.index as usize)
            .filter(|entry| entry.generation == peer.generation)
            .map(|entry| &entry.state)
    }

    /// The connection at `index` that we have begun and that the other end has not answered.
    pub fn connecting_at(&mut self, index: u32) -> Option<&mut Connecting> {
        match self.entries.get_mut(index as usize) {
            Some(Entry { state: Slot::Connecting(connecting), .. }) => Some(connecting),
            _ => None,
        }
    }

    /// The user of the peer that is connected at `index`.
    pub fn uid_at(&self, index: u32) -> Option<u32> {
        match self.entries.get(index as usize) {
            Some(Entry { state: Slot::Connected(connection), .. }) => Some(connection.info.uid),
            _ => None,
        }
    }

    /// How many heaps all peers of a foreign user share with us, and how many bytes.
    pub fn borrowed_from(&self, user: u32) -> (usize, u64) {
        let connections = self.entries.iter().filter_map(|entry| match &entry.state {
            Slot::Connected(connection) if connection.foreign_user == Some(user) => Some(connection),
            _ => None,
        });
        connections
            .map(|connection| connection.borrowed())
            .fold((0, 0), |(heaps, bytes), (more, longer)| (heaps + more, bytes + longer))
    }

    /// The handle of the peer at `index`, in any state.
    pub fn peer_at(&self, index: u32) -> Option<Peer> {
        let entry = self.entries.get(index as usize)?;
        (!matches!(entry.state, Slot::Free { .. })).then_some(Peer { index, generation: entry.generation })
    }

    /// The connection behind a handle.
    #[inline(always)]
    pub fn connection(&mut self, peer: Peer) -> Result<&mut Connection, SendError> {
        if !matches!(self.peek(peer), Some(Slot::Connected(_))) {
            return Err(self.absence(peer));
        }
        match &mut self.entries[peer.index as usize].state {
            Slot::Connected(connection) => Ok(connection),
            _ => Err(SendError::NoPeer),
        }
    }

    /// Why a handle names no connection.
    #[cold]
    fn absence(&self, peer: Peer) -> SendError {
        match self.peek(peer) {
            Some(Slot::Connecting(_)) => SendError::Connecting,
            Some(Slot::Free { last: Some(reason) }) => SendError::Disconnected(*reason),
            _ => SendError::NoPeer,
        }
    }
}
