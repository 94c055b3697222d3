//! When an acknowledgement is due, and its ranges.

use std::ops::RangeInclusive;

use crate::planted::{self, Bug};
use crate::received::Received;

/// The longest time that an acknowledgement waits for a packet that can carry it.
pub const ACK_DELAY_MAX_NS: u64 = 1_000_000;

/// The number of packets that ask for an acknowledgement after which one leaves by itself at the end of a batch. A
/// single packet is usually a request, and its answer carries the acknowledgement.
const ALONE_FROM: u32 = 2;

/// The packets that have arrived, and those that the peer does not know about.
#[derive(Debug, Default)]
pub struct Acknowledger {
    received: Received,
    /// When the newest packet arrived.
    largest_at_ns: u64,
    /// Packets that ask for an acknowledgement and have none yet.
    waiting: u32,
    /// When the first of them arrived.
    oldest_at_ns: u64,
    /// A gap has appeared or was filled, and the peer should know at once.
    is_gap: bool,
    /// The peer knows about every arrived packet below this one.
    known_below: u64,
}

impl Acknowledger {
    /// Must this packet be dropped, because it was accepted before or may have been?
    pub fn is_known(&self, number: u64) -> bool {
        self.received.is_known(number) && !planted::is(Bug::DuplicateTaken)
    }

    /// Notes an authentic packet. `false`: it is a duplicate.
    pub fn insert(&mut self, now_ns: u64, number: u64, elicits_ack: bool) -> bool {
        let expected = self.received.largest().map_or(0, |largest| largest + 1);
        if !self.received.insert(number) {
            return false;
        }
        if number >= expected {
            self.largest_at_ns = now_ns;
        }
        // A late packet has to be reported, and so does everything above it again. That costs some ranges once.
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

    /// Is there anything to acknowledge, so that it is worth adding to a packet that leaves anyway?
    pub fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Does an acknowledgement have to leave now, even by itself? Asked at the end of a batch.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.waiting >= ALONE_FROM
            || self.waiting > 0 && self.is_gap
            || self.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns)
    }

    /// The latest time at which one is due.
    pub fn deadline_ns(&self) -> Option<u64> {
        (self.waiting > 0).then(|| self.oldest_at_ns.saturating_add(ACK_DELAY_MAX_NS))
    }

    /// The microseconds since the newest packet arrived.
    pub fn delay_us(&self, now_ns: u64) -> u32 {
        u32::try_from(now_ns.saturating_sub(self.largest_at_ns) / 1000).unwrap_or(u32::MAX)
    }

    /// The packets to acknowledge, if they are one range. `None`: [`Self::ranges`] has to be asked.
    #[inline]
    pub fn only_range(&self) -> Option<RangeInclusive<u64>> {
        self.received.only_range(self.known_below).filter(|_| !planted::is(Bug::GapAcknowledged))
    }

    /// The packets to acknowledge, the newest first.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        let all = self.received.largest().filter(|_| planted::is(Bug::GapAcknowledged));
        let rest = if all.is_some() { 0 } else { usize::MAX };
        all.map(|largest| 0..=largest).into_iter().chain(self.received.ranges(self.known_below).take(rest))
    }

    /// The newest packet that has arrived.
    pub fn largest(&self) -> Option<u64> {
        self.received.largest()
    }

    /// Notes that the peer has received an acknowledgement whose newest packet was this one. Its ranges need not be
    /// repeated (RFC 9000, section 13.2.4).
    pub fn retire(&mut self, largest: u64) {
        self.known_below = self.known_below.max(largest.saturating_add(1));
    }

    /// Notes that an acknowledgement has left.
    pub fn told(&mut self) {
        self.waiting = 0;
        self.is_gap = false;
    }
}
