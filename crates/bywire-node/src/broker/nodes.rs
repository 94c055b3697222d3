//! Messages of other nodes, and changes of the channels to them.

use std::collections::HashSet;
use std::collections::btree_map::Entry;

use bywire_sys::share::Shares;
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::{Security, Side};
use bywire_wire::path::MachinePath;
use bywire_wire::service::{Answers, End, Identity, NotConnected, Notice, Refusal, Terms};
use bywire_wire::service_message::{
    ConnectionName, EndName, Half, PortEnd, PortIdentity, SecretHalf, ServiceMessage, connection_secret,
};

use super::{
    Action, Broker, Connection, Offer, OtherNode, Outgoing, PortId, REQUEST_TIMEOUT_NS, is_port, is_sound,
    numbers,
};

impl Broker {
    /// Applies a new version of this node's name and security and of the other nodes. Nodes that are missing or have
    /// another key are removed, with their connections.
    pub fn follow(&mut self, own: super::ThisNode, others: &[(PublicKey, String)]) {
        self.own = own;
        let kept: HashSet<&PublicKey> = others.iter().map(|(key, _)| key).collect();
        let gone: Vec<PublicKey> = self.nodes.keys().filter(|key| !kept.contains(key)).copied().collect();
        for node in gone {
            self.remove(node);
        }
        self.node_names = others.iter().map(|(key, name)| (name.clone(), *key)).collect();
        for (key, name) in others {
            let other = self.nodes.entry(*key).or_insert_with(|| OtherNode {
                name: name.clone(),
                path: None,
                boot_id: None,
                route_bytes: u16::MAX,
                needs: 0,
                needs_max: 0,
                is_wanted: false,
                blocked: None,
            });
            other.name.clone_from(name);
        }
        if self.own.security != Security::Plain {
            self.end_plain();
        }
    }

    /// Ends connections and requests from the time when the fabric was plain.
    fn end_plain(&mut self) {
        let known = self.connections.iter().filter(|(_, known)| known.security == Security::Plain);
        for own in known.map(|(own, _)| own.clone()).collect::<Vec<_>>() {
            let Some(known) = self.forget(&own) else { continue };
            let (connection, reason) = (own.connection, End::SecurityChanged);
            self.tell(known.port, Notice::Ended { connection, reason });
            self.tell_ended(known.node, own, known.peer, PortEnd::Released);
        }
    }

    fn remove(&mut self, node: PublicKey) {
        self.end_all(node, End::NodeRemoved);
        for number in numbers(&self.outgoing, |outgoing| outgoing.node == node) {
            if let Some(outgoing) = self.take_outgoing(number) {
                let (request, reason) = (outgoing.request, NotConnected::UnknownNode);
                self.tell(outgoing.port, Notice::NotConnected { request, reason });
            }
        }
        self.withdraw_all(node);
        self.pending_checks.forget(node);
        self.nodes.remove(&node);
        // Nothing more is sent to it.
        self.actions
            .retain(|action| !matches!(action, Action::Send(to, _) | Action::Want(to) if *to == node));
    }

    /// A channel to a node has come up.
    pub fn up(&mut self, node: PublicKey, boot_id: [u8; 16], path: MachinePath, route_bytes: u16) {
        let Some(other) = self.nodes.get_mut(&node) else { return };
        (other.path, other.route_bytes) = (Some(path), route_bytes);
        other.needs_max = other.needs;
        if other.boot_id.replace(boot_id).is_some_and(|before| before != boot_id) {
            self.end_all(node, End::NodeRestarted);
        }
        self.follow_paths(node);
        let known = self.connections.iter().filter(|(_, known)| known.node == node);
        let names = known
            .map(|(own, known)| ConnectionName { receiver: known.peer.clone(), sender: own.clone() })
            .collect();
        self.send_parts(node, names, |connections| ServiceMessage::Check { connections });
        for number in numbers(&self.outgoing, |outgoing| outgoing.node == node) {
            self.ask(number);
        }
        self.spread_to(node);
    }

    /// The node's packets come from a new address, or to another one of this machine.
    pub fn moved(&mut self, node: PublicKey, path: MachinePath, route_bytes: u16) {
        if let Some(other) = self.nodes.get_mut(&node).filter(|other| other.path.is_some()) {
            (other.path, other.route_bytes) = (Some(path), route_bytes);
        }
        self.follow_paths(node);
    }

    /// Tells the port of a connection which path leads to its peer's machine now.
    pub(super) fn follow_path(&mut self, node: PublicKey, own: EndName) {
        let path = self.nodes.get(&node).and_then(|other| other.path);
        let Some(known) = self.connections.get_mut(&own) else { return };
        let has_v6 = self.ports.get(&known.port).is_some_and(|registered| registered.port.has_v6);
        let path = path.filter(|path| path.is_news(known.path) && (has_v6 || path.peer.is_ipv4()));
        if let Some(path) = path {
            known.path = path;
            let port = known.port;
            self.tell(port, Notice::Moved { connection: own.connection, path });
        }
    }

    /// The same for all connections with a node.
    fn follow_paths(&mut self, node: PublicKey) {
        let known = self.connections.iter().filter(|(_, known)| known.node == node);
        for own in known.map(|(own, _)| own.clone()).collect::<Vec<_>>() {
            self.follow_path(node, own);
        }
    }

    /// Notes that the channel to a node is down. Connections remain. Requests under way are repeated over the next
    /// channel.
    pub fn down(&mut self, node: PublicKey) {
        let Some(other) = self.nodes.get_mut(&node) else { return };
        other.path = None;
        self.actions.retain(|action| !matches!(action, Action::Send(to, _) if *to == node));
        self.withdraw_all(node);
        for number in numbers(&self.outgoing, |outgoing| outgoing.node == node && outgoing.is_sent) {
            // With a new number, because answers of the other service to the old one concern the old channel.
            let fresh = self.fresh_number();
            if let Some(outgoing) = self.outgoing.remove(&number) {
                self.deadlines.remove(&(outgoing.deadline_ns, number));
                self.deadlines.insert((outgoing.deadline_ns, fresh));
                if let Some(registered) = self.ports.get_mut(&outgoing.port) {
                    registered.requests.insert(outgoing.introduction.connection, fresh);
                }
                self.outgoing.insert(fresh, Outgoing { is_sent: false, ..outgoing });
            }
        }
    }

    /// Notes that requests to this node fail now.
    pub fn refuse(&mut self, node: PublicKey, reason: NotConnected) {
        for number in numbers(&self.outgoing, |outgoing| outgoing.node == node && !outgoing.is_sent) {
            self.give_up(number, reason);
        }
    }

    /// Processes a message of a node's service.
    pub fn hear(&mut self, now_ns: u64, node: PublicKey, message: ServiceMessage) {
        // A guest, which says only what the service itself hears.
        if !self.nodes.contains_key(&node) {
            return;
        }
        match message {
            ServiceMessage::FileSerial { serial } => self.hear_serial(node, serial),
            ServiceMessage::FileAsk { held, wanted, offset } => self.answer_ask(node, held, wanted, offset),
            ServiceMessage::FilePart(part) => self.take_part(node, part),
            ServiceMessage::FileHeld { serial } => self.hear_held(node, serial),
            // They concern the service and `bywire join`.
            ServiceMessage::Join { .. } | ServiceMessage::Joined | ServiceMessage::NotJoined(_) => {}
            ServiceMessage::Connect { request, port, from, security, half } => {
                if let Err(reason) = self.offer(now_ns, node, request, &port, from, security, half) {
                    self.send(node, ServiceMessage::Decline { request, reason });
                }
            }
            ServiceMessage::Accept { request, asking, by, security, half } => {
                self.accepted(node, request, asking, &by, security, &half);
            }
            ServiceMessage::Decline { request, reason } => {
                let is_its = |outgoing: &Outgoing| outgoing.node == node && outgoing.is_sent;
                if self.outgoing.get(&request).is_some_and(is_its)
                    && let Some(outgoing) = self.take_outgoing(request)
                {
                    let request = outgoing.request;
                    // The other machine has reached a limit, and not this one.
                    let reason = match reason {
                        NotConnected::NoResources => NotConnected::Refused(Refusal::NoResources),
                        reason => reason,
                    };
                    self.tell(outgoing.port, Notice::NotConnected { request, reason });
                }
            }
            ServiceMessage::Cancel { request } => {
                if let Some(number) = self.offered.get(&(node, request)) {
                    self.withdraw(*number, None);
                }
            }
            ServiceMessage::Ended { connections, reason } => {
                connections.into_iter().for_each(|name| self.ended(node, name, reason));
            }
            ServiceMessage::Check { connections } => self.check(now_ns, node, connections),
            ServiceMessage::Alive { connections } => {
                for name in connections {
                    let known = self.connections.get_mut(&name.receiver);
                    let known = known.filter(|known| known.is(node, &name.sender));
                    if let Some(known) = known
                        && known.inquired_ns.take().is_some()
                    {
                        let port = known.port;
                        self.tell(port, Notice::Alive { connection: name.receiver.connection });
                    }
                }
            }
        }
    }

    /// Processes a request of a port elsewhere, for which its service vouches.
    #[expect(clippy::too_many_arguments, reason = "what one request or message brings, used once")]
    fn offer(
        &mut self,
        now_ns: u64,
        node: PublicKey,
        request: u32,
        port: &str,
        from: PortIdentity,
        security: Security,
        half: Half,
    ) -> Result<(), NotConnected> {
        let id = self.names.get(port).copied().ok_or(NotConnected::NoPort)?;
        let number = self.fresh_number();
        let is_repeated = self.offered.contains_key(&(node, request));
        let peer = self.identity(node, &from).filter(|_| half.udp_port != 0);
        let peer = peer.ok_or(NotConnected::NoResources)?;
        let is_reached = self.can_reach(id, node);
        let registered = self.ports.get_mut(&id).filter(|registered| registered.port.is_reachable);
        let registered = registered.ok_or(NotConnected::NoPort)?;
        if !is_reached {
            return Err(NotConnected::Unreachable);
        }
        let asking = (node, from.user.clone());
        let has_room = registered.may_be_asked(&asking) && self.places.may_take(registered.port.uid);
        if is_repeated || !has_room {
            return Err(NotConnected::NoResources);
        }
        *registered.offers.entry(asking).or_default() += 1;
        let introduction = half.introduction;
        let deadline_ns = now_ns.saturating_add(REQUEST_TIMEOUT_NS);
        self.offers.insert(number, Offer { port: id, node, request, from, security, half, deadline_ns });
        self.deadlines.insert((deadline_ns, number));
        self.offered.insert((node, request), number);
        self.need(node);
        self.tell(id, Notice::Offer { offer: number, peer, introduction });
        Ok(())
    }

    /// Does the port's UDP socket have the family of the node's address?
    fn can_reach(&self, id: PortId, node: PublicKey) -> bool {
        let path = self.nodes.get(&node).and_then(|other| other.path);
        let has_v6 = self.ports.get(&id).is_some_and(|registered| registered.port.has_v6);
        path.is_some_and(|path| has_v6 || path.peer.is_ipv4())
    }

    /// Processes the acceptance of a request, as the other service reports it.
    fn accepted(
        &mut self,
        node: PublicKey,
        request: u32,
        asking: EndName,
        by: &PortIdentity,
        security: Security,
        half: &Half,
    ) {
        let theirs = end_of(by, half);
        let is_its = |outgoing: &&Outgoing| {
            let own = self.end_of(outgoing.port, outgoing.introduction.connection);
            outgoing.node == node && outgoing.is_sent && own.as_ref() == Some(&asking)
        };
        let Some(outgoing) = self.outgoing.get(&request).filter(is_its) else {
            // The port may have given up. The other port learns that.
            return self.tell_ended(node, asking, theirs, PortEnd::Released);
        };
        let is_weaker = security == Security::Plain && self.own.security != Security::Plain;
        let is_sound = by.port == outgoing.target
            && half.udp_port != 0
            && !is_weaker
            && self.can_reach(outgoing.port, node);
        let identity = self.identity(node, by).filter(|_| is_sound);
        let Some(outgoing) = self.take_outgoing(request) else { return };
        let made = identity.and_then(|identity| {
            self.establish_requested(&outgoing, theirs.clone(), identity, half, security)
        });
        let notice = made.unwrap_or_else(|| {
            self.tell_ended(node, asking, theirs, PortEnd::Released);
            let reason = if is_sound { NotConnected::NoResources } else { NotConnected::Unreachable };
            Notice::NotConnected { request: outgoing.request, reason }
        });
        self.tell(outgoing.port, notice);
    }

    /// Adds a connection that a port of this machine has requested, and makes its terms.
    fn establish_requested(
        &mut self,
        outgoing: &Outgoing,
        theirs: EndName,
        identity: Identity,
        half: &Half,
        security: Security,
    ) -> Option<Notice> {
        let connection = outgoing.introduction.connection;
        let path = self.nodes.get(&outgoing.node)?.path?;
        let known = Connection {
            port: outgoing.port,
            node: outgoing.node,
            peer: theirs.clone(),
            peer_user: identity.user.clone(),
            security,
            path,
            inquired_ns: None,
        };
        let own = self.add(outgoing.port, connection, known, Shares::take)?;
        let initiator = secret_half(self.own.key, &own, &outgoing.random);
        let responder = secret_half(outgoing.node, &theirs, &half.random);
        let secret = connection_secret(initiator, responder);
        let answers = Answers::Request(outgoing.request);
        self.terms(answers, Side::Initiator, security, secret, outgoing.node, identity, half)
    }

    /// Adds a connection that a port of this machine has accepted, and makes its terms.
    pub(super) fn establish_accepted(
        &mut self,
        id: PortId,
        number: u32,
        offer: &Offer,
        own_half: &Half,
        security: Security,
    ) -> Option<Notice> {
        let identity = self.identity(offer.node, &offer.from)?;
        let theirs = offer.asking();
        let path = self.nodes.get(&offer.node)?.path?;
        let known = Connection {
            port: id,
            node: offer.node,
            peer: theirs.clone(),
            peer_user: identity.user.clone(),
            security,
            path,
            inquired_ns: None,
        };
        let own = self.add(id, own_half.introduction.connection, known, Shares::take)?;
        let initiator = secret_half(offer.node, &theirs, &offer.half.random);
        let responder = secret_half(self.own.key, &own, &own_half.random);
        let secret = connection_secret(initiator, responder);
        let answers = Answers::Offer(number);
        self.terms(answers, Side::Responder, security, secret, offer.node, identity, &offer.half)
    }

    #[expect(clippy::too_many_arguments, reason = "what one request or message brings, used once")]
    fn terms(
        &self,
        answers: Answers,
        side: Side,
        security: Security,
        secret: [u8; 32],
        node: PublicKey,
        peer: Identity,
        half: &Half,
    ) -> Option<Notice> {
        let other = self.nodes.get(&node)?;
        let path = other.path?.to_port(half.udp_port);
        let route_bytes = half.route_bytes.min(other.route_bytes);
        let introduction = half.introduction;
        let terms = Terms { answers, side, security, secret, path, peer, introduction, route_bytes };
        Some(Notice::Established(Box::new(terms)))
    }

    /// The other end of a connection is over.
    fn ended(&mut self, node: PublicKey, name: ConnectionName, reason: PortEnd) {
        let ConnectionName { receiver: own, sender: theirs } = name;
        self.pending_checks.take(node, &own, &theirs);
        if self.connections.get(&own).is_none_or(|known| !known.is(node, &theirs)) {
            return;
        }
        if let Some(known) = self.forget(&own) {
            let reason = match reason {
                PortEnd::Ended => End::PeerEnded,
                PortEnd::Released => End::PeerReleased,
            };
            self.tell(known.port, Notice::Ended { connection: own.connection, reason });
        }
    }

    /// Another service asks which of these connections are alive.
    fn check(&mut self, now_ns: u64, node: PublicKey, connections: Vec<ConnectionName>) {
        let (mut alive, mut over) = (Vec::new(), Vec::new());
        for ConnectionName { receiver: own, sender: theirs } in connections {
            if !is_port(&own.port) || !is_port(&theirs.port) {
                // No connection has such an end. It could be as long as a packet, and is not remembered.
                continue;
            }
            match self.connections.get(&own) {
                Some(known) if known.is(node, &theirs) => {
                    alive.push(ConnectionName { receiver: theirs, sender: own });
                }
                // Its port may not have registered again yet.
                None if self.is_in_grace(now_ns) && self.may_come_back(&own) => {
                    self.pending_checks.add(node, own, theirs);
                }
                _ => over.push(ConnectionName { receiver: theirs, sender: own }),
            }
        }
        self.send_parts(node, alive, |connections| ServiceMessage::Alive { connections });
        let reason = PortEnd::Released;
        self.send_parts(node, over, |connections| ServiceMessage::Ended { connections, reason });
    }

    /// May the port of this end still register, or bring along more connections that it has had before?
    fn may_come_back(&self, end: &EndName) -> bool {
        let registered = self.named(&end.port).and_then(|id| self.ports.get(&id));
        match registered {
            Some(found) => found.port.incarnation == end.incarnation && !found.is_complete,
            None => !self.gone.contains(&(end.port.clone(), end.incarnation)),
        }
    }

    /// Ends all connections with a node.
    fn end_all(&mut self, node: PublicKey, reason: End) {
        let known = self.connections.iter().filter(|(_, known)| known.node == node);
        for own in known.map(|(own, _)| own.clone()).collect::<Vec<_>>() {
            if let Some(known) = self.forget(&own) {
                self.tell(known.port, Notice::Ended { connection: own.connection, reason });
            }
        }
    }

    /// Ends an offer without a connection. The other service gets `reason`, unless it knows of the end.
    pub(super) fn withdraw(&mut self, number: u32, reason: Option<NotConnected>) {
        let Some(offer) = self.take_offer(number) else { return };
        if let Some(reason) = reason {
            self.send(offer.node, ServiceMessage::Decline { request: offer.request, reason });
        }
        // Its port hears nothing of an offer that it has not been told of.
        let is_it = |action: &Action| match action {
            Action::Tell(port, Notice::Offer { offer: told, .. }) => *port == offer.port && *told == number,
            _ => false,
        };
        match self.actions.iter().position(is_it) {
            Some(place) => drop(self.actions.remove(place)),
            None => self.tell(offer.port, Notice::Withdrawn { offer: number }),
        }
    }

    /// Declines an offer instead of telling its port, which does not read what it was told before. Requests that are given up
    /// and made again would otherwise fill its queue.
    pub fn turn_away(&mut self, number: u32) {
        self.refuse_offer(number, NotConnected::NoResources);
    }

    /// Ends an offer, and gives the other service the reason.
    pub(super) fn refuse_offer(&mut self, number: u32, reason: NotConnected) {
        if let Some(offer) = self.take_offer(number) {
            self.send(offer.node, ServiceMessage::Decline { request: offer.request, reason });
        }
    }

    fn withdraw_all(&mut self, node: PublicKey) {
        for number in numbers(&self.offers, |offer| offer.node == node) {
            self.withdraw(number, None);
        }
    }

    /// Removes an offer from those under way.
    pub(super) fn take_offer(&mut self, number: u32) -> Option<Offer> {
        let offer = self.offers.remove(&number)?;
        self.deadlines.remove(&(offer.deadline_ns, number));
        self.offered.remove(&(offer.node, offer.request));
        if let Some(registered) = self.ports.get_mut(&offer.port)
            && let Entry::Occupied(mut count) = registered.offers.entry((offer.node, offer.from.user.clone()))
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.need_less(offer.node);
        Some(offer)
    }

    /// The identity of a port elsewhere. Its node is the one of the channel. `None`: the identity is not valid.
    fn identity(&self, node: PublicKey, said: &PortIdentity) -> Option<Identity> {
        let other = self.nodes.get(&node)?;
        let is_sound = is_sound(&said.port, &said.user, &said.groups);
        is_sound.then(|| Identity {
            node: other.name.clone(),
            key: node,
            port: said.port.clone(),
            user: said.user.clone(),
            groups: said.groups.clone(),
            incarnation: said.incarnation,
        })
    }
}

impl Connection {
    /// Is it the one with this end at this node?
    fn is(&self, node: PublicKey, peer: &EndName) -> bool {
        self.node == node && self.peer == *peer
    }
}

impl Offer {
    /// The end of the port that asks.
    pub(super) fn asking(&self) -> EndName {
        end_of(&self.from, &self.half)
    }
}

/// The end of a port elsewhere, as its service says.
fn end_of(port: &PortIdentity, half: &Half) -> EndName {
    let (incarnation, connection) = (port.incarnation, half.introduction.connection);
    EndName { port: port.port.clone(), incarnation, connection }
}

/// What protects a connection of two nodes: it is plain only if both say so, and AES only if both have instructions for it.
pub(super) fn agreed(theirs: Security, ours: Security) -> Security {
    match (theirs, ours) {
        (Security::Plain, other) | (other, Security::Plain) => other,
        (Security::Aes256Gcm, Security::Aes256Gcm) => Security::Aes256Gcm,
        _ => Security::ChaCha20Poly1305,
    }
}

fn secret_half<'random>(
    node: PublicKey,
    name: &EndName,
    random: &'random super::Random,
) -> SecretHalf<'random> {
    SecretHalf { node, incarnation: name.incarnation, connection: name.connection, random }
}
