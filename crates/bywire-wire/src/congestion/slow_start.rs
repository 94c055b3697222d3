//! Ends slow start before it causes losses: HyStart++ (RFC 9406).

use super::Arrival;

const RTT_RISE_MIN_NS: u64 = 4_000_000;
const RTT_RISE_MAX_NS: u64 = 16_000_000;
const RTT_RISE_DIVISOR: u64 = 8;
const SAMPLES_MIN: u32 = 8;
const CONSERVATIVE_DIVISOR: u64 = 4;
const CONSERVATIVE_ROUNDS: u32 = 5;

/// The growth of the window, by rounds of the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowStart {
    /// The packet number that ends the round.
    round_end: u64,
    last_min_ns: Option<u64>,
    min_ns: Option<u64>,
    samples: u32,
    conservative: Option<Conservative>,
}

/// The state after the round trip has risen. If it falls again, that was not congestion.
#[derive(Clone, Debug)]
struct Conservative {
    baseline_ns: u64,
    rounds: u32,
}

impl SlowStart {
    /// The bytes by which the window grows. `None`: slow start is over.
    pub fn grow(&mut self, arrival: &Arrival) -> Option<u64> {
        self.note(arrival);
        if self.samples >= SAMPLES_MIN {
            self.look();
        }
        let grown = match &self.conservative {
            Some(conservative) if conservative.rounds >= CONSERVATIVE_ROUNDS => return None,
            Some(_) => arrival.bytes / CONSERVATIVE_DIVISOR,
            None => arrival.bytes,
        };
        Some(grown)
    }

    /// The next arrival begins a round.
    pub fn end_round(&mut self) {
        self.round_end = 0;
    }

    fn note(&mut self, arrival: &Arrival) {
        if arrival.largest >= self.round_end {
            self.round_end = arrival.next_number;
            (self.last_min_ns, self.min_ns, self.samples) = (self.min_ns.or(self.last_min_ns), None, 0);
            if let Some(conservative) = &mut self.conservative {
                conservative.rounds += 1;
            }
        }
        self.min_ns = Some(self.min_ns.map_or(arrival.latest_ns, |min_ns| min_ns.min(arrival.latest_ns)));
        self.samples = self.samples.saturating_add(1);
    }

    fn look(&mut self) {
        let (Some(last_ns), Some(min_ns)) = (self.last_min_ns, self.min_ns) else { return };
        match &self.conservative {
            Some(conservative) if min_ns < conservative.baseline_ns => self.conservative = None,
            Some(_) => {}
            None => {
                let rise_ns = (last_ns / RTT_RISE_DIVISOR).clamp(RTT_RISE_MIN_NS, RTT_RISE_MAX_NS);
                if min_ns >= last_ns + rise_ns {
                    self.conservative = Some(Conservative { baseline_ns: min_ns, rounds: 0 });
                }
            }
        }
    }
}
