//! Flow control: the credit of the sender of a lane, and when it is announced.

use crate::planted::{self, Bug};

/// The credit that a receiver gives for one lane.
#[derive(Clone, Debug)]
pub struct Credit {
    /// Bytes that the program has consumed.
    taken: u64,
    /// The number of bytes that may wait beyond those.
    window: u64,
    /// The highest limit that was ever announced. The sender may have used all of it.
    limit: u64,
    /// The consumed bytes at the last announcement.
    told_taken: u64,
    /// The consumed bytes from which on the next announcement is due.
    due_at: u64,
    /// The sender waits for a report of consumed bytes.
    is_urgent: bool,
    /// The last report may be lost.
    is_lost: bool,
}

impl Credit {
    /// A lane with a window of `window` bytes, which both ends know.
    pub fn new(window: u64) -> Self {
        let mut credit = Self {
            taken: 0,
            window,
            limit: window,
            told_taken: 0,
            due_at: 0,
            is_urgent: false,
            is_lost: false,
        };
        credit.plan();
        credit
    }

    /// An announcement is due once a quarter of the window is free again.
    fn plan(&mut self) {
        let gain = (self.window / 4).max(1);
        self.due_at = self.limit.saturating_add(gain).saturating_sub(self.window);
    }

    /// Bytes that the program has consumed.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The offset before which bytes may arrive.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The number of bytes that may wait beyond the consumed ones.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Changes the window. Announced credit remains valid, so a smaller window takes effect as the program
    /// consumes.
    pub fn set_window(&mut self, window: u64) {
        self.window = window;
        self.plan();
    }

    /// Notes that the program has consumed bytes.
    pub fn take(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// Notes that the sender waits for a report of consumed bytes. It is told at once, now and after the next consumed
    /// bytes.
    pub fn request_report(&mut self) {
        self.is_urgent = true;
    }

    /// Is an announcement due?
    #[inline]
    pub fn is_due(&self) -> bool {
        self.taken >= self.due_at || self.is_lost || self.is_urgent && self.taken > self.told_taken
    }

    /// The report for the sender: consumed bytes, and the limit.
    pub fn tell(&mut self) -> (u64, u64) {
        self.limit = self.limit.max(self.taken.saturating_add(self.window));
        self.told_taken = self.taken;
        self.plan();
        (self.is_urgent, self.is_lost) = (false, false);
        let (more_taken, more) = (planted::is(Bug::TakenTooHigh), planted::is(Bug::LimitTooHigh));
        (self.taken + u64::from(more_taken), self.limit + u64::from(more) * 100)
    }

    /// Notes that the report was lost.
    pub fn lose(&mut self) {
        self.is_lost = !planted::is(Bug::CreditForgotten);
    }
}
