//! Establishes connections to ports of other machines, through this machine's node.

use std::time::{Duration, Instant};

use bywire_sys::Errno;
use bywire_sys::udp::UdpSocket;
use bywire_wire::keys::Secret;
use bywire_wire::service::{self, Answers, Identity, Introduction, NotConnected, Notice, Request, Terms};

use super::service::{Registration, reason_of};
use super::{ANSWER_MAX, Fabric, now_ns};
use crate::message::address::Address;
use crate::message::error::{ConnectError, DisconnectReason, NoFabric, OpenError, Refusal};
use crate::message::options::{Admit, Reach};
use crate::message::peer::Peer;
use crate::message::share::OtherUser;
use crate::port::Port;
use crate::port::incoming::Tag;
use crate::port::remote_peer::{Call, RemotePeer, Stage, address_of};
use crate::port::slots::Slot;
use crate::wire::connection::windows;

/// The most packets of the node that are processed at a time.
const NOTICES_AT_ONCE: usize = 16;
/// How long a node may take for an answer. It answers within 5 s unless it is stopped.
const CALL_NS: u64 = 10_000_000_000;
/// How long the first packet of a called peer is awaited. A call with a shorter time gives up sooner.
const CALLED_PROVES_NS: u64 = 30_000_000_000;
/// How long the first packet of a caller is awaited, which keeps a place meanwhile. It leaves as soon as the caller has the answer of
/// its node, which it awaits for [`CALL_NS`]. On a path that loses six of ten packets it comes within 10 s in a thousand of a
/// thousand cases (`tests/connection.rs` of `bywire-wire`).
const CALLER_PROVES_NS: u64 = 10_000_000_000;
/// If a connect is given up after this time without a packet, its error says that the network blocks packets.
const BLOCKED_AFTER: Duration = Duration::from_secs(2);

impl Port {
    /// Is this the name of this machine?
    pub(in crate::port) fn is_here(&self, node: &str) -> bool {
        let of_fabric = self.fabric.as_deref().and_then(|fabric| fabric.node.as_deref());
        node == "localhost" || node == self.node || of_fabric == Some(node)
    }

    /// The port's state for other machines, made when it is first needed.
    pub(super) fn fabric(&mut self) -> Result<&mut Fabric, Errno> {
        if self.fabric.is_none() {
            let group = match self.options.admit {
                Admit::Group(group) => Some(group),
                Admit::SameUser | Admit::Everyone => None,
            };
            let fabric = Box::new(Fabric::new(&self.directory, group)?);
            self.poller.add(fabric.sockets.common(), Tag::Udp.bits())?;
            self.poller.add(&fabric.timer, Tag::Clock.bits())?;
            self.fabric = Some(fabric);
        }
        self.fabric.as_deref_mut().ok_or(Errno::NOMEM)
    }

    /// Registers a port that is being opened, so that other machines can reach it.
    ///
    /// # Errors
    /// [`OpenError::Fabric`].
    pub(in crate::port) fn join_fabric(&mut self) -> Result<(), OpenError> {
        self.fabric().map_err(OpenError::System)?;
        self.join_node().map_err(OpenError::Fabric)?;
        let deadline = Instant::now() + ANSWER_MAX;
        loop {
            let Some(fabric) = self.fabric.as_deref() else {
                return Err(OpenError::Fabric(NoFabric::NotRunning));
            };
            if fabric.service.is_known() {
                return Ok(());
            }
            if let Some(reason) = fabric.refused {
                return Err(OpenError::Fabric(reason));
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(OpenError::Fabric(NoFabric::Silent));
            }
            let rest = self.rest_of_sleep(Some(rest));
            self.look_after_sockets(rest).map_err(OpenError::System)?;
            // The node may not have accepted the call yet, or its backlog may be full.
            self.try_node_again(now_ns());
        }
    }

    /// Calls the node and registers, with the connections that were kept from its last service. While the node's backlog is
    /// full, the port calls again.
    pub(super) fn join_node(&mut self) -> Result<(), NoFabric> {
        let mut indices = self.slots.indices();
        let is_awaited = indices.any(|index| matches!(self.slots.state_at(index), Some(Slot::Calling(_))));
        let kept = self.slots.remote_peers().map(RemotePeer::kept).collect();
        let is_reachable = self.options.reach == Reach::Fabric;
        let Some(fabric) = self.fabric.as_deref_mut() else { return Err(NoFabric::NotRunning) };
        let Fabric { service, sockets, .. } = fabric;
        let udp = sockets.common();
        let (port, incarnation) = (&self.claim.name, self.incarnation);
        if !service.register(Registration { port, incarnation, is_reachable, kept, udp })? {
            service.call_again(now_ns(), is_awaited || fabric.node.is_none());
            return Ok(());
        }
        let watched = service.socket().map(|socket| self.poller.add(socket, Tag::Node.bits()));
        if let Some(Err(_)) = watched {
            self.lose_node(NoFabric::NotRunning);
            return Err(NoFabric::NotRunning);
        }
        Ok(())
    }

    /// Tries the node again if its time has come.
    pub(super) fn try_node_again(&mut self, now_ns: u64) {
        let again_at_ns = self.fabric.as_deref().and_then(|fabric| fabric.service.again_at_ns());
        if let Some(fabric) = self.fabric.as_deref_mut() {
            fabric.service.flush_in_time(now_ns);
        }
        if again_at_ns.is_some_and(|at_ns| at_ns <= now_ns)
            && let Err(reason) = self.join_node()
        {
            self.lose_node(reason);
        }
    }

    /// Notes that the node is gone. Connections continue, and those that are being established fail.
    fn lose_node(&mut self, reason: NoFabric) {
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        fabric.refused = Some(reason);
        if let Some(socket) = fabric.service.lose(now_ns()) {
            self.poller.remove(&socket);
        }
        for index in self.slots.indices() {
            let is_asking = matches!(
                self.slots.state_at(index),
                Some(Slot::Calling(call)) if !matches!(call.stage, Stage::Proving { .. })
            );
            if is_asking {
                self.end(index, DisconnectReason::NotConnected(ConnectError::NoFabric(reason)));
            }
        }
    }

    /// Begins to connect to a port of another machine.
    ///
    /// # Errors
    /// [`ConnectError`], when failure is certain at once.
    pub(in crate::port) fn begin_call(
        &mut self,
        address: &Address,
        announce: bool,
    ) -> Result<Peer, ConnectError> {
        self.make_room().map_err(|_| ConnectError::TooManyPeers)?;
        self.fabric().map_err(ConnectError::System)?;
        // A program may connect again and again without polling: here it learns that its node has gone.
        self.hear_node();
        if self.fabric.as_deref().is_some_and(|fabric| fabric.service.socket().is_none()) {
            self.join_node().map_err(ConnectError::NoFabric)?;
        }
        let call = Call {
            address: address.clone(),
            number: 0,
            stage: Stage::Held,
            since_ns: now_ns(),
            other_user: None,
            announce,
            is_caller: true,
        };
        let peer = self.insert_call(call);
        self.place_call(peer.index);
        Ok(peer)
    }

    fn insert_call(&mut self, mut call: Call) -> Peer {
        let peer = self.slots.insert(|_| Slot::Free { last: None });
        if let Some(fabric) = self.fabric.as_deref_mut() {
            call.number = fabric.take_number(peer.index);
            fabric.wake_at(peer.index, call.since_ns.saturating_add(CALL_NS));
        }
        self.slots.replace(peer, Slot::Calling(Box::new(call)));
        peer
    }

    /// Requests a connection from the node, once the node knows this port.
    fn place_call(&mut self, index: u32) {
        let Some(fabric) = self.fabric.as_deref_mut().filter(|fabric| fabric.service.is_known()) else {
            return;
        };
        let Some(Slot::Calling(call)) = self.slots.state_at(index) else { return };
        if !matches!(call.stage, Stage::Held) {
            return;
        }
        if fabric.node.as_ref() == Some(&call.address.node) {
            let number = call.number;
            fabric.forget(number, index);
            return self.connect_locally(index);
        }
        let request = Request::Connect {
            request: call.number,
            node: call.address.node.clone(),
            port: call.address.port.to_string(),
            introduction: introduction(&self.options, call.number),
        };
        // Where the socket is full it waits, for as long as a call may.
        fabric.service.tell(&request);
        call.stage = Stage::Asked;
    }

    /// The node has reported that a call leads to this machine itself.
    fn connect_locally(&mut self, index: u32) {
        let Some(peer) = self.slots.peer_at(index) else { return };
        let Some(Slot::Calling(call)) = self.slots.state_at(index) else { return };
        let (address, announce) = (Address::local(call.address.port.clone()), call.announce);
        let begun = self.reach_out(&address, announce).and_then(|connecting| {
            self.slots.replace(peer, Slot::Connecting(Box::new(connecting)));
            self.watch_connecting(peer)
        });
        if let Err(error) = begun {
            self.end(index, DisconnectReason::NotConnected(error));
        }
    }

    /// The reason why a call has no answer yet, for a connect whose time is over.
    pub(in crate::port) fn why_no_answer(&mut self, index: u32) -> ConnectError {
        let Some(fabric) = self.fabric.as_deref() else { return ConnectError::TimedOut };
        let Some(Slot::Calling(call)) = self.slots.state_at(index) else { return ConnectError::TimedOut };
        match &call.stage {
            Stage::Held => ConnectError::NoFabric(NoFabric::Silent),
            Stage::Proving { remote, .. } if blocked_at(&call.stage).is_some() => blocked(fabric, remote),
            _ => ConnectError::TimedOut,
        }
    }

    /// Processes the packets of the node.
    pub(in crate::port) fn hear_node(&mut self) {
        for _ in 0..NOTICES_AT_ONCE {
            let Some(fabric) = self.fabric.as_deref_mut() else { return };
            let outcome = match fabric.service.hear() {
                Ok(None) => return,
                Ok(Some((notice, lent))) => self.take_lent(lent).and_then(|()| self.take_notice(notice)),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = outcome {
                return self.lose_node(reason);
            }
        }
    }

    /// Uses a UDP socket that the node lends, as this port's own network does not reach other machines. There is no connection
    /// yet.
    fn take_lent(&mut self, lent: Option<UdpSocket>) -> Result<(), NoFabric> {
        let (Some(lent), Some(fabric)) = (lent, self.fabric.as_deref_mut()) else { return Ok(()) };
        let own = fabric.sockets.replace_common(lent);
        self.poller.remove(&own);
        let watched = self.poller.add(fabric.sockets.common(), Tag::Udp.bits());
        watched.map_err(|_| NoFabric::NotRunning)
    }

    fn take_notice(&mut self, notice: Notice) -> Result<(), NoFabric> {
        let Some(fabric) = self.fabric.as_deref_mut() else { return Ok(()) };
        match notice {
            Notice::Registered { node } => {
                if format!("{node}/1").parse::<Address>().is_err() {
                    return Err(NoFabric::Malformed);
                }
                fabric.node = Some(node);
                self.slots.indices().for_each(|index| self.place_call(index));
            }
            Notice::Refused(refused) => return Err(reason_of(refused)),
            Notice::Offer { offer, peer, introduction } => self.consider(offer, &peer, introduction),
            Notice::Established(mut terms) => {
                // Whatever becomes of it, no copy stays in memory.
                let secret = Secret::take(&mut terms.secret);
                self.meet(*terms, secret);
            }
            Notice::NotConnected { request, reason } => {
                let Some(index) = fabric.slot_of(request) else { return Ok(()) };
                if matches!(self.slots.state_at(index), Some(Slot::Calling(call)) if call.is_caller) {
                    self.end(index, DisconnectReason::NotConnected(error_of(reason)));
                }
            }
            Notice::Withdrawn { offer } => {
                if let Some(index) = self.offer_at(offer) {
                    self.end(index, DisconnectReason::Refused(Refusal::Closed));
                }
            }
            Notice::Ended { connection, reason } => {
                if let Some(index) = fabric.slot_of(connection) {
                    self.remote_has_ended(index, reason);
                }
            }
            Notice::Alive { connection } => self.remote_is_alive(connection),
            Notice::Moved { connection, path } => self.remote_has_moved(connection, path),
            Notice::Status { .. }
            | Notice::Reloaded { .. }
            | Notice::Prove { .. }
            | Notice::Invited { .. }
            | Notice::NotInvited(_)
            | Notice::Pong { .. }
            | Notice::NotPinged { .. } => {
                return Err(NoFabric::Malformed);
            }
        }
        Ok(())
    }

    /// The slot of an offer that was accepted.
    fn offer_at(&mut self, offer: u32) -> Option<u32> {
        self.slots.indices().find(|index| {
            let state = self.slots.state_at(*index);
            matches!(state, Some(Slot::Calling(call)) if matches!(call.stage, Stage::Accepted(of) if of == offer))
        })
    }

    /// Accepts or declines a port of another machine.
    fn consider(&mut self, offer: u32, identity: &Identity, theirs: Introduction) {
        let request = match self.admit_remote(identity, theirs) {
            Ok((address, other_user)) => {
                let (announce, is_caller, stage) = (true, false, Stage::Accepted(offer));
                let since_ns = now_ns();
                let call = Call { address, number: 0, stage, since_ns, other_user, announce, is_caller };
                let peer = self.insert_call(call);
                let number = match self.slots.state_at(peer.index) {
                    Some(Slot::Calling(call)) => call.number,
                    _ => return,
                };
                Request::Accept { offer, introduction: introduction(&self.options, number) }
            }
            Err(refusal) => {
                self.statistics.refused += 1;
                Request::Decline { offer, refusal }
            }
        };
        if let Some(fabric) = self.fabric.as_deref_mut() {
            fabric.service.tell(&request);
        }
    }

    /// Checks the identity of a port of another machine, as its node reports it.
    fn admit_remote(
        &self,
        identity: &Identity,
        theirs: Introduction,
    ) -> Result<(Address, Option<OtherUser>), service::Refusal> {
        let Some(fabric) = self.fabric.as_deref() else { return Err(service::Refusal::NotAdmitted) };
        let address = address_of(identity).ok_or(service::Refusal::NotAdmitted)?;
        let is_admitted = match self.options.admit {
            Admit::SameUser => fabric.names.is_own_or_root(&identity.user),
            Admit::Everyone => true,
            Admit::Group(_) => {
                fabric.names.is_own_or_root(&identity.user) || fabric.names.is_in_group(&identity.groups)
            }
        };
        if !is_admitted || self.options.reach != Reach::Fabric {
            return Err(service::Refusal::NotAdmitted);
        }
        // Otherwise events would accumulate. A peer whose messages this port cannot accept is refused.
        if self.resources.is_full() || theirs.windows.contains(&0) {
            return Err(service::Refusal::NoResources);
        }
        let other_user = fabric.other_user(identity);
        let of_node = self.slots.count_of_node(&identity.node, other_user.as_ref());
        if !of_node.may_have_more(self.options.peers_max as usize) {
            return Err(service::Refusal::TooManyPeers);
        }
        let room = self.make_room_for(other_user.as_ref());
        room.map_err(|_| service::Refusal::TooManyPeers).map(|()| (address, other_user))
    }

    /// Both nodes agree. The first packet leaves at once, so that firewalls open.
    fn meet(&mut self, terms: Terms, secret: Secret) {
        let index = match terms.answers {
            Answers::Request(number) => self.fabric.as_deref().and_then(|fabric| fabric.slot_of(number)),
            Answers::Offer(offer) => self.offer_at(offer),
        };
        let Some((index, peer)) = index.and_then(|index| Some((index, self.slots.peer_at(index)?))) else {
            return;
        };
        let Some(Slot::Calling(call)) = self.slots.state_at(index) else { return };
        let is_awaited = match call.stage {
            Stage::Asked => matches!(terms.answers, Answers::Request(_)),
            Stage::Accepted(_) => matches!(terms.answers, Answers::Offer(_)),
            _ => false,
        };
        if !is_awaited {
            return;
        }
        // It must be the port that was called, or the one that was admitted.
        if address_of(&terms.peer).as_ref() != Some(&call.address) {
            return self.end(index, DisconnectReason::Refused(Refusal::Unverified));
        }
        let now_ns = now_ns();
        let number = call.number;
        let other_user = self.fabric.as_deref().and_then(|fabric| fabric.other_user(&terms.peer));
        let remote = RemotePeer::new(peer, number, other_user, (terms, secret), &self.options);
        let Some(Slot::Calling(call)) = self.slots.state_at(index) else { return };
        call.stage = Stage::Proving { remote: Box::new(remote), since_ns: now_ns };
        let until_ns = now_ns.saturating_add(prove_ns(call));
        if let Some(fabric) = self.fabric.as_deref_mut() {
            fabric.wake_at(index, until_ns);
            fabric.transmit(now_ns, index, &mut self.slots);
        }
    }

    /// The state of a connection whose peer has not sent a packet yet.
    pub(super) fn look_at_call(&mut self, now_ns: u64, index: u32) {
        let Some(peer) = self.slots.peer_at(index) else { return };
        let Some(fabric) = self.fabric.as_deref_mut() else { return };
        let Some(Slot::Calling(call)) = self.slots.state_at(index) else { return };
        let Stage::Proving { remote, since_ns } = &call.stage else {
            let until_ns = call.since_ns.saturating_add(CALL_NS);
            if now_ns < until_ns {
                return fabric.wake_at(index, until_ns);
            }
            let silent = ConnectError::NoFabric(NoFabric::Silent);
            return self.end(index, DisconnectReason::NotConnected(silent));
        };
        if remote.wire.ended().is_some() {
            return self.end(index, DisconnectReason::Refused(Refusal::Closed));
        }
        let until_ns = since_ns.saturating_add(prove_ns(call));
        if remote.wire.counts().taken == 0 {
            if until_ns <= now_ns {
                let blocked = blocked(fabric, remote);
                return self.end(index, DisconnectReason::NotConnected(blocked));
            }
            return fabric.wake_at(index, until_ns);
        }
        let Some(Slot::Calling(call)) = self.slots.replace(peer, Slot::Free { last: None }) else { return };
        let announce = call.announce;
        let Stage::Proving { mut remote, .. } = call.stage else { return };
        // The contents of its first packets wait to be received.
        fabric.ready_if_input(index, &mut remote, &self.resources);
        // Its first packet is acknowledged at once: the program may not look again for long, and the peer waits for a packet
        // of ours.
        remote.wire.before_sleep();
        fabric.send_out(now_ns, index, &mut remote);
        self.slots.replace(peer, Slot::Wire(remote));
        if announce {
            self.resources.events.push_back(crate::message::event::Event::Connected(peer));
        }
    }
}

impl Fabric {
    /// The user of a port of another machine, unless it is ours or root by name.
    fn other_user(&self, identity: &Identity) -> Option<OtherUser> {
        let Identity { node, user, .. } = identity;
        let is_other = !self.names.is_own_or_root(user);
        is_other.then(|| OtherUser::Remote { node: node.as_str().into(), user: user.as_str().into() })
    }
}

/// How long the first packet of the peer is awaited.
fn prove_ns(call: &Call) -> u64 {
    if call.is_caller { CALLED_PROVES_NS } else { CALLER_PROVES_NS }
}

/// The greeting of a port for a port of another machine.
fn introduction(options: &crate::message::options::PortOptions, number: u32) -> Introduction {
    Introduction {
        connection: number,
        message_bytes_max: options.message_bytes_max,
        integrity: options.integrity,
        windows: windows(options),
    }
}

/// The UDP port of a peer that should have sent a packet by now and has not.
pub(super) fn blocked_at(stage: &Stage) -> Option<u16> {
    let Stage::Proving { remote, since_ns } = stage else { return None };
    let is_late = now_ns() >= since_ns.saturating_add(BLOCKED_AFTER.as_nanos() as u64);
    (is_late && remote.wire.counts().taken == 0).then(|| remote.path.peer.port())
}

fn blocked(fabric: &Fabric, remote: &RemotePeer) -> ConnectError {
    let here = fabric.sockets.common().local_address().map_or(0, |address| address.port());
    ConnectError::Blocked { here, there: remote.path.peer.port() }
}

fn error_of(reason: NotConnected) -> ConnectError {
    match reason {
        NotConnected::UnknownNode => ConnectError::UnknownNode,
        NotConnected::Unreachable => ConnectError::Unreachable,
        NotConnected::NoPort => ConnectError::NoPort,
        NotConnected::Refused(service::Refusal::NotAdmitted) => ConnectError::NotAdmitted,
        NotConnected::Refused(service::Refusal::TooManyPeers) => ConnectError::Refused(Refusal::TooManyPeers),
        NotConnected::Refused(service::Refusal::NoResources) => ConnectError::Refused(Refusal::NoResources),
        NotConnected::Version => ConnectError::Refused(Refusal::Version),
        NotConnected::NoResources => ConnectError::NoFabric(NoFabric::NoResources),
    }
}
