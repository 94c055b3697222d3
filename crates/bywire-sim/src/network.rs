//! The path from one end to the other, with its faults.

use rand::Rng;
use rand::rngs::StdRng;

use crate::counts::Counts;
use crate::scenario::{HEALED_AT_NS, Scenario};

/// A packet that the network delivers to an end.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The same for every copy of one packet.
    pub id: u64,
    /// The sender's incarnation, if it has several.
    pub life: u32,
    /// The packet was changed on its way.
    pub is_damaged: bool,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// One direction.
#[derive(Debug)]
pub struct Path {
    /// When the last byte in the queue before the path will have left.
    busy_until_ns: u64,
    /// The packets of a burst that are still to be lost.
    burst: u32,
    next_id: u64,
    /// From this time on, everything is lost.
    partition_ns: Option<u64>,
}

impl Path {
    /// A path that works, or that is interrupted at some time.
    pub fn new(random: &mut StdRng, is_parted: bool) -> Self {
        let partition_ns = is_parted.then(|| random.random_range(0..HEALED_AT_NS / 2));
        Self { busy_until_ns: 0, burst: 0, next_id: 0, partition_ns }
    }

    /// Decides when a packet arrives and in which state: never, once or several times.
    pub fn carry(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Vec<(u64, Packet)> {
        let id = self.next_id;
        self.next_id += 1;
        let path_bytes = scenario.path_bytes[usize::from(now_ns > HEALED_AT_NS / 2)];
        if bytes.len() > path_bytes.into() {
            counts.add_fault("network: packets too long for the path", 1);
            return Vec::new();
        }
        let waiting_ns = self.busy_until_ns.saturating_sub(now_ns);
        if waiting_ns * scenario.bytes_per_ms / 1_000_000 > scenario.queue_bytes {
            counts.add_fault("network: packets dropped by a full queue", 1);
            return Vec::new();
        }
        self.busy_until_ns =
            self.busy_until_ns.max(now_ns) + bytes.len() as u64 * 1_000_000 / scenario.bytes_per_ms;
        let at_ns = self.busy_until_ns + scenario.latency_ns;
        let packet = Packet { id, life: 0, is_damaged: false, bytes: bytes.to_vec() };
        if now_ns >= HEALED_AT_NS {
            return vec![(at_ns, packet)];
        }
        if self.is_lost(now_ns, scenario, random, counts) {
            return Vec::new();
        }
        self.bend(at_ns, packet, scenario, random, counts)
    }

    fn is_lost(
        &mut self,
        now_ns: u64,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> bool {
        let since_ns = self.partition_ns.and_then(|from_ns| now_ns.checked_sub(from_ns));
        if since_ns.is_some_and(|since_ns| since_ns < scenario.partition_ns) {
            counts.add_fault("network: packets lost in a partition", 1);
            return true;
        }
        if self.burst == 0 && random.random_range(0..1000) < scenario.burst {
            self.burst = random.random_range(2..60);
        }
        if self.burst > 0 {
            self.burst -= 1;
            counts.add_fault("network: packets lost in a burst", 1);
            return true;
        }
        let is_lost = random.random_range(0..1000) < scenario.loss;
        counts.add_fault("network: packets lost", is_lost.into());
        is_lost
    }

    fn bend(
        &self,
        mut at_ns: u64,
        packet: Packet,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> Vec<(u64, Packet)> {
        let mut chance = |random: &mut StdRng, of: u32, name| {
            let happens = random.random_range(0..1000) < of;
            counts.add_fault(name, happens.into());
            happens
        };
        let mut carried = Vec::new();
        if chance(random, scenario.reorder, "network: packets overtaken") {
            at_ns += random.random_range(0..4 * scenario.latency_ns);
        }
        if chance(random, scenario.duplicate, "network: packets doubled") {
            carried.push((at_ns + random.random_range(0..20 * scenario.latency_ns), packet.clone()));
        }
        let mut packet = packet;
        if chance(random, scenario.corrupt, "network: packets damaged") {
            packet.is_damaged = true;
            let place = random.random_range(0..packet.bytes.len());
            if random.random_bool(0.2) {
                packet.bytes.truncate(place);
            } else {
                packet.bytes[place] ^= 1 << random.random_range(0..8);
            }
        }
        carried.push((at_ns, packet));
        carried
    }
}
