//! The round-trip time and its variation (RFC 9002, section 5).

use crate::ack::ACK_DELAY_MAX_NS;

/// The round-trip time that is assumed before the first sample. On a longer path a few probes leave in vain. On a shorter
/// one, a connection whose first packets are all lost stands still for three times as long.
const INITIAL_NS: u64 = 10_000_000;
/// The least variation. A smaller one is chance, because a peer is a process that shares its core with others.
const VARIATION_MIN_NS: u64 = 50_000;
/// The longest time before the first probe.
pub const PROBE_TIMEOUT_MAX_NS: u64 = 1_000_000_000;
/// The longest time between two probes, unless the round trip is longer. A path that works again is noticed within it.
pub const PROBE_INTERVAL_MAX_NS: u64 = 500_000_000;
/// The largest sample. A larger one means that a clock jumped.
const SAMPLE_MAX_NS: u64 = 1 << 40;

/// An estimate from samples.
#[derive(Clone, Copy, Debug)]
pub struct Rtt {
    latest_ns: u64,
    smoothed_ns: u64,
    variation_ns: u64,
    min_ns: Option<u64>,
}

impl Default for Rtt {
    fn default() -> Self {
        Self { latest_ns: INITIAL_NS, smoothed_ns: INITIAL_NS, variation_ns: INITIAL_NS / 2, min_ns: None }
    }
}

impl Rtt {
    /// The last sample.
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns
    }

    /// The smoothed one.
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The shortest one. `None`: nothing was acknowledged yet.
    pub fn min_ns(&self) -> Option<u64> {
        self.min_ns
    }

    /// A packet was acknowledged `sample_ns` after it had left. The peer had it for `delay_ns` of that time.
    pub fn sample(&mut self, sample_ns: u64, delay_ns: u64) {
        let sample_ns = sample_ns.clamp(1, SAMPLE_MAX_NS);
        self.latest_ns = sample_ns;
        let Some(min_ns) = self.min_ns else {
            self.min_ns = Some(sample_ns);
            (self.smoothed_ns, self.variation_ns) = (sample_ns, sample_ns / 2);
            return;
        };
        let min_ns = min_ns.min(sample_ns);
        self.min_ns = Some(min_ns);
        let delay_ns = delay_ns.min(ACK_DELAY_MAX_NS);
        let adjusted_ns = if sample_ns - min_ns >= delay_ns { sample_ns - delay_ns } else { sample_ns };
        let deviation_ns = self.smoothed_ns.abs_diff(adjusted_ns);
        self.variation_ns = (3 * self.variation_ns + deviation_ns) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + adjusted_ns) / 8;
    }

    /// How long an acknowledgement may take before the peer is asked for one.
    pub fn probe_timeout_ns(&self) -> u64 {
        let variation_ns = 4 * self.variation_ns.max(VARIATION_MIN_NS);
        (self.smoothed_ns + variation_ns + ACK_DELAY_MAX_NS).min(PROBE_TIMEOUT_MAX_NS)
    }

    /// The same after this many unanswered probes: doubled for each of them.
    pub fn probe_interval_ns(&self, probes: u32) -> u64 {
        let timeout_ns = self.probe_timeout_ns();
        (timeout_ns << probes.min(10)).min(PROBE_INTERVAL_MAX_NS).max(timeout_ns)
    }

    /// How long a packet may be overtaken before it counts as lost: 9/8 of a round trip.
    pub fn loss_delay_ns(&self) -> u64 {
        let longest_ns = self.smoothed_ns.max(self.latest_ns);
        (longest_ns + longest_ns / 8).max(4 * VARIATION_MIN_NS)
    }
}
