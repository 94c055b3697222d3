//! Time in which this machine ran. A virtual machine whose neighbours are busy stands still for a second now and then, and
//! nothing that is measured meanwhile says anything about the code under test.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long the watching thread sleeps at a time.
const PACE: Duration = Duration::from_millis(2);
/// How late it is on a machine that runs. What it is late beyond that is not counted.
const USUAL: Duration = Duration::from_millis(8);

/// Measures the time since its start, without the time in which no thread of this process got a processor.
pub struct Stopwatch {
    started: Instant,
    stalls: Arc<Mutex<Stalls>>,
}

struct Stalls {
    /// When the watching thread last woke up.
    woken: Instant,
    /// The time of all stalls before that.
    total: Duration,
}

impl Stalls {
    /// The time of all stalls up to a moment, also of one that is not over or that the watching thread has not seen yet.
    fn until(&self, now: Instant) -> Duration {
        self.total + now.saturating_duration_since(self.woken).saturating_sub(PACE + USUAL)
    }
}

impl Stopwatch {
    pub fn start() -> Self {
        let started = Instant::now();
        let stalls = Arc::new(Mutex::new(Stalls { woken: started, total: Duration::ZERO }));
        let watched = Arc::downgrade(&stalls);
        std::thread::spawn(move || watch(&watched));
        Self { started, stalls }
    }

    pub fn elapsed(&self) -> Duration {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        (now - self.started).saturating_sub(stalls.until(now))
    }

    /// The time from `earlier`, which this stopwatch has shown, until now.
    pub fn since(&self, earlier: Duration) -> Duration {
        self.elapsed().saturating_sub(earlier)
    }
}

/// Sleeps again and again, as long as the stopwatch is there.
fn watch(stalls: &Weak<Mutex<Stalls>>) {
    loop {
        std::thread::sleep(PACE);
        let Some(stalls) = stalls.upgrade() else { return };
        let mut stalls = stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        (stalls.total, stalls.woken) = (stalls.until(now), now);
    }
}
