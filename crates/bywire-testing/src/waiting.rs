//! Waiting for something that another process or thread does.

use std::time::{Duration, Instant};

/// Long enough for a loaded machine.
const LIMIT: Duration = Duration::from_secs(40);
const INTERVAL: Duration = Duration::from_millis(5);

/// Looks again and again until there is something, and returns it.
///
/// # Panics
///
/// When there is nothing for 40 s.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {} s: {what}", LIMIT.as_secs());
        std::thread::sleep(INTERVAL);
    }
}
