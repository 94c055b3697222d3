//! One end: a connection, and the program that uses it.

use std::collections::BTreeSet;

use bywire_wire::batch::Batch;
use bywire_wire::connection::{Connection, Options, Receipt, State};
use bywire_wire::frame::{LANES, Lane};
use bywire_wire::keys::Side;
use bywire_wire::packet::Header;
use rand::Rng;
use rand::rngs::StdRng;

use crate::bytes;
use crate::counts::Counts;
use crate::network::Packet;
use crate::scenario::{HEALED_AT_NS, Scenario};

/// How soon an end looks again at what it has left lying.
const AGAIN_NS: u64 = 50_000;

/// One end.
#[derive(Debug)]
pub struct End {
    /// 0 or 1.
    pub index: usize,
    /// The very code that ships.
    pub connection: Connection<Vec<u8>>,
    inbox: Vec<Packet>,
    inbox_bytes: usize,
    /// Bytes that are in the connection, and those that the program has consumed, by lane.
    pub sent: [u64; 3],
    /// Bytes that the program has consumed, by lane.
    pub consumed: [u64; 3],
    back: [u64; 3],
    datagrams_sent: u32,
    datagrams: BTreeSet<u32>,
    next_send_ns: u64,
    /// Copies of one packet are taken once.
    taken_ids: BTreeSet<u64>,
    last_number: Option<u64>,
    stall_ns: Option<u64>,
}

impl End {
    /// One end of a connection, which does nothing for a while if it `stalls`.
    pub fn new(index: usize, scenario: &Scenario, stalls: bool, random: &mut StdRng) -> Self {
        let side = if index == 0 { Side::Initiator } else { Side::Responder };
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&scenario.seed.to_le_bytes());
        let mut connection = Connection::new(Options {
            side,
            security: scenario.security,
            secret,
            connection: 100 + index as u32,
            peer_connection: 101 - index as u32,
            windows: scenario.windows,
            peer_windows: scenario.windows,
            route_bytes: scenario.route_bytes,
        });
        connection.set_packets_per_key(scenario.packets_per_key);
        Self {
            index,
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
        }
    }

    /// Until when it does nothing.
    pub fn stalled_until_ns(&self, now_ns: u64, scenario: &Scenario) -> Option<u64> {
        let from_ns = self.stall_ns.filter(|from_ns| *from_ns <= now_ns)?;
        let until_ns = from_ns + scenario.stall_ns;
        (now_ns < until_ns).then_some(until_ns)
    }

    /// A packet comes to the socket.
    pub fn arrive(&mut self, packet: Packet, scenario: &Scenario, counts: &mut Counts) {
        if self.inbox_bytes + packet.bytes.len() > scenario.socket_bytes {
            counts.add_fault("network: packets dropped by a full buffer", 1);
            return;
        }
        self.inbox_bytes += packet.bytes.len();
        self.inbox.push(packet);
    }

    /// Takes in the batch that has come.
    pub fn receive(&mut self, now_ns: u64) -> Result<usize, String> {
        let batch = std::mem::take(&mut self.inbox);
        self.inbox_bytes = 0;
        let packets = batch.len();
        for mut packet in batch {
            let receipt = self.connection.receive(now_ns, &mut packet.bytes);
            match receipt {
                Receipt::Taken if packet.is_damaged => return Err("a damaged packet was taken".to_owned()),
                Receipt::Taken if !self.taken_ids.insert(packet.id) => {
                    return Err("a packet was taken twice".to_owned());
                }
                Receipt::Violation(violation) => {
                    return Err(format!("an honest peer broke a rule: {violation}"));
                }
                _ => {}
            }
        }
        Ok(packets)
    }

    /// What the program does: it sends, and consumes what has come.
    pub fn work(&mut self, now_ns: u64, scenario: &Scenario, random: &mut StdRng) -> Result<(), String> {
        self.send(now_ns, scenario, random);
        for lane in LANES {
            self.consume(lane, scenario, random)?;
            while let Some(piece) = self.connection.take_back(lane) {
                let at = &mut self.back[lane as usize];
                if !bytes::are(self.index, lane, *at, &piece) {
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
            let made = make_datagram(1 - self.index, number);
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
            let all = scenario.bytes[self.index][lane as usize];
            let sent = &mut self.sent[lane as usize];
            // In a thousand steps at most, however short pieces are.
            let longest = (scenario.piece_bytes_max as u64).max(all / 200);
            let length = random.random_range(0..=longest).min(all - *sent);
            let piece = bytes::make(self.index, lane, *sent, length as usize);
            *sent = self.connection.send(lane, piece).unwrap_or(*sent);
        }
        if self.datagrams_sent < scenario.datagrams {
            let number = self.datagrams_sent;
            self.datagrams_sent += 1;
            self.connection.send_datagram(lane_of(number), &make_datagram(self.index, number));
        }
        self.next_send_ns = now_ns + 1 + random.random_range(0..=scenario.pause_ns);
    }

    fn consume(&mut self, lane: Lane, scenario: &Scenario, random: &mut StdRng) -> Result<(), String> {
        if self.is_standing(lane, scenario) {
            return Ok(());
        }
        let (first, second) = self.connection.peek(lane);
        let all = [first, second].concat();
        let length = if random.random_bool(0.5) { all.len() } else { random.random_range(0..=all.len()) };
        let at = &mut self.consumed[lane as usize];
        if !bytes::are(1 - self.index, lane, *at, &all) {
            return Err(format!("wrong bytes came on the {lane:?} lane from {at} on"));
        }
        *at += length as u64;
        self.connection.take(lane, length as u64);
        if random.random_bool(0.1) {
            self.connection.urge_credit(lane);
        }
        Ok(())
    }

    /// Does the program leave the lane alone until everything else has come?
    fn is_standing(&self, lane: Lane, scenario: &Scenario) -> bool {
        let others = [Lane::Reply, Lane::High].map(|lane| lane as usize);
        scenario.is_low_standing
            && self.index == 1
            && lane == Lane::Low
            && others.iter().any(|lane| self.consumed[*lane] < scenario.bytes[0][*lane])
    }

    /// What leaves now.
    pub fn transmit(&mut self, now_ns: u64, batch: &mut Batch) -> Result<(), String> {
        let (before, _) = self.connection.flight();
        batch.clear();
        self.connection.transmit(now_ns, batch);
        let (after, window) = self.connection.flight();
        // Two probes, a ping and a packet that tries out a length pass the window.
        let most = before.max(window) + 3 * 1200 + 2 * u64::from(self.connection.packet_bytes()) + 9000;
        if after > most {
            return Err(format!("{after} bytes are in flight, and the window is {window}"));
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

    /// When it has something to do again.
    pub fn next_ns(&self, now_ns: u64, scenario: &Scenario) -> Option<u64> {
        let all = scenario.bytes[self.index];
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
        self.sent == scenario.bytes[self.index]
            && self.consumed == scenario.bytes[1 - self.index]
            && self.datagrams_sent == scenario.datagrams
            && self.connection.is_drained()
    }

    /// How many datagrams have come.
    pub fn datagrams(&self) -> usize {
        self.datagrams.len()
    }

    /// What must hold of both ends at any time.
    pub fn check(&self, peer: &Self, scenario: &Scenario) -> Result<(), String> {
        for lane in LANES {
            let (first, second) = peer.connection.peek(lane);
            let consumed = peer.consumed[lane as usize];
            let arrived = consumed + (first.len() + second.len()) as u64;
            if self.connection.acknowledged(lane) > scenario.windows[lane as usize] + consumed {
                return Err(format!("more is acknowledged of the {lane:?} lane than can have arrived"));
            }
            if self.connection.taken(lane) > consumed {
                return Err(format!("more is taken of the {lane:?} lane than was consumed"));
            }
            if arrived - consumed > scenario.windows[lane as usize] {
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
}

/// Datagrams of many lengths, short and long.
fn make_datagram(source: usize, number: u32) -> Vec<u8> {
    let length = match number % 4 {
        0 => 4,
        1 => 4 + (number as usize * 37) % 1500,
        // Of one length, so that pieces of two could be taken for one.
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
