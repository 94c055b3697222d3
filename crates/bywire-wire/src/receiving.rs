//! The receiving end of a lane: bytes that arrive in any order, within the credit.

use std::ops::Range;

use crate::credit::Credit;
use crate::frame::LaneBytes;
use crate::planted::{self, Bug};
use crate::ranges::Ranges;

/// The most ranges of one lane that wait for missing bytes before them. Otherwise a peer that sends every other byte
/// would occupy a tree node for each.
pub const WAITING_RANGES_MAX: usize = 1024;

/// The error for bytes beyond the credit.
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
    /// Bytes after it that have arrived.
    waiting: Ranges,
    credit: Credit,
}

impl Receiving {
    /// A lane in which `window` bytes may wait. Memory is allocated as it is needed.
    pub fn new(window: u64) -> Self {
        Self { memory: Vec::new(), arrived: 0, waiting: Ranges::default(), credit: Credit::new(window) }
    }

    /// The credit of the sender.
    pub fn credit(&mut self) -> &mut Credit {
        &mut self.credit
    }

    /// Does the credit have to be sent?
    pub fn is_credit_due(&self) -> bool {
        self.credit.is_due()
    }

    /// Every byte before this offset has arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// The bytes of memory that this lane holds, used or not.
    pub fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    /// Would these bytes form a separate range?
    pub fn is_apart(&self, range: &Range<u64>) -> bool {
        range.start > self.arrived && !range.is_empty() && !self.waiting.touches(range)
    }

    /// Is there room for these bytes, which are the only ones of their packet?
    #[inline]
    pub fn has_place_for(&self, bytes: &LaneBytes) -> bool {
        // Mostly they are the next ones.
        bytes.offset <= self.arrived || {
            let range = bytes.offset..bytes.offset + bytes.bytes.len() as u64;
            self.has_place(usize::from(self.is_apart(&range)))
        }
    }

    /// Is there room for this many more separate ranges? If not, their packet is dropped as if it were lost. Bytes that
    /// touch others are always accepted. The first missing bytes are among them, so a full lane does not remain full.
    pub fn has_place(&self, ranges_apart: usize) -> bool {
        ranges_apart == 0 || self.waiting.count() + ranges_apart <= WAITING_RANGES_MAX
    }

    /// Stores bytes. Bytes that have arrived before are not changed.
    ///
    /// # Errors
    /// [`BeyondCredit`]: nothing was stored.
    pub fn receive(&mut self, offset: u64, bytes: &[u8]) -> Result<(), BeyondCredit> {
        self.receive_with(offset, bytes, |_| 0)
    }

    /// The same, but bytes that the program could consume at once are shown to `consume` first. They are not stored if it
    /// returns that it has consumed them, and how many of them.
    ///
    /// # Errors
    /// [`BeyondCredit`]: nothing was stored or consumed.
    pub fn receive_with(
        &mut self,
        offset: u64,
        bytes: &[u8],
        consume: impl FnOnce(&[u8]) -> usize,
    ) -> Result<(), BeyondCredit> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(BeyondCredit)?;
        if end > self.credit.limit() {
            return Err(BeyondCredit);
        }
        let mut start = offset.max(self.arrived);
        if start >= end {
            return Ok(());
        }
        if start == self.credit.taken() && self.waiting.is_empty() {
            let next = &bytes[(start - offset) as usize..];
            let consumed = consume(next).min(next.len()) as u64;
            start += consumed;
            self.arrived = start;
            self.credit.take(consumed);
            if start == end {
                return Ok(());
            }
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

    /// The bytes that the program can consume, in two parts if they wrap around the end of the memory.
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
    /// If they are more than [`Self::peek`] has returned.
    pub fn take(&mut self, bytes: u64) {
        assert!(bytes <= self.arrived - self.credit.taken(), "only what has arrived can be consumed");
        self.credit.take(bytes);
    }

    /// Releases memory in which nothing waits.
    pub fn trim(&mut self) {
        if self.waiting.is_empty() && self.arrived == self.credit.taken() {
            self.memory = Vec::new();
        }
    }

    fn place(&self, offset: u64) -> usize {
        (offset & (self.memory.len() as u64 - 1)) as usize
    }

    /// Extends the memory for bytes up to `end`, which is within the credit.
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
        if first < bytes.len() {
            self.memory[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        }
    }
}
