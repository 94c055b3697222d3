//! CUBIC (RFC 9438), as the kernel's TCP, and so fair beside it.

use super::slow_start::SlowStart;
use super::{Arrival, Congestion, INITIAL_PACKETS, MINIMUM_PACKETS};

const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// What Reno would gain by each acknowledged window while CUBIC falls to 0.7 of it (section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Larger than any path wants, and small enough for floating point to count in.
const WINDOW_MAX: u64 = 1 << 40;

/// The window of a connection.
#[derive(Clone, Debug)]
pub struct Cubic {
    packet_bytes: u64,
    window: u64,
    /// Below it slow start is at work.
    threshold: u64,
    slow_start: Option<SlowStart>,
    /// The window that the curve aims at, in bytes (`W_max`).
    before_loss: f64,
    /// The window before the last loss, in bytes (`cwnd_prior`).
    prior: f64,
    /// Since the last loss.
    epoch: Option<Epoch>,
    /// What left before this moment has nothing new to say about congestion.
    recovery_ns: Option<u64>,
}

/// A curve from one loss to the next.
#[derive(Clone, Debug)]
struct Epoch {
    begin_ns: u64,
    /// Seconds from the beginning to where the window is what it was before the loss.
    k: f64,
    /// The window that Reno would have.
    reno: f64,
    /// Where the curve goes through `k`.
    origin: f64,
    /// The part of a byte that is not in the window yet.
    fraction: f64,
    /// Since when the window has not been used.
    idle_ns: Option<u64>,
}

impl Cubic {
    /// A connection that has just begun.
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
        // Fast convergence: whoever has less than before leaves room for others.
        self.before_loss = if window < self.before_loss { window * (1.0 + BETA) / 2.0 } else { window };
        self.window = ((window * BETA) as u64).max(self.minimum());
        self.threshold = self.window;
        (self.slow_start, self.epoch, self.recovery_ns) = (None, None, Some(now_ns));
    }

    fn grow_slowly(&mut self, arrival: &Arrival) {
        // HyStart++ is for the first slow start only; later ones end where the last loss was.
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
        // Never more than slow start would give.
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

    fn set_packet_bytes(&mut self, bytes: u64) {
        // A window in its first packets stays so many packets.
        if self.window == INITIAL_PACKETS * self.packet_bytes && self.threshold == u64::MAX {
            self.window = INITIAL_PACKETS * bytes;
        }
        self.packet_bytes = bytes;
        self.window = self.window.max(self.minimum());
    }
}
