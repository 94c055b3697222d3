//! The channels between the services of a fabric's nodes: the state machine of one node, without sockets.
//!
//! The owner of [`Channels`] passes every arriving packet to [`Channels::receive`]. It calls [`Channels::transmit`]
//! after that, after every other call, and at [`Channels::next_timeout_ns`], and sends the packets that this yields. It
//! takes the events with [`Channels::next_event`]. A node is identified by its public key.
//!
//! - A channel is a [`Connection`] whose secret comes from a [handshake]. Messages use its high lane.
//! - A new channel replaces the old one once a packet has been opened with its keys. A replayed hello changes nothing,
//!   because its sender does not have these keys. No clock is needed for that.
//! - If both nodes begin at once, the channel begun by the node with the greater key remains.
//! - A silent channel is made anew, from the node's present address. Messages that the peer has not received leave
//!   again in the new channel. So messages arrive once and in order until one of the two services gives up the other.
//! - The work that strangers can cause is bounded: one hash for each packet without this node's public key, and 500
//!   handshakes a second in all with it. No state is kept for strangers. Nodes whose address is known have as many for
//!   themselves.
//! - A node that is not in the table gets a channel only if its hello names an invitation. It is a guest until the owner
//!   adds it.
//!
//! [`Connection`]: crate::connection::Connection

mod attempt;
pub mod echo;
mod established;
mod guests;
mod incarnations;
mod known_addresses;
mod limits;
mod out;
mod peer;
#[doc(hidden)]
pub mod session;
mod shared;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::handshake::cookie::{self, Cookies};
use crate::handshake::load::Load;
use crate::handshake::macs::MacKey;
use crate::handshake::{self, Identity, InvitationId, KEY_BYTES, PublicKey, ReadHello};
use crate::packet::{self, Header, PacketKind};
use crate::path::Path;
use crate::random::draw;

pub use crate::random::Random;
use guests::Guests;
pub use guests::{GUEST_NS, INVITATIONS_MAX};
use known_addresses::KnownAddresses;
pub use limits::*;
use peer::Peer;
pub use session::SendError;
pub use shared::Options;
use shared::Shared;
pub use status::{ChannelStatus, CopiedKey, DownReason, Event, NodeCounts, Status, Strangers};

/// The most events that wait for the service. Beyond them messages stay where they are, and their senders have to wait.
const EVENTS_MAX: usize = 1024;
/// The error for a node that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node is not in the fabric")]
pub struct UnknownNode;

/// The channels of one node.
#[derive(Debug)]
pub struct Channels {
    shared: Shared,
    mac_key: MacKey,
    peers: BTreeMap<PublicKey, Peer>,
    /// When each node has work to do.
    due: BTreeSet<(u64, PublicKey)>,
    /// Nodes whose messages wait until events are taken.
    stalled: BTreeSet<PublicKey>,
    guests: Guests,
    known_addresses: KnownAddresses,
    load: Load,
    cookies: Cookies,
    strangers: Strangers,
    /// The service ends, and makes no channel any more.
    is_closed: bool,
}

impl Channels {
    /// The channels of a node that does not know any other node yet.
    pub fn new(identity: Identity, options: Options) -> Self {
        Self {
            mac_key: MacKey::of_receiver(&identity.key.public().0),
            shared: Shared::new(identity, options),
            peers: BTreeMap::new(),
            due: BTreeSet::new(),
            stalled: BTreeSet::new(),
            guests: Guests::default(),
            known_addresses: KnownAddresses::default(),
            load: Load::default(),
            cookies: Cookies::default(),
            strangers: Strangers::default(),
            is_closed: false,
        }
    }

    /// Pins the key of a node, or changes its addresses, which are tried in turn. A guest keeps its channel. `false`: the key
    /// is this node's own.
    pub fn add(&mut self, now_ns: u64, node: PublicKey, addresses: Vec<SocketAddr>) -> bool {
        if node == self.shared.identity.key.public() {
            return false;
        }
        let shared = &mut self.shared;
        self.guests.end(&node);
        let peer = self.peers.entry(node).or_insert_with(|| Peer::new(node, shared.next_session()));
        self.known_addresses.add(&addresses);
        self.known_addresses.remove(peer.addresses());
        peer.set_addresses(now_ns, addresses);
        self.settle(node);
        true
    }

    /// Removes a node. Messages under way are lost. The node is told with the next [`Self::transmit`].
    pub fn remove(&mut self, now_ns: u64, node: &PublicKey) {
        let Some(mut peer) = self.peers.remove(node) else { return };
        if let Some(at_ns) = peer.scheduled_ns {
            self.due.remove(&(at_ns, *node));
        }
        self.stalled.remove(node);
        self.guests.end(node);
        self.known_addresses.remove(peer.addresses());
        self.known_addresses.remove(peer.noted_address.as_slice());
        peer.close(now_ns, DownReason::Removed, &mut self.shared);
    }

    /// Makes an invitation with this secret. A node that uses it gets a channel, for [`GUEST_NS`] unless it is added. `None`:
    /// there are [`INVITATIONS_MAX`] already.
    pub fn invite(&mut self, secret: [u8; KEY_BYTES]) -> Option<InvitationId> {
        self.guests.invite(secret)
    }

    /// Forgets an invitation. Its guest goes.
    pub fn withdraw(&mut self, now_ns: u64, id: &InvitationId) {
        if let Some(guest) = self.guests.withdraw(id) {
            self.remove(now_ns, &guest);
        }
    }

    /// The invitation that a node uses which has not been added.
    pub fn invitation(&self, node: &PublicKey) -> Option<InvitationId> {
        self.guests.invitation(node)
    }

    /// Keeps a channel to a node from now on: makes it, keeps it alive, and makes it again after it has ended.
    ///
    /// # Errors
    /// [`UnknownNode`].
    pub fn connect(&mut self, now_ns: u64, node: &PublicKey) -> Result<(), UnknownNode> {
        self.peers.get_mut(node).ok_or(UnknownNode)?.connect(now_ns);
        self.settle(*node);
        Ok(())
    }

    /// Releases the channel to a node. It ends once neither end needs it.
    pub fn release(&mut self, node: &PublicKey) {
        if let Some(peer) = self.peers.get_mut(node) {
            peer.release(&mut self.shared);
            self.settle(*node);
        }
    }

    /// Sends a message to a node that is up.
    ///
    /// # Errors
    /// [`SendError`]: the message was not accepted.
    pub fn send(&mut self, now_ns: u64, node: &PublicKey, message: &[u8]) -> Result<(), SendError> {
        let peer = self.peers.get_mut(node).ok_or(SendError::NotUp)?;
        peer.send(now_ns, message)?;
        self.settle(*node);
        Ok(())
    }

    /// Sends an echo request of so many bytes to a node that is up. Its reply is an [`Event::Echo`] with the same number. Either
    /// may be lost.
    ///
    /// # Errors
    /// [`SendError`]: nothing was sent.
    pub fn send_echo(
        &mut self,
        now_ns: u64,
        node: &PublicKey,
        number: u64,
        bytes: usize,
    ) -> Result<(), SendError> {
        self.peers.get_mut(node).ok_or(SendError::NotUp)?.send_echo(now_ns, number, bytes)?;
        self.settle(*node);
        Ok(())
    }

    /// Has the next hello to a wanted node without a channel leave soon, however many went unanswered before.
    pub fn hurry(&mut self, now_ns: u64, node: &PublicKey) {
        if let Some(peer) = self.peers.get_mut(node) {
            peer.hurry(now_ns);
            self.settle(*node);
        }
    }

    /// Notes the longest packet that the route to a node carries, as the kernel reports it. Channels look for the longest one
    /// that arrives.
    pub fn set_route_bytes(&mut self, node: &PublicKey, bytes: u16) {
        if let Some(peer) = self.peers.get_mut(node) {
            peer.set_route_bytes(bytes);
            self.settle(*node);
        }
    }

    /// Ends the service. Every node that is up is told with the next [`Self::transmit`], repeatedly until it answers,
    /// for a second at most. [`Self::next_timeout_ns`] is `None` when this is done.
    pub fn close(&mut self, now_ns: u64) {
        self.is_closed = true;
        for peer in self.peers.values_mut() {
            peer.close(now_ns, DownReason::Closed, &mut self.shared);
        }
        let nodes: Vec<_> = self.peers.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.settle(node));
    }

    /// The next event.
    pub fn next_event(&mut self, now_ns: u64) -> Option<Event> {
        if self.shared.events.is_empty() {
            while let Some(node) = self.stalled.pop_first() {
                self.drain(now_ns, node);
                if !self.shared.events.is_empty() {
                    break;
                }
            }
        }
        self.shared.events.pop_front()
    }

    /// The state of a node.
    pub fn status(&self, node: &PublicKey) -> Option<Status> {
        self.peers.get(node).map(Peer::status)
    }

    /// Counts of packets that belong to no node.
    pub fn strangers(&self) -> &Strangers {
        &self.strangers
    }

    /// Forgets the last strangers at an address that a node has now. What they had wrong is corrected. The counts stay.
    pub fn forget_strangers_at(&mut self, ip: IpAddr) {
        self.strangers.last_unknown.take_if(|(_, from)| from.ip() == ip);
        self.strangers.last_without_key.take_if(|from| from.ip() == ip);
    }

    /// When [`Self::transmit`] has work to do, unless something comes before. This time may have passed.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        if !self.shared.out.is_empty() {
            return Some(0);
        }
        let due_ns = self.due.first().map(|(at_ns, _)| *at_ns);
        due_ns.into_iter().chain(self.shared.closing_timeout_ns()).chain(self.guests.next_ns()).min()
    }

    /// Adds the packets that have to leave by now, each with its way.
    pub fn transmit(&mut self, now_ns: u64, random: Random, out: &mut Vec<(Path, Vec<u8>)>) {
        self.guests.due(now_ns).iter().for_each(|guest| self.remove(now_ns, guest));
        let mut due = Vec::new();
        while let Some(next) = self.due.first().copied().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.due.remove(&next);
            due.push(next.1);
        }
        for node in due {
            let Some(peer) = self.peers.get_mut(&node) else { continue };
            peer.scheduled_ns = None;
            peer.transmit(now_ns, random, &mut self.shared);
            self.schedule(node, Some(now_ns));
        }
        self.shared.transmit_closing(now_ns);
        self.shared.out.move_to(out);
    }

    /// Processes a datagram. Its packets are decrypted in place.
    pub fn receive(&mut self, now_ns: u64, random: Random, from: impl Into<Path>, datagram: &mut [u8]) {
        let from = from.into();
        let mut taken = 0;
        let length = datagram.len();
        for (header, packet) in packet::split(datagram) {
            taken += packet.len();
            match header.kind {
                PacketKind::Hello => self.receive_hello(now_ns, random, from, &header, packet),
                PacketKind::Answer => self.receive_answer(now_ns, from, &header, packet),
                PacketKind::Cookie => self.receive_cookie(now_ns, &header, packet),
                PacketKind::Data => self.receive_data(now_ns, from, &header, packet),
            }
        }
        self.strangers.unrecognized += u64::from(taken != length);
    }

    fn receive_hello(&mut self, now_ns: u64, random: Random, from: Path, header: &Header, packet: &[u8]) {
        if self.is_closed {
            // The next service answers. A node with a channel to this one would miss its end.
            return;
        }
        if !handshake::is_hello_for(&self.mac_key, header, packet) {
            self.strangers.without_key += 1;
            if packet.len() == handshake::HELLO_BYTES {
                self.strangers.last_without_key = Some(from.peer);
            }
            return;
        }
        let is_proved = self.load.is_high(now_ns);
        let is_admitted = if is_proved {
            self.admit_proved(now_ns, random, from, header, packet)
        } else {
            self.load.admit(now_ns)
        };
        if !is_admitted {
            return;
        }
        let Some(mut hello) = handshake::read_hello(&self.shared.identity, draw(random), packet) else {
            self.strangers.unreadable += 1;
            return;
        };
        let ReadHello { initiator, invitation, .. } = hello;
        if let Some(id) = invitation
            && let Some(secret) = self.guests.secret(&id)
        {
            hello.use_secret(secret);
            self.let_in(now_ns, &id, initiator);
        }
        // A guest is heard only with its invitation.
        let is_heard = self.guests.invitation(&initiator).is_none_or(|own| invitation == Some(own));
        let Some(peer) = self.peers.get(&initiator).filter(|_| is_heard) else {
            self.strangers.unknown_keys += 1;
            self.strangers.last_unknown = Some((initiator, from.peer));
            return;
        };
        let has_to_prove = !is_proved && peer.has_to_prove_address(&hello.payload);
        if has_to_prove && !self.admit_proved(now_ns, random, from, header, packet) {
            return;
        }
        let Some(peer) = self.peers.get_mut(&initiator) else { return };
        peer.receive_hello(now_ns, random, from, header, hello, &mut self.shared);
        self.settle(initiator);
    }

    /// A node uses an invitation. It takes the place of a guest that has not got so far as a channel.
    fn let_in(&mut self, now_ns: u64, id: &InvitationId, node: PublicKey) {
        let own = self.guests.invitation(&node);
        let is_member = own.is_none() && self.peers.contains_key(&node);
        if is_member || own == Some(*id) || node == self.shared.identity.key.public() {
            return;
        }
        let displaced: Vec<PublicKey> = own.map(|_| node).into_iter().chain(self.guests.guest(id)).collect();
        let has_channel = |guest| self.status(guest).is_some_and(|status| status.channel.is_some());
        if displaced.iter().any(has_channel) {
            return;
        }
        displaced.iter().for_each(|guest| self.remove(now_ns, guest));
        self.guests.begin(now_ns, id, node);
        self.peers.insert(node, Peer::new(node, self.shared.next_session()));
    }

    /// Has the sender of a hello proved its address, and may the work of its handshake be done now? If it has not, it gets a
    /// cookie, within limits.
    fn admit_proved(
        &mut self,
        now_ns: u64,
        random: Random,
        from: Path,
        header: &Header,
        hello: &[u8],
    ) -> bool {
        self.cookies.rotate(now_ns, random);
        if self.cookies.taken(from.peer).any(|cookie| handshake::has_cookie(hello, &cookie)) {
            let is_admitted = match self.known_addresses.handshakes(&from.peer) {
                Some(of_address) => self.load.admit_node(now_ns, of_address),
                None => {
                    let hashes = self.cookies.hashes(from.peer.ip());
                    hashes.is_some_and(|hashes| self.load.admit_source(now_ns, &hashes))
                }
            };
            self.strangers.dropped += u64::from(!is_admitted);
            return is_admitted;
        }
        let is_node = self.known_addresses.contains(&from.peer);
        if self.load.may_send_cookie(now_ns, is_node)
            && let Some(cookie) = self.cookies.current(from.peer)
        {
            let giver = self.shared.identity.key.public();
            let mac1 = handshake::mac1_of(hello);
            self.shared
                .out
                .push(from, cookie::write(&giver.0, draw(random), header.connection, &mac1, cookie));
            self.strangers.cookies_sent += 1;
        }
        false
    }

    fn receive_answer(&mut self, now_ns: u64, from: Path, header: &Header, packet: &[u8]) {
        let Some(node) = self.shared.numbers.get(&header.connection).copied() else {
            self.strangers.unrecognized += 1;
            return;
        };
        if !handshake::is_answer_for(&self.mac_key, header, packet) {
            self.strangers.without_key += 1;
            return;
        }
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.awaits(header.connection)) else {
            return;
        };
        if !self.load.admit_answer(now_ns) {
            self.strangers.dropped += 1;
            return;
        }
        peer.receive_answer(now_ns, from, packet, &mut self.shared);
        self.settle(node);
    }

    fn receive_cookie(&mut self, now_ns: u64, header: &Header, packet: &[u8]) {
        let node = self.shared.numbers.get(&header.connection).copied();
        match node.and_then(|node| Some((node, self.peers.get_mut(&node)?))) {
            Some((node, peer)) if packet.len() == cookie::COOKIE_BYTES => {
                peer.receive_cookie(now_ns, header.connection, packet);
                self.settle(node);
            }
            _ => self.strangers.unrecognized += 1,
        }
    }

    fn receive_data(&mut self, now_ns: u64, from: Path, header: &Header, packet: &mut [u8]) {
        if let Some((channel, _)) = self.shared.closing.get_mut(&header.connection) {
            channel.connection.receive(now_ns, packet);
            return;
        }
        let Some(node) = self.shared.numbers.get(&header.connection).copied() else {
            self.strangers.unrecognized += 1;
            return;
        };
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.receive_data(now_ns, from, header.connection, packet, &mut self.shared);
            self.drain(now_ns, node);
        }
    }

    /// Turns the packets that have arrived from a node into events.
    fn drain(&mut self, now_ns: u64, node: PublicKey) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.drain(EVENTS_MAX, &mut self.shared) {
            self.stalled.insert(node);
        }
        peer.look_at_end(now_ns, &mut self.shared);
        self.settle(node);
    }

    fn settle(&mut self, node: PublicKey) {
        self.schedule(node, None);
    }

    /// Notes when a node has work to do. After it has just worked, that is not at once again, so that there is no
    /// endless loop.
    fn schedule(&mut self, node: PublicKey, done_ns: Option<u64>) {
        const PAUSE_NS: u64 = 100_000;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        // The address of a channel was proved, and stays known when the channel ends.
        if let Some(address) = peer.address().filter(|address| peer.noted_address != Some(*address)) {
            self.known_addresses.add(&[address]);
            self.known_addresses.remove(peer.noted_address.replace(address).as_slice());
        }
        let at_ns = peer.next_timeout_ns().map(|at_ns| match done_ns {
            Some(done_ns) if at_ns <= done_ns => done_ns.saturating_add(PAUSE_NS),
            _ => at_ns,
        });
        if at_ns != peer.scheduled_ns {
            if let Some(before_ns) = peer.scheduled_ns {
                self.due.remove(&(before_ns, node));
            }
            self.due.extend(at_ns.map(|at_ns| (at_ns, node)));
            peer.scheduled_ns = at_ns;
        }
    }
}
