//! Frames between processes: one port of the message layer, with a lane for each peer process.
//!
//! Frames travel as datagrams, each behind a descriptor of eight bytes. Introductions travel as messages: each side
//! lists its interfaces, and lists them again after a change. A process that starts connects to the processes that
//! run already, so no process has to watch for new ones. A process that loses a connection to a peer that may still
//! run tries to connect again, at growing intervals.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bywire::{
    Address, ConnectError, DisconnectReason, Event, Geometry, LaneGeometry, OpenError, Payload, Peer, Port,
    PortName, PortOptions, Priority, SendError,
};
use serde::{Deserialize, Serialize};

use crate::address::MacAddress;
use crate::announced::Announced;
use crate::backlog::{Backlog, HOLD_BACK_MS, LANE_BYTES, LANE_SLOTS};
use crate::drops::{Cause, Drops};
use crate::frame::HEADER_BYTES_MAX;
use crate::offload::Descriptor;
use crate::order::{Join, PeerReport, Traffic};
use crate::parts::{self, Joined, Partial};
use crate::segment::Cutter;
use crate::switch::{LaneId, Switch};

/// The most processes that one process connects to.
pub const PEERS_MAX: usize = 256;
/// The most interfaces of one peer.
const INTERFACES_MAX: usize = 1024;
/// Events without a frame that one call of [`Fabric::poll`] handles.
const EVENTS: usize = 64;
/// The longest name of an interface or a node that is accepted.
const LABEL_BYTES_MAX: usize = 320;
/// Candidates for the longest datagram, best first: a whole superframe, then the most that a smaller ring can carry.
const DATAGRAM_BYTES: [u32; 2] = [65_472, 32_768];
/// Address conflicts of one peer that are kept for reports.
const CONFLICTS_MAX: usize = 16;
/// Interfaces in one introduction. With the longest names, they fit into the shortest datagram.
const INTRODUCED: usize = 32;
/// The delay before lost peers are sought again, at first and at most. Each attempt doubles it.
const SEEK_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(64)];
/// The version of the introductions.
const VERSION: u32 = 2;

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
    /// The lane that it came from.
    pub lane: LaneId,
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
    own: PortName,
    peers: HashMap<Peer, Met>,
    lanes: Vec<Option<Peer>>,
    interfaces: Vec<Announced>,
    datagram_bytes_max: usize,
    /// How long a peer without room holds back its senders.
    hold_back: Duration,
    /// When lost peers are sought, if there are any.
    seek_at: Option<Instant>,
    seek_after: Duration,
}

/// A connected peer process, or one that is being connected to.
#[derive(Debug)]
struct Met {
    lane: LaneId,
    began_here: bool,
    is_connected: bool,
    name: PortName,
    node: String,
    interfaces: Vec<Announced>,
    /// The interfaces of its current introduction, until that is complete.
    heard: Vec<Announced>,
    /// The next of our interfaces to introduce; `None` when the peer knows them all.
    untold: Option<usize>,
    /// The longest datagram that both sides accept.
    datagram_bytes_max: usize,
    conflicts: Vec<String>,
    /// Datagrams to it that found no room.
    backlog: Backlog,
    /// A frame from it that comes in parts and is not complete.
    partial: Partial,
    sent: Traffic,
    received: Traffic,
    drops: Drops,
    held_back: u64,
}

/// The lane number of a peer's place. Lanes to the fabric have odd numbers.
const fn lane_of(place: usize) -> LaneId {
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
        let own = PortName::Name(port_name(&join.network, &join.node, join.queue));
        let port = Port::open(PortOptions {
            name: Some(own.clone()),
            message_bytes_max: geometry.fragment_bytes.into(),
            peers_max: PEERS_MAX as u32,
            geometry,
            runtime_directory: Some(directory.to_owned()),
            ..PortOptions::default()
        })?;
        let mut fabric = Self {
            port,
            join: join.clone(),
            directory: directory.to_owned(),
            own,
            peers: HashMap::with_capacity(PEERS_MAX),
            lanes: Vec::with_capacity(PEERS_MAX),
            interfaces: Vec::new(),
            datagram_bytes_max: geometry.fragment_bytes as usize,
            hold_back: Duration::from_millis(HOLD_BACK_MS.into()),
            seek_at: None,
            seek_after: SEEK_AFTER[0],
        };
        fabric.seek();
        Ok(fabric)
    }

    /// Begins to connect to every unknown port of the network in the directory.
    fn seek(&mut self) {
        for name in others(&self.join, &self.directory) {
            if self.peers.values().any(|met| met.name == name) {
                continue;
            }
            match self.port.connect_start(&Address::local(name.clone())) {
                Ok(peer) => self.meet(peer, Some(name)),
                // A process that has ended needs no connection. If it starts again, it connects to us.
                Err(ConnectError::NoPort) => {}
                Err(_) => self.seek_later(),
            }
        }
    }

    fn seek_later(&mut self) {
        if self.seek_at.is_none() {
            self.seek_at = Some(Instant::now() + self.seek_after);
            self.seek_after = (2 * self.seek_after).min(SEEK_AFTER[1]);
        }
    }

    /// Connects again to lost peers when that is due. Returns how long the loop may sleep until the next attempt.
    pub fn seek_lost(&mut self) -> Option<Duration> {
        let rest = self.seek_at?.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            self.seek_at = None;
            self.seek();
        }
        Some(rest)
    }

    /// True when there is no peer.
    pub fn is_alone(&self) -> bool {
        self.peers.is_empty()
    }

    /// Tells all peers the current interfaces.
    pub fn announce(&mut self, interfaces: Vec<Announced>) {
        self.interfaces = interfaces;
        let connected: Vec<Peer> =
            self.peers.iter().filter(|(_, met)| met.is_connected).map(|(peer, _)| *peer).collect();
        connected.into_iter().for_each(|peer| self.introduce(peer));
    }

    /// The next received frame, if any. Other events are handled on the way. The call returns after one message, or
    /// after `EVENTS` other events, even when more are waiting, so `None` does not mean that nothing is left. This
    /// way, a peer that sends introductions all the time cannot delay frames.
    pub fn poll(&mut self, switch: &mut Switch) -> Option<Arrival> {
        for _ in 0..EVENTS {
            match self.port.poll()? {
                Event::Datagram(message) => {
                    if let Some(arrival) = self.arrive(message.peer, message.payload) {
                        return Some(arrival);
                    }
                }
                Event::Message(message) => {
                    if !self.hear(message.peer, &message.payload, switch) {
                        self.port.disconnect(message.peer);
                    }
                    self.port.recycle(message.payload);
                    return None;
                }
                Event::Connected(peer) => {
                    self.meet(peer, None);
                    self.introduce(peer);
                }
                Event::Disconnected { peer, reason } => {
                    self.part(peer, switch);
                    if !matches!(reason, DisconnectReason::Closed | DisconnectReason::Died) {
                        self.seek_later();
                    }
                }
                Event::Room { peer, priority: Priority::High } => self.tell(peer),
                Event::Room { peer, priority: Priority::Low } => self.go_on(peer),
                _ => {}
            }
        }
        None
    }

    /// Sends `packet`, a descriptor and a frame, to a lane's process. If a superframe is too long for one datagram,
    /// it is cut at the ends of its segments and goes in several. Any other frame that is too long goes in parts. The
    /// packet serves as scratch memory and is restored afterwards.
    pub fn send(&mut self, lane: LaneId, descriptor: Descriptor, packet: &mut [u8]) {
        let Some(peer) = self.lanes.get(lane / 2).copied().flatten() else { return };
        let Some(met) = self.peers.get_mut(&peer) else { return };
        let port = &mut self.port;
        if packet.len() <= met.datagram_bytes_max {
            return match met.offer(port, peer, packet) {
                Ok(()) => met.sent.count(packet.len(), descriptor.kind.is_superframe()),
                Err(cause) => met.drops.count(cause),
            };
        }
        let frame = &packet[Descriptor::BYTES..];
        let headers = &frame[..frame.len().min(HEADER_BYTES_MAX)];
        let room = met.datagram_bytes_max.saturating_sub(Descriptor::BYTES);
        let Ok(mut pieces) = Cutter::new(descriptor, headers, frame.len(), room) else {
            return match met.offer_parts(port, peer, packet) {
                Ok(()) => met.sent.count(packet.len(), descriptor.kind.is_superframe()),
                Err(cause) => met.drops.count(cause),
            };
        };
        while let Some(piece) = pieces.next_piece() {
            // A piece's headers go right before its payload, over the end of the previous piece, which has been sent.
            let payload = piece.payload.start + Descriptor::BYTES..piece.payload.end + Descriptor::BYTES;
            let start = payload.start - piece.headers.len() - Descriptor::BYTES;
            let mut kept = [0; HEADER_BYTES_MAX + Descriptor::BYTES];
            let kept = &mut kept[..payload.start - start];
            kept.copy_from_slice(&packet[start..payload.start]);
            packet[start..start + Descriptor::BYTES].copy_from_slice(&piece.descriptor.to_bytes());
            packet[start + Descriptor::BYTES..payload.start].copy_from_slice(piece.headers);
            let is_superframe = piece.descriptor.kind.is_superframe();
            match met.offer(port, peer, &packet[start..payload.end]) {
                Ok(()) => met.sent.count(payload.end - start, is_superframe),
                Err(cause) => met.drops.count(cause),
            }
            packet[start..payload.start].copy_from_slice(kept);
        }
    }

    /// Changes how long a peer without room holds back its senders.
    pub fn hold_back_for(&mut self, time: Duration) {
        self.hold_back = time;
    }

    /// When the hold-back of the senders to a lane's process ends, if the process has no room.
    pub fn holds_back_until(&self, lane: LaneId) -> Option<Instant> {
        let peer = self.lanes.get(lane / 2).copied().flatten()?;
        self.peers.get(&peer)?.backlog.holds_back_until(self.hold_back)
    }

    /// Counts a queue that is held back because of a lane's process.
    pub fn note_held_back(&mut self, lane: LaneId) {
        if let Some(met) = self.met_by(lane) {
            met.held_back += 1;
        }
    }

    /// Sends a peer's waiting datagrams after it has made room.
    fn go_on(&mut self, peer: Peer) {
        let Some(met) = self.peers.get_mut(&peer) else { return };
        let port = &mut self.port;
        let drops = &mut met.drops;
        let is_all = met.backlog.drain(|datagram| match port.send_datagram(peer, Priority::Low, datagram) {
            Ok(has_gone) => has_gone,
            Err(_) => {
                drops.count(Cause::TargetDown);
                true
            }
        });
        if !is_all {
            met.wait(port, peer);
        }
    }

    /// Counts a frame that came from a lane and was dropped.
    pub fn drop_from(&mut self, lane: LaneId, cause: Cause) {
        if let Some(met) = self.met_by(lane) {
            met.drops.count(cause);
        }
    }

    fn met_by(&mut self, lane: LaneId) -> Option<&mut Met> {
        let peer = self.lanes.get(lane / 2).copied().flatten()?;
        self.peers.get_mut(&peer)
    }

    /// The report about the peer at this place, and the number of places.
    pub fn report(&self, place: usize) -> (Option<PeerReport>, usize) {
        let met =
            self.lanes.get(place).copied().flatten().and_then(|peer| Some((peer, self.peers.get(&peer)?)));
        let report = met.map(|(peer, met)| PeerReport {
            node: met.node.clone(),
            process: self.port.peer_info(peer).map_or(0, |info| info.pid),
            loops_count: usize::from(!met.interfaces.is_empty()),
            // An answer has a bounded length.
            interfaces: met.interfaces.iter().take(16).cloned().collect(),
            interfaces_count: met.interfaces.len(),
            conflicts: met.conflicts.iter().take(4).cloned().collect(),
            sent: met.sent,
            received: met.received,
            drops: met.drops,
            held_back: met.held_back,
        });
        (report, self.lanes.len())
    }

    fn arrive(&mut self, peer: Peer, payload: Payload) -> Option<Arrival> {
        match self.peers.get_mut(&peer) {
            Some(met) if !met.interfaces.is_empty() => {
                let content = match met.partial.join(&payload) {
                    Joined::Whole => Content::Whole(payload),
                    Joined::Complete(bytes) => {
                        self.port.recycle(payload);
                        Content::Joined(bytes)
                    }
                    joined => {
                        if joined == Joined::Lost {
                            met.drops.count(Cause::Illegal);
                        }
                        self.port.recycle(payload);
                        return None;
                    }
                };
                met.received.count(content.len(), content.first().is_some_and(|kind| *kind > 1));
                Some(Arrival { lane: met.lane, content })
            }
            // It has not introduced itself, or it has no interface that could send.
            Some(met) => {
                met.drops.count(Cause::ForeignSource);
                self.port.recycle(payload);
                None
            }
            None => None,
        }
    }

    /// Makes a lane for a peer. `sought` is the name that we connected to, if we began the connection.
    fn meet(&mut self, peer: Peer, sought: Option<PortName>) {
        if let Some(met) = self.peers.get_mut(&peer) {
            met.is_connected = true;
            return;
        }
        let place = self.lanes.iter().position(Option::is_none).unwrap_or(self.lanes.len());
        if place == self.lanes.len() {
            self.lanes.push(None);
        }
        self.lanes[place] = Some(peer);
        let began_here = sought.is_some();
        let told = || self.port.peer_info(peer).map_or(PortName::Number(0), |info| info.port().clone());
        let met = Met {
            lane: lane_of(place),
            began_here,
            is_connected: !began_here,
            name: sought.unwrap_or_else(told),
            node: String::new(),
            interfaces: Vec::new(),
            heard: Vec::new(),
            untold: None,
            datagram_bytes_max: self.datagram_bytes_max,
            conflicts: Vec::new(),
            backlog: Backlog::default(),
            partial: Partial::default(),
            sent: Traffic::default(),
            received: Traffic::default(),
            drops: Drops::default(),
            held_back: 0,
        };
        self.peers.insert(peer, met);
    }

    fn part(&mut self, peer: Peer, switch: &mut Switch) {
        if let Some(met) = self.peers.remove(&peer) {
            switch.remove(met.lane);
            self.lanes[met.lane / 2] = None;
        }
    }

    /// Begins to tell a peer all interfaces.
    fn introduce(&mut self, peer: Peer) {
        if let Some(met) = self.peers.get_mut(&peer) {
            met.untold = Some(0);
        }
        self.tell(peer);
    }

    /// Sends introductions as long as there is room. The rest follows when the peer has made room.
    fn tell(&mut self, peer: Peer) {
        let Some(met) = self.peers.get_mut(&peer) else { return };
        while let Some(start) = met.untold {
            let rest = &self.interfaces[start.min(self.interfaces.len())..];
            let part = &rest[..rest.len().min(INTRODUCED)];
            let introduction = Introduction {
                version: VERSION,
                node: self.join.node.clone(),
                interfaces: part.to_vec(),
                is_first: start == 0,
                is_last: part.len() == rest.len(),
            };
            let bytes = serde_json::to_vec(&introduction).unwrap_or_default();
            match self.port.send(peer, Priority::High, &bytes) {
                Ok(()) => met.untold = (!introduction.is_last).then_some(start + part.len()),
                Err(SendError::Full) => return,
                // A peer must not keep an outdated list: we disconnect, and connect again.
                Err(_) => return self.port.disconnect(peer),
            }
        }
    }

    /// Accepts an introduction from a peer. Returns `false` when it is malformed.
    fn hear(&mut self, peer: Peer, bytes: &[u8], switch: &mut Switch) -> bool {
        let Ok(said) = serde_json::from_slice::<Introduction>(bytes) else { return false };
        let is_label = |text: &str| text.len() <= LABEL_BYTES_MAX && !text.contains(char::is_control);
        let labels_are_good = said.interfaces.iter().all(|interface| is_label(&interface.label));
        let is_short = said.interfaces.len() <= INTRODUCED;
        if said.version != VERSION || !is_label(&said.node) || !labels_are_good || !is_short {
            return false;
        }
        if let Some(info) = self.port.peer_info(peer)
            && let Some(met) = self.peers.get_mut(&peer)
        {
            met.name = info.port().clone();
            let its_bytes_max = usize::try_from(info.message_bytes_max).unwrap_or(usize::MAX);
            met.datagram_bytes_max = self.datagram_bytes_max.min(its_bytes_max);
        }
        if !self.keep_one_of_two(peer, switch) {
            return true;
        }
        let Some(met) = self.peers.get_mut(&peer) else { return true };
        if said.is_first {
            met.heard.clear();
        }
        if met.heard.len() + said.interfaces.len() > INTERFACES_MAX {
            return false;
        }
        met.heard.extend(said.interfaces);
        if said.is_last {
            met.node = said.node;
            met.interfaces = std::mem::take(&mut met.heard);
            met.know(switch);
            self.seek_after = SEEK_AFTER[0];
        }
        true
    }

    /// Two processes that start at the same time connect to each other, so they have two connections. Both keep the
    /// connection that was begun by the process with the smaller name. Returns `false` when this connection was given
    /// up.
    fn keep_one_of_two(&mut self, peer: Peer, switch: &mut Switch) -> bool {
        let Some(met) = self.peers.get(&peer) else { return false };
        let same = |(other, its): &(&Peer, &Met)| **other != peer && its.name == met.name && its.is_connected;
        let Some((twin, its)) = self.peers.iter().find(same).map(|(twin, its)| (*twin, its)) else {
            return true;
        };
        if its.began_here == met.began_here {
            // The peer came back before the end of its old connection was known.
            self.port.disconnect(twin);
            self.part(twin, switch);
            return true;
        }
        let ours_counts = self.own.to_string() < met.name.to_string();
        let loser = if met.began_here == ours_counts { twin } else { peer };
        self.port.disconnect(loser);
        self.part(loser, switch);
        loser != peer
    }
}

impl Met {
    /// Makes the peer's interfaces reachable, and no others.
    fn know(&mut self, switch: &mut Switch) {
        switch.lead_to_fabric(self.lane);
        self.conflicts.clear();
        for interface in &self.interfaces {
            let mac = MacAddress(interface.mac);
            let is_refused = mac.is_multicast() || !switch.announce(self.lane, mac);
            if is_refused && self.conflicts.len() < CONFLICTS_MAX {
                self.conflicts
                    .push(format!("{} has the address {mac}, which is somebody else's", interface.label));
            }
        }
    }

    /// Sends a datagram, or keeps it until there is room.
    fn offer(&mut self, port: &mut Port, peer: Peer, datagram: &[u8]) -> Result<(), Cause> {
        if self.backlog.is_empty() {
            match port.send_datagram(peer, Priority::Low, datagram) {
                Ok(true) => {
                    self.backlog.note_taken(datagram.len());
                    return Ok(());
                }
                Ok(false) => self.wait(port, peer),
                Err(_) => return Err(Cause::TargetDown),
            }
        }
        if self.backlog.push(datagram) { Ok(()) } else { Err(Cause::TargetFull) }
    }

    /// Sends a descriptor and a frame in as many datagrams as needed.
    fn offer_parts(&mut self, port: &mut Port, peer: Peer, packet: &[u8]) -> Result<(), Cause> {
        let part_bytes = self.datagram_bytes_max.saturating_sub(parts::HEADER_BYTES).max(1);
        for (number, part) in packet.chunks(part_bytes).enumerate() {
            let header = parts::header(number * part_bytes, packet.len());
            self.offer(port, peer, &[&header[..], part].concat())?;
        }
        Ok(())
    }

    /// Notes that the peer has no room, and asks the port to report new room.
    fn wait(&mut self, port: &mut Port, peer: Peer) {
        self.backlog.note_full(Instant::now());
        // An error means that the peer has ended. The port reports that next.
        let _ = port.await_room(peer, Priority::Low);
    }
}

/// The geometry of the rings. They hold about as much as a core moves while the other end waits for its turn on one
/// core.
fn geometry() -> Geometry {
    let mut geometry = Geometry::default();
    for fragment_bytes in DATAGRAM_BYTES {
        let lane = LaneGeometry { slots: LANE_SLOTS, bulk_bytes: LANE_BYTES };
        let small = LaneGeometry { slots: 64, bulk_bytes: (4 * fragment_bytes).next_power_of_two() };
        geometry = Geometry { lanes: [small, small, lane], fragment_bytes };
        if geometry.check().is_ok() {
            break;
        }
    }
    geometry
}

/// The name of a loop's port. Port names are short, so a hash stands for the node.
fn port_name(network: &str, node: &str, queue: usize) -> String {
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
