//! Requests of this machine's ports.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bywire_sys::share::Shares;
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::Security;
use bywire_wire::service::{End, Introduction, Kept, NotConnected, Notice, Refusal, Unregistered, parts};
use bywire_wire::service_message::{ConnectionName, EndName, Half, PortEnd, PortIdentity, ServiceMessage};

use super::{
    Action, Blocked, Broker, Connection, INQUIRY_NS, Outgoing, PORTS_GONE_MAX, Port, PortId,
    REQUEST_TIMEOUT_NS, Random, Registered, UNDER_WAY_MAX,
};

/// Takes a place among the connections of all users.
pub(super) type TakePlace = fn(&mut Shares, u32) -> bool;

impl Broker {
    /// Registers a port whose identity was verified.
    ///
    /// # Errors
    /// [`Unregistered::Unverified`]: another registration has the name.
    pub fn register(&mut self, id: PortId, port: Port) -> Result<(), Unregistered> {
        if self.names.contains_key(&port.name) {
            return Err(Unregistered::Unverified);
        }
        self.names.insert(port.name.clone(), id);
        let (numbers, requests, offers) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        self.ports.insert(id, Registered { port, numbers, requests, offers, is_complete: false });
        Ok(())
    }

    /// A port brings connections along that it had before this service began. They are the port's own by its name, which is
    /// verified, and the other services are asked whether the other ends know of them.
    pub fn keep(&mut self, now_ns: u64, id: PortId, kept: Vec<Kept>, is_last: bool) {
        let take = if self.is_in_grace(now_ns) { Shares::take_again } else { Shares::take };
        let mut checks: HashMap<PublicKey, Vec<ConnectionName>> = HashMap::new();
        for kept in kept {
            let (connection, node) = (kept.connection, kept.node);
            match self.take_kept(id, kept, take) {
                Ok(name) => checks.entry(node).or_default().push(name),
                Err(reason) => self.tell(id, Notice::Ended { connection, reason }),
            }
        }
        for (node, connections) in checks {
            self.send_parts(node, connections, |connections| ServiceMessage::Check { connections });
        }
        if let Some(registered) = self.ports.get_mut(&id) {
            registered.is_complete |= is_last;
        }
    }

    fn take_kept(&mut self, id: PortId, kept: Kept, take: TakePlace) -> Result<ConnectionName, End> {
        let Kept {
            connection,
            security,
            node,
            peer_port,
            peer_user,
            peer_incarnation,
            peer_connection,
            path,
        } = kept;
        if !self.nodes.contains_key(&node) {
            return Err(End::NodeRemoved);
        }
        if !super::is_sound(&peer_port, &peer_user, &[]) {
            return Err(End::PeerReleased);
        }
        let peer = EndName { port: peer_port, incarnation: peer_incarnation, connection: peer_connection };
        if security == Security::Plain && self.own.security != Security::Plain {
            if let Some(own) = self.end_of(id, connection) {
                self.tell_ended(node, own, peer, PortEnd::Released);
            }
            return Err(End::SecurityChanged);
        }
        let known =
            Connection { port: id, node, peer: peer.clone(), peer_user, security, path, inquired_ns: None };
        let own = self.add(id, connection, known, take).ok_or(End::PeerReleased)?;
        self.follow_path(node, own.clone());
        if self.pending_checks.take(node, &own, &peer) {
            let connections = vec![ConnectionName { receiver: peer.clone(), sender: own.clone() }];
            self.send(node, ServiceMessage::Alive { connections });
        }
        Ok(ConnectionName { receiver: peer, sender: own })
    }

    /// Processes a request for a connection.
    pub fn connect(
        &mut self,
        now_ns: u64,
        id: PortId,
        request: u32,
        target: (&str, String),
        introduction: Introduction,
        random: Random,
    ) {
        let (node, target) = target;
        match self.begin(now_ns, id, request, node, target, introduction, random) {
            Ok(number) => self.ask(number),
            Err(reason) => self.tell(id, Notice::NotConnected { request, reason }),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what one request or message brings, used once")]
    fn begin(
        &mut self,
        now_ns: u64,
        id: PortId,
        request: u32,
        node: &str,
        target: String,
        introduction: Introduction,
        random: Random,
    ) -> Result<u32, NotConnected> {
        if node == self.own.name || target.parse::<bywire::PortName>().is_err() {
            // Ports of one machine connect without a service, and an invalid name belongs to no port.
            return Err(NotConnected::NoPort);
        }
        let node = self.node_names.get(node).copied().ok_or(NotConnected::UnknownNode)?;
        let number = self.fresh_number();
        let registered = self.ports.get_mut(&id).ok_or(NotConnected::NoResources)?;
        let is_free = !registered.numbers.contains(&introduction.connection);
        let uid = registered.port.uid;
        if registered.requests.len() == UNDER_WAY_MAX || !is_free || !self.places.may_take(uid) {
            return Err(NotConnected::NoResources);
        }
        if !self.requests.take(uid) {
            return Err(NotConnected::NoResources);
        }
        registered.numbers.insert(introduction.connection);
        registered.requests.insert(introduction.connection, number);
        let deadline_ns = now_ns.saturating_add(REQUEST_TIMEOUT_NS);
        let (port, is_sent) = (id, false);
        let outgoing = Outgoing { port, request, node, target, introduction, random, is_sent, deadline_ns };
        self.outgoing.insert(number, outgoing);
        self.deadlines.insert((deadline_ns, number));
        self.need(node);
        Ok(number)
    }

    /// Sends a request to the other service, if there is a channel.
    pub(super) fn ask(&mut self, number: u32) {
        let Some(outgoing) = self.outgoing.get_mut(&number) else { return };
        let Some(registered) = self.ports.get(&outgoing.port) else { return };
        let other = self.nodes.get(&outgoing.node).filter(|other| other.path.is_some() && !outgoing.is_sent);
        let Some(other) = other else { return };
        outgoing.is_sent = true;
        let route_bytes = other.route_bytes;
        let half = half(&registered.port, outgoing.introduction, outgoing.random, route_bytes);
        let message = ServiceMessage::Connect {
            request: number,
            port: outgoing.target.clone(),
            from: identity_of(&registered.port),
            security: self.own.security,
            half,
        };
        self.actions.push_back(Action::Send(outgoing.node, message));
    }

    /// Processes the acceptance of an offer.
    pub fn accept(&mut self, id: PortId, number: u32, introduction: Introduction, random: Random) {
        if self.offers.get(&number).is_none_or(|offer| offer.port != id) {
            // It was withdrawn, and the port has been told.
            return;
        }
        let Some(offer) = self.take_offer(number) else { return };
        let Some(registered) = self.ports.get(&id) else { return };
        let route_bytes = self.nodes.get(&offer.node).map_or(u16::MAX, |other| other.route_bytes);
        let own_half = half(&registered.port, introduction, random, route_bytes);
        let by = identity_of(&registered.port);
        let security = super::nodes::agreed(offer.security, self.own.security);
        let made = self.establish_accepted(id, number, &offer, &own_half, security);
        match made {
            Some(notice) => {
                let asking = offer.asking();
                let request = offer.request;
                let message = ServiceMessage::Accept { request, asking, by, security, half: own_half };
                self.send(offer.node, message);
                self.tell(id, notice);
            }
            None => {
                let reason = NotConnected::NoResources;
                self.send(offer.node, ServiceMessage::Decline { request: offer.request, reason });
                self.tell(id, Notice::Withdrawn { offer: number });
            }
        }
    }

    /// Processes the refusal of an offer.
    pub fn decline(&mut self, id: PortId, number: u32, refusal: Refusal) {
        if self.offers.get(&number).is_some_and(|offer| offer.port == id) {
            self.refuse_offer(number, NotConnected::Refused(refusal));
        }
    }

    /// Processes the end of a connection by a port, or of a request for one. The port wants to hear no more of either.
    pub fn release(&mut self, id: PortId, connection: u32) {
        let Some(own) = self.end_of(id, connection) else { return };
        let request =
            self.ports.get(&id).and_then(|registered| registered.requests.get(&connection).copied());
        if let Some(known) = self.forget(&own) {
            self.tell_ended(known.node, own, known.peer, PortEnd::Released);
        } else if let Some(number) = request {
            self.cancel(number);
        }
    }

    /// A port has had no packet of a connection and gives it up.
    pub fn note_blocked(&mut self, now_ns: u64, id: PortId, connection: u32, peer_udp_port: u16) {
        let Some(own) = self.end_of(id, connection) else { return };
        let Some(node) = self.connections.get(&own).map(|known| known.node) else { return };
        let udp_port = self.port(id).map_or(0, |port| port.udp_port);
        if let Some(other) = self.nodes.get_mut(&node) {
            other.blocked = Some(Blocked { udp_ports: [udp_port, peer_udp_port], at_ns: now_ns });
        }
    }

    /// A port asks whether a peer's process lives.
    pub fn inquire(&mut self, now_ns: u64, id: PortId, connection: u32) {
        let Some(own) = self.end_of(id, connection) else { return };
        let Some(known) = self.connections.get_mut(&own) else { return };
        if known.inquired_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < INQUIRY_NS) {
            return;
        }
        known.inquired_ns = Some(now_ns);
        let (node, receiver) = (known.node, known.peer.clone());
        let connections = vec![ConnectionName { receiver, sender: own }];
        self.send(node, ServiceMessage::Check { connections });
    }

    /// Processes the end of a port or of its process.
    pub fn port_ended(&mut self, now_ns: u64, id: PortId) {
        let Some(registered) = self.ports.get(&id) else { return };
        let ends: Vec<_> = registered.numbers.iter().filter_map(|number| self.end_of(id, *number)).collect();
        let mut ended: HashMap<PublicKey, Vec<ConnectionName>> = HashMap::new();
        for own in ends {
            if let Some(known) = self.forget(&own) {
                let name = ConnectionName { receiver: known.peer, sender: own };
                ended.entry(known.node).or_default().push(name);
            }
        }
        for (node, connections) in ended {
            let reason = PortEnd::Ended;
            self.send_parts(node, connections, |connections| ServiceMessage::Ended { connections, reason });
        }
        for number in super::numbers(&self.outgoing, |outgoing| outgoing.port == id) {
            self.cancel(number);
        }
        for number in super::numbers(&self.offers, |offer| offer.port == id) {
            if let Some(offer) = self.take_offer(number) {
                let reason = NotConnected::NoPort;
                self.send(offer.node, ServiceMessage::Decline { request: offer.request, reason });
            }
        }
        if let Some(registered) = self.ports.remove(&id) {
            let Port { name, incarnation, .. } = registered.port;
            self.names.remove(&name);
            if self.is_in_grace(now_ns) && self.gone.len() < PORTS_GONE_MAX {
                self.gone.insert((name, incarnation));
            }
        }
    }

    /// Notes a connection. `None`: its number is taken, or its user gets no place by `take`.
    pub(super) fn add(
        &mut self,
        id: PortId,
        connection: u32,
        known: Connection,
        take: TakePlace,
    ) -> Option<EndName> {
        let own = self.end_of(id, connection)?;
        let registered = self.ports.get_mut(&id)?;
        if registered.numbers.contains(&connection) || !take(&mut self.places, registered.port.uid) {
            return None;
        }
        registered.numbers.insert(connection);
        let node = known.node;
        self.connections.insert(own.clone(), known);
        self.need(node);
        Some(own)
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, own: &EndName) -> Option<Connection> {
        let known = self.connections.remove(own)?;
        if let Some(registered) = self.ports.get_mut(&known.port) {
            registered.numbers.remove(&own.connection);
            self.places.give_back(registered.port.uid);
        }
        self.need_less(known.node);
        Some(known)
    }

    /// A port's end of a connection.
    pub(super) fn end_of(&self, id: PortId, connection: u32) -> Option<EndName> {
        let Port { name, incarnation, .. } = self.port(id)?;
        Some(EndName { port: name.clone(), incarnation: *incarnation, connection })
    }

    /// Removes a request from those under way. Its number is free then.
    pub(super) fn take_outgoing(&mut self, number: u32) -> Option<Outgoing> {
        let outgoing = self.outgoing.remove(&number)?;
        self.deadlines.remove(&(outgoing.deadline_ns, number));
        if let Some(registered) = self.ports.get_mut(&outgoing.port) {
            registered.numbers.remove(&outgoing.introduction.connection);
            registered.requests.remove(&outgoing.introduction.connection);
            self.requests.give_back(registered.port.uid);
        }
        self.need_less(outgoing.node);
        Some(outgoing)
    }

    /// Ends a request without a connection.
    pub(super) fn give_up(&mut self, number: u32, reason: NotConnected) {
        if let Some(outgoing) = self.cancel(number) {
            self.tell(outgoing.port, Notice::NotConnected { request: outgoing.request, reason });
        }
    }

    /// Ends a request, and withdraws it from the other service.
    fn cancel(&mut self, number: u32) -> Option<Outgoing> {
        let outgoing = self.take_outgoing(number)?;
        if outgoing.is_sent {
            self.send(outgoing.node, ServiceMessage::Cancel { request: number });
        }
        Some(outgoing)
    }

    /// Tells another service that the end here of a connection is over.
    pub(super) fn tell_ended(&mut self, node: PublicKey, own: EndName, theirs: EndName, reason: PortEnd) {
        let connections = vec![ConnectionName { receiver: theirs, sender: own }];
        self.send(node, ServiceMessage::Ended { connections, reason });
    }

    /// Sends a list, in as many messages as it takes.
    pub(super) fn send_parts(
        &mut self,
        node: PublicKey,
        connections: Vec<ConnectionName>,
        message: impl Fn(Vec<ConnectionName>) -> ServiceMessage,
    ) {
        if !connections.is_empty() {
            parts(connections).into_iter().for_each(|part| self.send(node, message(part)));
        }
    }

    /// Sends to a node if a channel is up. A message that is lost is made up for when one comes up.
    pub(super) fn send(&mut self, node: PublicKey, message: ServiceMessage) {
        if self.nodes.get(&node).is_some_and(|other| other.path.is_some()) {
            self.actions.push_back(Action::Send(node, message));
        }
    }
}

/// The identity of a port, for which this service vouches.
fn identity_of(port: &Port) -> PortIdentity {
    PortIdentity {
        port: port.name.clone(),
        user: port.user.clone(),
        groups: port.groups.clone(),
        incarnation: port.incarnation,
    }
}

fn half(port: &Port, introduction: Introduction, random: Random, route_bytes: u16) -> Half {
    Half { introduction, udp_port: port.udp_port, route_bytes, random }
}
