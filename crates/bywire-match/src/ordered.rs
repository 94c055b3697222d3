//! Values in the order in which they came, each found by its number.

use std::collections::VecDeque;

/// Places without a value that are tolerated besides one for each value.
const EMPTY_MAX: usize = 16;

/// Values in order. A number is never used again.
#[derive(Debug)]
pub(crate) struct Ordered<T> {
    next: u64,
    /// By rising number. A value that was removed leaves an empty place, until there are more of them than values.
    places: VecDeque<(u64, Option<T>)>,
    values: usize,
}

impl<T> Ordered<T> {
    pub fn new() -> Self {
        Self { next: 0, places: VecDeque::new(), values: 0 }
    }

    pub fn len(&self) -> usize {
        self.values
    }

    #[inline]
    pub fn push(&mut self, value: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.places.push_back((number, Some(value)));
        self.values += 1;
        number
    }

    pub fn place(&self, number: u64) -> Option<usize> {
        // The usual one is the first.
        if self.places.front().is_some_and(|(first, _)| *first == number) {
            return Some(0);
        }
        self.places.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        self.places[self.place(number)?].1.as_ref()
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        Some(self.take(self.place(number)?)?.1)
    }

    /// The place of the first value that is wanted. It holds until a value is removed.
    #[inline(always)]
    pub fn find(&self, mut is_wanted: impl FnMut(&T) -> bool) -> Option<usize> {
        // The usual one is the first.
        match self.places.front()? {
            (_, Some(value)) if is_wanted(value) => Some(0),
            _ => {
                let mut others = self.places.iter().enumerate().skip(1);
                Some(others.find(|(_, (_, value))| value.as_ref().is_some_and(&mut is_wanted))?.0)
            }
        }
    }

    /// The value at a place.
    #[inline(always)]
    pub fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.places.get_mut(place)?.1.as_mut()
    }

    /// Removes the value at a place where there is one.
    #[inline(always)]
    pub fn release(&mut self, place: usize) {
        if let Some((_, value)) = self.places.get_mut(place) {
            *value = None;
            self.values -= 1;
            self.drop_empty();
        }
    }

    /// Removes the value at a place. The result has its number, too.
    pub fn take(&mut self, place: usize) -> Option<(u64, T)> {
        let (number, value) = self.places.get_mut(place)?;
        let taken = (*number, value.take()?);
        self.values -= 1;
        self.drop_empty();
        Some(taken)
    }

    /// Drops empty places: all at the beginning, and others once there are many.
    #[inline(always)]
    fn drop_empty(&mut self) {
        while self.places.front().is_some_and(|(_, value)| value.is_none()) {
            self.places.pop_front();
        }
        if self.places.len() > 2 * self.values + EMPTY_MAX {
            self.drop_all_empty();
        }
    }

    #[inline(never)]
    fn drop_all_empty(&mut self) {
        self.places.retain(|(_, value)| value.is_some());
    }

    /// The values with their numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().filter_map(|(number, value)| Some((*number, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_in_order_and_empty_places_go() {
        let mut ordered = Ordered::new();
        let oldest = ordered.push(u64::MAX);
        for value in 0..10_000 {
            let number = ordered.push(value);
            assert_eq!(ordered.get(number), Some(&value));
            if value % 100 != 0 {
                assert_eq!(ordered.remove(number), Some(value));
                assert_eq!(ordered.remove(number), None);
            }
            assert!(ordered.places.len() <= 2 * ordered.len() + EMPTY_MAX);
        }
        let values: Vec<u64> = ordered.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [u64::MAX].into_iter().chain((0..10_000).step_by(100)).collect::<Vec<_>>());
        assert_eq!((ordered.remove(oldest), ordered.len()), (Some(u64::MAX), 100));
    }
}
