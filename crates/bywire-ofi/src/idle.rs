//! What a program does that polls for nothing: it lets others have the core.

use std::time::Duration;

use bywire_sys::clock;

/// How long a program polls before it offers its core. Answers of a running peer are there sooner.
const YIELD_AFTER: Duration = Duration::from_micros(20);

/// Since when polls have found nothing.
#[derive(Debug)]
pub struct Idle {
    since: Option<u64>,
    yield_after_cycles: u64,
}

impl Default for Idle {
    fn default() -> Self {
        Self { since: None, yield_after_cycles: clock::cycles_in(YIELD_AFTER) }
    }
}

impl Idle {
    /// A poll has found something.
    pub fn found(&mut self) {
        self.since = None;
    }

    /// A poll has found nothing. Should the caller offer its core?
    pub fn found_nothing(&mut self) -> bool {
        let now = clock::cycles();
        let since = *self.since.get_or_insert(now);
        now.wrapping_sub(since) >= self.yield_after_cycles
    }
}
