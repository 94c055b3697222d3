//! Callers that are not read from for a while, because their user has used up its share of the work. Each user's callers
//! wait in a line of their own, so that one user's flood costs the others nothing.

use std::collections::{HashMap, VecDeque};

use crate::broker::PortId;

/// How soon they are looked at again.
const PAUSE_NS: u64 = 10_000_000;

/// Callers by user, in the order of their turns. Some may have gone since.
#[derive(Debug, Default)]
pub(super) struct ThrottledCallers {
    lines: HashMap<u32, VecDeque<PortId>>,
    next_ns: u64,
}

impl ThrottledCallers {
    /// A caller of a user waits from now on.
    pub(super) fn put(&mut self, now_ns: u64, user: u32, caller: PortId) {
        if self.lines.is_empty() {
            self.next_ns = now_ns.saturating_add(PAUSE_NS);
        }
        self.lines.entry(user).or_default().push_back(caller);
    }

    /// When [`Self::take_due`] yields something.
    pub(super) fn next_ns(&self) -> Option<u64> {
        (!self.lines.is_empty()).then_some(self.next_ns)
    }

    /// Takes all lines if it is time. The caller puts back those that it does not process.
    pub(super) fn take_due(&mut self, now_ns: u64) -> HashMap<u32, VecDeque<PortId>> {
        if self.next_ns().is_none_or(|next_ns| now_ns < next_ns) {
            return HashMap::new();
        }
        std::mem::take(&mut self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_looked_at_after_a_pause_and_in_order() {
        let mut throttled = ThrottledCallers::default();
        assert!(throttled.next_ns().is_none() && throttled.take_due(u64::MAX).is_empty());
        for caller in [16, 18, 20] {
            throttled.put(caller, 7, caller);
        }
        throttled.put(30, 8, 30);
        assert_eq!(throttled.next_ns(), Some(16 + PAUSE_NS));
        assert!(throttled.take_due(15 + PAUSE_NS).is_empty());
        let lines = throttled.take_due(16 + PAUSE_NS);
        assert_eq!(
            (lines[&7].clone(), lines[&8].clone()),
            (VecDeque::from([16, 18, 20]), VecDeque::from([30]))
        );
        assert_eq!(throttled.next_ns(), None);
    }
}
