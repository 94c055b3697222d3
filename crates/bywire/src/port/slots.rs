//! The table of a port's peers. Handles go stale when their peer has gone.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use bywire_ring::memory::Shared;
use bywire_sys::socket::Socket;

use super::remote_peer::{Call, Leaving, RemotePeer, Stage};
use crate::message::address::Address;
use crate::message::error::{DisconnectReason, SendError};
use crate::message::peer::{Peer, PeerInfo, Priority};
use crate::message::resources::Resources;
use crate::message::share::{OtherUser, PeersOfNode};
use crate::message::transfers::{Step, Transfers};
use crate::shm::connection as shm;

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
    /// A connection to another machine that is being made.
    Calling(Box<Call>),
    /// A peer of this machine, behind shared memory.
    Ring(Box<shm::Connection>),
    /// A peer of another machine, behind the network.
    Wire(Box<RemotePeer>),
    /// A connection to another machine that this end has ended, until what was sent is acknowledged.
    Leaving(Box<Leaving>),
}

impl Slot {
    /// The connection, if there is one that takes messages.
    pub fn link(&mut self) -> Option<Link<'_>> {
        match self {
            Self::Ring(ring) => Some(Link::Ring(ring)),
            Self::Wire(remote) => Some(Link::Wire(remote)),
            _ => None,
        }
    }
}

/// A connection that takes messages, by what carries it.
pub(crate) enum Link<'a> {
    /// The shared memory of this machine.
    Ring(&'a mut shm::Connection),
    /// The network.
    Wire(&'a mut RemotePeer),
}

impl Link<'_> {
    pub fn info(&self) -> &PeerInfo {
        match self {
            Self::Ring(ring) => &ring.info,
            Self::Wire(remote) => &remote.wire.info,
        }
    }

    /// Takes everything that a peer sent and answered before its end. `false`: too much waits for the program already, and
    /// there is more. What a network has brought can wait in its lanes, where a message takes only its bytes. Rings cannot
    /// hold so many messages.
    pub fn drain(&mut self, resources: &mut Resources) -> bool {
        match self {
            Self::Ring(ring) => ring.begin_draining(),
            Self::Wire(remote) => remote.wire.begin_draining(),
        }
        // Bounded: each turn takes a record or a step of one, and each lane yields at most as many records as it can
        // hold.
        let may_pause = matches!(self, Self::Wire(_));
        loop {
            if may_pause && resources.is_full() {
                return false;
            }
            // Answers first, as while the peer lives.
            let step = match self.receive_reply(resources) {
                Ok(Step::Nothing) => match self.receive(Priority::High, resources) {
                    Ok(Step::Nothing) => self.receive(Priority::Low, resources),
                    other => other,
                },
                other => other,
            };
            match step {
                Ok(Step::Nothing) | Err(_) => break,
                Ok(Step::Progress) => {}
                Ok(Step::Event(event)) => resources.put_by(event),
            }
        }
        // A broken lane confirms nothing more.
        let _ = match self {
            Self::Ring(ring) => ring.confirm_all_delivered(resources),
            Self::Wire(remote) => remote.wire.confirm_all_delivered(resources),
        };
        true
    }

    fn receive(&mut self, priority: Priority, resources: &mut Resources) -> Result<Step, DisconnectReason> {
        match self {
            Self::Ring(ring) => ring.receive(priority, resources),
            Self::Wire(remote) => remote.wire.receive(priority, resources),
        }
    }

    fn receive_reply(&mut self, resources: &mut Resources) -> Result<Step, DisconnectReason> {
        match self {
            Self::Ring(ring) => ring.receive_reply(resources),
            Self::Wire(remote) => remote.wire.receive_reply(resources),
        }
    }

    pub fn transfers(&mut self) -> &mut Transfers {
        match self {
            Self::Ring(ring) => &mut ring.transfers,
            Self::Wire(remote) => &mut remote.wire.transfers,
        }
    }
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
            Some(Slot::Ring(ring)) => Some(&ring.info),
            Some(Slot::Wire(remote)) => Some(&remote.wire.info),
            Some(Slot::Leaving(leaving)) => Some(&leaving.remote.wire.info),
            _ => self.departed.get(&peer),
        }
    }

    pub fn replace(&mut self, peer: Peer, state: Slot) -> Option<Slot> {
        let entry =
            self.entries.get_mut(peer.index as usize).filter(|entry| entry.generation == peer.generation)?;
        Some(std::mem::replace(&mut entry.state, state))
    }

    /// The peer at `index` if it is connected through rings.
    #[inline(always)]
    pub fn ring_at(&mut self, index: u32) -> Option<&mut shm::Connection> {
        match self.entries.get_mut(index as usize) {
            Some(Entry { state: Slot::Ring(ring), .. }) => Some(ring),
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

    /// How many peers are of this user, and how many of any other user.
    pub fn count_of(&self, user: &OtherUser) -> (usize, usize) {
        let users = self.entries.iter().filter_map(|entry| match &entry.state {
            Slot::Ring(ring) => ring.transfers.other_user(),
            Slot::Wire(remote) => remote.wire.transfers.other_user(),
            Slot::Calling(call) => call.other_user.as_ref(),
            Slot::Leaving(leaving) => leaving.remote.wire.transfers.other_user(),
            _ => None,
        });
        users.fold((0, 0), |(own, all), other| (own + usize::from(other == user), all + 1))
    }

    /// How many peers of this node there are.
    pub fn count_of_node(&self, node: &str, user: Option<&OtherUser>) -> PeersOfNode {
        let mut count = PeersOfNode::default();
        for entry in &self.entries {
            match &entry.state {
                Slot::Wire(remote) if remote.identity.node == node => count.all += 1,
                Slot::Leaving(leaving) if leaving.remote.identity.node == node => count.all += 1,
                Slot::Calling(call) if call.address.node == node => {
                    count.all += 1;
                    count.silent += usize::from(!call.is_caller);
                    count.silent_of_user += usize::from(!call.is_caller && call.other_user.as_ref() == user);
                }
                _ => {}
            }
        }
        count
    }

    /// How many heaps all peers of another user share with us, and how many bytes.
    pub fn borrowed_from(&self, user: u32) -> (usize, u64) {
        let connections = self.entries.iter().filter_map(|entry| match &entry.state {
            Slot::Ring(ring) if ring.other_user == Some(user) => Some(ring),
            _ => None,
        });
        connections
            .map(|ring| ring.borrowed())
            .fold((0, 0), |(heaps, bytes), (more, longer)| (heaps + more, bytes + longer))
    }

    /// The state of the slot at `index`.
    pub fn state_at(&mut self, index: u32) -> Option<&mut Slot> {
        self.entries.get_mut(index as usize).map(|entry| &mut entry.state)
    }

    /// Peers on other machines with whom a connection stands, even if they have not proved themselves, or are left already.
    pub fn remote_peers(&self) -> impl Iterator<Item = &RemotePeer> {
        self.entries.iter().filter_map(|entry| match &entry.state {
            Slot::Wire(remote) => Some(&**remote),
            Slot::Leaving(leaving) => Some(&*leaving.remote),
            Slot::Calling(call) => match &call.stage {
                Stage::Proving { remote, .. } => Some(&**remote),
                _ => None,
            },
            _ => None,
        })
    }

    /// The handle of the peer at `index`, in any state.
    pub fn peer_at(&self, index: u32) -> Option<Peer> {
        let entry = self.entries.get(index as usize)?;
        (!matches!(entry.state, Slot::Free { .. })).then_some(Peer { index, generation: entry.generation })
    }

    /// The connection behind a handle.
    pub fn link(&mut self, peer: Peer) -> Result<Link<'_>, SendError> {
        if !matches!(self.peek(peer), Some(Slot::Ring(_) | Slot::Wire(_))) {
            return Err(self.absence(peer));
        }
        self.entries[peer.index as usize].state.link().ok_or(SendError::NoPeer)
    }

    /// The connection behind a handle, if it is one through rings. One look tells all: short messages pay for it.
    #[inline(always)]
    pub fn ring(&mut self, peer: Peer) -> Option<&mut shm::Connection> {
        match self.entries.get_mut(peer.index as usize) {
            Some(Entry { generation, state: Slot::Ring(ring) }) if *generation == peer.generation => {
                Some(ring)
            }
            _ => None,
        }
    }

    /// Why a handle names no connection.
    #[cold]
    fn absence(&self, peer: Peer) -> SendError {
        match self.peek(peer) {
            Some(Slot::Connecting(_) | Slot::Calling(_)) => SendError::Connecting,
            Some(Slot::Leaving(_)) => SendError::Disconnected(DisconnectReason::Here),
            Some(Slot::Free { last: Some(reason) }) => SendError::Disconnected(*reason),
            _ => SendError::NoPeer,
        }
    }
}
