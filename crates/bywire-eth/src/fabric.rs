//! Frames between processes: one port of the message layer, and a lane for each process that is met there.
//!
//! Frames travel as datagrams, a descriptor of eight bytes before each. What they are meant for travels as messages:
//! each side tells which interfaces it has, and tells again when that changes. Who starts later looks for the others,
//! so nobody has to watch for newcomers; who loses somebody that has not ended looks again, ever more rarely.

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

/// Processes that one meets.
pub const PEERS_MAX: usize = 256;
/// Interfaces that one of them may have.
const INTERFACES_MAX: usize = 1024;
/// Events without a frame that are seen to before others have their turn.
const EVENTS: usize = 64;
/// The longest name of an interface or a node that is believed.
const LABEL_BYTES_MAX: usize = 320;
/// What is tried for the longest datagram, best first: a superframe whole, then what a smaller ring can carry.
const DATAGRAM_BYTES: [u32; 2] = [65_472, 32_768];
/// Conflicts of one process that are kept for whoever asks.
const CONFLICTS_MAX: usize = 16;
/// Interfaces in one introduction: with the longest names they fit into the shortest datagram.
const INTRODUCED: usize = 32;
/// After how long somebody who was lost is looked for, at first and at last; each time it is doubled.
const SEEK_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(64)];
/// The form of what the sides tell each other.
const VERSION: u32 = 2;

/// What one side tells the other, in as many parts as it takes: a message has a bounded length.
#[derive(Debug, Serialize, Deserialize)]
struct Introduction {
    version: u32,
    node: String,
    interfaces: Vec<Announced>,
    is_first: bool,
    is_last: bool,
}

/// A frame that has come, behind its descriptor, in memory that nobody else can change.
#[derive(Debug)]
pub struct Arrival {
    /// From which lane.
    pub lane: LaneId,
    /// Descriptor and frame.
    pub content: Content,
}

/// Where a frame that has come lies.
#[derive(Debug)]
pub enum Content {
    /// In memory of the port, which wants it back.
    Whole(Payload),
    /// It came in parts.
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
    /// Where the others are met.
    pub port: Port,
    join: Join,
    directory: PathBuf,
    own: PortName,
    peers: HashMap<Peer, Met>,
    lanes: Vec<Option<Peer>>,
    interfaces: Vec<Announced>,
    datagram_bytes_max: usize,
    /// How long a process without room holds back its senders.
    hold_back: Duration,
    /// When those who were lost are looked for, if there are any.
    seek_at: Option<Instant>,
    seek_after: Duration,
}

/// A process that was met.
#[derive(Debug)]
struct Met {
    lane: LaneId,
    began_here: bool,
    is_connected: bool,
    name: PortName,
    node: String,
    interfaces: Vec<Announced>,
    /// What it has said of itself so far, until that is complete.
    heard: Vec<Announced>,
    /// Which of our interfaces it is to be told next, unless it knows them all.
    untold: Option<usize>,
    /// The longest datagram that both sides can take.
    datagram_bytes_max: usize,
    conflicts: Vec<String>,
    /// What found no room on the way to it.
    backlog: Backlog,
    /// What came from it in parts and is not complete.
    partial: Partial,
    sent: Traffic,
    received: Traffic,
    drops: Drops,
    held_back: u64,
}

/// Lanes to the fabric have odd numbers.
const fn lane_of(place: usize) -> LaneId {
    2 * place + 1
}

impl Fabric {
    /// Opens a port under the name that others of the network look for, and begins to connect to those that are there.
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

    /// Begins to connect to everybody in the directory who is not known.
    fn seek(&mut self) {
        for name in others(&self.join, &self.directory) {
            if self.peers.values().any(|met| met.name == name) {
                continue;
            }
            match self.port.connect_start(&Address::local(name.clone())) {
                Ok(peer) => self.meet(peer, Some(name)),
                // Whoever is gone already is not missed; whoever comes back looks for us.
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

    /// Looks for those who were lost, where it is time for that; tells how long one may sleep until then.
    pub fn seek_lost(&mut self) -> Option<Duration> {
        let rest = self.seek_at?.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            self.seek_at = None;
            self.seek();
        }
        Some(rest)
    }

    /// Has anybody been met?
    pub fn is_alone(&self) -> bool {
        self.peers.is_empty()
    }

    /// Tells everybody which interfaces there are now.
    pub fn announce(&mut self, interfaces: Vec<Announced>) {
        self.interfaces = interfaces;
        let connected: Vec<Peer> =
            self.peers.iter().filter(|(_, met)| met.is_connected).map(|(peer, _)| *peer).collect();
        connected.into_iter().for_each(|peer| self.introduce(peer));
    }

    /// The next frame that has come, if any. What else has happened meanwhile is seen to, one thing of each call:
    /// `None` does not mean that nothing is left, so that nobody who talks of himself all the time keeps frames
    /// waiting.
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

    /// Sends what stands in `packet`, a descriptor and a frame, to a lane's process; a superframe too long for one
    /// datagram goes in several, cut where its segments end, and any other frame in parts. The packet is used for that,
    /// and afterwards as it was.
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
            // A piece's headers go right before its payload, where the end of the piece before is, which was sent.
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

    /// Changes how long a process without room holds back its senders.
    pub fn hold_back_for(&mut self, time: Duration) {
        self.hold_back = time;
    }

    /// Until when whoever sends to a lane's process is held back, where it has no room.
    pub fn holds_back_until(&self, lane: LaneId) -> Option<Instant> {
        let peer = self.lanes.get(lane / 2).copied().flatten()?;
        self.peers.get(&peer)?.backlog.holds_back_until(self.hold_back)
    }

    /// Counts a queue that is held back for a lane's process.
    pub fn note_held_back(&mut self, lane: LaneId) {
        if let Some(met) = self.met_by(lane) {
            met.held_back += 1;
        }
    }

    /// There is room towards a process again: what waits for it goes on.
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

    /// Counts a frame that came by a lane and was dropped.
    pub fn drop_from(&mut self, lane: LaneId, cause: Cause) {
        if let Some(met) = self.met_by(lane) {
            met.drops.count(cause);
        }
    }

    fn met_by(&mut self, lane: LaneId) -> Option<&mut Met> {
        let peer = self.lanes.get(lane / 2).copied().flatten()?;
        self.peers.get_mut(&peer)
    }

    /// What is known of the process in this place, and how many places there are.
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
            // It has not said who it is, or has nothing that could send.
            Some(met) => {
                met.drops.count(Cause::ForeignSource);
                self.port.recycle(payload);
                None
            }
            None => None,
        }
    }

    /// Makes a lane for a process, of this name where it was looked for.
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

    /// Begins to tell a process of all interfaces.
    fn introduce(&mut self, peer: Peer) {
        if let Some(met) = self.peers.get_mut(&peer) {
            met.untold = Some(0);
        }
        self.tell(peer);
    }

    /// Goes on telling, as long as there is room: whoever reads slowly is told the rest as soon as there is again.
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
                // Better none than one who knows us wrongly: we meet again.
                Err(_) => return self.port.disconnect(peer),
            }
        }
    }

    /// Takes what a process says of itself. `false`: it is nothing that one of us would say.
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

    /// Two that started at once have looked for each other, and met twice. Both keep the connection that the one
    /// with the smaller name began. `false`: this one was given up.
    fn keep_one_of_two(&mut self, peer: Peer, switch: &mut Switch) -> bool {
        let Some(met) = self.peers.get(&peer) else { return false };
        let same = |(other, its): &(&Peer, &Met)| **other != peer && its.name == met.name && its.is_connected;
        let Some((twin, its)) = self.peers.iter().find(same).map(|(twin, its)| (*twin, its)) else {
            return true;
        };
        if its.began_here == met.began_here {
            // One that came back before its end was known.
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
    /// Makes its interfaces, and no others, reachable.
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

    /// Sends a descriptor and a frame in as many datagrams as it takes.
    fn offer_parts(&mut self, port: &mut Port, peer: Peer, packet: &[u8]) -> Result<(), Cause> {
        let part_bytes = self.datagram_bytes_max.saturating_sub(parts::HEADER_BYTES).max(1);
        for (number, part) in packet.chunks(part_bytes).enumerate() {
            let header = parts::header(number * part_bytes, packet.len());
            self.offer(port, peer, &[&header[..], part].concat())?;
        }
        Ok(())
    }

    /// There is no room: we are told when there is again.
    fn wait(&mut self, port: &mut Port, peer: Peer) {
        self.backlog.note_full(Instant::now());
        // One that is gone has ended, which is told next.
        let _ = port.await_room(peer, Priority::Low);
    }
}

/// Rings that hold about as much as a core moves while the other end waits for its turn on one.
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

/// The name of a loop's port. Names of ports are short, so a node is told by its hash there.
fn port_name(network: &str, node: &str, queue: usize) -> String {
    let hash = MacAddress::of_node(node).to_string().replace(':', "");
    format!("eth.{network}.{hash}.{queue}")
}

/// Ports of the same network and queue that stand in the directory.
fn others(join: &Join, directory: &Path) -> Vec<PortName> {
    let (prefix, suffix) = (format!("eth.{}.", join.network), format!(".{}.port", join.queue));
    let own = port_name(&join.network, &join.node, join.queue);
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let names = names.filter(|name| name.starts_with(&prefix) && name.ends_with(&suffix));
    let names = names.map(|name| name.trim_end_matches(".port").to_owned());
    names.filter(|name| *name != own).filter_map(|name| name.parse().ok()).take(PEERS_MAX).collect()
}
