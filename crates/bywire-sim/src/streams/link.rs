//! The link of two ends: two lanes in each direction, each in order.

use std::collections::VecDeque;

use bywire_stream::Lane;
use rand::Rng;
use rand::rngs::StdRng;

use super::scenario::{HEALED_AT_NS, Scenario};
use super::tally::Counts;

/// One lane of one direction.
#[derive(Debug, Default)]
pub struct LinkLane {
    /// Messages under way, with the time when each arrives.
    messages: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    last_ns: u64,
}

impl LinkLane {
    /// Returns whether another message may leave.
    pub fn has_room(&self, scenario: &Scenario) -> bool {
        self.bytes < scenario.lane_bytes
    }

    /// A message leaves. The result is when it arrives.
    pub fn send(
        &mut self,
        now_ns: u64,
        lane: Lane,
        message: Vec<u8>,
        scenario: &Scenario,
        random: &mut StdRng,
        counts: &mut Counts,
    ) -> u64 {
        let mut at_ns = now_ns + scenario.latency_ns + random.random_range(0..=scenario.latency_ns);
        if now_ns < HEALED_AT_NS && random.random_range(0..1000) < scenario.lost[lane as usize] {
            counts.note("link: messages sent again");
            at_ns += scenario.resend_ns;
        }
        if let Some((begins_ns, ends_ns)) = scenario.outages[lane as usize]
            && (begins_ns..ends_ns).contains(&at_ns)
        {
            counts.note("link: messages in an outage");
            at_ns = ends_ns;
        }
        self.last_ns = self.last_ns.max(at_ns);
        self.bytes += message.len();
        self.messages.push_back((self.last_ns, message));
        self.last_ns
    }

    /// The message that has arrived.
    pub fn receive(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        if self.messages.front()?.0 > now_ns {
            return None;
        }
        let (_, message) = self.messages.pop_front()?;
        self.bytes -= message.len();
        Some(message)
    }

    /// Loses everything that is under way.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
