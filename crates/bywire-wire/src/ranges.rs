//! Sets of ranges of bytes.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither overlap nor touch. Its memory grows with the number of its ranges, so a caller that inserts a
/// peer's values bounds that number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    end_by_start: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.end_by_start.is_empty()
    }

    /// The number of ranges.
    pub fn count(&self) -> usize {
        self.end_by_start.len()
    }

    /// The lowest range.
    pub fn first(&self) -> Option<Range<u64>> {
        self.end_by_start.first_key_value().map(|(start, end)| *start..*end)
    }

    /// The ranges, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.end_by_start.iter().map(|(start, end)| *start..*end)
    }

    /// Adds every byte of a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Among the ranges that begin before its end or at it, the last ones overlap or touch it.
        while let Some((first, last)) = self.last_from(..=end).filter(|(_, last)| *last >= start) {
            self.end_by_start.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.end_by_start.insert(start, end);
    }

    /// Removes every byte of a range.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((first, last)) = self.last_from(..range.end).filter(|(_, last)| *last > range.start) {
            self.end_by_start.remove(&first);
            if last > range.end {
                self.end_by_start.insert(range.end, last);
            }
            if first < range.start {
                self.end_by_start.insert(first, range.start);
            }
        }
    }

    /// Does a range overlap or touch one in the set?
    pub fn touches(&self, range: &Range<u64>) -> bool {
        self.last_from(..=range.end).is_some_and(|(_, last)| last >= range.start)
    }

    /// The parts of a range that are not in the set, the lowest first.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.last_from(..=range.start).map_or(0, |(_, last)| last);
        let mut next = range.start.max(before);
        let mut inside = self.end_by_start.range(range.start.min(range.end)..range.end);
        std::iter::from_fn(move || {
            while next < range.end {
                let (first, last) =
                    inside.next().map_or((range.end, range.end), |(first, last)| (*first, *last));
                let gap = next..first;
                next = next.max(last);
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
            None
        })
    }

    fn last_from(&self, starts: impl std::ops::RangeBounds<u64>) -> Option<(u64, u64)> {
        self.end_by_start.range(starts).next_back().map(|(start, end)| (*start, *end))
    }
}
