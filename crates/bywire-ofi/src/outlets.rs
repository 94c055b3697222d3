//! Where the operations of a domain's endpoints report.

use crate::completion::{Completion, Queue};

/// The completion queues and counters of a domain, by number.
#[derive(Debug, Default)]
pub struct Outlets {
    queues: Vec<Option<Queue>>,
    counters: Vec<Option<Counter>>,
}

/// How many operations have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    pub value: u64,
    pub errors: u64,
}

/// Gives a value the first number that is free.
pub fn put<T>(values: &mut Vec<Option<T>>, value: T) -> usize {
    let number = values.iter().position(Option::is_none).unwrap_or(values.len());
    if number == values.len() {
        values.push(None);
    }
    values[number] = Some(value);
    number
}

impl Outlets {
    /// Adds a queue, and returns its number.
    pub fn add(&mut self, queue: Queue) -> usize {
        put(&mut self.queues, queue)
    }

    pub fn remove(&mut self, number: usize) {
        if let Some(queue) = self.queues.get_mut(number) {
            *queue = None;
        }
    }

    #[inline]
    pub fn queue(&mut self, number: usize) -> Option<&mut Queue> {
        self.queues.get_mut(number)?.as_mut()
    }

    /// Adds a counter, and returns its number.
    pub fn add_counter(&mut self) -> usize {
        put(&mut self.counters, Counter::default())
    }

    pub fn remove_counter(&mut self, number: usize) {
        if let Some(counter) = self.counters.get_mut(number) {
            *counter = None;
        }
    }

    #[inline]
    pub fn counter(&mut self, number: usize) -> Option<&mut Counter> {
        self.counters.get_mut(number)?.as_mut()
    }

    /// Counts an operation that has ended, if there is a counter.
    #[inline]
    pub fn count(&mut self, counter: Option<usize>, error: i32) {
        if let Some(counter) = counter.and_then(|number| self.counter(number)) {
            let count = if error == 0 { &mut counter.value } else { &mut counter.errors };
            *count = count.wrapping_add(1);
        }
    }

    /// Reports to a queue, if there is one.
    #[inline]
    pub fn report(&mut self, queue: Option<usize>, completion: Completion) {
        if let Some(queue) = queue.and_then(|number| self.queue(number)) {
            queue.push(completion);
        }
    }

    /// Has a queue no room?
    #[inline]
    pub fn is_full(&mut self, queue: Option<usize>) -> bool {
        queue.and_then(|number| self.queue(number)).is_some_and(|queue| queue.is_full())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_what_was_removed_is_given_again() {
        let mut outlets = Outlets::default();
        assert_eq!([(); 3].map(|()| outlets.add_counter()), [0, 1, 2]);
        outlets.remove_counter(1);
        assert_eq!([outlets.add_counter(), outlets.add_counter()], [1, 3]);
    }
}
