//! The search for the largest packet that the path carries (RFC 8899).

use crate::planted::{self, Bug};

/// The packet size that every path carries.
pub const BASE_BYTES: u16 = 1200;
/// The longest payload of a UDP datagram over IPv4.
pub const LIMIT_BYTES: u16 = 65_507;

/// The number of lost probes after which a size is given up.
const TRIES: u8 = 3;
/// The precision of the size at which a search ends.
const PRECISION_BYTES: u16 = 16;
/// The number of lost large packets, with none as long arriving in between, after which they are assumed to vanish.
const BLACK_HOLE_LOSSES: u8 = 3;
/// When a search that ended below the route's limit is repeated.
const AGAIN_NS: u64 = 600_000_000_000;

/// The packet size, and the search for a larger one.
#[derive(Clone, Debug)]
pub struct PacketSize {
    bytes: u16,
    /// The route's limit.
    limit: u16,
    /// The shortest length that was lost.
    failed: Option<u16>,
    /// The length of the probe under way.
    probe: Option<u16>,
    tries: u8,
    again_at_ns: Option<u64>,
    losses: u8,
    /// The shortest packet of these losses. A shorter one that arrives says nothing about them.
    shortest_lost: u64,
}

impl PacketSize {
    /// A path of which only the route's limit is known.
    pub fn new(limit: u16) -> Self {
        let limit = limit.clamp(BASE_BYTES, LIMIT_BYTES);
        Self {
            bytes: BASE_BYTES,
            limit,
            failed: None,
            probe: None,
            tries: 0,
            again_at_ns: None,
            losses: 0,
            shortest_lost: u64::MAX,
        }
    }

    /// The same path, on which the probe under way is not awaited.
    pub fn without_probe(&self) -> Self {
        Self { probe: None, ..self.clone() }
    }

    /// The length of packets, headers of IP and UDP not counted.
    pub fn bytes(&self) -> u16 {
        self.bytes
    }

    /// Are packets as long as the route carries?
    pub fn is_at_limit(&self) -> bool {
        self.bytes >= self.limit
    }

    /// The length of the next probe, if one is due.
    pub fn wanted(&mut self, now_ns: u64) -> Option<u16> {
        if self.probe.is_some() {
            return None;
        }
        if self.again_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            (self.failed, self.again_at_ns, self.tries) = (None, None, 0);
        }
        match self.failed {
            // The route's limit comes first, because it is mostly right.
            None => (self.bytes < self.limit).then_some(self.limit),
            Some(failed) if failed - self.bytes <= PRECISION_BYTES => {
                self.again_at_ns.get_or_insert(now_ns.saturating_add(AGAIN_NS));
                None
            }
            Some(failed) => Some(self.bytes + (failed - self.bytes) / 2),
        }
    }

    /// Notes that a probe has left.
    pub fn probe_sent(&mut self, bytes: u16) {
        self.probe = Some(bytes);
    }

    /// Notes that a probe has arrived. `true`: packets are longer now.
    pub fn probe_arrived(&mut self, bytes: u16) -> bool {
        if self.probe != Some(bytes) {
            return false;
        }
        (self.probe, self.tries, self.losses, self.shortest_lost) = (None, 0, 0, u64::MAX);
        let is_longer = bytes > self.bytes;
        self.bytes = self.bytes.max(bytes);
        is_longer
    }

    /// Notes that a probe is lost. That says nothing about congestion.
    pub fn probe_lost(&mut self, bytes: u16) {
        if self.probe != Some(bytes) {
            return;
        }
        self.probe = None;
        self.tries += 1;
        if self.tries >= TRIES {
            self.fail(bytes);
        }
    }

    /// Notes that a packet has arrived.
    pub fn arrived(&mut self, bytes: u64) {
        if bytes >= self.shortest_lost {
            (self.losses, self.shortest_lost) = (0, u64::MAX);
        }
    }

    /// Notes that packets are lost, with the length of the longest. Called once for all that are found lost together.
    /// `true`: packets are short again.
    pub fn lost(&mut self, longest: u64) -> bool {
        if longest <= BASE_BYTES.into() || self.bytes == BASE_BYTES {
            return false;
        }
        self.losses = self.losses.saturating_add(1);
        self.shortest_lost = self.shortest_lost.min(longest);
        if self.losses < BLACK_HOLE_LOSSES || planted::is(Bug::BlackHoleIgnored) {
            return false;
        }
        let failed = self.bytes;
        self.bytes = BASE_BYTES;
        self.fail(failed);
        true
    }

    /// Notes that packets were lost, with the length of the longest, and that the peer answered only once they were
    /// short. `true`: they are short until a probe of a length has arrived, which is sent at once.
    pub fn silenced(&mut self, longest: u64) -> bool {
        if longest <= BASE_BYTES.into() || self.bytes == BASE_BYTES || planted::is(Bug::BlackHoleIgnored) {
            return false;
        }
        (self.bytes, self.probe, self.tries, self.again_at_ns) = (BASE_BYTES, None, 0, None);
        (self.losses, self.shortest_lost) = (0, u64::MAX);
        true
    }

    /// Notes a smaller limit of the route, as the kernel reports it. `true`: packets are short again.
    pub fn set_limit(&mut self, limit: u16) -> bool {
        let limit = limit.clamp(BASE_BYTES, LIMIT_BYTES);
        let is_shorter = limit < self.bytes;
        if limit != self.limit {
            (self.limit, self.failed, self.probe, self.tries, self.again_at_ns) =
                (limit, None, None, 0, None);
        }
        if is_shorter {
            self.bytes = BASE_BYTES;
        }
        is_shorter
    }

    fn fail(&mut self, bytes: u16) {
        self.failed = Some(self.failed.map_or(bytes, |failed| failed.min(bytes)).max(self.bytes + 1));
        (self.probe, self.tries, self.losses, self.shortest_lost) = (None, 0, 0, u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_are_shorter_than_the_lost_ones_do_not_hide_a_black_hole() {
        let mut size = PacketSize::new(1452);
        size.probe_sent(1452);
        size.probe_arrived(1452);
        // The path carries 1,400 bytes now. Lost bytes are sent again in shorter packets.
        let is_found = (0..BLACK_HOLE_LOSSES).map(|_| {
            let is_found = size.lost(1443);
            size.arrived(1281);
            is_found
        });
        assert_eq!(is_found.collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(size.bytes(), BASE_BYTES);
    }

    #[test]
    fn losses_between_delivered_packets_of_that_length_are_not_a_black_hole() {
        let mut size = PacketSize::new(1452);
        size.probe_sent(1452);
        size.probe_arrived(1452);
        for _ in 0..100 {
            assert!(!size.lost(1452));
            size.arrived(1452);
        }
    }
}
