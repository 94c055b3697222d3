//! Frames between processes: one port of the message layer, with a port of the switch for each peer process.
//!
//! Frames travel as datagrams, each behind a descriptor of eight bytes. Introductions travel as messages: each side
//! lists its interfaces, and lists them again after a change. A process that starts connects to the processes that
//! run already, so no process has to watch for new ones. A process that loses a connection to a peer that may still
//! run tries to connect again, at growing intervals.
//!
//! A peer may run on another machine, a node of the fabric. The node service vouches for the node's name, and all
//! addresses of a node follow from that. Packets between machines are lost one by one, so superframes for such a peer
//! are cut where their segments end, and a datagram fits into a packet if its segment does.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire::{
    Address, ConnectError, DisconnectReason, Event, OpenError, Owner, Payload, Peer, PeerInfo, Port,
    PortName, PortOptions, Priority, SendError,
};
use serde::{Deserialize, Serialize};

use crate::address::MacAddress;
use crate::announced::{ADDRESSES_MAX, Announced};
use crate::backlog::{Backlog, HOLD_BACK_MS};
use crate::drops::{Cause, Drops};
use crate::geometry::geometry;
use crate::offload::Descriptor;
use crate::order::{Join, Node, PeerReport, Traffic};
pub use crate::peer_port::PEERS_MAX;
use crate::peer_port::{Machines, PeerPort};
use crate::reassembly::{Reassembled, Reassembler};
use crate::switch::{Switch, SwitchPortId};

/// The most interfaces of one peer.
const INTERFACES_MAX: usize = 1024;
/// Events without a frame that one call of [`Fabric::poll`] handles.
const EVENTS: usize = 64;
/// The longest name of an interface or a node that is accepted.
const LABEL_BYTES_MAX: usize = 320;
/// The user of every process that carries frames. Its node vouches for the user of a peer on another machine.
const USER: &str = "root";
/// Interfaces in one introduction. With the longest names, they fit into the shortest datagram.
const INTRODUCED_MAX: usize = 32;
/// The delay before lost peers are sought again, at first and at most. Each attempt doubles it.
const RECONNECT_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(64)];
/// The version of the introductions.
const VERSION: u32 = 2;
/// The name of this machine in addresses.
const LOCAL: &str = "localhost";

/// One side's list of interfaces for the other side, in as many parts as needed, because a message has a bounded
/// length.
#[derive(Debug, Serialize, Deserialize)]
struct Introduction {
    version: u32,
    node: String,
    interfaces: Vec<Announced>,
    is_first: bool,
    is_last: bool,
}

/// A received frame behind its descriptor, in memory that no other process can change.
#[derive(Debug)]
pub struct Arrival {
    /// The switch port that it came from.
    pub port: SwitchPortId,
    /// Descriptor and frame.
    pub content: Content,
}

/// The memory of a received frame.
#[derive(Debug)]
pub enum Content {
    /// A payload of the port, which must be recycled.
    Whole(Payload),
    /// Bytes joined from several datagrams.
    Joined(Vec<u8>),
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Whole(payload) => payload,
            Self::Joined(bytes) => bytes,
        }
    }
}

/// The fabric as one carrying loop sees it.
#[derive(Debug)]
pub struct Fabric {
    /// The port to the other processes.
    pub port: Port,
    join: Join,
    directory: PathBuf,
    own_name: PortName,
    /// Nodes of the fabric whose processes are sought.
    nodes: Vec<Node>,
    /// True when processes of other machines may connect.
    is_reachable: bool,
    peers: HashMap<Peer, PeerPort>,
    machines: Machines,
    peer_of_port: Vec<Option<Peer>>,
    interfaces: Vec<Announced>,
    datagram_bytes_max: usize,
    /// How long a peer without room holds back its senders.
    hold_back: Duration,
    /// When lost peers are sought, if there are any.
    reconnect_at: Option<Instant>,
    reconnect_after: Duration,
}

/// The switch port of a peer's place: ports to the fabric have odd numbers.
const fn switch_port_of(place: usize) -> SwitchPortId {
    2 * place + 1
}

impl Fabric {
    /// Opens a port under the name that other processes of the network look for, and begins to connect to those that
    /// run.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn join(join: &Join, directory: &Path) -> Result<Self, OpenError> {
        let geometry = geometry();
        let own_name = PortName::Name(port_name(&join.network, &join.node, join.queue));
        let port = Port::open(PortOptions {
            name: Some(own_name.clone()),
            message_bytes_max: geometry.fragment_bytes.into(),
            peers_max: PEERS_MAX as u32,
            geometry,
            runtime_directory: Some(directory.to_owned()),
            // A machine that is silent may come back. Its node reports a restart, and its removal from the fabric.
            unreachable_after: Duration::ZERO,
            ..PortOptions::default()
        })?;
        let mut fabric = Self {
            port,
            join: join.clone(),
            directory: directory.to_owned(),
            own_name,
            nodes: Vec::new(),
            is_reachable: false,
            peers: HashMap::with_capacity(PEERS_MAX),
            machines: Machines::default(),
            peer_of_port: Vec::with_capacity(PEERS_MAX),
            interfaces: Vec::new(),
            datagram_bytes_max: geometry.fragment_bytes as usize,
            hold_back: Duration::from_millis(HOLD_BACK_MS.into()),
            reconnect_at: None,
            reconnect_after: RECONNECT_AFTER[0],
        };
        fabric.connect_to_others();
        Ok(fabric)
    }

    /// Lets processes of other machines connect.
    ///
    /// # Errors
    /// [`OpenError::Fabric`].
    pub fn reach_nodes(&mut self) -> Result<(), OpenError> {
        self.is_reachable = true;
        bywire::reach_fabric(&mut self.port)
    }

    /// Begins to connect to the network's processes on these nodes, and on those of earlier calls unless `is_first`.
    pub fn seek_nodes(&mut self, nodes: Vec<Node>, is_first: bool, switch: &mut Switch) {
        if is_first {
            self.nodes.clear();
        }
        self.nodes.extend(nodes.into_iter().take(PEERS_MAX.saturating_sub(self.nodes.len())));
        for state in self.peers.values().filter(|state| state.machine.is_some()) {
            switch.change_fabric(state.switch_port, state.attachment(&self.nodes));
        }
        self.reconnect_after = RECONNECT_AFTER[0];
        self.connect_to_others();
    }

    /// Begins to connect to every unknown port of the network, in the directory and on the nodes.
    fn connect_to_others(&mut self) {
        let local = others(&self.join, &self.directory).into_iter().map(Address::local);
        let remote = self.nodes.iter().map(|Node { name, .. }| Address {
            node: name.clone(),
            port: PortName::Name(port_name(&self.join.network, name, self.join.queue)),
        });
        for address in local.chain(remote).collect::<Vec<_>>() {
            let machine = Some(&address.node).filter(|node| *node != LOCAL);
            let is_known = |state: &PeerPort| state.machine_name() == machine && state.name == address.port;
            if self.peers.values().any(is_known) {
                continue;
            }
            match self.port.connect_start(&address) {
                Ok(peer) => self.add_peer(peer, Some(address)),
                // A process that has ended needs no connection. If it starts again, it connects to us.
                Err(ConnectError::NoPort) => {}
                Err(_) => self.schedule_reconnect(),
            }
        }
    }

    fn schedule_reconnect(&mut self) {
        if self.reconnect_at.is_none() {
            self.reconnect_at = Some(Instant::now() + self.reconnect_after);
            self.reconnect_after = (2 * self.reconnect_after).min(RECONNECT_AFTER[1]);
        }
    }

    /// Connects again to lost peers when that is due. Returns how long the loop may sleep until the next attempt.
    pub fn reconnect_when_due(&mut self) -> Option<Duration> {
        let rest = self.reconnect_at?.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            self.reconnect_at = None;
            self.connect_to_others();
        }
        Some(rest)
    }

    /// Is the process of a port on another machine?
    pub fn is_remote(&self, switch_port: SwitchPortId) -> bool {
        let peer = self.peer_of_port.get(switch_port / 2).copied().flatten();
        peer.and_then(|peer| self.peers.get(&peer)).is_some_and(|state| state.machine.is_some())
    }

    /// True when there is no peer, and no service of a node that could bring one.
    pub fn is_alone(&self) -> bool {
        self.peers.is_empty() && !self.is_reachable
    }

    /// Tells all peers the current interfaces.
    pub fn announce(&mut self, interfaces: Vec<Announced>) {
        self.interfaces = interfaces;
        let connected: Vec<Peer> =
            self.peers.iter().filter(|(_, state)| state.is_connected).map(|(peer, _)| *peer).collect();
        connected.into_iter().for_each(|peer| self.introduce(peer));
    }

    /// The next received frame, if any. Other events are handled on the way. The call returns after one message, or
    /// after `EVENTS` other events, even when more are waiting, so `None` does not mean that nothing is left. This
    /// way, a peer that sends introductions all the time cannot delay frames.
    pub fn poll(&mut self, switch: &mut Switch) -> Option<Arrival> {
        for _ in 0..EVENTS {
            match self.port.poll()? {
                Event::Datagram(message) => {
                    if let Some(arrival) = self.take_datagram(message.peer, message.payload) {
                        return Some(arrival);
                    }
                }
                Event::Message(message) => {
                    if !self.take_introduction(message.peer, &message.payload, switch) {
                        self.port.disconnect(message.peer);
                    }
                    self.port.recycle(message.payload);
                    return None;
                }
                Event::Connected(peer) if self.is_carrier(peer) => {
                    self.add_peer(peer, None);
                    self.drop_earlier(peer, switch);
                    self.introduce(peer);
                }
                Event::Connected(peer) => {
                    let _ = self.remove_peer(peer, switch);
                    self.port.disconnect(peer);
                }
                Event::Disconnected { peer, reason } => {
                    let is_remote =
                        self.remove_peer(peer, switch).is_some_and(|state| state.machine.is_some());
                    if may_return(reason, is_remote) {
                        self.schedule_reconnect();
                    }
                }
                Event::Room { peer, priority: Priority::High } => self.send_introduction(peer),
                Event::Room { peer, priority: Priority::Low } => {
                    if let Some(state) = self.peers.get_mut(&peer) {
                        state.drain_backlog(&mut self.port, peer);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Sends `packet`, a descriptor and a frame, to a port's process. The packet serves as scratch memory and is restored afterwards.
    pub fn send(&mut self, switch_port: SwitchPortId, descriptor: Descriptor, packet: &mut [u8]) {
        let Some(peer) = self.peer_of_port.get(switch_port / 2).copied().flatten() else { return };
        if let Some(state) = self.peers.get_mut(&peer) {
            state.send(&mut self.port, peer, descriptor, packet);
        }
    }

    /// Changes how long a peer without room holds back its senders.
    pub fn hold_back_for(&mut self, time: Duration) {
        self.hold_back = time;
    }

    /// When the hold-back of the senders to a port's process ends, if the process has no room.
    pub fn holds_back_until(&self, switch_port: SwitchPortId) -> Option<Instant> {
        let peer = self.peer_of_port.get(switch_port / 2).copied().flatten()?;
        self.peers.get(&peer)?.backlog.holds_back_until(self.hold_back)
    }

    /// Counts a queue that is held back because of a port's process.
    pub fn note_held_back(&mut self, switch_port: SwitchPortId) {
        if let Some(state) = self.state_of(switch_port) {
            state.held_back += 1;
        }
    }

    /// Counts a frame that came from a port and was dropped.
    pub fn drop_from(&mut self, switch_port: SwitchPortId, cause: Cause) {
        if let Some(state) = self.state_of(switch_port) {
            state.drops.count(cause);
        }
    }

    fn state_of(&mut self, switch_port: SwitchPortId) -> Option<&mut PeerPort> {
        let peer = self.peer_of_port.get(switch_port / 2).copied().flatten()?;
        self.peers.get_mut(&peer)
    }

    /// The report about the peer at this place, and the number of places.
    pub fn report(&self, place: usize) -> (Option<PeerReport>, usize) {
        let state = self
            .peer_of_port
            .get(place)
            .copied()
            .flatten()
            .and_then(|peer| Some((peer, self.peers.get(&peer)?)));
        let report = state.map(|(peer, state)| PeerReport {
            // Another machine cannot choose the name under which it is reported.
            node: state.machine_name().unwrap_or(&state.node).clone(),
            process: self.port.peer_info(peer).and_then(PeerInfo::pid).unwrap_or(0),
            machine: state.machine_name().cloned(),
            loops_count: usize::from(!state.interfaces.is_empty()),
            // An answer has a bounded length.
            interfaces: state.interfaces.iter().take(16).map(Announced::without_addresses).collect(),
            interfaces_count: state.interfaces.len(),
            conflicts: state.conflicts.iter().take(4).cloned().collect(),
            sent: state.sent,
            received: state.received,
            drops: state.drops,
            held_back: state.held_back,
            packets: bywire::packet_counts(&self.port, peer).map(Into::into).unwrap_or_default(),
        });
        (report, self.peer_of_port.len())
    }

    fn take_datagram(&mut self, peer: Peer, payload: Payload) -> Option<Arrival> {
        match self.peers.get_mut(&peer) {
            Some(state) if !state.interfaces.is_empty() => {
                let content = match state.reassembler.join(&payload) {
                    Reassembled::Whole => Content::Whole(payload),
                    Reassembled::Complete(bytes) => {
                        self.port.recycle(payload);
                        Content::Joined(bytes)
                    }
                    joined => {
                        if joined == Reassembled::Lost {
                            state.drops.count(Cause::Illegal);
                        }
                        self.port.recycle(payload);
                        return None;
                    }
                };
                state.received.count(content.len(), content.first().is_some_and(|kind| *kind > 1));
                Some(Arrival { port: state.switch_port, content })
            }
            // It has not introduced itself, or it has no interface that could send.
            Some(state) => {
                state.drops.count(Cause::ForeignSource);
                self.port.recycle(payload);
                None
            }
            None => None,
        }
    }

    /// Is a connected peer a process that carries frames of this network? Ports of this machine are in a directory of our
    /// user's. On another machine any program may have the name.
    fn is_carrier(&self, peer: Peer) -> bool {
        let Some(info) = self.port.peer_info(peer) else { return false };
        let Address { node, port } = &info.address;
        match &info.owner {
            Owner::Local { .. } => true,
            Owner::Remote { user } => {
                let name = port_name(&self.join.network, node, self.join.queue);
                user == USER && port.to_string() == name
            }
        }
    }

    /// Makes a switch port for a peer. `sought` is the address that we connected to, if we began the connection.
    fn add_peer(&mut self, peer: Peer, sought: Option<Address>) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.is_connected = true;
            return;
        }
        let place = self.peer_of_port.iter().position(Option::is_none).unwrap_or(self.peer_of_port.len());
        if place == self.peer_of_port.len() {
            self.peer_of_port.push(None);
        }
        self.peer_of_port[place] = Some(peer);
        let began_here = sought.is_some();
        let (told, is_remote) = match (sought, self.port.peer_info(peer)) {
            (Some(sought), _) => {
                let is_remote = sought.node != LOCAL;
                (sought, is_remote)
            }
            (None, Some(info)) => (info.address.clone(), matches!(info.owner, Owner::Remote { .. })),
            (None, None) => (Address::local(0), false),
        };
        let machine = is_remote.then(|| self.machines.machine(&self.join.network, told.node));
        let state = PeerPort {
            switch_port: switch_port_of(place),
            began_here,
            is_connected: !began_here,
            name: told.port,
            machine,
            node: String::new(),
            interfaces: Vec::new(),
            introduced: Vec::new(),
            next_to_introduce: None,
            datagram_bytes_max: self.datagram_bytes_max,
            conflicts: Vec::new(),
            backlog: Backlog::default(),
            reassembler: Reassembler::default(),
            sent: Traffic::default(),
            received: Traffic::default(),
            drops: Drops::default(),
            held_back: 0,
        };
        self.peers.insert(peer, state);
    }

    fn remove_peer(&mut self, peer: Peer, switch: &mut Switch) -> Option<PeerPort> {
        let state = self.peers.remove(&peer)?;
        switch.remove(state.switch_port);
        self.peer_of_port[state.switch_port / 2] = None;
        Some(state)
    }

    /// Begins to tell a peer all interfaces.
    fn introduce(&mut self, peer: Peer) {
        if let Some(state) = self.peers.get_mut(&peer) {
            state.next_to_introduce = Some(0);
        }
        self.send_introduction(peer);
    }

    /// Sends introductions as long as there is room. The rest follows when the peer has made room.
    fn send_introduction(&mut self, peer: Peer) {
        let Some(state) = self.peers.get_mut(&peer) else { return };
        while let Some(start) = state.next_to_introduce {
            let rest = &self.interfaces[start.min(self.interfaces.len())..];
            let part = &rest[..rest.len().min(INTRODUCED_MAX)];
            let introduction = Introduction {
                version: VERSION,
                node: self.join.node.clone(),
                interfaces: part.to_vec(),
                is_first: start == 0,
                is_last: part.len() == rest.len(),
            };
            let bytes = serde_json::to_vec(&introduction).unwrap_or_default();
            match self.port.send(peer, Priority::High, &bytes) {
                Ok(()) => state.next_to_introduce = (!introduction.is_last).then_some(start + part.len()),
                Err(SendError::Full) => return,
                // A peer must not keep an outdated list: we disconnect, and connect again.
                Err(_) => return self.port.disconnect(peer),
            }
        }
    }

    /// Accepts an introduction from a peer. Returns `false` when it is malformed.
    fn take_introduction(&mut self, peer: Peer, bytes: &[u8], switch: &mut Switch) -> bool {
        let Ok(said) = serde_json::from_slice::<Introduction>(bytes) else { return false };
        let is_label = |text: &str| text.len() <= LABEL_BYTES_MAX && !text.contains(char::is_control);
        let labels_are_good = said.interfaces.iter().all(|interface| is_label(&interface.label));
        let is_bounded = |interface: &Announced| interface.addresses.len() <= ADDRESSES_MAX;
        let is_short = said.interfaces.len() <= INTRODUCED_MAX && said.interfaces.iter().all(is_bounded);
        if said.version != VERSION || !is_label(&said.node) || !labels_are_good || !is_short {
            return false;
        }
        if let Some(info) = self.port.peer_info(peer)
            && let Some(state) = self.peers.get_mut(&peer)
        {
            state.name = info.port().clone();
            let its_bytes_max = usize::try_from(info.message_bytes_max).unwrap_or(usize::MAX);
            state.datagram_bytes_max = self.datagram_bytes_max.min(its_bytes_max);
        }
        if !self.drop_duplicate(peer, switch) {
            return true;
        }
        let Some(state) = self.peers.get_mut(&peer) else { return true };
        if said.is_first {
            state.introduced.clear();
        }
        if state.introduced.len() + said.interfaces.len() > INTERFACES_MAX {
            return false;
        }
        state.introduced.extend(said.interfaces);
        if said.is_last {
            state.node = said.node;
            state.interfaces = std::mem::take(&mut state.introduced);
            state.make_reachable(switch, &self.nodes);
            self.reconnect_after = RECONNECT_AFTER[0];
        }
        true
    }

    /// A process that connects from the same port once more has given up its earlier connection, whose end is not known yet.
    /// Otherwise it could take every place.
    fn drop_earlier(&mut self, peer: Peer, switch: &mut Switch) {
        if self.peers.get(&peer).is_some_and(|state| state.began_here) {
            return;
        }
        let earlier = self.twins_of(peer).find(|(_, its)| !its.began_here).map(|(twin, _)| twin);
        if let Some(earlier) = earlier {
            self.port.disconnect(earlier);
            let _ = self.remove_peer(earlier, switch);
        }
    }

    /// Other connections to the same process.
    fn twins_of(&self, peer: Peer) -> impl Iterator<Item = (Peer, &PeerPort)> {
        let state = self.peers.get(&peer);
        let is_same = move |other: &Peer, its: &PeerPort| {
            state.is_some_and(|state| {
                *other != peer
                    && its.name == state.name
                    && its.machine_name() == state.machine_name()
                    && its.is_connected
            })
        };
        self.peers.iter().map(|(other, its)| (*other, its)).filter(move |(other, its)| is_same(other, its))
    }

    /// Two processes that start at the same time connect to each other, so they have two connections. Both keep the
    /// connection that was begun by the process with the smaller name. Returns `false` when this connection was given
    /// up.
    fn drop_duplicate(&mut self, peer: Peer, switch: &mut Switch) -> bool {
        let Some(state) = self.peers.get(&peer) else { return false };
        let Some((twin, its)) = self.twins_of(peer).next() else { return true };
        if its.began_here == state.began_here {
            // The peer came back before the end of its old connection was known.
            self.port.disconnect(twin);
            let _ = self.remove_peer(twin, switch);
            return true;
        }
        let ours_counts = self.own_name.to_string() < state.name.to_string();
        let loser = if state.began_here == ours_counts { twin } else { peer };
        self.port.disconnect(loser);
        let _ = self.remove_peer(loser, switch);
        loser != peer
    }
}

/// Could a lost peer be reached again? A process of this machine that has ended connects to us when it starts again. So
/// does one of another machine, but that machine may only have been out of reach.
fn may_return(reason: DisconnectReason, is_remote: bool) -> bool {
    match reason {
        DisconnectReason::Closed | DisconnectReason::Died => is_remote,
        DisconnectReason::NotConnected(ConnectError::NoPort | ConnectError::UnknownNode)
        | DisconnectReason::Removed => false,
        _ => true,
    }
}

/// The name of a loop's port, which other processes look for. Port names are short, so a hash stands for the node.
pub fn port_name(network: &str, node: &str, queue: usize) -> String {
    let hash = MacAddress::of_node(node).to_string().replace(':', "");
    format!("eth.{network}.{hash}.{queue}")
}

/// The other ports of the same network and queue in the directory.
fn others(join: &Join, directory: &Path) -> Vec<PortName> {
    let (prefix, suffix) = (format!("eth.{}.", join.network), format!(".{}.port", join.queue));
    let own = port_name(&join.network, &join.node, join.queue);
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names = names.filter(|name| name.starts_with(&prefix) && name.ends_with(&suffix));
    let names = names.map(|name| name.trim_end_matches(".port").to_owned());
    names.filter(|name| *name != own).filter_map(|name| name.parse().ok()).take(PEERS_MAX).collect()
}
