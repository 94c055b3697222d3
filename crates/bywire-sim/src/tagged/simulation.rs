//! The nodes, the lanes between them, and what happens at random.

use std::collections::{BTreeMap, BTreeSet};

use bywire_match::head::{EagerHead, Head};
use bywire_match::{Endpoint, Envelope, Event, Frame, Limits, Refused, Send, TransferId};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::lane::{Bulk, Lane};
use super::model::{Arrived, Wanted};
use super::node::{Buffer, Node, payload};
use super::tally::{Counts, transitions};

/// Rounds within which everything has ended once nothing more begins: a piece may have a single byte.
const ROUNDS_MAX: u32 = 1_000_000;

struct Message {
    source: usize,
    target: usize,
    send: Send,
    is_request: bool,
    /// Has a receive taken it, or was it discarded?
    is_taken: bool,
    is_ended: bool,
    may_fail: bool,
}

struct Receive {
    node: usize,
    capacity: u64,
    message: Option<usize>,
    is_ended: bool,
    may_fail: bool,
}

/// A connection of two nodes, or of one with itself.
struct Connection {
    fragment_bytes: usize,
    /// Of the node with the lower number, and of the other one.
    is_connected: [bool; 2],
    is_dead: bool,
    knows_end: [bool; 2],
}

/// How often each thing happens.
struct Weights {
    sends: u32,
    receives: u32,
    claims: u32,
    deliveries: u32,
    ends: u32,
}

pub struct Simulation {
    random: StdRng,
    limits: Limits,
    nodes: Vec<Node>,
    connections: BTreeMap<(usize, usize), Connection>,
    /// By source and target.
    lanes: Vec<Lane>,
    messages: Vec<Message>,
    receives: Vec<Receive>,
    /// Buffers that are exposed, by key.
    regions: BTreeMap<u64, (usize, TransferId)>,
    next_key: u64,
    /// Pairs whose link had no room.
    blocked: BTreeSet<(usize, usize)>,
    weights: Weights,
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
        let mut random = StdRng::seed_from_u64(seed ^ 0x7a66);
        let nodes = random.random_range(1..=4);
        let window_bytes = random.random_range(200..2_000);
        let limits = Limits {
            peers: nodes,
            sends: random.random_range(5..500),
            receives: random.random_range(5..500),
            eager_bytes: random.random_range(16..400),
            requests: random.random_range(1..30),
            window_bytes,
            window_bytes_max: window_bytes * random.random_range(1..10),
            growth_bytes_max: random.random_range(0..10_000),
        };
        let mut weights = || [1, 5, 20][random.random_range(0..3)];
        let (sends, receives, claims, deliveries) = (weights(), weights(), weights(), weights() * 5);
        let weights = Weights { sends, receives, claims, deliveries, ends: random.random_range(0..2) };
        let mut simulation = Self {
            nodes: (0..nodes).map(|_| Node::new(limits, nodes)).collect(),
            connections: BTreeMap::new(),
            lanes: (0..nodes * nodes).map(|_| Lane::default()).collect(),
            messages: Vec::new(),
            receives: Vec::new(),
            regions: BTreeMap::new(),
            next_key: 0,
            blocked: BTreeSet::new(),
            weights,
            steps: random.random_range(50..3_000),
            counts: Counts::default(),
            random,
            limits,
        };
        for node in 0..nodes {
            (node..nodes).for_each(|other| simulation.begin_connection(node, other));
        }
        simulation
    }

    /// Lets programs and lanes act at random, and then lets everything end.
    pub fn live(mut self) -> Result<Counts, String> {
        for _ in 0..self.steps {
            self.step()?;
            self.check()?;
        }
        self.drain()?;
        for node in &self.nodes {
            self.counts.add_all(transitions(node.endpoint.counts()));
        }
        Ok(self.counts)
    }

    fn begin_connection(&mut self, node: usize, other: usize) {
        let fragment_bytes = self.random.random_range(41..600);
        let connection =
            Connection { fragment_bytes, is_connected: [false; 2], is_dead: false, knows_end: [false; 2] };
        self.connections.insert(pair(node, other).0, connection);
    }

    fn lane(&mut self, source: usize, target: usize) -> &mut Lane {
        let nodes = self.nodes.len();
        &mut self.lanes[source * nodes + target]
    }

    fn any_node(&mut self) -> usize {
        self.random.random_range(0..self.nodes.len())
    }

    fn step(&mut self) -> Result<(), String> {
        let (node, other) = (self.any_node(), self.any_node());
        let Weights { sends, receives, claims, deliveries, ends } = self.weights;
        let mut draw = self.random.random_range(0..sends + receives + claims + 3 * deliveries + ends + 8);
        let mut is = |weight: u32| {
            let is_drawn = draw < weight;
            draw = if is_drawn { u32::MAX } else { draw - weight.min(draw) };
            is_drawn
        };
        if is(sends) {
            self.send(node, other)
        } else if is(receives) {
            let wanted = self.any_wanted();
            let capacity = self.any_length();
            self.receive(node, wanted, capacity)
        } else if is(claims) {
            match self.random.random_range(0..4) {
                0 => self.peek(node),
                1 => self.claim(node),
                2 => self.use_claim(node),
                _ => self.cancel(node),
            }
        } else if is(deliveries) {
            self.transmit_ready(node, other)
        } else if is(deliveries) {
            self.deliver_message(node, other).map(drop)
        } else if is(deliveries) {
            self.deliver_bulk(node, other)?;
            self.deliver_answer(node, other);
            Ok(())
        } else if is(ends) {
            self.end(node, other);
            Ok(())
        } else if is(2) {
            self.connect(node, other);
            Ok(())
        } else if is(2) {
            self.answer_expose(node);
            Ok(())
        } else {
            let most = self.random.random_range(0..20);
            self.take_events(node, most).map(drop)
        }
    }

    fn any_tag(&mut self) -> u64 {
        self.random.random_range(0..5) | u64::from(self.random.random_bool(0.2)) << 63
    }

    fn any_length(&mut self) -> u64 {
        match self.random.random_range(0..10) {
            0 => 0,
            1..7 => self.random.random_range(0..500),
            _ => self.random.random_range(0..3_000),
        }
    }

    fn any_wanted(&mut self) -> Wanted {
        let source = self.random.random_bool(0.6).then(|| self.any_node());
        let ignore = [0, 0, 1 << 63, 1 << 63, 3, u64::MAX, self.random.random_range(0..100)];
        Wanted { source, tag: self.any_tag(), ignore: ignore[self.random.random_range(0..ignore.len())] }
    }

    fn knows_end(&self, node: usize, other: usize) -> bool {
        let (ends, place) = pair(node, other);
        self.connections[&ends].knows_end[place]
    }

    fn send(&mut self, node: usize, target: usize) -> Result<(), String> {
        let data = match self.random.random_range(0..3) {
            0 => None,
            1 => Some(self.random.random_range(0..1 << 32)),
            _ => Some(self.random.random()),
        };
        let is_synchronous = self.random.random_bool(0.2);
        let send = Send { tag: self.any_tag(), data, length: self.any_length(), is_synchronous };
        let number = self.messages.len();
        let knows_end = self.knows_end(node, target);
        let peer = self.nodes[node].peers[target];
        if self.random.random_bool(0.5) && self.send_at_once(node, target, send)? {
            return ensure(!knows_end, || "a message has left for a peer that has ended".to_owned());
        }
        match self.nodes[node].endpoint.send(peer, send, number) {
            Ok(()) => {
                ensure(!knows_end, || "a send to a peer that has ended was accepted".to_owned())?;
                self.nodes[node].under_way.0 += 1;
                self.lane(node, target).order.push_back(number);
                if node == target {
                    self.counts.note("simulation: messages to oneself");
                }
                let [is_request, is_taken, is_ended, may_fail] = [false; 4];
                let message =
                    Message { source: node, target, send, is_request, is_taken, is_ended, may_fail };
                self.messages.push(message);
                Ok(())
            }
            Err((Refused::Full, _)) => {
                self.counts.note("simulation: sends refused");
                ensure(self.nodes[node].under_way.0 == self.limits.sends, || {
                    "a send was refused early".to_owned()
                })
            }
            Err((reason, _)) => {
                ensure(knows_end && reason == Refused::Ended, || format!("a send was refused: {reason}"))
            }
        }
    }

    /// Sends a message without its endpoint's queue. `false`: it cannot leave yet.
    fn send_at_once(&mut self, node: usize, target: usize, send: Send) -> Result<bool, String> {
        let room = self.random.random_range(0..8);
        let Connection { is_dead, fragment_bytes, .. } = self.connections[&pair(node, target).0];
        let nodes = self.nodes.len();
        let (number, lane) = (self.messages.len(), &mut self.lanes[node * nodes + target]);
        let at = &mut self.nodes[node];
        let (mut is_too_long, queued) = (false, at.endpoint.under_way());
        let has_left = at.endpoint.send_at_once(at.peers[target], &send, |head| {
            if is_dead || lane.messages.len() >= room {
                return false;
            }
            let mut own = [0; EagerHead::BYTES_MAX];
            let length = head.write(&mut own);
            let bytes = [&own[..length], &payload(number, 0..send.length)].concat();
            is_too_long = bytes.len() > fragment_bytes;
            lane.messages.push_back(bytes);
            lane.order.push_back(number);
            true
        });
        ensure(!is_too_long, || "a frame is longer than the link's".to_owned())?;
        ensure(at.endpoint.under_way() == queued, || "a message that has left is under way".to_owned())?;
        if has_left {
            let (source, is_ended, [is_request, is_taken, may_fail]) = (node, true, [false; 3]);
            let message = Message { source, target, send, is_request, is_taken, is_ended, may_fail };
            self.messages.push(message);
        }
        Ok(has_left)
    }

    /// A new receive, which is not known to the endpoint yet.
    fn new_receive(&mut self, node: usize, capacity: u64) -> Buffer {
        let (receive, message, [is_ended, may_fail]) = (self.receives.len(), None, [false; 2]);
        self.receives.push(Receive { node, capacity, message, is_ended, may_fail });
        Buffer { receive, capacity, bytes: Vec::new() }
    }

    fn receive(&mut self, node: usize, wanted: Wanted, capacity: u64) -> Result<(), String> {
        let buffer = self.new_receive(node, capacity);
        let number = buffer.receive;
        let will_do = self.random.random_bool(0.5);
        let at = &mut self.nodes[node];
        let (selector, mut told) = (at.selector(wanted), None);
        let tell = |buffer: &Buffer, envelope: &Envelope, written| {
            told = will_do.then(|| (buffer.clone(), *envelope, written));
            will_do
        };
        let received = at.endpoint.receive_at_once(selector, || buffer, tell);
        let waits = match received {
            Ok(waits) => waits,
            Err(reason) => {
                self.receives.pop();
                self.counts.note("simulation: receives refused");
                let is_full = at.under_way.1 == self.limits.receives;
                return ensure(is_full && reason == Refused::Full, || {
                    format!("a receive was refused: {reason}")
                });
            }
        };
        at.under_way.1 += 1;
        if at.model.first(wanted).is_none()
            && wanted.source.is_some_and(|source| self.knows_end(node, source))
        {
            self.receives[number].may_fail = true;
            return ensure(waits.is_none(), || "a receive waits for a peer that has ended".to_owned());
        }
        let at = &mut self.nodes[node];
        let arrived = at.model.post(number, wanted);
        ensure(arrived.is_some() != waits.is_some(), || {
            format!("{wanted:?} took {arrived:?} in the model only")
        })?;
        match (arrived, waits) {
            (Some(arrived), _) => {
                self.match_up(number, arrived);
                if let Some((buffer, envelope, written)) = told {
                    self.received(node, &buffer, envelope, written)?;
                }
            }
            (None, Some(id)) => at.receives.push((id, number)),
            _ => {}
        }
        Ok(())
    }

    fn match_up(&mut self, receive: usize, arrived: Arrived) {
        self.receives[receive].message = Some(arrived.message);
        self.messages[arrived.message].is_taken = true;
        let is_lost = arrived.is_request && self.knows_end(self.receives[receive].node, arrived.source);
        self.receives[receive].may_fail |= is_lost;
    }

    fn is_envelope(&self, envelope: &Envelope, node: usize, message: usize) -> bool {
        let Message { source, target, send, .. } = self.messages[message];
        // A source that has come back has another number, and its earlier messages are forgotten.
        let is_source = self.nodes[node].peers[source] == envelope.source;
        let Send { tag, data, length, .. } = send;
        target == node && is_source && (envelope.tag, envelope.data, envelope.length) == (tag, data, length)
    }

    fn peek(&mut self, node: usize) -> Result<(), String> {
        let wanted = self.any_wanted();
        let at = &mut self.nodes[node];
        let (found, expected) = (at.endpoint.peek(&at.selector(wanted)), at.model.first(wanted));
        if found.is_none() {
            self.counts.note("simulation: peeks that found nothing");
        }
        let is_same = match (found, expected) {
            (Some(envelope), Some(arrived)) => self.is_envelope(&envelope, node, arrived.message),
            (found, expected) => found.is_none() && expected.is_none(),
        };
        ensure(is_same, || format!("a peek found {found:?} instead of {expected:?}"))
    }

    fn claim(&mut self, node: usize) -> Result<(), String> {
        let wanted = self.any_wanted();
        let at = &mut self.nodes[node];
        let expected = at.model.first(wanted);
        match (at.endpoint.claim(&at.selector(wanted)), expected) {
            (Some((claim, envelope)), Some(arrived)) => {
                at.model.claim(arrived);
                at.claims.push((claim, arrived.message));
                let is_same = self.is_envelope(&envelope, node, arrived.message);
                ensure(is_same, || format!("{envelope:?} was claimed instead of {arrived:?}"))
            }
            (None, None) => Ok(()),
            other => Err(format!("claimed: {other:?}")),
        }
    }

    fn use_claim(&mut self, node: usize) -> Result<(), String> {
        if self.nodes[node].claims.is_empty() {
            return Ok(());
        }
        let place = self.random.random_range(0..self.nodes[node].claims.len());
        let (claim, message) = self.nodes[node].claims.swap_remove(place);
        if self.random.random_bool(0.5) {
            return self.discard(node, claim, message);
        }
        let capacity = self.any_length();
        let buffer = self.new_receive(node, capacity);
        let number = buffer.receive;
        let at = &mut self.nodes[node];
        match at.endpoint.receive_claimed(claim, buffer) {
            Ok(()) => {
                at.under_way.1 += 1;
                let arrived = at.model.unclaim(message).ok_or("a lost claim was received")?;
                self.match_up(number, arrived);
                Ok(())
            }
            Err((reason, _)) => {
                self.receives.pop();
                if reason == Refused::Full {
                    at.claims.push((claim, message));
                    return ensure(at.under_way.1 == self.limits.receives, || "refused early".to_owned());
                }
                self.counts.note("simulation: claims lost with a forgotten peer");
                ensure(at.model.unclaim(message).is_none(), || format!("a claim was refused: {reason}"))
            }
        }
    }

    fn discard(&mut self, node: usize, claim: bywire_match::ClaimId, message: usize) -> Result<(), String> {
        let at = &mut self.nodes[node];
        let is_discarded = at.endpoint.discard(claim);
        self.messages[message].is_taken |= is_discarded;
        let is_there = at.model.unclaim(message).is_some();
        ensure(is_discarded == is_there, || "a claim was discarded or not, unlike the model's".to_owned())
    }

    fn cancel(&mut self, node: usize) -> Result<(), String> {
        if self.nodes[node].receives.is_empty() {
            return Ok(());
        }
        let place = self.random.random_range(0..self.nodes[node].receives.len());
        let at = &mut self.nodes[node];
        let (id, receive) = at.receives.swap_remove(place);
        let (buffer, waited) = (at.endpoint.cancel(id), at.model.cancel(receive));
        if waited {
            at.under_way.1 -= 1;
            self.receives[receive].is_ended = true;
        }
        let is_same = buffer.map(|buffer| buffer.receive) == waited.then_some(receive);
        ensure(is_same, || format!("receive {receive} was cancelled or not, unlike in the model"))
    }

    /// Transmits to a peer that the endpoint names, or to any.
    fn transmit_ready(&mut self, node: usize, other: usize) -> Result<(), String> {
        let named = if self.random.random_bool(0.5) { self.nodes[node].endpoint.next_ready() } else { None };
        let Some(peer) = named else { return self.transmit(node, other) };
        match self.nodes[node].peers.iter().position(|known| *known == peer) {
            Some(target) => self.transmit(node, target),
            None => Err("a peer is ready that was forgotten".to_owned()),
        }
    }

    fn transmit(&mut self, node: usize, target: usize) -> Result<(), String> {
        let room = [self.random.random_range(0..8), self.random.random_range(0..8)];
        let Connection { is_dead, fragment_bytes, .. } = self.connections[&pair(node, target).0];
        let nodes = self.nodes.len();
        let (lane, messages) = (&mut self.lanes[node * nodes + target], &self.messages);
        let at = &mut self.nodes[node];
        let (mut has_room, mut is_too_long) = (true, false);
        let taken_all = at.endpoint.transmit(at.peers[target], |frame| {
            let is_message = matches!(frame, Frame::Message { .. });
            let used = if is_message { lane.messages.len() } else { lane.bulk.len() };
            if is_dead || used >= room[usize::from(is_message)] {
                has_room = false;
                return false;
            }
            let bytes = match frame {
                Frame::Message { head, payload: None } => head.to_vec(),
                Frame::Message { head, payload: Some(message) } => {
                    [head, &payload(*message, 0..messages[*message].send.length)].concat()
                }
                Frame::Piece { head, payload: message, range } => [head, &payload(*message, range)].concat(),
                Frame::Put { send, payload: message, length, key, note } => {
                    let bytes = payload(*message, 0..length);
                    lane.bulk.push_back(Bulk::Put { send, bytes, key, note });
                    return true;
                }
            };
            is_too_long |= bytes.len() > fragment_bytes;
            match is_message {
                true => lane.messages.push_back(bytes),
                false => lane.bulk.push_back(Bulk::Piece(bytes)),
            }
            true
        });
        if !has_room {
            self.counts.note("simulation: the link had no room");
            self.blocked.insert((node, target));
        }
        ensure(!is_too_long, || "a frame is longer than the link's".to_owned())?;
        ensure(taken_all == has_room, || "an endpoint is wrong about what the link has taken".to_owned())
    }

    fn can_deliver(&self, source: usize, target: usize) -> bool {
        let (ends, place) = pair(target, source);
        let connection = &self.connections[&ends];
        connection.is_connected[place] && !connection.is_dead
    }

    fn deliver_message(&mut self, source: usize, target: usize) -> Result<bool, String> {
        if !self.can_deliver(source, target) {
            return Ok(false);
        }
        let Some(frame) = self.lane(source, target).messages.pop_front() else { return Ok(false) };
        let (head, bytes) = Head::parse(&frame).map_err(|malformed| malformed.to_string())?;
        let (tag, data, length, is_request) = match head {
            Head::Eager { tag, data, .. } => (tag, data, bytes.len() as u64, false),
            Head::Request { tag, data, length, .. } => (tag, data, length, true),
            _ => return self.arrive(source, target, &frame).map(|()| true),
        };
        let message =
            self.lane(source, target).order.pop_front().ok_or("more messages came than were sent")?;
        let sent = &mut self.messages[message];
        sent.is_request = is_request;
        let is_next = (tag, data, length) == (sent.send.tag, sent.send.data, sent.send.length);
        ensure(is_next, || format!("{head:?} came, and message {message} is next"))?;
        let arrived = Arrived { message, source, tag, is_request };
        if let Some(receive) = self.nodes[target].model.arrive(arrived) {
            self.match_up(receive, arrived);
        }
        self.arrive(source, target, &frame).map(|()| true)
    }

    fn arrive(&mut self, source: usize, target: usize, frame: &[u8]) -> Result<(), String> {
        let will_do = self.random.random_bool(0.5);
        let at = &mut self.nodes[target];
        let mut told = None;
        let arrived = at.endpoint.arrive_at_once(at.peers[source], frame, |buffer, envelope, written| {
            told = will_do.then(|| (buffer.clone(), *envelope, written));
            will_do
        });
        let is_told = arrived.map_err(|violation| violation.to_string())?;
        ensure(is_told == told.is_some(), || "a receive that was told of was not done with".to_owned())?;
        match told {
            Some((buffer, envelope, written)) => self.received(target, &buffer, envelope, written),
            None => Ok(()),
        }
    }

    /// A receive has completed.
    fn received(
        &mut self,
        node: usize,
        buffer: &Buffer,
        envelope: Envelope,
        written: u64,
    ) -> Result<(), String> {
        let Receive { capacity, message, .. } = *self.end_receive(node, buffer.receive)?;
        let message = message.ok_or("a receive that has matched nothing has completed")?;
        let Send { tag, data, length, .. } = self.messages[message].send;
        ensure((envelope.tag, envelope.data, envelope.length) == (tag, data, length), || {
            format!("receive {} got {envelope:?} and not message {message}", buffer.receive)
        })?;
        ensure(written == length.min(capacity), || format!("{written} bytes of message {message}"))?;
        ensure(buffer.bytes == payload(message, 0..written), || format!("bytes of message {message}"))
    }

    fn deliver_bulk(&mut self, source: usize, target: usize) -> Result<bool, String> {
        if !self.can_deliver(source, target) {
            return Ok(false);
        }
        let (send, bytes, key, note) = match self.lane(source, target).bulk.pop_front() {
            None => return Ok(false),
            Some(Bulk::Piece(frame)) => return self.arrive(source, target, &frame).map(|()| true),
            Some(Bulk::Put { send, bytes, key, note }) => (send, bytes, key, note),
        };
        let (owner, transfer) = self.regions.remove(&key).ok_or("a put names no region")?;
        ensure(owner == target, || "a put names a region of another node".to_owned())?;
        let at = &mut self.nodes[target];
        let buffer = at.endpoint.sink(transfer).ok_or("a put is for no receive")?;
        buffer.bytes.extend_from_slice(&bytes);
        at.endpoint.notified(at.peers[source], &note).map_err(|violation| violation.to_string())?;
        self.lane(source, target).answers.push_back(send);
        Ok(true)
    }

    fn deliver_answer(&mut self, source: usize, target: usize) -> bool {
        let answer = self.lane(source, target).answers.pop_front();
        if let Some(send) = answer {
            self.nodes[source].endpoint.put_done(send, true);
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
            at.endpoint.connected(at.peers[other], connection.fragment_bytes);
        }
    }

    /// A connection ends, or an end is told of it, or the two begin another one.
    fn end(&mut self, node: usize, other: usize) {
        if node == other {
            return;
        }
        let (ends, place) = pair(node, other);
        let Some(connection) = self.connections.get_mut(&ends) else { return };
        if !connection.is_dead {
            if self.random.random_bool(0.3) {
                connection.is_dead = true;
                self.counts.note("simulation: connections ended");
                for (source, target) in [(node, other), (other, node)] {
                    let lane = std::mem::take(self.lane(source, target));
                    if !lane.order.is_empty() {
                        self.counts.note("simulation: messages cut off by an end");
                    }
                }
            }
        } else if !connection.knows_end[place] {
            self.told_of_end(node, other);
            let at = &mut self.nodes[node];
            at.endpoint.disconnected(at.peers[other]);
        } else {
            self.counts.note("simulation: peers that came back");
            for (node, other) in [(node, other), (other, node)] {
                self.told_of_end(node, other);
                let at = &mut self.nodes[node];
                // This ends the peer too, if the node was not told.
                at.endpoint.forget(at.peers[other]);
                at.model.forget(other);
                at.peers[other] = at.endpoint.add_peer().expect("the room of the one that was forgotten");
            }
            self.begin_connection(node, other);
        }
    }

    /// What the end of a peer means to a node's program.
    fn told_of_end(&mut self, node: usize, other: usize) {
        let (ends, place) = pair(node, other);
        let Some(connection) = self.connections.get_mut(&ends) else { return };
        if std::mem::replace(&mut connection.knows_end[place], true) {
            return;
        }
        self.lane(node, other).order.clear();
        let sends =
            self.messages.iter_mut().filter(|message| (message.source, message.target) == (node, other));
        sends.for_each(|message| message.may_fail = true);
        for receive in self.nodes[node].model.disconnect(other) {
            self.receives[receive].may_fail = true;
        }
        for receive in self.receives.iter_mut().filter(|receive| receive.node == node && !receive.is_ended) {
            let is_of =
                |message: usize| self.messages[message].source == other && self.messages[message].is_request;
            receive.may_fail |= receive.message.is_some_and(is_of);
        }
    }

    fn answer_expose(&mut self, node: usize) -> bool {
        let Some(transfer) = self.nodes[node].exposes.choose(&mut self.random).copied() else { return false };
        self.nodes[node].exposes.retain(|other| *other != transfer);
        let key = self.random.random_bool(0.7).then_some(self.next_key);
        if let Some(key) = key {
            self.next_key += 1;
            self.regions.insert(key, (node, transfer));
        }
        if !self.nodes[node].endpoint.grant(transfer, key) {
            self.counts.note("simulation: exposed buffers whose peer had ended");
        }
        true
    }

    fn take_events(&mut self, node: usize, most: usize) -> Result<bool, String> {
        for taken in 0..most {
            let Some(event) = self.nodes[node].endpoint.poll_event() else { return Ok(taken > 0) };
            match event {
                Event::Expose { transfer, .. } => self.nodes[node].exposes.push(transfer),
                Event::Sent { send, .. } => self.end_send(node, send, false)?,
                Event::SendFailed { send, .. } => self.end_send(node, send, true)?,
                Event::Received { receive, envelope, written } => {
                    self.received(node, &receive, envelope, written)?;
                }
                Event::ReceiveFailed { receive: buffer, .. } => {
                    let may_fail = self.end_receive(node, buffer.receive)?.may_fail;
                    ensure(may_fail, || format!("receive {} failed", buffer.receive))?;
                }
            }
        }
        Ok(most > 0)
    }

    fn end_send(&mut self, node: usize, message: usize, has_failed: bool) -> Result<(), String> {
        self.nodes[node].under_way.0 -= 1;
        let sent = &mut self.messages[message];
        ensure(!sent.is_ended && sent.source == node, || {
            format!("the send of message {message} ended twice")
        })?;
        sent.is_ended = true;
        if has_failed {
            return ensure(sent.may_fail, || format!("the send of message {message} failed"));
        }
        let waits = sent.send.is_synchronous || sent.is_request;
        ensure(sent.is_taken || !waits, || {
            format!("the send of message {message} completed before its receive")
        })
    }

    fn end_receive(&mut self, node: usize, receive: usize) -> Result<&Receive, String> {
        self.nodes[node].under_way.1 -= 1;
        let ended = &mut self.receives[receive];
        ensure(!ended.is_ended && ended.node == node, || format!("receive {receive} ended twice"))?;
        ended.is_ended = true;
        Ok(ended)
    }

    /// What holds at every moment.
    fn check(&mut self) -> Result<(), String> {
        let limits = self.limits;
        for node in &self.nodes {
            let (bytes, waiting) = (node.endpoint.unexpected_bytes(), node.model.unexpected().len());
            let most = limits.growth_bytes_max + limits.window_bytes * self.nodes.len() as u64;
            ensure(bytes <= most, || format!("{bytes} unexpected bytes, at most {most}"))?;
            ensure(node.endpoint.unexpected_messages() == waiting, || "unexpected messages".to_owned())?;
            ensure(node.endpoint.under_way() == node.under_way, || "operations under way".to_owned())?;
            if waiting > 64 {
                self.counts.note("simulation: more than 64 messages wait");
            }
            if node.model.posted().len() > 64 {
                self.counts.note("simulation: more than 64 receives wait");
            }
        }
        Ok(())
    }

    /// Lets everything end that can. The endpoints name the peers to transmit to.
    fn drain(&mut self) -> Result<(), String> {
        let nodes = self.nodes.len();
        let all = move || (0..nodes).flat_map(move |node| (0..nodes).map(move |other| (node, other)));
        for (node, other) in all() {
            self.connect(node, other);
            if self.connections[&pair(node, other).0].is_dead {
                self.told_of_end(node, other);
                let at = &mut self.nodes[node];
                at.endpoint.disconnected(at.peers[other]);
            }
        }
        for _ in 0..ROUNDS_MAX {
            let mut is_active = false;
            for (node, other) in std::mem::take(&mut self.blocked) {
                is_active |= !self.connections[&pair(node, other).0].is_dead;
                self.transmit(node, other)?;
            }
            for node in 0..nodes {
                while let Some(peer) = self.nodes[node].endpoint.next_ready() {
                    let target = self.nodes[node].peers.iter().position(|known| *known == peer);
                    self.transmit(node, target.ok_or("a peer is ready that was forgotten")?)?;
                    is_active = true;
                }
                is_active |= self.take_events(node, 1_000)?;
                while self.answer_expose(node) {
                    is_active = true;
                }
                for (claim, message) in std::mem::take(&mut self.nodes[node].claims) {
                    self.discard(node, claim, message)?;
                    is_active = true;
                }
                if !self.nodes[node].model.unexpected().is_empty() {
                    let capacity = self.any_length();
                    self.receive(node, Wanted { source: None, tag: 0, ignore: u64::MAX }, capacity)?;
                    is_active = true;
                }
                // So that there is room for those.
                self.cancel(node)?;
            }
            for (source, target) in all() {
                is_active |= self.deliver_message(source, target)?;
                is_active |= self.deliver_bulk(source, target)?;
                is_active |= self.deliver_answer(source, target);
            }
            if !is_active {
                return self.check_end();
            }
            self.check()?;
        }
        Err("nothing begins any more, and not all has ended".to_owned())
    }

    fn check_end(&mut self) -> Result<(), String> {
        for node in 0..self.nodes.len() {
            while !self.nodes[node].receives.is_empty() {
                self.cancel(node)?;
            }
            let endpoint: &Endpoint<usize, Buffer> = &self.nodes[node].endpoint;
            ensure(endpoint.under_way() == (0, 0), || format!("{:?} never ended", endpoint.under_way()))?;
            ensure(endpoint.unexpected_bytes() == 0, || "unexpected bytes are left".to_owned())?;
        }
        let message = self.messages.iter().position(|message| !message.is_ended);
        ensure(message.is_none(), || format!("the send of message {message:?} never ended"))?;
        let receive = self.receives.iter().position(|receive| !receive.is_ended);
        ensure(receive.is_none(), || format!("receive {receive:?} never ended"))
    }
}
