//! When each connection next has work to do. Many idle connections cost nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nothing is due.
const NEVER: u64 = u64::MAX;
/// Entries of the heap that may be of no use any more, besides as many as there are slots.
const STALE_MAX: usize = 64;

/// Deadlines by slot. A deadline that moves to a later time stays in the heap, so its connection is called too early
/// once and sets a new one.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// The deadline of each slot that is in the heap.
    set: Vec<u64>,
}

impl Timers {
    /// Has a slot called at this time, or earlier.
    pub fn set(&mut self, index: u32, at_ns: u64) {
        let place = index as usize;
        if self.set.len() <= place {
            self.set.resize(place + 1, NEVER);
        }
        if at_ns < self.set[place] {
            self.set[place] = at_ns;
            self.heap.push(Reverse((at_ns, index)));
        }
        // Deadlines that were forgotten, or moved, would stay until their time.
        if self.heap.len() > 2 * self.set.len() + STALE_MAX {
            let deadlines = (0..).zip(&self.set).filter(|(_, at_ns)| **at_ns != NEVER);
            self.heap = deadlines.map(|(index, at_ns)| Reverse((*at_ns, index))).collect();
        }
    }

    pub fn forget(&mut self, index: u32) {
        if let Some(set) = self.set.get_mut(index as usize) {
            *set = NEVER;
        }
    }

    /// A slot that is due. Its deadline is removed.
    pub fn pop(&mut self, now_ns: u64) -> Option<u32> {
        while self.first_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            let Reverse((at_ns, index)) = self.heap.pop()?;
            let set = &mut self.set[index as usize];
            if *set == at_ns {
                *set = NEVER;
                return Some(index);
            }
        }
        None
    }

    /// The first deadline.
    pub fn first_ns(&mut self) -> Option<u64> {
        while let Some(Reverse((at_ns, index))) = self.heap.peek().copied() {
            if self.set[index as usize] == at_ns {
                return Some(at_ns);
            }
            // It was removed, or has an earlier deadline.
            self.heap.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_expire_once_and_in_order() {
        let mut timers = Timers::default();
        timers.set(7, 300);
        timers.set(3, 200);
        timers.set(7, 100);
        timers.set(7, 500);
        timers.set(4, 250);
        timers.forget(4);
        assert_eq!(timers.first_ns(), Some(100));
        assert_eq!([99, 100, 100, 300, 400].map(|now| timers.pop(now)), [None, Some(7), None, Some(3), None]);
        assert_eq!(timers.first_ns(), None);
        timers.set(7, 300);
        assert_eq!((timers.first_ns(), timers.pop(1000), timers.pop(1000)), (Some(300), Some(7), None));
    }

    #[test]
    fn moving_deadlines_use_bounded_memory() {
        let mut timers = Timers::default();
        for now in 0..100_000 {
            timers.set(1, now + 50);
            timers.pop(now);
        }
        assert!(timers.heap.len() <= 2, "{}", timers.heap.len());
    }
    #[test]
    fn a_late_deadline_behind_many_early_ones_is_stored_once() {
        let mut timers = Timers::default();
        for now in 0..100_000 {
            timers.set(1, now + 1_000_000_000);
            timers.set(1, now);
            timers.pop(now);
        }
        assert!(timers.heap.len() <= 1000, "{}", timers.heap.len());
    }
}
