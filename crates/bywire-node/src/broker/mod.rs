//! What a service knows of ports, nodes and connections, and what follows from a request, a message or an end. It does no
//! I/O, reads no clock and draws no randomness: it answers with [`Action`]s.
//!
//! A connection is known here as long as both processes live and neither has released it. What is under way to become one
//! has a deadline. Both services check their lists against each other whenever a channel comes up, so an end that happened
//! while there was none is told then.

mod nodes;
mod ports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;

use bywire_sys::share::{Places, Shares};
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::{SECRET_BYTES, Security};
use bywire_wire::service::{Identity, Introduction, NotConnected, Notice};
use bywire_wire::service_message::{ConnectionName, GROUPS_MAX, Half, PortIdentity, ServiceMessage};

/// How long a request or an offer may take.
pub const PATIENCE_NS: u64 = 5_000_000_000;
/// After a start, ports have so long to register again: they try every 64 s. Until then an unknown connection may be one of
/// theirs.
pub const GRACE_NS: u64 = 90_000_000_000;
/// Requests and offers of one port that are under way.
pub const UNDER_WAY_MAX: usize = 64;
/// Connections of each user, and of all users.
const CONNECTIONS: Places = Places { own: 64, common: 49_152 };
/// Connections that other services have asked about during the grace, and incarnations that have ended during it.
const ASKED_MAX: usize = 65_536;

/// The longest name of a user or a group.
pub const USER_BYTES_MAX: usize = 256;

/// The most bytes of the names of a user's groups. With all else that a notice has beside them, they fit into a packet.
pub const GROUPS_BYTES_MAX: usize = 2048;

/// A port's registration.
pub type PortId = u64;

/// Random bytes for one end's part of a secret.
pub type Random = [u8; SECRET_BYTES];

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Tell a port.
    Tell(PortId, Notice),
    /// Send to the service of a node to which a channel is up.
    Send(PublicKey, ServiceMessage),
    /// A channel to this node is needed from now on.
    Want(PublicKey),
    /// It is needed no more.
    Release(PublicKey),
}

/// This node.
#[derive(Clone, Debug)]
pub struct Own {
    /// Its name.
    pub name: String,
    /// Its public key.
    pub key: PublicKey,
    /// What connections are protected with.
    pub security: Security,
}

/// A port, as the service has verified it.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// What it is to other services.
    pub user: String,
    /// The names of its user's groups.
    pub groups: Vec<String>,
    /// The number of this incarnation.
    pub incarnation: u64,
    /// May ports of other machines connect?
    pub is_reachable: bool,
    /// Its UDP port.
    pub udp_port: u16,
    /// Does its UDP socket know IPv6?
    pub has_v6: bool,
}

/// The state of a port here.
#[derive(Debug)]
struct Registered {
    port: Port,
    /// Its numbers of its connections, and of what is under way with a number.
    numbers: HashSet<u32>,
    under_way: usize,
}

/// A node of the fabric, but this one.
#[derive(Debug)]
struct Far {
    name: String,
    /// Where its service is, while a channel is up.
    address: Option<SocketAddr>,
    /// The machine's boot, as last told.
    boot_id: Option<[u8; 16]>,
    /// The longest UDP payload that the route there carries, as the kernel says.
    route_bytes: u16,
    /// Connections with it, and what is under way.
    needs: usize,
    /// A channel has been asked for.
    is_wanted: bool,
}

/// A connection between a port here and one there.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The port here.
    pub port: PortId,
    /// The other node.
    pub node: PublicKey,
    /// The other end.
    pub peer: ConnectionName,
    /// Who it is.
    pub identity: Identity,
    /// `None`: it is older than this service.
    pub security: Option<Security>,
    /// The port here waits to hear that the other one's process lives.
    is_inquired: bool,
}

/// A port here wants to connect.
#[derive(Debug)]
struct Outgoing {
    port: PortId,
    /// The port's number for it.
    request: u32,
    node: PublicKey,
    target: String,
    introduction: Introduction,
    random: Random,
    /// The message has been sent over the present channel.
    is_sent: bool,
    deadline_ns: u64,
}

/// A port elsewhere wants to connect to a port here, which has been asked.
#[derive(Debug)]
struct Offer {
    port: PortId,
    node: PublicKey,
    /// The other service's number for it.
    request: u32,
    from: PortIdentity,
    security: Security,
    half: Half,
    deadline_ns: u64,
}

/// The whole of it.
#[derive(Debug)]
pub struct Broker {
    own: Own,
    grace_until_ns: u64,
    ports: HashMap<PortId, Registered>,
    names: HashMap<String, PortId>,
    incarnations: HashMap<u64, PortId>,
    nodes: HashMap<PublicKey, Far>,
    connections: HashMap<ConnectionName, Connection>,
    outgoing: BTreeMap<u32, Outgoing>,
    offers: BTreeMap<u32, Offer>,
    /// Connections that others believe in, and that a port may still bring along.
    asked: HashMap<ConnectionName, (PublicKey, ConnectionName)>,
    /// Incarnations that have ended during the grace: they bring nothing along any more.
    gone: HashSet<u64>,
    places: Shares,
    next_number: u32,
    actions: VecDeque<Action>,
    /// Nodes that may be needed no more.
    idle: Vec<PublicKey>,
}

impl Broker {
    /// Of a service that starts now.
    pub fn new(now_ns: u64, own: Own) -> Self {
        Self {
            own,
            grace_until_ns: now_ns.saturating_add(GRACE_NS),
            ports: HashMap::new(),
            names: HashMap::new(),
            incarnations: HashMap::new(),
            nodes: HashMap::new(),
            connections: HashMap::new(),
            outgoing: BTreeMap::new(),
            offers: BTreeMap::new(),
            asked: HashMap::new(),
            gone: HashSet::new(),
            places: Shares::new(CONNECTIONS),
            next_number: 0,
            actions: VecDeque::new(),
            idle: Vec::new(),
        }
    }

    /// What is to be done next.
    pub fn next_action(&mut self) -> Option<Action> {
        while self.actions.is_empty()
            && let Some(node) = self.idle.pop()
        {
            let far = self.nodes.get_mut(&node).filter(|far| far.needs == 0 && far.is_wanted);
            if let Some(far) = far {
                far.is_wanted = false;
                self.actions.push_back(Action::Release(node));
            }
        }
        self.actions.pop_front()
    }

    /// The ports, in no order.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.ports.iter().map(|(id, registered)| (*id, &registered.port))
    }

    /// The connections, in no order.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections.values()
    }

    /// When [`Self::tick`] has something to do.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        let outgoing = self.outgoing.values().map(|outgoing| outgoing.deadline_ns);
        let offers = self.offers.values().map(|offer| offer.deadline_ns);
        let grace = (!self.asked.is_empty() || !self.gone.is_empty()).then_some(self.grace_until_ns);
        outgoing.chain(offers).chain(grace).min()
    }

    /// Ends what has taken too long.
    pub fn tick(&mut self, now_ns: u64) {
        let late: Vec<u32> = numbers(&self.outgoing, |outgoing| outgoing.deadline_ns <= now_ns);
        for number in late {
            self.give_up(number, NotConnected::Unreachable);
        }
        let late: Vec<u32> = numbers(&self.offers, |offer| offer.deadline_ns <= now_ns);
        for number in late {
            self.withdraw(number, Some(NotConnected::Unreachable));
        }
        if now_ns >= self.grace_until_ns {
            self.gone = HashSet::new();
            for (_, (node, theirs)) in std::mem::take(&mut self.asked) {
                self.tell_ended(&node, theirs);
            }
        }
    }

    fn tell(&mut self, port: PortId, notice: Notice) {
        self.actions.push_back(Action::Tell(port, notice));
    }

    /// A number for a request or an offer that no other one under way has.
    fn fresh_number(&mut self) -> u32 {
        loop {
            self.next_number = self.next_number.wrapping_add(1);
            let number = self.next_number;
            if !self.outgoing.contains_key(&number) && !self.offers.contains_key(&number) {
                return number;
            }
        }
    }

    /// The channel to a node is needed for one thing more.
    fn need(&mut self, node: PublicKey) {
        let Some(far) = self.nodes.get_mut(&node) else { return };
        far.needs += 1;
        if !std::mem::replace(&mut far.is_wanted, true) {
            self.actions.push_back(Action::Want(node));
        }
    }

    /// The channel to a node is needed for one thing less.
    fn need_less(&mut self, node: PublicKey) {
        let Some(far) = self.nodes.get_mut(&node) else { return };
        far.needs -= 1;
        if far.needs == 0 {
            // Not at once: an offer that becomes a connection needs it all the time.
            self.idle.push(node);
        }
    }
}

/// Can this be the port of an identity, and its user? Whatever is passed on or shown was asked this before.
fn is_sound(port: &str, user: &str, groups: &[String]) -> bool {
    let is_name = |text: &str| {
        (1..=USER_BYTES_MAX).contains(&text.len()) && !text.contains(|letter: char| letter.is_control())
    };
    port.parse::<bywire::PortName>().is_ok()
        && is_name(user)
        && groups.len() <= GROUPS_MAX
        && groups.iter().all(|group| is_name(group))
        && groups.iter().map(String::len).sum::<usize>() <= GROUPS_BYTES_MAX
}

/// The numbers of the entries for which `is_such` holds.
fn numbers<T>(entries: &BTreeMap<u32, T>, is_such: impl Fn(&T) -> bool) -> Vec<u32> {
    entries.iter().filter(|(_, entry)| is_such(entry)).map(|(number, _)| *number).collect()
}
