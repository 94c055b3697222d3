//! An injected slowdown: an end is busy for a while before each message, to see whether a comparison finds it.

use std::time::Duration;

use anyhow::Result;

use crate::clock::Clock;
use crate::endpoint::{Endpoint, Interest, Mark, Received};
use crate::plan::Details;

/// The largest slowdown, in percent.
pub const PERCENT_MAX: u32 = 1000;

/// The longest time since the last message that is delayed by its share.
const PAUSE_NS_MAX: u64 = 10_000_000;

/// An endpoint that delays each message by a share of the time since the last one. A ping-pong, or a stream that waits
/// for its sender, takes longer by that share.
pub struct SlowedDown<E> {
    end: E,
    share: f64,
    clock: Clock,
    /// When the sending of the last message began.
    sent_ns: u64,
    begun: bool,
}

impl<E> SlowedDown<E> {
    /// Slows `end` down by `percent`.
    pub fn new(end: E, percent: u32) -> Self {
        let (clock, share) = (Clock::shared(), f64::from(percent.min(PERCENT_MAX)) / 100.0);
        Self { end, share, clock, sent_ns: clock.now_ns(), begun: false }
    }

    fn delay(&mut self) {
        let now_ns = self.clock.now_ns();
        let passed_ns = now_ns.saturating_sub(self.sent_ns).min(PAUSE_NS_MAX);
        let until_ns = now_ns + (passed_ns as f64 * self.share) as u64;
        while self.clock.now_ns() < until_ns {
            std::hint::spin_loop();
        }
        // The time of the sending itself belongs to the time until the next message.
        self.sent_ns = until_ns;
    }
}

impl<E: Endpoint> Endpoint for SlowedDown<E> {
    const RELIABLE: bool = E::RELIABLE;

    fn try_send(&mut self, length: usize, mark: Mark) -> Result<bool> {
        if !std::mem::replace(&mut self.begun, true) {
            self.delay();
        }
        let sent = self.end.try_send(length, mark)?;
        self.begun = !sent;
        Ok(sent)
    }

    fn try_receive(&mut self) -> Result<Option<Received>> {
        self.end.try_receive()
    }

    fn wait(&mut self, interest: Interest, timeout: Duration) -> Result<()> {
        self.end.wait(interest, timeout)
    }

    fn spins(&self) -> bool {
        self.end.spins()
    }

    fn send(&mut self, length: usize, mark: Mark) -> Result<()> {
        self.delay();
        self.end.send(length, mark)
    }

    fn receive(&mut self) -> Result<Option<Received>> {
        self.end.receive()
    }

    fn send_errors(&self) -> u64 {
        self.end.send_errors()
    }

    fn details(&self) -> Details {
        self.end.details()
    }
}
