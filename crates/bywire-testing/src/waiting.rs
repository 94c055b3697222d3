//! Waiting for something that another process or thread does.

use std::time::{Duration, Instant};

/// Long enough for a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);
const INTERVAL: Duration = Duration::from_millis(5);

/// The outcome of a look: yes or no, or something or nothing.
pub trait Look {
    /// What is found in the end.
    type Found;

    /// What this look has found.
    fn found(self) -> Option<Self::Found>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Looks again and again until there is something, and returns it.
///
/// # Panics
///
/// When there is nothing for two minutes.
#[track_caller]
pub fn eventually<Outcome: Look>(what: &str, mut look: impl FnMut() -> Outcome) -> Outcome::Found {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {} s: {what}", LIMIT.as_secs());
        std::thread::sleep(INTERVAL);
    }
}
