//! CUBIC (RFC 9438), as in the kernel's TCP, so that both share a path fairly.

use super::slow_start::SlowStart;
use super::{Arrival, Congestion, INITIAL_PACKETS, MINIMUM_PACKETS};

const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// The increase of Reno for each acknowledged window that corresponds to CUBIC's decrease to 0.7 (section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// The largest window. It is more than any path needs, and exact in floating point.
const WINDOW_MAX: u64 = 1 << 40;

/// The congestion window of a connection.
#[derive(Clone, Debug)]
pub struct Cubic {
    packet_bytes: u64,
    window: u64,
    /// The threshold of slow start.
    threshold: u64,
    slow_start: Option<SlowStart>,
    /// The window that the curve approaches, in bytes (`W_max`).
    before_loss: f64,
    /// The window before the last loss, in bytes (`cwnd_prior`).
    prior: f64,
    /// The curve since the last loss.
    epoch: Option<Epoch>,
    /// Losses of packets that left before this time are not new congestion.
    recovery_ns: Option<u64>,
}

/// The curve between two losses.
#[derive(Clone, Debug)]
struct Epoch {
    begin_ns: u64,
    /// The seconds from its beginning until the window is what it was before the loss.
    k: f64,
    /// The window that Reno would have.
    reno: f64,
    /// The window at time `k`.
    origin: f64,
    /// The fraction of a byte that is not in the window yet.
    fraction: f64,
    /// Since when the window has not been used.
    idle_ns: Option<u64>,
}

impl Cubic {
    /// A new connection.
    pub fn new(packet_bytes: u64) -> Self {
        Self {
            packet_bytes,
            window: INITIAL_PACKETS * packet_bytes,
            threshold: u64::MAX,
            slow_start: Some(SlowStart::default()),
            before_loss: 0.0,
            prior: 0.0,
            epoch: None,
            recovery_ns: None,
        }
    }

    fn minimum(&self) -> u64 {
        MINIMUM_PACKETS * self.packet_bytes
    }

    fn reduce(&mut self, now_ns: u64) {
        let window = self.window as f64;
        self.prior = window;
        // Fast convergence: a connection that has a smaller window than before leaves room for others.
        self.before_loss = if window < self.before_loss { window * (1.0 + BETA) / 2.0 } else { window };
        self.window = ((window * BETA) as u64).max(self.minimum());
        self.threshold = self.window;
        (self.slow_start, self.epoch, self.recovery_ns) = (None, None, Some(now_ns));
    }

    fn grow_slowly(&mut self, arrival: &Arrival) {
        // HyStart++ applies to the first slow start only. Later ones end at the window of the last loss.
        let grown = match &mut self.slow_start {
            Some(slow_start) => slow_start.grow(arrival),
            None => Some(arrival.bytes),
        };
        match grown {
            Some(bytes) => {
                self.window = self.window.saturating_add(bytes).min(WINDOW_MAX);
                if self.window >= self.threshold {
                    self.window = self.threshold.max(self.minimum());
                }
            }
            None => self.threshold = self.window,
        }
    }

    fn grow_by_curve(&mut self, arrival: &Arrival) {
        let packet = self.packet_bytes as f64;
        let window = self.window as f64;
        let before_loss = self.before_loss;
        let epoch = self.epoch.get_or_insert_with(|| {
            let origin = before_loss.max(window);
            let k = ((origin - window) / packet / C).cbrt();
            let begin_ns = arrival.now_ns;
            Epoch { begin_ns, k, reno: window, origin, fraction: 0.0, idle_ns: None }
        });
        if let Some(idle_ns) = epoch.idle_ns.take() {
            epoch.begin_ns = epoch.begin_ns.saturating_add(arrival.now_ns.saturating_sub(idle_ns));
        }
        let elapsed_ns = arrival.now_ns.saturating_sub(epoch.begin_ns).saturating_add(arrival.smoothed_ns);
        let seconds = elapsed_ns as f64 / 1e9 - epoch.k;
        let target = (epoch.origin + C * seconds.powi(3) * packet).clamp(window, 1.5 * window);
        let gain = if epoch.reno < self.prior { ALPHA } else { 1.0 };
        epoch.reno += gain * packet * arrival.bytes as f64 / window;
        let grown = (target - window) * (arrival.bytes as f64 / window) + epoch.fraction;
        let next = (window + grown).max(epoch.reno);
        // Never faster than slow start.
        let next = next.min(window + arrival.bytes as f64).min(WINDOW_MAX as f64);
        epoch.fraction = next.fract();
        self.window = next as u64;
    }
}

impl Congestion for Cubic {
    fn window(&self) -> u64 {
        self.window
    }

    fn is_slow_start(&self) -> bool {
        self.window < self.threshold
    }

    fn on_arrival(&mut self, arrival: Arrival) {
        if self.recovery_ns.is_some_and(|at_ns| arrival.sent_at_ns <= at_ns) {
            return;
        }
        if !arrival.is_used {
            if let Some(epoch) = &mut self.epoch {
                epoch.idle_ns.get_or_insert(arrival.now_ns);
            }
            return;
        }
        if self.is_slow_start() {
            self.grow_slowly(&arrival);
        } else {
            self.grow_by_curve(&arrival);
        }
    }

    fn on_loss(&mut self, now_ns: u64, sent_at_ns: u64, is_persistent: bool) {
        if self.recovery_ns.is_none_or(|at_ns| sent_at_ns > at_ns) {
            self.reduce(now_ns);
        }
        if is_persistent {
            self.window = self.minimum();
            self.recovery_ns = None;
        }
    }

    fn on_new_numbers(&mut self) {
        if let Some(slow_start) = &mut self.slow_start {
            slow_start.end_round();
        }
    }

    fn set_packet_bytes(&mut self, bytes: u64) {
        // A window within its first packets stays that many packets.
        if self.window == INITIAL_PACKETS * self.packet_bytes && self.threshold == u64::MAX {
            self.window = INITIAL_PACKETS * bytes;
        }
        self.packet_bytes = bytes;
        self.window = self.window.max(self.minimum());
    }
}
