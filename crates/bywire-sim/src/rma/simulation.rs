//! The nodes, the lanes between them, and what happens at random.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bywire_match::Refused;
use bywire_match::rma::{Access, Denied, Event, Failure, Frame, Limits, Memory, Note, Place, PutId, Source};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::node::{Buffer, Node, REGION_BYTES};
use super::tally::{Counts, transitions};

/// Rounds within which everything has ended once nothing more begins: a piece may have a single byte.
const ROUNDS_MAX: u32 = 1_000_000;

struct Operation {
    node: usize,
    target: usize,
    access: Access,
    place: Place,
    /// What its target's memory says when it begins.
    denied: Option<Denied>,
    /// What was put for a read.
    put: Option<Vec<u8>>,
    has_ended: bool,
    /// Its memory was withdrawn, or its connection has ended.
    is_withdrawn: bool,
    is_cut_off: bool,
}

/// The bytes of a write's payload.
fn payload(operation: usize, length: u64) -> Vec<u8> {
    (0..length).map(|offset| (operation as u64 * 59 + offset * 7 + (offset >> 8)) as u8).collect()
}

enum Bulk {
    Piece(Vec<u8>),
    Put { id: PutId, bytes: Vec<u8>, region: u64, note: Note },
}

/// One direction of a connection.
#[derive(Default)]
struct Lane {
    messages: VecDeque<Vec<u8>>,
    bulk: VecDeque<Bulk>,
    /// Puts that have arrived or failed, for their sender.
    answers: VecDeque<(PutId, bool)>,
}

struct Connection {
    fragment_bytes: usize,
    /// Of the node with the lower number, and of the other one.
    is_connected: [bool; 2],
    is_dead: bool,
    knows_end: [bool; 2],
}

pub struct Simulation {
    random: StdRng,
    limits: Limits,
    nodes: Vec<Node>,
    connections: BTreeMap<(usize, usize), Connection>,
    /// By source and target.
    lanes: Vec<Lane>,
    operations: Vec<Operation>,
    next_key: u64,
    next_region: u64,
    /// Pairs whose link had no room.
    blocked: BTreeSet<(usize, usize)>,
    ends: bool,
    steps: u32,
    counts: Counts,
}

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason()) }
}

/// The connection of two nodes, and the first one's place in it.
fn pair(node: usize, other: usize) -> ((usize, usize), usize) {
    ((node.min(other), node.max(other)), usize::from(node > other))
}

impl Simulation {
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x726d_6100);
        let nodes = random.random_range(1..=3);
        let limits = Limits {
            peers: nodes,
            operations: random.random_range(5..300),
            short_bytes: random.random_range(0..400),
            unanswered: random.random_range(1..30),
            puts_of_reads: random.random_range(1..8),
            puts_of_reads_of_peer: random.random_range(1..4),
        };
        let mut simulation = Self {
            nodes: (0..nodes).map(|_| Node::new(limits, nodes)).collect(),
            connections: BTreeMap::new(),
            lanes: (0..nodes * nodes).map(|_| Lane::default()).collect(),
            operations: Vec::new(),
            next_key: 1,
            next_region: 1,
            blocked: BTreeSet::new(),
            ends: random.random_bool(0.3),
            steps: random.random_range(50..3_000),
            counts: Counts::default(),
            random,
            limits,
        };
        for node in 0..nodes {
            for other in node..nodes {
                let fragment_bytes = simulation.random.random_range(49..600);
                let [is_connected, knows_end] = [[false; 2]; 2];
                let connection = Connection { fragment_bytes, is_connected, is_dead: false, knows_end };
                simulation.connections.insert((node, other), connection);
            }
        }
        simulation
    }

    /// Lets programs and lanes act at random, and then lets everything end.
    pub fn live(mut self) -> Result<Counts, String> {
        for _ in 0..self.steps {
            self.step()?;
            for node in &self.nodes {
                ensure(node.rma.under_way() == node.under_way, || "operations under way".to_owned())?;
            }
        }
        self.drain()?;
        for node in &self.nodes {
            self.counts.add_all(transitions(node.rma.counts()));
        }
        Ok(self.counts)
    }

    fn lane(&mut self, source: usize, target: usize) -> &mut Lane {
        let nodes = self.nodes.len();
        &mut self.lanes[source * nodes + target]
    }

    fn step(&mut self) -> Result<(), String> {
        let node = self.random.random_range(0..self.nodes.len());
        let other = self.random.random_range(0..self.nodes.len());
        match self.random.random_range(0..100) {
            0..25 => self.begin(node, other),
            25..45 => self.transmit(node, other),
            45..60 => self.deliver_message(node, other).map(drop),
            60..75 => {
                self.deliver_bulk(node, other)?;
                self.deliver_answer(node, other);
                Ok(())
            }
            75..80 => {
                self.expose(node);
                Ok(())
            }
            80..92 => {
                let most = self.random.random_range(0..20);
                self.take_events(node, most).map(drop)
            }
            92..95 => {
                self.connect(node, other);
                Ok(())
            }
            95 if self.ends => {
                self.end(node, other);
                Ok(())
            }
            96 => {
                self.withdraw(node);
                Ok(())
            }
            _ => {
                if self.nodes[node].regions.0.len() < 4 {
                    self.nodes[node].regions.add(self.next_key);
                    self.next_key += 1;
                }
                Ok(())
            }
        }
    }

    /// A place, mostly of memory that is there.
    fn any_place(&mut self, target: usize) -> Place {
        let keys: Vec<u64> = self.nodes[target].regions.0.keys().copied().collect();
        let key = match keys.choose(&mut self.random) {
            Some(key) if self.random.random_bool(0.95) => *key,
            // Keys that are gone, or of another node. None of them comes again.
            _ => self.random.random_range(0..self.next_key),
        };
        let length = match self.random.random_range(0..10) {
            0 => 0,
            1..7 => self.random.random_range(0..500),
            _ => self.random.random_range(0..3_000),
        };
        let offset = match self.random.random_range(0..20) {
            0 => self.random.random(),
            1 => u64::MAX - self.random.random_range(0..500),
            _ => self.random.random_range(0..REGION_BYTES + 1 - length),
        };
        Place { key, offset, length }
    }

    fn knows_end(&self, node: usize, other: usize) -> bool {
        let (ends, place) = pair(node, other);
        self.connections[&ends].knows_end[place]
    }

    fn begin(&mut self, node: usize, target: usize) -> Result<(), String> {
        let access = if self.random.random_bool(0.5) { Access::Read } else { Access::Write };
        let place = self.any_place(target);
        let denied = self.nodes[target].regions.check(access, place).err();
        let overlaps = |other: &Operation| {
            let place_there = other.place;
            let is_there = !other.has_ended && (other.target, place_there.key) == (target, place.key);
            is_there
                && denied.is_none()
                && other.denied.is_none()
                && (access, other.access) != (Access::Read, Access::Read)
                && place.offset < place_there.offset + place_there.length
                && place_there.offset < place.offset + place.length
        };
        if self.operations.iter().any(overlaps) {
            return Ok(());
        }
        let number = self.operations.len();
        let knows_end = self.knows_end(node, target);
        let at = &mut self.nodes[node];
        let peer = at.peers[target];
        let refused = match access {
            Access::Write => at.rma.write(peer, place, None, number).err().map(|(reason, _)| reason),
            Access::Read => {
                let is_put = node != target && place.length > 0 && self.random.random_bool(0.4);
                let region = is_put.then_some(self.next_region);
                if let Some(region) = region {
                    self.next_region += 1;
                    at.reads.insert(region, number);
                }
                let buffer = Buffer { operation: number, bytes: Vec::new() };
                let refused = at.rma.read(peer, place, region, buffer).err().map(|(reason, _)| reason);
                if let (Some(_), Some(region)) = (refused, region) {
                    at.reads.remove(&region);
                }
                refused
            }
        };
        match refused {
            None => {
                ensure(!knows_end, || "an operation with a peer that has ended was accepted".to_owned())?;
            }
            Some(Refused::Full) => {
                self.counts.note("simulation: operations refused for lack of room");
                let is_full = at.under_way == self.limits.operations;
                return ensure(is_full, || "an operation was refused early".to_owned());
            }
            Some(reason) => {
                return ensure(knows_end && reason == Refused::Ended, || format!("refused: {reason}"));
            }
        }
        at.under_way += 1;
        if node == target {
            self.counts.note("simulation: operations of memory of one's own");
        }
        if denied.is_some() {
            self.counts.note("simulation: operations that are not permitted");
        } else if access == Access::Write
            && let Some(region) = self.nodes[target].regions.0.get_mut(&place.key)
        {
            region.known[place.offset as usize..][..place.length as usize].fill(None);
        }
        let [has_ended, is_withdrawn, is_cut_off] = [false; 3];
        let put = None;
        let operation =
            Operation { node, target, access, place, denied, put, has_ended, is_withdrawn, is_cut_off };
        self.operations.push(operation);
        Ok(())
    }

    fn transmit(&mut self, node: usize, target: usize) -> Result<(), String> {
        let room = [self.random.random_range(0..8), self.random.random_range(0..8)];
        let Connection { is_dead, fragment_bytes, .. } = self.connections[&pair(node, target).0];
        let nodes = self.nodes.len();
        let (lane, operations) = (&mut self.lanes[node * nodes + target], &self.operations);
        let Node { rma, peers, regions, .. } = &mut self.nodes[node];
        let (mut has_room, mut problem) = (true, None);
        let bytes = |source: Source<'_, usize>| match source {
            Source::Nothing => Some(Vec::new()),
            Source::Write(number, range) => {
                let all = payload(*number, operations[*number].place.length);
                Some(all[range.start as usize..range.end as usize].to_vec())
            }
            Source::Registered(place) => regions.read(place),
        };
        let taken_all = rma.transmit(peers[target], |frame| {
            let is_message = matches!(frame, Frame::Message { .. });
            let used = if is_message { lane.messages.len() } else { lane.bulk.len() };
            if is_dead || used >= room[usize::from(is_message)] {
                has_room = false;
                return false;
            }
            let (head, source) = match frame {
                Frame::Message { head, source } | Frame::Piece { head, source } => (head, source),
                Frame::Put { id, source, region, note } => {
                    let bytes = bytes(source).unwrap_or_default();
                    lane.bulk.push_back(Bulk::Put { id, bytes, region, note });
                    return true;
                }
            };
            let Some(bytes) = bytes(source) else {
                problem = Some("memory that was withdrawn is read");
                return true;
            };
            let frame = [head, &bytes].concat();
            if frame.len() > fragment_bytes {
                problem = Some("a frame is longer than the link's");
            }
            match is_message {
                true => lane.messages.push_back(frame),
                false => lane.bulk.push_back(Bulk::Piece(frame)),
            }
            true
        });
        if !has_room {
            self.counts.note("simulation: the link had no room");
            self.blocked.insert((node, target));
        }
        ensure(problem.is_none(), || problem.unwrap_or_default().to_owned())?;
        ensure(taken_all == has_room, || "an end is wrong about what the link has taken".to_owned())
    }

    fn can_deliver(&self, source: usize, target: usize) -> bool {
        let (ends, place) = pair(target, source);
        let connection = &self.connections[&ends];
        connection.is_connected[place] && !connection.is_dead
    }

    fn arrive(&mut self, source: usize, target: usize, frame: &[u8]) -> Result<(), String> {
        let Node { rma, peers, regions, .. } = &mut self.nodes[target];
        rma.arrive(peers[source], frame, regions).map_err(|violation| violation.to_string())
    }

    fn deliver_message(&mut self, source: usize, target: usize) -> Result<bool, String> {
        if !self.can_deliver(source, target) {
            return Ok(false);
        }
        let Some(frame) = self.lane(source, target).messages.pop_front() else { return Ok(false) };
        self.arrive(source, target, &frame).map(|()| true)
    }

    fn deliver_bulk(&mut self, source: usize, target: usize) -> Result<bool, String> {
        if !self.can_deliver(source, target) {
            return Ok(false);
        }
        let (id, bytes, region, note) = match self.lane(source, target).bulk.pop_front() {
            None => return Ok(false),
            Some(Bulk::Piece(frame)) => return self.arrive(source, target, &frame).map(|()| true),
            Some(Bulk::Put { id, bytes, region, note }) => (id, bytes, region, note),
        };
        let at = &mut self.nodes[target];
        let exposed = at.exposures.get(&region).map(|(_, place)| *place);
        let reads = at.reads.get(&region).copied();
        if let Some(place) = exposed {
            ensure(place.length == bytes.len() as u64, || "a put of another length".to_owned())?;
            at.regions.write(place, &bytes);
        } else if let Some(number) = reads {
            self.operations[number].put = Some(bytes);
        } else {
            self.counts.note("simulation: puts into memory that was withdrawn");
        }
        let is_there = exposed.is_some() || reads.is_some();
        if is_there {
            at.rma.notified(at.peers[source], &note).map_err(|violation| violation.to_string())?;
        }
        self.lane(source, target).answers.push_back((id, is_there));
        Ok(true)
    }

    fn deliver_answer(&mut self, source: usize, target: usize) -> bool {
        let answer = self.lane(source, target).answers.pop_front();
        if let Some((id, is_delivered)) = answer {
            self.nodes[source].rma.put_done(id, is_delivered);
        }
        answer.is_some()
    }

    fn connect(&mut self, node: usize, other: usize) {
        let (ends, place) = pair(node, other);
        let Some(connection) = self.connections.get_mut(&ends).filter(|connection| !connection.is_dead)
        else {
            return;
        };
        if !connection.is_connected[place] {
            connection.is_connected[place] = true;
            let at = &mut self.nodes[node];
            at.rma.connected(at.peers[other], connection.fragment_bytes);
        }
    }

    /// Ends a connection, or tells one of its ends that it has ended.
    fn end(&mut self, node: usize, other: usize) {
        if node == other {
            return;
        }
        let (ends, place) = pair(node, other);
        let Some(connection) = self.connections.get_mut(&ends) else { return };
        if connection.is_dead {
            if !connection.knows_end[place] {
                self.tell_of_end(node, other);
            }
            return;
        }
        connection.is_dead = true;
        self.counts.note("simulation: connections ended");
        for (source, target) in [(node, other), (other, node)] {
            *self.lane(source, target) = Lane::default();
        }
        for operation in &mut self.operations {
            operation.is_cut_off |= pair(operation.node, operation.target).0 == ends;
        }
    }

    fn tell_of_end(&mut self, node: usize, other: usize) {
        let (ends, place) = pair(node, other);
        let Some(connection) = self.connections.get_mut(&ends) else { return };
        connection.knows_end[place] = true;
        for operation in &mut self.operations {
            operation.is_cut_off |= (operation.node, operation.target) == (node, other);
        }
        let at = &mut self.nodes[node];
        at.rma.disconnected(at.peers[other]);
    }

    fn withdraw(&mut self, node: usize) {
        let keys: Vec<u64> = self.nodes[node].regions.0.keys().copied().collect();
        let Some(key) = keys.choose(&mut self.random).copied() else { return };
        self.counts.note("simulation: memory withdrawn");
        for operation in &mut self.operations {
            operation.is_withdrawn |= (operation.target, operation.place.key) == (node, key);
        }
        let at = &mut self.nodes[node];
        at.regions.0.remove(&key);
        at.rma.withdraw(key);
        // A driver ends exposures at once.
        at.exposures.retain(|_, (_, place)| place.key != key);
    }

    fn expose(&mut self, node: usize) -> bool {
        let at = &mut self.nodes[node];
        let Some((access, place)) = at.exposes.choose(&mut self.random).copied() else { return false };
        at.exposes.retain(|(other, _)| *other != access);
        let region = self.random.random_bool(0.6).then_some(self.next_region);
        self.next_region += 1;
        if at.rma.grant(access, region)
            && let Some(region) = region
        {
            at.exposures.insert(region, (access, place));
        }
        true
    }

    fn take_events(&mut self, node: usize, most: usize) -> Result<bool, String> {
        for taken in 0..most {
            let Some(event) = self.nodes[node].rma.poll_event() else { return Ok(taken > 0) };
            match event {
                Event::Expose { access, place, .. } => self.nodes[node].exposes.push((access, place)),
                Event::Withdraw { access } => {
                    self.nodes[node].exposures.retain(|_, (other, _)| *other != access);
                }
                Event::Accessed { .. } => {}
                Event::Written { write, .. } => self.written(node, write)?,
                Event::Read { read, .. } => self.read(node, &read)?,
                Event::WriteFailed { write, reason, .. } => self.failed(node, write, reason)?,
                Event::ReadFailed { read, reason, .. } => self.failed(node, read.operation, reason)?,
            }
        }
        Ok(most > 0)
    }

    fn end_operation(&mut self, node: usize, number: usize) -> Result<&Operation, String> {
        self.nodes[node].under_way -= 1;
        self.nodes[node].reads.retain(|_, other| *other != number);
        let ended = &mut self.operations[number];
        ensure(!ended.has_ended && ended.node == node, || format!("operation {number} ended twice"))?;
        ended.has_ended = true;
        Ok(ended)
    }

    fn written(&mut self, node: usize, number: usize) -> Result<(), String> {
        let Operation { target, place, denied, .. } = *self.end_operation(node, number)?;
        ensure(denied.is_none(), || format!("operation {number} is not permitted, and was done"))?;
        // The memory may have been withdrawn since.
        let Some(region) = self.nodes[target].regions.0.get_mut(&place.key) else { return Ok(()) };
        let (begin, bytes) = (place.offset as usize, payload(number, place.length));
        let is_there = region.bytes[begin..begin + bytes.len()] == bytes;
        region.known[begin..begin + bytes.len()]
            .iter_mut()
            .zip(&bytes)
            .for_each(|(known, byte)| *known = Some(*byte));
        ensure(is_there, || format!("write {number} is through, and not there"))
    }

    fn read(&mut self, node: usize, read: &Buffer) -> Result<(), String> {
        let number = read.operation;
        let Operation { target, place, denied, .. } = *self.end_operation(node, number)?;
        ensure(denied.is_none(), || format!("operation {number} is not permitted, and was done"))?;
        let bytes = self.operations[number].put.take().unwrap_or_else(|| read.bytes.clone());
        ensure(bytes.len() as u64 == place.length, || format!("read {number} has another length"))?;
        let Some(region) = self.nodes[target].regions.0.get(&place.key) else { return Ok(()) };
        let known = &region.known[place.offset as usize..];
        let is_right = known.iter().zip(&bytes).all(|(known, byte)| known.is_none_or(|known| known == *byte));
        ensure(is_right, || format!("read {number} has other bytes"))
    }

    fn failed(&mut self, node: usize, number: usize, reason: Failure) -> Result<(), String> {
        let Operation { denied, is_withdrawn, is_cut_off, .. } = *self.end_operation(node, number)?;
        let may_fail = match reason {
            Failure::Ended => is_cut_off,
            Failure::Withdrawn => is_withdrawn,
            Failure::Denied(Denied::NoMemory) => is_withdrawn || denied == Some(Denied::NoMemory),
            Failure::Denied(reason) => denied == Some(reason),
        };
        if denied.is_none() && reason != Failure::Ended {
            self.counts.note("simulation: operations failed, as memory was withdrawn");
        }
        ensure(may_fail, || format!("operation {number} failed: {reason:?}, expected {denied:?}"))
    }

    /// Lets everything end that can. The ends name the peers to transmit to.
    fn drain(&mut self) -> Result<(), String> {
        let nodes = self.nodes.len();
        let all = move || (0..nodes).flat_map(move |node| (0..nodes).map(move |other| (node, other)));
        for (node, other) in all() {
            self.connect(node, other);
            if self.connections[&pair(node, other).0].is_dead && !self.knows_end(node, other) {
                self.tell_of_end(node, other);
            }
        }
        for _ in 0..ROUNDS_MAX {
            let mut is_active = false;
            for (node, other) in std::mem::take(&mut self.blocked) {
                is_active |= !self.connections[&pair(node, other).0].is_dead;
                self.transmit(node, other)?;
            }
            for node in 0..nodes {
                while let Some(peer) = self.nodes[node].rma.next_ready() {
                    let target = self.nodes[node].peers.iter().position(|known| *known == peer);
                    self.transmit(node, target.ok_or("an unknown peer is ready")?)?;
                    is_active = true;
                }
                is_active |= self.take_events(node, 1_000)?;
                while self.expose(node) {
                    is_active = true;
                }
            }
            for (source, target) in all() {
                is_active |= self.deliver_message(source, target)?;
                is_active |= self.deliver_bulk(source, target)?;
                is_active |= self.deliver_answer(source, target);
            }
            if !is_active {
                return self.check_end();
            }
        }
        Err("nothing begins any more, and not all has ended".to_owned())
    }

    fn check_end(&mut self) -> Result<(), String> {
        let open = self.operations.iter().position(|operation| !operation.has_ended);
        ensure(open.is_none(), || format!("operation {open:?} never ended"))?;
        for node in &self.nodes {
            ensure(node.rma.under_way() == 0, || "operations are left".to_owned())?;
            ensure(node.exposures.is_empty(), || "places stay exposed".to_owned())?;
            for (key, region) in &node.regions.0 {
                ensure(!node.rma.is_being_put(*key), || format!("memory {key} is put for ever"))?;
                let mut bytes = region.known.iter().zip(&region.bytes);
                let is_right = bytes.all(|(known, byte)| known.is_none_or(|known| known == *byte));
                ensure(is_right, || format!("memory {key} is not what was written"))?;
            }
        }
        Ok(())
    }
}
