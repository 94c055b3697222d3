//! Requests of this machine's ports.

use std::collections::HashSet;

use bywire_wire::handshake::PublicKey;
use bywire_wire::service::{End, Introduction, Kept, NotConnected, Notice, Refusal, Unregistered};
use bywire_wire::service_message::{ConnectionName, Half, PortEnd, PortIdentity, ServiceMessage};

use super::{
    ASKED_MAX, Action, Broker, Connection, Outgoing, PATIENCE_NS, Port, PortId, Random, Registered,
    UNDER_WAY_MAX,
};

impl Broker {
    /// Registers a port whose identity was verified.
    ///
    /// # Errors
    /// [`Unregistered::Unverified`]: another registration has the name or the incarnation.
    pub fn register(&mut self, id: PortId, port: Port) -> Result<(), Unregistered> {
        if self.names.contains_key(&port.name) || self.incarnations.contains_key(&port.incarnation) {
            return Err(Unregistered::Unverified);
        }
        self.names.insert(port.name.clone(), id);
        self.incarnations.insert(port.incarnation, id);
        self.ports.insert(id, Registered { port, numbers: HashSet::new(), under_way: 0 });
        Ok(())
    }

    /// Adds connections that a port had before this service began.
    pub fn keep(&mut self, id: PortId, kept: Vec<Kept>) {
        for Kept { connection, peer_connection, peer } in kept {
            let node = self.nodes.iter().find(|(_, far)| far.name == peer.node).map(|(key, _)| *key);
            let Some(node) = node else {
                self.tell(id, Notice::Ended { connection, reason: End::NodeRemoved });
                continue;
            };
            if !super::is_sound(&peer.port, &peer.user, &peer.groups) {
                self.tell(id, Notice::Ended { connection, reason: End::PeerReleased });
                continue;
            }
            let other = ConnectionName { incarnation: peer.incarnation, connection: peer_connection };
            let known = Connection {
                port: id,
                node,
                peer: other,
                identity: peer,
                security: None,
                is_inquired: false,
            };
            match self.add(id, connection, known) {
                Some(own) => {
                    self.asked.remove(&own);
                    self.send(node, ServiceMessage::Check { connections: vec![(other, own)] });
                }
                None => self.tell(id, Notice::Ended { connection, reason: End::PeerReleased }),
            }
        }
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
        let found = self.nodes.iter().find(|(_, far)| far.name == node).map(|(key, _)| *key);
        let node = found.ok_or(NotConnected::UnknownNode)?;
        let number = self.fresh_number();
        let registered = self.ports.get_mut(&id).ok_or(NotConnected::NoResources)?;
        let is_free = !registered.numbers.contains(&introduction.connection);
        if registered.under_way == UNDER_WAY_MAX || !is_free || !self.places.may_take(registered.port.uid) {
            return Err(NotConnected::NoResources);
        }
        registered.numbers.insert(introduction.connection);
        registered.under_way += 1;
        let deadline_ns = now_ns.saturating_add(PATIENCE_NS);
        let (port, is_sent) = (id, false);
        let outgoing = Outgoing { port, request, node, target, introduction, random, is_sent, deadline_ns };
        self.outgoing.insert(number, outgoing);
        self.need(node);
        Ok(number)
    }

    /// Sends a request to the other service, if there is a channel.
    pub(super) fn ask(&mut self, number: u32) {
        let Some(outgoing) = self.outgoing.get_mut(&number) else { return };
        let Some(registered) = self.ports.get(&outgoing.port) else { return };
        let far = self.nodes.get(&outgoing.node).filter(|far| far.address.is_some() && !outgoing.is_sent);
        let Some(far) = far else { return };
        outgoing.is_sent = true;
        let route_bytes = far.route_bytes;
        let half = half(&registered.port, outgoing.introduction, outgoing.random, route_bytes);
        let message = ServiceMessage::Connect {
            request: number,
            port: outgoing.target.clone(),
            from: vouched(&registered.port),
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
        let route_bytes = self.nodes.get(&offer.node).map_or(u16::MAX, |far| far.route_bytes);
        let own_half = half(&registered.port, introduction, random, route_bytes);
        let by = vouched(&registered.port);
        let security = super::nodes::agreed(offer.security, self.own.security);
        let made = self.establish_accepted(id, number, &offer, &own_half, security);
        match made {
            Some(notice) => {
                let message = ServiceMessage::Accept { request: offer.request, by, security, half: own_half };
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
        if self.offers.get(&number).is_none_or(|offer| offer.port != id) {
            return;
        }
        let Some(offer) = self.take_offer(number) else { return };
        let reason = NotConnected::Refused(refusal);
        self.send(offer.node, ServiceMessage::Decline { request: offer.request, reason });
    }

    /// Processes the end of a connection by a port.
    pub fn release(&mut self, id: PortId, connection: u32) {
        let Some(own) = self.name_of(id, connection) else { return };
        if let Some(known) = self.forget(own) {
            self.send(
                known.node,
                ServiceMessage::Ended { connection: known.peer, reason: PortEnd::Released },
            );
        }
    }

    /// Processes a port's question whether a peer's process lives.
    pub fn inquire(&mut self, id: PortId, connection: u32) {
        let Some(own) = self.name_of(id, connection) else { return };
        if let Some(known) = self.connections.get_mut(&own) {
            known.is_inquired = true;
            let (node, connections) = (known.node, vec![(known.peer, own)]);
            self.send(node, ServiceMessage::Check { connections });
        }
    }

    /// Processes the end of a port or of its process.
    pub fn port_ended(&mut self, now_ns: u64, id: PortId) {
        let Some(registered) = self.ports.get(&id) else { return };
        let incarnation = registered.port.incarnation;
        for connection in registered.numbers.iter().copied().collect::<Vec<_>>() {
            if let Some(known) = self.forget(ConnectionName { incarnation, connection }) {
                let ended = ServiceMessage::Ended { connection: known.peer, reason: PortEnd::Ended };
                self.send(known.node, ended);
            }
        }
        for number in super::numbers(&self.outgoing, |outgoing| outgoing.port == id) {
            if let Some(outgoing) = self.take_outgoing(number)
                && outgoing.is_sent
            {
                self.send(outgoing.node, ServiceMessage::Cancel { request: number });
            }
        }
        for number in super::numbers(&self.offers, |offer| offer.port == id) {
            if let Some(offer) = self.take_offer(number) {
                let reason = NotConnected::NoPort;
                self.send(offer.node, ServiceMessage::Decline { request: offer.request, reason });
            }
        }
        if let Some(registered) = self.ports.remove(&id) {
            self.names.remove(&registered.port.name);
            self.incarnations.remove(&incarnation);
            if now_ns < self.grace_until_ns && self.gone.len() < ASKED_MAX {
                self.gone.insert(incarnation);
            }
        }
    }

    /// Adds a connection. `None`: its number is in use, or its user has too many.
    pub(super) fn add(&mut self, id: PortId, connection: u32, known: Connection) -> Option<ConnectionName> {
        let registered = self.ports.get_mut(&id)?;
        let own = ConnectionName { incarnation: registered.port.incarnation, connection };
        if registered.numbers.contains(&connection) || !self.places.take(registered.port.uid) {
            return None;
        }
        registered.numbers.insert(connection);
        let node = known.node;
        self.connections.insert(own, known);
        self.need(node);
        Some(own)
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, own: ConnectionName) -> Option<Connection> {
        let known = self.connections.remove(&own)?;
        if let Some(registered) = self.ports.get_mut(&known.port) {
            registered.numbers.remove(&own.connection);
            self.places.give_back(registered.port.uid);
        }
        self.need_less(known.node);
        Some(known)
    }

    fn name_of(&self, id: PortId, connection: u32) -> Option<ConnectionName> {
        let registered = self.ports.get(&id)?;
        Some(ConnectionName { incarnation: registered.port.incarnation, connection })
    }

    /// Removes a request from those under way. Its number is free then.
    pub(super) fn take_outgoing(&mut self, number: u32) -> Option<Outgoing> {
        let outgoing = self.outgoing.remove(&number)?;
        if let Some(registered) = self.ports.get_mut(&outgoing.port) {
            registered.numbers.remove(&outgoing.introduction.connection);
            registered.under_way -= 1;
        }
        self.need_less(outgoing.node);
        Some(outgoing)
    }

    /// Ends a request without a connection.
    pub(super) fn give_up(&mut self, number: u32, reason: NotConnected) {
        let Some(outgoing) = self.take_outgoing(number) else { return };
        if outgoing.is_sent {
            self.send(outgoing.node, ServiceMessage::Cancel { request: number });
        }
        self.tell(outgoing.port, Notice::NotConnected { request: outgoing.request, reason });
    }

    /// Sends a message to a node if its channel is up. Lost messages are made up for when a channel comes up.
    pub(super) fn send(&mut self, node: PublicKey, message: ServiceMessage) {
        if self.nodes.get(&node).is_some_and(|far| far.address.is_some()) {
            self.actions.push_back(Action::Send(node, message));
        }
    }
}

/// The identity of a port, for which this service vouches.
fn vouched(port: &Port) -> PortIdentity {
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
