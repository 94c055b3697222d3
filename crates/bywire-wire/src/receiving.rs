//! One lane as its receiver sees it: bytes that come in any order, within the credit.

use std::ops::Range;

use crate::credit::Credit;
use crate::planted::{self, Bug};
use crate::ranges::Ranges;

/// Ranges of one lane that may wait for what is missing before them. A peer that sends every other byte would take a node of
/// a tree for each.
pub const WAITING_RANGES_MAX: usize = 1024;

/// Bytes came that nobody may send yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sends beyond its credit")]
pub struct BeyondCredit;

/// The receiving end of a lane.
#[derive(Debug)]
pub struct Receiving {
    /// Bytes from `credit.taken()` on, each at its offset modulo the length, which is a power of two or 0.
    memory: Vec<u8>,
    /// Every byte before it has arrived.
    arrived: u64,
    /// Bytes behind it that have arrived.
    waiting: Ranges,
    credit: Credit,
}

impl Receiving {
    /// A lane in which `window` bytes may wait. Memory is taken as it is needed.
    pub fn new(window: u64) -> Self {
        Self { memory: Vec::new(), arrived: 0, waiting: Ranges::default(), credit: Credit::new(window) }
    }

    /// What the sender may send.
    pub fn credit(&mut self) -> &mut Credit {
        &mut self.credit
    }

    /// Has the sender to be told what it may send?
    pub fn is_credit_due(&self) -> bool {
        self.credit.is_due()
    }

    /// Every byte before this offset has arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Bytes that this lane holds in memory, used or not.
    pub fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Would these bytes wait apart from all others, as a range of their own?
    pub fn is_apart(&self, range: &Range<u64>) -> bool {
        range.start > self.arrived && !range.is_empty() && !self.waiting.touches(range)
    }

    /// Can so many more ranges wait apart? If not, their packet is dropped as if it was lost. Bytes that touch others are
    /// always taken, so the first missing ones are, and a full lane does not stay full.
    pub fn has_place(&self, ranges_apart: usize) -> bool {
        ranges_apart == 0 || self.waiting.count() + ranges_apart <= WAITING_RANGES_MAX
    }

    /// Keeps bytes. Those that have arrived before are left as they are.
    ///
    /// # Errors
    /// [`BeyondCredit`], and nothing was kept.
    pub fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BeyondCredit> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(BeyondCredit)?;
        if end > self.credit.limit() {
            return Err(BeyondCredit);
        }
        let start = offset.max(self.arrived);
        if start >= end {
            return Ok(());
        }
        self.hold(end);
        if start == self.arrived && self.waiting.is_empty() {
            self.write(start, &bytes[(start - offset) as usize..]);
            self.arrived = end;
            return Ok(());
        }
        let gaps: Vec<_> = self.waiting.gaps(start..end).collect();
        for gap in gaps {
            let skipped =
                if planted::is(Bug::OverlapMisplaced) { start - offset } else { gap.start - offset };
            let length = gap.end - gap.start;
            self.write(gap.start, &bytes[skipped as usize..(skipped + length) as usize]);
        }
        self.waiting.insert(start..end);
        if let Some(first) = self.waiting.first().filter(|first| first.start <= self.arrived) {
            self.arrived = first.end;
            self.waiting.remove(first);
        }
        Ok(())
    }

    /// The bytes that the program can consume, in two parts where they go around the end of the memory.
    pub fn peek(&self) -> (&[u8], &[u8]) {
        let length = (self.arrived - self.credit.taken()) as usize;
        if length == 0 {
            return (&[], &[]);
        }
        let at = self.place(self.credit.taken());
        let first = length.min(self.memory.len() - at);
        (&self.memory[at..at + first], &self.memory[..length - first])
    }

    /// Consumes bytes.
    ///
    /// # Panics
    /// On more than [`Self::peek`] has shown.
    pub fn take(&mut self, bytes: u64) {
        assert!(bytes <= self.arrived - self.credit.taken(), "only what has arrived can be consumed");
        self.credit.take(bytes);
    }

    /// Gives memory back, where nothing waits in it.
    pub fn trim(&mut self) {
        if self.waiting.is_empty() && self.arrived == self.credit.taken() {
            self.memory = Vec::new();
        }
    }

    fn place(&self, offset: u64) -> usize {
        (offset & (self.memory.len() as u64 - 1)) as usize
    }

    /// Makes the memory large enough for bytes up to `end`, which is within the credit.
    fn hold(&mut self, end: u64) {
        let needed = (end - self.credit.taken()) as usize;
        if needed <= self.memory.len() {
            return;
        }
        let larger = vec![0; needed.next_power_of_two()];
        let smaller = std::mem::replace(&mut self.memory, larger);
        let taken = self.credit.taken();
        let kept = std::iter::once(taken..self.arrived).chain(self.waiting.iter());
        let kept: Vec<_> =
            kept.take(if planted::is(Bug::WaitingForgotten) { 1 } else { usize::MAX }).collect();
        for range in kept {
            let mut at = range.start;
            while at < range.end {
                let from = (at & (smaller.len() as u64 - 1)) as usize;
                let length = (smaller.len() - from).min((range.end - at) as usize);
                self.write(at, &smaller[from..from + length]);
                at += length as u64;
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let at = self.place(offset);
        let first = bytes.len().min(self.memory.len() - at);
        self.memory[at..at + first].copy_from_slice(&bytes[..first]);
        self.memory[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }
}
