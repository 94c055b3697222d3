//! The program of a machine, with its port: `crates/bywire/src/port/fabric` without sockets. It calls other machines, sends
//! messages on its connections, and checks what it receives.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use bywire::harness::{End, windows_of};
use bywire::{DisconnectReason, Event, PortOptions, Priority, SendError};
use bywire_node::broker::Port;
use bywire_wire::batch::Batch;
use bywire_wire::connection::{Options, Receipt};
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::Security;
use bywire_wire::packet::Header;
use bywire_wire::service::{
    Answers, End as Ended, Identity, Introduction, Kept, NotConnected, Notice, Request, Terms,
};
use rand::Rng;
use rand::rngs::StdRng;

use super::scenario::{SECOND_NS, Scenario};
use super::tally::Counts;

/// The name of the port of every program, and of its user.
pub const PORT: &str = "program";
const USER: &str = "ann";
/// How long the first packet of a called peer is awaited, and that of a caller.
const PROVE_NS: [u64; 2] = [30 * SECOND_NS, 10 * SECOND_NS];
/// How often the service is asked whether a silent peer lives.
const INQUIRY_NS: u64 = SECOND_NS;
/// How long a connection goes on that has been closed, until everything is acknowledged.
const LINGER_NS: u64 = SECOND_NS;
/// The first and the longest pause before a lost service is called again.
const PAUSE_NS: [u64; 2] = [SECOND_NS, 64 * SECOND_NS];
/// The longest message.
const MESSAGE_BYTES: usize = 300;

/// A call that has no answer yet, or an offer that was accepted.
struct Call {
    /// The node that was called, or the offer.
    of: CallOf,
    /// The program gives it up then.
    gives_up_ns: Option<u64>,
}

#[derive(PartialEq, Eq)]
enum CallOf {
    Node(String),
    Offer(u32),
}

/// A connection that both services have made.
struct Connection {
    end: End,
    peer: Identity,
    peer_connection: u32,
    security: Security,
    to: SocketAddr,
    /// Messages that were sent and received.
    sent: u64,
    received: u64,
    proves_ns: u64,
    is_proved: bool,
    vouched_ns: u64,
    inquired_ns: u64,
    /// When the next message is sent.
    speaks_ns: u64,
    /// When it is closed, and given up after that.
    closes_ns: u64,
    leaves_ns: Option<u64>,
}

/// One end of a connection, for comparison with the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndState {
    pub own: (u64, u32),
    pub peer_node: PublicKey,
    pub peer: (u64, u32),
    pub sent: u64,
    pub received: u64,
}

pub struct Program {
    pub incarnation: u64,
    pub udp_port: u16,
    options: PortOptions,
    pub is_registered: bool,
    registers_ns: u64,
    pause_ns: u64,
    next_number: u32,
    calls: BTreeMap<u32, Call>,
    /// Calls that were given up. The service may have answered before it heard so.
    given_up: BTreeSet<u32>,
    connections: BTreeMap<u32, Connection>,
    /// No connection is closed before.
    kept_until_ns: u64,
    /// Nodes to which a connection was made since the last look.
    pub met: Vec<String>,
    /// Nodes to which none was made.
    pub missed: Vec<String>,
    /// Nodes that messages came from.
    pub heard: Vec<PublicKey>,
    /// For the service and for the network.
    pub requests: Vec<Request>,
    pub packets: Vec<(SocketAddr, Vec<u8>)>,
}

impl Program {
    pub fn new(now_ns: u64, random: &mut StdRng) -> Self {
        let mut options = PortOptions::default();
        for lane in &mut options.geometry.lanes {
            (lane.slots, lane.bulk_bytes) = (8, 1 << 14);
        }
        options.geometry.fragment_bytes = 512;
        Self {
            incarnation: random.random(),
            udp_port: random.random_range(20_000..60_000),
            options,
            is_registered: false,
            registers_ns: now_ns,
            pause_ns: PAUSE_NS[0],
            next_number: random.random_range(1..1000),
            calls: BTreeMap::new(),
            given_up: BTreeSet::new(),
            connections: BTreeMap::new(),
            kept_until_ns: 0,
            met: Vec::new(),
            missed: Vec::new(),
            heard: Vec::new(),
            requests: Vec::new(),
            packets: Vec::new(),
        }
    }

    /// The port, as its service verifies it.
    pub fn port(&self) -> Port {
        Port {
            name: PORT.to_owned(),
            uid: 1000,
            user: USER.to_owned(),
            groups: Vec::new(),
            incarnation: self.incarnation,
            is_reachable: true,
            udp_port: self.udp_port,
            has_v6: false,
        }
    }

    /// The connections that the next service has to know.
    pub fn kept(&self) -> Vec<Kept> {
        let kept = self.connections.iter().map(|(number, connection)| Kept {
            connection: *number,
            security: connection.security,
            node: connection.peer.key,
            peer_port: connection.peer.port.clone(),
            peer_user: connection.peer.user.clone(),
            peer_incarnation: connection.peer.incarnation,
            peer_connection: connection.peer_connection,
            path: connection.to.ip().into(),
        });
        kept.collect()
    }

    /// Is it time to register?
    pub fn is_due_to_register(&self, now_ns: u64) -> bool {
        !self.is_registered && self.registers_ns <= now_ns
    }

    pub fn registered(&mut self, counts: &mut Counts) {
        (self.is_registered, self.pause_ns) = (true, PAUSE_NS[0]);
        self.connections.keys().for_each(|_| counts.note("connections: kept over a restart of the service"));
    }

    /// There is no service, or it has ended. Connections go on, and calls fail. What was on its way to the service is lost with
    /// its socket: the next service gets none of it.
    pub fn lose_service(&mut self, now_ns: u64) {
        self.is_registered = false;
        self.registers_ns = now_ns + self.pause_ns;
        self.pause_ns = (2 * self.pause_ns).min(PAUSE_NS[1]);
        self.requests.clear();
        self.given_up.clear();
        let nodes = std::mem::take(&mut self.calls).into_values().filter_map(|call| match call.of {
            CallOf::Node(node) => Some(node),
            CallOf::Offer(_) => None,
        });
        self.missed.extend(nodes);
    }

    /// Begins to connect to the program of a node. Without an answer until `gives_up_ns` it gives up.
    pub fn call(&mut self, node: &str, gives_up_ns: Option<u64>) {
        if !self.is_registered {
            self.missed.push(node.to_owned());
            return;
        }
        let number = self.take_number();
        self.calls.insert(number, Call { of: CallOf::Node(node.to_owned()), gives_up_ns });
        let (node, port, introduction) = (node.to_owned(), PORT.to_owned(), self.introduction(number));
        self.requests.push(Request::Connect { request: number, node, port, introduction });
    }

    fn take_number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    fn introduction(&self, connection: u32) -> Introduction {
        let (message_bytes_max, windows) = (self.options.message_bytes_max, windows_of(&self.options));
        Introduction { connection, message_bytes_max, integrity: false, windows }
    }

    /// Processes a notice of the service.
    pub fn hear(
        &mut self,
        now_ns: u64,
        notice: Notice,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        match notice {
            Notice::Offer { offer, .. } => {
                let number = self.take_number();
                let introduction = self.introduction(number);
                // Its number comes back with the terms.
                self.calls.insert(number, Call { of: CallOf::Offer(offer), gives_up_ns: None });
                self.requests.push(Request::Accept { offer, introduction });
            }
            Notice::Withdrawn { offer } => {
                self.calls.retain(|_, call| call.of != CallOf::Offer(offer));
            }
            Notice::Established(terms) => self.establish(now_ns, *terms, scenario, random, counts)?,
            Notice::NotConnected { request, .. } if self.given_up.remove(&request) => {}
            Notice::NotConnected { request, reason } => {
                let Some(Call { of: CallOf::Node(node), .. }) = self.calls.remove(&request) else {
                    return Err(format!("a call that nobody made has failed: {reason:?}"));
                };
                counts.note(match reason {
                    NotConnected::UnknownNode => "calls: unknown node",
                    NotConnected::Unreachable => "calls: unreachable",
                    NotConnected::NoPort => "calls: no port",
                    NotConnected::Refused(_) => "calls: refused by the port",
                    NotConnected::Version => "calls: answered by another version",
                    NotConnected::NoResources => "calls: no resources",
                });
                self.missed.push(node);
            }
            Notice::Ended { connection, reason } => {
                // It may have ended here before.
                let Some(mut ended) = self.connections.remove(&connection) else { return Ok(()) };
                counts.note(match reason {
                    Ended::PeerEnded => "connections: ended, peer ended",
                    Ended::PeerReleased => "connections: ended, peer released",
                    Ended::NodeRestarted => "connections: ended, node restarted",
                    Ended::NodeRemoved => "connections: ended, node removed",
                    Ended::SecurityChanged => return Err("the security never changes".to_owned()),
                });
                ended.end.drain_and_end(DisconnectReason::Died);
                self.take_events(connection, &mut ended, counts)?;
                self.give_up(now_ns, connection, ended);
            }
            Notice::Alive { connection } => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    counts.note("connections: peers vouched for");
                    connection.vouched_ns = now_ns;
                }
            }
            Notice::Moved { connection, path } => {
                if let Some(connection) = self.connections.get_mut(&connection) {
                    counts.note("connections: moved");
                    connection.to.set_ip(path.peer);
                }
            }
            other => return Err(format!("a notice that nobody expects: {other:?}")),
        }
        Ok(())
    }

    fn establish(
        &mut self,
        now_ns: u64,
        terms: Terms,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        let number = match terms.answers {
            Answers::Request(request) => request,
            Answers::Offer(offer) => {
                let found = self.calls.iter().find(|(_, call)| call.of == CallOf::Offer(offer));
                *found.ok_or("terms came for an offer that was never accepted")?.0
            }
        };
        let call = self.calls.remove(&number).ok_or("terms came for a call that nobody made")?;
        let is_called = matches!(call.of, CallOf::Offer(_));
        if let CallOf::Node(node) = call.of {
            if node != terms.peer.node {
                return Err(format!("a call to {node} was answered by {}", terms.peer.node));
            }
            counts.note("calls: connections made");
            self.met.push(node);
        }
        let end = End::new(
            Options {
                side: terms.side,
                security: terms.security,
                secret: terms.secret.into(),
                connection: number,
                peer_connection: terms.introduction.connection,
                windows: windows_of(&self.options),
                peer_windows: terms.introduction.windows,
                route_bytes: terms.route_bytes,
            },
            &self.options,
            terms.introduction.message_bytes_max,
        );
        let connection = Connection {
            end,
            peer: terms.peer,
            peer_connection: terms.introduction.connection,
            security: terms.security,
            to: terms.path.peer,
            sent: 0,
            received: 0,
            proves_ns: now_ns + PROVE_NS[usize::from(is_called)],
            is_proved: false,
            vouched_ns: 0,
            inquired_ns: 0,
            // Both send at once, which proves each to the other.
            speaks_ns: now_ns,
            closes_ns: now_ns + random.random_range(1..2 * scenario.kept_ns),
            leaves_ns: None,
        };
        self.connections.insert(number, connection);
        Ok(())
    }

    /// Processes a packet of another machine's program.
    pub fn receive(&mut self, now_ns: u64, packet: &mut [u8], is_damaged: bool) -> Result<(), String> {
        // Packets of connections that have ended, or were never made, are dropped.
        let Some(header) = Header::parse(packet) else { return Ok(()) };
        let Some(connection) = self.connections.get_mut(&header.connection) else { return Ok(()) };
        match connection.end.receive_packet(now_ns, packet) {
            Receipt::Taken if is_damaged => Err("a damaged packet was taken".to_owned()),
            Receipt::Violation(violation) => Err(format!("an honest peer broke a rule: {violation}")),
            Receipt::Taken | Receipt::Closed => {
                connection.is_proved = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Does everything that there is to do now on its calls and connections.
    pub fn act(
        &mut self,
        now_ns: u64,
        own: &PublicKey,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        self.give_up_calls(now_ns, counts);
        let mut over = Vec::new();
        let mut connections = std::mem::take(&mut self.connections);
        for (number, connection) in &mut connections {
            self.take_events(*number, connection, counts)?;
            if connection.leaves_ns.is_none() && !connection.end.is_over() {
                self.speak(now_ns, (own, *number), connection, scenario, random)?;
            }
            self.close(now_ns, connection);
            if connection.end.is_over() {
                counts.note("connections: closed by the peer");
            }
            let is_over = connection.end.is_over()
                || self.is_lost(now_ns, *number, connection, scenario, counts)
                || is_left(now_ns, connection);
            if is_over {
                connection.end.end(DisconnectReason::Here);
                over.push(*number);
            }
            connection.end.before_sleep();
            transmit(now_ns, connection, &mut self.packets);
        }
        self.connections = connections;
        for number in over {
            if let Some(connection) = self.connections.remove(&number) {
                self.give_up(now_ns, number, connection);
            }
        }
        Ok(())
    }

    /// Gives up the calls whose time is over. The service is told, and makes no connection any more.
    fn give_up_calls(&mut self, now_ns: u64, counts: &mut Counts) {
        let is_over = |call: &Call| call.gives_up_ns.is_some_and(|at_ns| at_ns <= now_ns);
        self.calls.retain(|connection, call| {
            if is_over(call) {
                counts.note("calls: given up");
                self.given_up.insert(*connection);
                self.requests.push(Request::Release { connection: *connection });
            }
            !is_over(call)
        });
    }

    /// Checks what has arrived on a connection.
    fn take_events(
        &mut self,
        number: u32,
        connection: &mut Connection,
        counts: &mut Counts,
    ) -> Result<(), String> {
        while let Some(event) = connection.end.poll() {
            match event {
                Event::Message(message) => {
                    let identity = &connection.peer;
                    let ends =
                        [(identity.incarnation, connection.peer_connection), (self.incarnation, number)];
                    if message.payload[..] != message_bytes(&identity.key, ends, connection.received) {
                        return Err(format!("message {} of a connection is another", connection.received));
                    }
                    connection.received += 1;
                    counts.note("messages: received");
                    self.heard.push(identity.key);
                }
                Event::Disconnected { .. } | Event::Room { .. } => {}
                other => return Err(format!("an event that nobody expects: {other:?}")),
            }
        }
        Ok(())
    }

    fn speak(
        &mut self,
        now_ns: u64,
        (own, number): (&PublicKey, u32),
        connection: &mut Connection,
        scenario: &Scenario,
        random: &mut StdRng,
    ) -> Result<(), String> {
        if now_ns < connection.speaks_ns {
            return Ok(());
        }
        connection.speaks_ns = now_ns + random.random_range(1..2 * scenario.message_ns);
        let ends = [(self.incarnation, number), (connection.peer.incarnation, connection.peer_connection)];
        for _ in 0..random.random_range(1..4) {
            let message = message_bytes(own, ends, connection.sent);
            match connection.end.send(Priority::Low, &message) {
                Ok(()) => connection.sent += 1,
                Err(SendError::Full) => break,
                Err(error) => return Err(format!("a send failed: {error}")),
            }
        }
        Ok(())
    }

    /// Begins to close a connection when it is time.
    fn close(&self, now_ns: u64, connection: &mut Connection) {
        let closes_ns = connection.closes_ns.max(self.kept_until_ns);
        if closes_ns <= now_ns && connection.leaves_ns.is_none() {
            connection.leaves_ns = Some(now_ns + LINGER_NS);
            connection.end.begin_close();
        }
    }

    /// Has nothing come from the peer for so long that the connection is given up?
    fn is_lost(
        &mut self,
        now_ns: u64,
        number: u32,
        connection: &mut Connection,
        scenario: &Scenario,
        counts: &mut Counts,
    ) -> bool {
        if !connection.is_proved && now_ns >= connection.proves_ns {
            counts.note("connections: never proved");
            return true;
        }
        let after_ns = scenario.unreachable_after_ns;
        let Some(since_ns) = connection.end.unanswered_since_ns().filter(|_| after_ns > 0) else {
            return false;
        };
        if now_ns >= since_ns.max(connection.vouched_ns) + after_ns {
            counts.note("connections: given up in silence");
            return true;
        }
        if now_ns >= since_ns + after_ns / 4 && now_ns >= connection.inquired_ns + INQUIRY_NS {
            connection.inquired_ns = now_ns;
            self.requests.push(Request::Inquire { connection: number });
        }
        false
    }

    /// The last step of a connection: its last packets leave, and the service is told.
    fn give_up(&mut self, now_ns: u64, number: u32, mut connection: Connection) {
        transmit(now_ns, &mut connection, &mut self.packets);
        self.requests.push(Request::Release { connection: number });
    }

    /// Keeps all connections until this time.
    pub fn keep_all(&mut self, until_ns: u64) {
        self.kept_until_ns = until_ns;
    }

    /// Closes all connections now.
    pub fn close_all(&mut self, now_ns: u64) {
        self.kept_until_ns = 0;
        self.connections.values_mut().for_each(|connection| connection.closes_ns = now_ns);
    }

    /// When there is something to do.
    pub fn next_ns(&self, scenario: &Scenario) -> Option<u64> {
        let registers_ns = (!self.is_registered).then_some(self.registers_ns);
        let connections = self.connections.values().flat_map(|connection| {
            let since_ns = connection.end.unanswered_since_ns().filter(|_| scenario.unreachable_after_ns > 0);
            let silence_ns = since_ns.map(|since_ns| {
                let after_ns = scenario.unreachable_after_ns;
                (since_ns + after_ns / 4).max(connection.inquired_ns + INQUIRY_NS)
            });
            let proves_ns = (!connection.is_proved).then_some(connection.proves_ns);
            let own_ns = match connection.leaves_ns {
                Some(leaves_ns) => leaves_ns,
                None => connection.speaks_ns.min(connection.closes_ns.max(self.kept_until_ns)),
            };
            [connection.end.next_timeout_ns(), silence_ns, proves_ns, Some(own_ns)].into_iter().flatten()
        });
        let gives_up_ns = self.calls.values().filter_map(|call| call.gives_up_ns);
        connections.chain(registers_ns).chain(gives_up_ns).min()
    }

    /// The numbers of all its connections.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.connections.keys().copied()
    }

    /// Its connections that are not being closed.
    pub fn ends(&self) -> Vec<EndState> {
        let open = self.connections.iter().filter(|(_, connection)| connection.leaves_ns.is_none());
        let states = open.map(|(number, connection)| EndState {
            own: (self.incarnation, *number),
            peer_node: connection.peer.key,
            peer: (connection.peer.incarnation, connection.peer_connection),
            sent: connection.sent,
            received: connection.received,
        });
        states.collect()
    }

    /// Has it a connection with this node?
    pub fn is_connected(&self, node: &PublicKey) -> bool {
        self.connections.values().any(|connection| connection.peer.key == *node)
    }

    /// Is nothing under way?
    pub fn is_idle(&self) -> bool {
        self.connections.is_empty() && self.calls.is_empty()
    }

    /// The address of its packets on a machine.
    pub fn address(&self, ip: IpAddr) -> SocketAddr {
        SocketAddr::new(ip, self.udp_port)
    }
}

/// Is a connection that was closed here over?
fn is_left(now_ns: u64, connection: &Connection) -> bool {
    connection.leaves_ns.is_some_and(|at_ns| at_ns <= now_ns || connection.end.is_drained())
}

fn transmit(now_ns: u64, connection: &mut Connection, packets: &mut Vec<(SocketAddr, Vec<u8>)>) {
    loop {
        let mut batch = Batch::new(64 * 1024, 16);
        connection.end.transmit(now_ns, &mut batch);
        if batch.is_empty() {
            return;
        }
        packets.extend(batch.packets().map(|packet| (connection.to, packet.to_vec())));
    }
}

/// The bytes of a message, which name its sender, the connection, and its place in it.
fn message_bytes(from: &PublicKey, ends: [(u64, u32); 2], place: u64) -> Vec<u8> {
    let mut bytes = from.0[..4].to_vec();
    for (incarnation, number) in ends {
        bytes.extend(incarnation.to_le_bytes());
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(place.to_le_bytes());
    let length = bytes.len() + (place as usize * 37) % (MESSAGE_BYTES - bytes.len());
    bytes.resize(length, place as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_request_on_its_way_to_a_lost_service_is_for_no_other_service() {
        let mut program = Program::new(0, &mut StdRng::seed_from_u64(1));
        program.registered(&mut Counts::default());
        program.call("b", None);
        assert_eq!(program.requests.len(), 1);
        program.lose_service(0);
        assert!(program.requests.is_empty() && program.is_idle());
        assert_eq!(program.missed, ["b"], "the call has failed");
    }
}
