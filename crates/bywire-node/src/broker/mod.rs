//! The service's knowledge of ports, nodes and connections, and its decisions on requests, messages and ends. It does
//! no I/O, reads no clock and draws no randomness. It returns [`Action`]s.
//!
//! A connection is known here while both processes live and neither has released it. Requests and offers have a
//! deadline. Both services compare their lists whenever a channel comes up, so an end that happened in between is
//! reported then.

mod file;
mod file_distribution;
mod nodes;
mod pending_checks;
mod ports;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;

use bywire_sys::share::{Places, Shares};
use bywire_wire::handshake::PublicKey;
use bywire_wire::keys::{SECRET_BYTES, Security};
use bywire_wire::path::MachinePath;
use bywire_wire::service::{GROUPS_BYTES_MAX, Introduction, NotConnected, Notice};
use bywire_wire::service_message::{EndName, GROUPS_MAX, Half, PortEnd, PortIdentity, ServiceMessage};
use pending_checks::PendingChecks;

use file_distribution::FileDistribution;
pub use file_distribution::{FabricFile, IncomingFile};

/// How long a request or an offer may take.
pub const REQUEST_TIMEOUT_NS: u64 = 5_000_000_000;
/// The time in which ports may register again after a start. They try every 64 s. Until then an unknown connection may
/// belong to one of them.
pub const GRACE_NS: u64 = 90_000_000_000;
/// The most requests of one port that are under way, and the most offers to it.
pub const UNDER_WAY_MAX: usize = 64;
/// The most connections of each user, and of all users.
pub const CONNECTIONS: Places = Places { own: 64, common: 49_152 };
/// The most questions of all services: one service may ask about all connections that there can be, and leaves as many places.
const PENDING_CHECKS_MAX: usize = 2 * CONNECTIONS.common;
/// Requests under way of each user, and of all users.
const REQUESTS: Places = Places { own: UNDER_WAY_MAX, common: 4096 };
/// The least time between two inquiries about one connection. The channel loses none, so one is enough.
const INQUIRY_NS: u64 = 5_000_000_000;
/// The most ports that have ended during the grace and are remembered.
const PORTS_GONE_MAX: usize = 65_536;
/// The most bytes that wait for a node besides requests of users, if it has no connection with this one. The answers to everything
/// that fits into its window are shorter.
const OWED_BYTES: usize = 256 << 10;
/// So many more for each connection: it can be in a question, an answer and the report of its end at the same time.
const OWED_BYTES_OF_CONNECTION: usize = 3 * 256;

/// The longest name of a user or a group.
pub const USER_BYTES_MAX: usize = 256;

/// A port's registration.
pub type PortId = u64;

/// Random bytes for one end's part of a secret.
pub type Random = [u8; SECRET_BYTES];

/// An action that the service has to carry out.
#[derive(Debug)]
pub enum Action {
    /// Send a notice to a port.
    Tell(PortId, Notice),
    /// Send a message to the service of a node whose channel is up.
    Send(PublicKey, ServiceMessage),
    /// A channel to this node is needed from now on.
    Want(PublicKey),
    /// It is no longer needed.
    Release(PublicKey),
    /// Use this text of the keeper's fabric file, if it is valid, and replace the file by it.
    Adopt(String),
    /// Report that the file of this node has this serial, which is larger than that of its keeper, this node.
    ReportAhead(PublicKey, u64),
}

/// This node.
#[derive(Clone, Debug)]
pub struct ThisNode {
    /// Its name.
    pub name: String,
    /// Its public key.
    pub key: PublicKey,
    /// The protection of connections.
    pub security: Security,
}

/// A port, as the service has verified it.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its user.
    pub uid: u32,
    /// The name of its user for other services.
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

/// The state of a port of this machine.
#[derive(Debug)]
struct Registered {
    port: Port,
    /// The port's numbers of its connections, and of its requests and offers under way.
    numbers: BTreeSet<u32>,
    /// Its requests under way: the number of each here, by the port's number of the connection.
    requests: BTreeMap<u32, u32>,
    /// What it is asked, by the node and the user that asks. Strangers cause that, so it is counted apart.
    offers: BTreeMap<(PublicKey, String), usize>,
    /// It has brought along all connections that it had before this service began.
    is_complete: bool,
}

impl Registered {
    /// May this user of a node have one more offer under way? The port's own user, by name, may have all. Any other user may
    /// have at most as many as are left to others. A number is not a name.
    fn may_be_asked(&self, asking: &(PublicKey, String)) -> bool {
        let left = UNDER_WAY_MAX.saturating_sub(self.offers.values().sum());
        let is_number = asking.1.bytes().all(|byte| byte.is_ascii_digit());
        let is_own = asking.1 == self.port.user && !is_number;
        let of_user = if is_own { 0 } else { self.offers.get(asking).copied().unwrap_or_default() };
        of_user < left
    }
}

/// Another node of the fabric.
#[derive(Debug)]
struct OtherNode {
    name: String,
    /// The path to its service, while a channel is up.
    path: Option<MachinePath>,
    /// The boot identity of the machine, as last reported.
    boot_id: Option<[u8; 16]>,
    /// The longest UDP payload that the route there carries, as the kernel says.
    route_bytes: u16,
    /// The connections with it, and the requests and offers under way.
    needs: usize,
    /// The most of them since the channel came up.
    needs_max: usize,
    /// A channel has been requested.
    is_wanted: bool,
    /// The last connection of which no packet has arrived.
    blocked: Option<Blocked>,
}

/// A connection that both services have made, and of which no packet has arrived here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The UDP ports at this end and at the other one.
    pub udp_ports: [u16; 2],
    /// When the port here gave it up.
    pub at_ns: u64,
}

/// A connection between a port of this machine and one of another.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The port of this machine.
    pub port: PortId,
    /// The other node.
    pub node: PublicKey,
    /// The other end.
    pub peer: EndName,
    /// Its user, as its own service says; of a connection that is older than this service, as the port here says.
    pub peer_user: String,
    /// What protects it.
    pub security: Security,
    /// The path of the packets of the port here.
    path: MachinePath,
    /// The port here waits to hear that the other one's process lives, and has asked then.
    inquired_ns: Option<u64>,
}

/// A request of a port of this machine.
#[derive(Debug)]
struct Outgoing {
    port: PortId,
    /// The port's number for the request.
    request: u32,
    node: PublicKey,
    target: String,
    introduction: Introduction,
    random: Random,
    /// It has been sent over the present channel.
    is_sent: bool,
    deadline_ns: u64,
}

/// A request of a port elsewhere, which has been offered to a port of this machine.
#[derive(Debug)]
struct Offer {
    port: PortId,
    node: PublicKey,
    /// The other service's number for the request.
    request: u32,
    from: PortIdentity,
    security: Security,
    half: Half,
    deadline_ns: u64,
}

/// The whole of it.
#[derive(Debug)]
pub struct Broker {
    own: ThisNode,
    grace_until_ns: u64,
    ports: HashMap<PortId, Registered>,
    names: BTreeMap<String, PortId>,
    nodes: HashMap<PublicKey, OtherNode>,
    node_names: HashMap<String, PublicKey>,
    /// By the end here.
    connections: HashMap<EndName, Connection>,
    outgoing: BTreeMap<u32, Outgoing>,
    offers: BTreeMap<u32, Offer>,
    /// When each request and each offer is over.
    deadlines: BTreeSet<(u64, u32)>,
    /// The number of each offer, by the node that asks and its number for the request.
    offered: HashMap<(PublicKey, u32), u32>,
    /// Connections that others believe in, and that a port may still bring along.
    pending_checks: PendingChecks,
    /// Ports, each with its incarnation, that have ended during the grace: they bring nothing along any more.
    gone: HashSet<(String, u64)>,
    places: Shares,
    requests: Shares,
    next_number: u32,
    actions: VecDeque<Action>,
    /// Nodes whose channels may no longer be needed.
    idle: Vec<PublicKey>,
    distribution: FileDistribution,
}

impl Broker {
    /// The state of a service that starts now.
    pub fn new(now_ns: u64, own: ThisNode) -> Self {
        Self {
            own,
            grace_until_ns: now_ns.saturating_add(GRACE_NS),
            ports: HashMap::new(),
            names: BTreeMap::new(),
            nodes: HashMap::new(),
            node_names: HashMap::new(),
            connections: HashMap::new(),
            outgoing: BTreeMap::new(),
            offers: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            offered: HashMap::new(),
            pending_checks: PendingChecks::new(PENDING_CHECKS_MAX),
            gone: HashSet::new(),
            places: Shares::new(CONNECTIONS),
            requests: Shares::new(REQUESTS),
            next_number: 0,
            actions: VecDeque::new(),
            idle: Vec::new(),
            distribution: FileDistribution::default(),
        }
    }

    /// The next action.
    pub fn next_action(&mut self) -> Option<Action> {
        while self.actions.is_empty()
            && let Some(node) = self.idle.pop()
        {
            let other = self.nodes.get_mut(&node).filter(|other| other.needs == 0 && other.is_wanted);
            if let Some(other) = other {
                other.is_wanted = false;
                self.actions.push_back(Action::Release(node));
            }
        }
        self.actions.pop_front()
    }

    /// A port.
    pub fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(&id).map(|registered| &registered.port)
    }

    /// The port that has a name.
    pub fn named(&self, name: &str) -> Option<PortId> {
        self.names.get(name).copied()
    }

    /// The ports whose names are not less than `name`, by name.
    pub fn ports_from(&self, name: &str) -> impl Iterator<Item = (PortId, &Port)> {
        let from = (Bound::Included(name), Bound::Unbounded);
        self.names.range::<str, _>(from).filter_map(|(_, id)| Some((*id, self.port(*id)?)))
    }

    /// A port's connections whose numbers are not less than `from`, by number.
    pub fn connections_from(&self, id: PortId, from: u32) -> impl Iterator<Item = (u32, &Connection)> {
        let registered = self.ports.get(&id);
        let numbers = registered.into_iter().flat_map(move |registered| registered.numbers.range(from..));
        numbers.filter_map(move |number| Some((*number, self.connections.get(&self.end_of(id, *number)?)?)))
    }

    /// The node that has a name.
    pub fn node_named(&self, name: &str) -> Option<PublicKey> {
        self.node_names.get(name).copied()
    }

    /// The name of a node.
    pub fn node_name(&self, node: &PublicKey) -> Option<&str> {
        self.nodes.get(node).map(|other| other.name.as_str())
    }

    /// The last connection with a node of which no packet has arrived.
    pub fn blocked(&self, node: &PublicKey) -> Option<Blocked> {
        self.nodes.get(node)?.blocked
    }

    /// Has a channel to a node kept for something else than ports, until [`Self::let_go`].
    pub fn hold(&mut self, node: PublicKey) {
        self.need(node);
    }

    /// Ends a [`Self::hold`]. It has ended already if the node was removed.
    pub fn let_go(&mut self, node: PublicKey) {
        self.need_less(node);
    }

    /// When [`Self::tick`] has work to do.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        let deadline = self.deadlines.first().map(|(at_ns, _)| *at_ns);
        let grace = (!self.pending_checks.is_empty() || !self.gone.is_empty()).then_some(self.grace_until_ns);
        deadline.into_iter().chain(grace).min()
    }

    /// Ends requests and offers whose time is over.
    pub fn tick(&mut self, now_ns: u64) {
        while let Some((at_ns, number)) =
            self.deadlines.first().copied().filter(|(at_ns, _)| *at_ns <= now_ns)
        {
            self.deadlines.remove(&(at_ns, number));
            // It is one of the two.
            self.give_up(number, NotConnected::Unreachable);
            self.withdraw(number, Some(NotConnected::Unreachable));
        }
        if !self.is_in_grace(now_ns) {
            self.gone = HashSet::new();
            for (node, connections) in self.pending_checks.take_all() {
                let reason = PortEnd::Released;
                self.send_parts(node, connections, |connections| ServiceMessage::Ended {
                    connections,
                    reason,
                });
            }
        }
    }

    /// May ports that were there before this service still register?
    pub fn is_in_grace(&self, now_ns: u64) -> bool {
        now_ns < self.grace_until_ns
    }

    /// The most bytes that wait for a node besides requests of users. One that does not take what it has asked
    /// for does not get more of the service's memory than one that does.
    pub fn owed_bytes_max(&self, node: &PublicKey) -> usize {
        let needs = self.nodes.get(node).map_or(0, |other| other.needs_max);
        OWED_BYTES + needs * OWED_BYTES_OF_CONNECTION
    }

    fn tell(&mut self, port: PortId, notice: Notice) {
        self.actions.push_back(Action::Tell(port, notice));
    }

    /// A number that no other request or offer under way has.
    fn fresh_number(&mut self) -> u32 {
        loop {
            self.next_number = self.next_number.wrapping_add(1);
            let number = self.next_number;
            if !self.outgoing.contains_key(&number) && !self.offers.contains_key(&number) {
                return number;
            }
        }
    }

    /// Notes that one more thing needs the channel to a node.
    fn need(&mut self, node: PublicKey) {
        let Some(other) = self.nodes.get_mut(&node) else { return };
        other.needs += 1;
        other.needs_max = other.needs_max.max(other.needs);
        if !std::mem::replace(&mut other.is_wanted, true) {
            self.actions.push_back(Action::Want(node));
        }
    }

    /// Notes that one thing less needs the channel to a node.
    fn need_less(&mut self, node: PublicKey) {
        let Some(other) = self.nodes.get_mut(&node) else { return };
        other.needs -= 1;
        if other.needs == 0 {
            // Not at once, because an offer that becomes a connection needs it throughout.
            self.idle.push(node);
        }
    }
}

/// Is this a port and its user, as they can be? Whatever is passed on or shown was asked this before.
fn is_sound(port: &str, user: &str, groups: &[String]) -> bool {
    let is_name = |text: &str| {
        (1..=USER_BYTES_MAX).contains(&text.len()) && !text.contains(|letter: char| letter.is_control())
    };
    is_port(port)
        && is_name(user)
        && groups.len() <= GROUPS_MAX
        && groups.iter().all(|group| is_name(group))
        && groups.iter().map(String::len).sum::<usize>() <= GROUPS_BYTES_MAX
}

/// Is this the name of a port, as it is written?
fn is_port(name: &str) -> bool {
    name.parse::<bywire::PortName>().is_ok()
}

/// The numbers of the entries for which `is_such` holds.
fn numbers<T>(entries: &BTreeMap<u32, T>, is_such: impl Fn(&T) -> bool) -> Vec<u32> {
    entries.iter().filter(|(_, entry)| is_such(entry)).map(|(number, _)| *number).collect()
}
