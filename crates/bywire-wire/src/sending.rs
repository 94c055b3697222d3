//! The sending end of a lane: which bytes are unsent, in flight, lost and acknowledged.

use std::collections::VecDeque;
use std::ops::Range;

use crate::planted::{self, Bug};
use crate::ranges::Ranges;

/// The most bytes that a lane carries in all, so that offsets never wrap.
pub const LANE_BYTES_MAX: u64 = 1 << 62;

/// The error for a lane that has carried as many bytes as it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lane carries no more than 2^62 bytes")]
pub struct Exhausted;

/// The error for a peer that claims to have consumed bytes that were never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has taken bytes that were not sent")]
pub struct NeverSent;

/// The sending end of a lane. It keeps each piece `B` of bytes until all of it is acknowledged.
#[derive(Debug)]
pub struct Sending<B> {
    /// Pieces that are not acknowledged, by the offset of their first byte.
    pieces: VecDeque<(u64, B)>,
    /// Acknowledged pieces that the caller has not taken yet.
    free: VecDeque<B>,
    /// The offset after the last byte.
    end: u64,
    /// The first byte that was never sent, and the place of its piece.
    next: u64,
    next_piece: usize,
    /// Every byte before it is acknowledged.
    floor: u64,
    /// Bytes above `floor` that are acknowledged.
    acknowledged: Ranges,
    /// Bytes that have to be sent again.
    lost: Ranges,
    /// The peer's credit: bytes before this offset may be sent.
    limit: u64,
    /// The lower one of `end` and `limit`.
    sendable_end: u64,
    /// Bytes that the peer's program has consumed.
    taken: u64,
}

impl<B: AsRef<[u8]>> Sending<B> {
    /// An empty lane with credit up to `limit`.
    pub fn new(limit: u64) -> Self {
        Self {
            pieces: VecDeque::new(),
            free: VecDeque::new(),
            end: 0,
            next: 0,
            next_piece: 0,
            floor: 0,
            acknowledged: Ranges::default(),
            lost: Ranges::default(),
            limit,
            sendable_end: 0,
            taken: 0,
        }
    }

    /// Adds bytes, and returns the offset after them.
    ///
    /// # Errors
    /// [`Exhausted`]: nothing was added.
    pub fn push(&mut self, bytes: B) -> Result<u64, Exhausted> {
        let length = bytes.as_ref().len() as u64;
        let end = self.end.checked_add(length).filter(|end| *end <= LANE_BYTES_MAX).ok_or(Exhausted)?;
        if length == 0 {
            self.free.push_back(bytes);
        } else {
            self.pieces.push_back((self.end, bytes));
        }
        (self.end, self.sendable_end) = (end, end.min(self.limit));
        Ok(end)
    }

    /// Is there a piece that is acknowledged completely, and that was not taken?
    #[inline]
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// The oldest piece that is acknowledged completely, and stays.
    #[inline]
    pub fn first_free(&self) -> Option<&B> {
        self.free.front()
    }

    /// The oldest piece that is acknowledged completely.
    pub fn take_back(&mut self) -> Option<B> {
        self.free.pop_front()
    }

    /// The offset after the last byte that was added.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Every byte before this offset is acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.floor
    }

    /// Bytes that the peer's program has consumed.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The peer's credit: bytes before this offset may be sent.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The offset after the last byte that was sent.
    pub fn sent_bytes(&self) -> u64 {
        self.next
    }

    /// The number of bytes from the first unacknowledged one to the last one sent.
    pub fn outstanding(&self) -> u64 {
        self.next - self.floor
    }

    /// Are there bytes that were never sent?
    pub fn has_unsent(&self) -> bool {
        self.next < self.end
    }

    /// Every piece that has not been taken, the oldest first. Nothing of the lane may be sent afterwards.
    pub fn take_all_back(&mut self) -> impl Iterator<Item = B> + '_ {
        self.next_piece = 0;
        self.free.drain(..).chain(self.pieces.drain(..).map(|(_, bytes)| bytes))
    }

    /// Are there bytes that have to be sent again?
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Is there something to send that the peer's credit does not permit?
    pub fn lacks_credit(&self) -> bool {
        self.limit < self.end && self.lost.is_empty() && self.next == self.limit
    }

    /// Is there credit, and something to send with it?
    #[inline]
    pub fn has_something(&self) -> bool {
        self.next < self.sendable_end || !self.lost.is_empty()
    }

    /// Bytes that were never sent and for which there is credit.
    pub fn sendable(&self) -> u64 {
        let end = if planted::is(Bug::LimitIgnored) { self.end } else { self.sendable_end };
        end.saturating_sub(self.next)
    }

    /// The range to send next, at most `room` bytes. Lost bytes come before new ones.
    pub fn peek(&self, room: u64) -> Option<Range<u64>> {
        let whole = self
            .lost
            .first()
            .unwrap_or(self.next..if planted::is(Bug::LimitIgnored) { self.end } else { self.sendable_end });
        let piece = whole.start..whole.end.min(whole.start.saturating_add(room));
        (!piece.is_empty()).then_some(piece)
    }

    /// Notes that the bytes that [`Self::peek`] has returned leave now.
    #[inline]
    pub fn sent(&mut self, range: &Range<u64>) {
        if range.start != self.next {
            self.lost.remove(range.clone());
            return;
        }
        self.next = range.end;
        let end_of = |(start, bytes): &(u64, B)| start + bytes.as_ref().len() as u64;
        while self.pieces.get(self.next_piece).is_some_and(|piece| end_of(piece) <= self.next) {
            self.next_piece += 1;
        }
    }

    /// Appends bytes of the lane to a packet. They must not be acknowledged yet.
    #[inline]
    pub fn copy(&self, range: &Range<u64>, packet: &mut Vec<u8>) {
        let first = match range.start == self.next {
            true => self.next_piece,
            false => self.pieces.partition_point(|(start, _)| *start <= range.start).saturating_sub(1),
        };
        let within = self.pieces.get(first).and_then(|(start, bytes)| {
            bytes.as_ref().get((range.start - start) as usize..(range.end - start) as usize)
        });
        match within {
            Some(bytes) => packet.extend_from_slice(bytes),
            None => self.copy_pieces(first, range, packet),
        }
    }

    fn copy_pieces(&self, first: usize, range: &Range<u64>, packet: &mut Vec<u8>) {
        let mut at = range.start;
        for (start, bytes) in self.pieces.range(first..) {
            if at >= range.end {
                break;
            }
            let bytes = bytes.as_ref();
            let from = (at - start) as usize;
            let to = bytes.len().min((range.end - start) as usize);
            packet.extend_from_slice(&bytes[from..to]);
            at = start + to as u64;
        }
    }

    /// Notes that bytes which were sent have arrived.
    pub fn acknowledge(&mut self, range: Range<u64>) {
        let range = range.start.max(self.floor)..range.end.min(self.next);
        if range.is_empty() {
            return;
        }
        self.lost.remove(range.clone());
        if planted::is(Bug::GapSkipped) || range.start == self.floor && self.acknowledged.is_empty() {
            self.floor = range.end;
        } else {
            self.acknowledged.insert(range);
            if let Some(first) = self.acknowledged.first().filter(|first| first.start <= self.floor) {
                self.floor = first.end;
                self.acknowledged.remove(first);
            }
        }
        while let Some((start, bytes)) = self.pieces.front() {
            let back = if planted::is(Bug::TakenBackEarly) { self.next } else { self.floor };
            if start + bytes.as_ref().len() as u64 > back {
                break;
            }
            self.free.extend(self.pieces.pop_front().map(|(_, bytes)| bytes));
            self.next_piece = self.next_piece.saturating_sub(1);
        }
    }

    /// Notes that bytes have to be sent again, unless they have arrived.
    pub fn lose(&mut self, range: Range<u64>) {
        let range = range.start.max(self.floor)..range.end.min(self.next);
        if range.is_empty() || planted::is(Bug::LostForgotten) {
            return;
        }
        for gap in self.acknowledged.gaps(range) {
            self.lost.insert(gap);
        }
    }

    /// Notes the peer's consumed bytes and its credit. Both only rise, because an older report may arrive later.
    ///
    /// # Errors
    /// [`NeverSent`]: the peer cannot have consumed that many.
    pub fn credit(&mut self, taken: u64, limit: u64) -> Result<(), NeverSent> {
        if taken > self.next {
            return Err(NeverSent);
        }
        // Bytes that were consumed have also been received.
        self.acknowledge(self.floor..taken);
        self.taken = self.taken.max(taken);
        self.limit = self.limit.max(limit);
        self.sendable_end = self.end.min(self.limit);
        Ok(())
    }
}
