//! One end: a connection, and the program that uses it.

use std::collections::BTreeSet;

use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options, Receipt, State};
use bywire_wire::frame::{LANES, Lane};
use bywire_wire::keys::{SECRET_BYTES, Secret, Side};
use bywire_wire::packet::Header;
use rand::Rng;
use rand::rngs::StdRng;

use crate::bytes::{self, Source};
use crate::counts::Counts;
use crate::network::Packet;
use crate::scenario::{HEALED_AT_NS, Scenario};

/// When an end looks again at bytes that it has not consumed.
const AGAIN_NS: u64 = 50_000;

/// One end.
#[derive(Debug)]
pub struct End {
    /// The end, and its incarnation.
    pub source: Source,
    /// The code that ships.
    pub connection: Connection<Vec<u8>>,
    inbox: Vec<Packet>,
    inbox_bytes: usize,
    /// The bytes that were added to the connection, by lane.
    pub sent: [u64; 3],
    /// Bytes that the program has consumed, by lane.
    pub consumed: [u64; 3],
    /// The bytes whose memory has come back, by lane.
    back: [u64; 3],
    datagrams_sent: u32,
    datagrams: BTreeSet<u32>,
    next_send_ns: u64,
    /// Duplicates of a packet are accepted only once. This is the set of accepted ones.
    taken_ids: BTreeSet<u64>,
    last_number: Option<u64>,
    stall_ns: Option<u64>,
    /// Before this time the end does not exist, and packets to it are lost.
    from_ns: u64,
}

/// The side of an end.
pub fn side_of(end: usize) -> Side {
    if end == 0 { Side::Initiator } else { Side::Responder }
}

/// The parameters that both ends of one incarnation share.
pub fn secret_of(scenario: &Scenario, life: u32) -> Secret {
    let mut secret = [0; SECRET_BYTES];
    secret[..8].copy_from_slice(&scenario.seed.to_le_bytes());
    secret[8..12].copy_from_slice(&life.to_le_bytes());
    secret.into()
}

impl End {
    /// One end of a connection, which exists from a given time on, and does nothing for a while if it `stalls`.
    pub fn new(source: Source, from_ns: u64, scenario: &Scenario, stalls: bool, random: &mut StdRng) -> Self {
        let end = source.end as u32;
        // A new incarnation may have the numbers of the old one. The keys differ.
        let base = if scenario.seed.is_multiple_of(2) { 100 } else { 100 + 2 * source.life };
        let mut connection = Connection::new(Options {
            side: side_of(source.end),
            security: scenario.security,
            secret: secret_of(scenario, source.life),
            connection: base + end,
            peer_connection: base + 1 - end,
            windows: scenario.windows,
            peer_windows: scenario.windows,
            route_bytes: scenario.route_bytes,
        });
        connection.set_packets_per_key(scenario.packets_per_key);
        Self {
            source,
            connection,
            inbox: Vec::new(),
            inbox_bytes: 0,
            sent: [0; 3],
            consumed: [0; 3],
            back: [0; 3],
            datagrams_sent: 0,
            datagrams: BTreeSet::new(),
            next_send_ns: 0,
            taken_ids: BTreeSet::new(),
            last_number: None,
            stall_ns: stalls.then(|| random.random_range(0..HEALED_AT_NS / 2)),
            from_ns,
        }
    }

    fn peer(&self) -> Source {
        Source { end: 1 - self.source.end, life: self.source.life }
    }

    /// The time until which it does nothing.
    pub fn idle_until_ns(&self, now_ns: u64, scenario: &Scenario) -> Option<u64> {
        let stalled_until_ns =
            self.stall_ns.filter(|at_ns| *at_ns <= now_ns).map(|at_ns| at_ns + scenario.stall_ns);
        [Some(self.from_ns), stalled_until_ns]
            .into_iter()
            .flatten()
            .filter(|until_ns| now_ns < *until_ns)
            .max()
    }

    /// Receives a packet in the socket.
    pub fn arrive(&mut self, now_ns: u64, packet: Packet, scenario: &Scenario, counts: &mut Counts) {
        if now_ns < self.from_ns {
            counts.add_fault("network: packets that met no socket", 1);
            return;
        }
        if self.inbox_bytes + packet.bytes.len() > scenario.socket_bytes {
            counts.add_fault("network: packets dropped by a full buffer", 1);
            return;
        }
        self.inbox_bytes += packet.bytes.len();
        self.inbox.push(packet);
    }

    /// Processes the batch that has arrived. Returns the number of packets, and how many of them were new.
    pub fn receive(&mut self, now_ns: u64, counts: &mut Counts) -> Result<[usize; 2], String> {
        let batch = std::mem::take(&mut self.inbox);
        self.inbox_bytes = 0;
        let (packets, mut taken) = (batch.len(), 0);
        for mut packet in batch {
            let receipt = self.connection.receive(now_ns, &mut packet.bytes);
            let is_strange = packet.life != self.source.life;
            counts.add_fault("simulation: packets of an earlier life", is_strange.into());
            match receipt {
                Receipt::Taken if packet.is_damaged => return Err("a damaged packet was taken".to_owned()),
                Receipt::Taken if is_strange => {
                    return Err("a packet of an earlier connection was taken".to_owned());
                }
                Receipt::Taken if !self.taken_ids.insert(packet.id) => {
                    return Err("a packet was taken twice".to_owned());
                }
                Receipt::Violation(violation) => {
                    return Err(format!("an honest peer broke a rule: {violation}"));
                }
                _ => taken += usize::from(receipt == Receipt::Taken),
            }
        }
        Ok([packets, taken])
    }

    /// The program's turn: it sends, and consumes received bytes.
    pub fn work(
        &mut self,
        now_ns: u64,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        self.send(now_ns, scenario, random);
        for lane in LANES {
            self.consume(lane, scenario, random, counts)?;
            while let Some(piece) = self.connection.take_back(lane) {
                let at = &mut self.back[lane as usize];
                if !bytes::are(self.source, lane, *at, &piece) {
                    return Err("memory came back out of order".to_owned());
                }
                *at += piece.len() as u64;
                if *at > self.connection.acknowledged(lane) {
                    return Err("memory came back before its bytes had arrived".to_owned());
                }
            }
        }
        while let Some(datagram) = self.connection.pop_datagram() {
            let (number, rest) = datagram.bytes.split_first_chunk().ok_or("an empty datagram came")?;
            let number = u32::from_le_bytes(*number);
            let made = make_datagram(self.peer(), number);
            if made[4..] != *rest || lane_of(number) != datagram.lane {
                return Err(format!("datagram {number} came with other bytes"));
            }
            if !self.datagrams.insert(number) {
                return Err(format!("datagram {number} came twice"));
            }
        }
        Ok(())
    }

    fn send(&mut self, now_ns: u64, scenario: &Scenario, random: &mut StdRng) {
        if now_ns < self.next_send_ns {
            return;
        }
        for lane in LANES {
            let all = scenario.bytes[self.source.end][lane as usize];
            let sent = &mut self.sent[lane as usize];
            // In a thousand steps at most, even if pieces are short.
            let longest = (scenario.piece_bytes_max as u64).max(all / 200);
            let length = random.random_range(0..=longest).min(all - *sent);
            let piece = bytes::make(self.source, lane, *sent, length as usize);
            *sent = self.connection.send(lane, piece).unwrap_or(*sent);
        }
        // Sometimes all of them at once, which is more than may wait.
        let burst = if random.random_bool(0.003) { u32::MAX } else { 1 };
        for _ in 0..burst.min(scenario.datagrams - self.datagrams_sent) {
            let number = self.datagrams_sent;
            self.datagrams_sent += 1;
            self.connection.send_datagram(lane_of(number), &make_datagram(self.source, number));
        }
        self.next_send_ns = now_ns + 1 + random.random_range(0..=scenario.pause_ns);
    }

    fn consume(
        &mut self,
        lane: Lane,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Result<(), String> {
        if self.is_standing(lane, scenario) {
            return Ok(());
        }
        let (first, second) = self.connection.peek(lane);
        let all = [first, second].concat();
        let length = if random.random_bool(0.5) { all.len() } else { random.random_range(0..=all.len()) };
        let at = self.consumed[lane as usize];
        if !bytes::are(self.peer(), lane, at, &all) {
            return Err(format!("wrong bytes came on the {lane:?} lane from {at} on"));
        }
        if lane == Lane::High && length > 0 && self.is_low_full(scenario) {
            counts.add_fault("simulation: high bytes while the low lane stands full", length as u64);
        }
        self.consumed[lane as usize] += length as u64;
        self.connection.take(lane, length as u64);
        if random.random_bool(0.1) {
            self.connection.request_credit_report(lane);
        }
        Ok(())
    }

    /// Does the program leave the lane alone until everything else has arrived?
    fn is_standing(&self, lane: Lane, scenario: &Scenario) -> bool {
        let others = [Lane::Reply, Lane::High].map(|lane| lane as usize);
        scenario.is_low_standing
            && self.source.end == 1
            && lane == Lane::Low
            && others.iter().any(|lane| self.consumed[*lane] < scenario.bytes[0][*lane])
    }

    /// Is the low lane blocked, with all the bytes that its window permits?
    fn is_low_full(&self, scenario: &Scenario) -> bool {
        let (first, second) = self.connection.peek(Lane::Low);
        self.is_standing(Lane::Low, scenario)
            && (first.len() + second.len()) as u64 == scenario.windows[Lane::Low as usize]
    }

    /// The packets that leave now.
    pub fn transmit(&mut self, now_ns: u64, batch: &mut Batch) -> Result<(), String> {
        let (before, _) = self.connection.flight();
        let passed = self.connection.counts().beyond_window;
        batch.clear();
        self.connection.transmit(now_ns, batch);
        let (after, window) = self.connection.flight();
        let passed = (self.connection.counts().beyond_window - passed) as usize;
        // Packets that obey the window fit into it when they leave. Only these others exceed it.
        let mut lengths: Vec<u64> = batch.packets().map(|packet| packet.len() as u64).collect();
        lengths.sort_unstable_by(|one, other| other.cmp(one));
        let most = before.max(window) + lengths.iter().take(passed).sum::<u64>();
        if after > most {
            return Err(format!(
                "{after} bytes are in flight after {before}; the window is {window}, and {passed} packets may pass it"
            ));
        }
        for packet in batch.packets() {
            let header = Header::parse(packet).ok_or("a packet without a header left")?;
            if self.last_number.is_some_and(|last| header.number <= last) {
                return Err(format!("number {} was used twice", header.number));
            }
            self.last_number = Some(header.number);
        }
        Ok(())
    }

    /// When it next has work to do.
    pub fn next_ns(&self, now_ns: u64, scenario: &Scenario) -> Option<u64> {
        let all = scenario.bytes[self.source.end];
        let is_sending = self.sent != all || self.datagrams_sent < scenario.datagrams;
        let is_left = LANES.iter().any(|lane| {
            let (first, second) = self.connection.peek(*lane);
            first.len() + second.len() > 0 && !self.is_standing(*lane, scenario)
        });
        let inbox_ns = (!self.inbox.is_empty()).then_some(now_ns);
        let program_ns = is_sending.then_some(self.next_send_ns);
        let again_ns = is_left.then_some(now_ns + AGAIN_NS);
        [inbox_ns, program_ns, again_ns, self.connection.next_timeout_ns()].into_iter().flatten().min()
    }

    /// Has it sent everything, and has everything arrived?
    pub fn is_done(&self, scenario: &Scenario) -> bool {
        self.sent == scenario.bytes[self.source.end]
            && self.consumed == scenario.bytes[1 - self.source.end]
            && self.datagrams_sent == scenario.datagrams
            && self.connection.is_drained()
    }

    /// The number of datagrams that have arrived.
    pub fn datagrams(&self) -> usize {
        self.datagrams.len()
    }

    /// Checks the invariants of both ends: what this end believes about its peer must agree with the counts of the
    /// peer's own program.
    pub fn check(&self, peer: &Self, scenario: &Scenario) -> Result<(), String> {
        for lane in LANES {
            let (first, second) = peer.connection.peek(lane);
            let consumed = peer.consumed[lane as usize];
            let waits = (first.len() + second.len()) as u64;
            if self.connection.acknowledged(lane) > consumed + waits {
                return Err(format!("more is acknowledged of the {lane:?} lane than has arrived"));
            }
            if self.connection.taken(lane) > consumed {
                return Err(format!("more is taken of the {lane:?} lane than was consumed"));
            }
            if waits > scenario.windows[lane as usize] {
                return Err(format!("more waits on the {lane:?} lane than its window"));
            }
        }
        let most: u64 = scenario.windows.iter().map(|window| window.next_power_of_two()).sum();
        if self.connection.memory_bytes() as u64 > most {
            return Err("lanes hold more memory than their windows".to_owned());
        }
        if self.connection.state() != State::Open {
            return Err(format!("the connection ended: {:?}", self.connection.state()));
        }
        Ok(())
    }

    /// Checks the final state, when everything has arrived and is reported.
    pub fn check_end(&self, peer: &Self) -> Result<(), String> {
        for lane in LANES {
            let place = lane as usize;
            let (all, consumed) = (self.sent[place], peer.consumed[place]);
            let told = [self.connection.acknowledged(lane), self.connection.taken(lane), self.back[place]];
            if consumed != all || told != [all; 3] {
                return Err(format!(
                    "{all} bytes left on the {lane:?} lane, the peer has consumed {consumed}, and acknowledged, taken and \
                     given back are {told:?}"
                ));
            }
        }
        let joined = self.connection.datagram_bytes();
        if joined > 0 { Err(format!("{joined} bytes of incomplete datagrams stay")) } else { Ok(()) }
    }
}

/// Datagrams of many lengths, short and long.
fn make_datagram(source: Source, number: u32) -> Vec<u8> {
    let length = match number % 4 {
        0 => 4,
        1 => 4 + (number as usize * 37) % 1500,
        // All of one length, so that pieces of two could be confused.
        2 => 5000,
        _ => 60,
    };
    let mut datagram = number.to_le_bytes().to_vec();
    datagram.extend(bytes::make(source, Lane::Reply, u64::from(number) << 32, length - 4));
    datagram
}

fn lane_of(number: u32) -> Lane {
    if number.is_multiple_of(3) { Lane::High } else { Lane::Low }
}
