//! What the sender of a lane may send, and when it has to be told.

use crate::planted::{self, Bug};

/// The credit that a receiver gives for one lane.
#[derive(Clone, Debug)]
pub struct Credit {
    /// Bytes that the program has consumed.
    taken: u64,
    /// How many bytes may wait beyond those.
    window: u64,
    /// The highest limit that was ever told: the sender may have used all of it.
    limit: u64,
    /// As it was told last.
    told_taken: u64,
    /// Somebody waits for what was taken.
    is_urgent: bool,
    /// What was told may be lost.
    is_lost: bool,
}

impl Credit {
    /// A lane of which both ends know that `window` bytes may wait.
    pub fn new(window: u64) -> Self {
        Self { taken: 0, window, limit: window, told_taken: 0, is_urgent: false, is_lost: false }
    }

    /// Bytes that the program has consumed.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes before this offset may come.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How many bytes may wait beyond those that are taken.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Changes how many bytes may wait. What was told stays: a smaller window shows as the program consumes.
    pub fn set_window(&mut self, window: u64) {
        self.window = window;
    }

    /// The program has consumed bytes.
    pub fn take(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// The sender waits to learn what was taken: it is told at once, now and with the next bytes that are taken.
    pub fn urge(&mut self) {
        self.is_urgent = true;
    }

    /// Has the sender to be told? Once a quarter of the window is free again.
    pub fn is_due(&self) -> bool {
        let gain = self.taken.saturating_add(self.window).saturating_sub(self.limit);
        self.is_lost || gain > 0 && gain >= self.window / 4 || self.is_urgent && self.taken > self.told_taken
    }

    /// What the sender is told now: bytes taken, and the limit.
    pub fn tell(&mut self) -> (u64, u64) {
        self.limit = self.limit.max(self.taken.saturating_add(self.window));
        self.told_taken = self.taken;
        (self.is_urgent, self.is_lost) = (false, false);
        let (more_taken, more) = (planted::is(Bug::TakenTooHigh), planted::is(Bug::LimitTooHigh));
        (self.taken + u64::from(more_taken), self.limit + u64::from(more) * 100)
    }

    /// What was told has not arrived.
    pub fn lose(&mut self) {
        self.is_lost = !planted::is(Bug::CreditForgotten);
    }
}
