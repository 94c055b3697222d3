//! Events to come, by time.

use std::collections::BTreeMap;

/// Events to come. Those of one moment happen in the order in which they were added.
#[derive(Debug)]
pub struct Events<E> {
    /// By time, then by order.
    waiting: BTreeMap<(u64, u64), E>,
    added: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), added: 0 }
    }
}

impl<E> Events<E> {
    /// Adds an event.
    pub fn add(&mut self, at_ns: u64, event: E) {
        self.added += 1;
        self.waiting.insert((at_ns, self.added), event);
    }

    /// The next event, and its time.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.pop_before(u64::MAX)
    }

    /// The next event, if it is before this time.
    pub fn pop_before(&mut self, end_ns: u64) -> Option<(u64, E)> {
        let next = self.waiting.first_entry().filter(|next| next.key().0 < end_ns)?;
        let ((at_ns, _), event) = next.remove_entry();
        Some((at_ns, event))
    }
}
