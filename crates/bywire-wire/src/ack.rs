//! When an acknowledgement is due, and what it says.

use std::ops::RangeInclusive;

use crate::planted::{self, Bug};
use crate::received::Received;

/// An acknowledgement waits at most so long for something to ride on.
pub const ACK_DELAY_MAX_NS: u64 = 1_000_000;

/// Packets that ask for an acknowledgement, from which on one is sent by itself at the end of a batch. A single one is most
/// often a request, and its answer carries the acknowledgement.
const ALONE_FROM: u32 = 2;

/// The packets that have arrived, and what the peer has not been told of them.
#[derive(Debug, Default)]
pub struct Acknowledger {
    received: Received,
    /// When the newest packet came.
    largest_at_ns: u64,
    /// Packets that ask for an acknowledgement and have none.
    waiting: u32,
    /// When the first of those came.
    oldest_at_ns: u64,
    /// There is a gap, or one was filled: the peer is to know at once.
    is_gap: bool,
    /// The peer knows of every packet below this one that has arrived.
    known_below: u64,
}

impl Acknowledger {
    /// Is it a packet that must not be taken, for it has been, or may have been?
    pub fn is_known(&self, number: u64) -> bool {
        self.received.is_known(number) && !planted::is(Bug::DuplicateTaken)
    }

    /// Notes a genuine packet. `false`: it is known.
    pub fn insert(&mut self, now_ns: u64, number: u64, elicits_ack: bool) -> bool {
        let expected = self.received.largest().map_or(0, |largest| largest + 1);
        if !self.received.insert(number) {
            return false;
        }
        if number >= expected {
            self.largest_at_ns = now_ns;
        }
        // A late one is news again, and so is what lies above it: that costs some ranges once.
        self.known_below = self.known_below.min(number);
        if elicits_ack {
            if self.waiting == 0 {
                self.oldest_at_ns = now_ns;
            }
            self.waiting = self.waiting.saturating_add(1);
            self.is_gap |= number != expected;
        }
        true
    }

    /// Is anything unacknowledged, so that an acknowledgement is worth its room in a packet that leaves anyway?
    pub fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Has an acknowledgement to leave now, by itself if need be? Asked at the end of a batch.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.waiting >= ALONE_FROM
            || self.waiting > 0 && self.is_gap
            || self.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns)
    }

    /// When one is due at the latest.
    pub fn deadline_ns(&self) -> Option<u64> {
        (self.waiting > 0).then(|| self.oldest_at_ns.saturating_add(ACK_DELAY_MAX_NS))
    }

    /// How long ago the newest packet came, in microseconds.
    pub fn delay_us(&self, now_ns: u64) -> u32 {
        u32::try_from(now_ns.saturating_sub(self.largest_at_ns) / 1000).unwrap_or(u32::MAX)
    }

    /// The packets to acknowledge, the newest first.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        let all = self.received.largest().filter(|_| planted::is(Bug::GapAcknowledged));
        let rest = if all.is_some() { 0 } else { usize::MAX };
        let news = self.received.ranges().take_while(|range| *range.end() >= self.known_below);
        let news = news.map(|range| *range.start().max(&self.known_below)..=*range.end());
        all.map(|largest| 0..=largest).into_iter().chain(news.take(rest))
    }

    /// The newest packet that has arrived.
    pub fn largest(&self) -> Option<u64> {
        self.received.largest()
    }

    /// The peer has received an acknowledgement whose newest packet was this one: it need not be told again (RFC 9000,
    /// section 13.2.4).
    pub fn retire(&mut self, largest: u64) {
        self.known_below = self.known_below.max(largest.saturating_add(1));
    }

    /// An acknowledgement has left.
    pub fn told(&mut self) {
        self.waiting = 0;
        self.is_gap = false;
    }
}
