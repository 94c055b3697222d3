//! Values in the order in which they came, each found by its number.

/// Places without a value that are tolerated besides one for each value.
const EMPTY_MAX: usize = 16;
/// The slots of a first ring.
const SLOTS_MIN: usize = 8;

/// Values in order. A number is never used again.
///
/// A ring, whose values are made and dropped where they are: a value that is moved is copied, and a copy of words that were just
/// stored one by one waits for them.
#[derive(Debug)]
pub(crate) struct Ordered<T> {
    next: u64,
    /// A power of two of them, or none.
    slots: Vec<Slot<T>>,
    /// Where the first place is.
    first: usize,
    /// The places in use, by rising number. A value that was removed leaves an empty one, until there are more of them than values.
    places: usize,
    values: usize,
}

#[derive(Debug)]
struct Slot<T> {
    number: u64,
    value: Option<T>,
}

impl<T> Ordered<T> {
    pub fn new() -> Self {
        Self { next: 0, slots: Vec::new(), first: 0, places: 0, values: 0 }
    }

    pub fn len(&self) -> usize {
        self.values
    }

    /// Adds what `make` makes, and returns its number.
    #[inline(always)]
    pub fn push(&mut self, make: impl FnOnce() -> T) -> u64 {
        if self.places == self.slots.len() {
            self.grow();
        }
        let index = self.index(self.places);
        let number = self.next;
        let slot = &mut self.slots[index];
        slot.number = number;
        slot.value = Some(make());
        self.next += 1;
        self.places += 1;
        self.values += 1;
        number
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        self.slots.rotate_left(self.first);
        self.first = 0;
        let slots = (2 * self.slots.len()).max(SLOTS_MIN);
        self.slots.resize_with(slots, || Slot { number: 0, value: None });
    }

    /// The slot of a place.
    #[inline(always)]
    fn index(&self, place: usize) -> usize {
        (self.first + place) & (self.slots.len() - 1)
    }

    #[inline(always)]
    fn slot(&self, place: usize) -> Option<&Slot<T>> {
        if place < self.places { self.slots.get(self.index(place)) } else { None }
    }

    #[inline(always)]
    fn slot_mut(&mut self, place: usize) -> Option<&mut Slot<T>> {
        if place >= self.places {
            return None;
        }
        let index = self.index(place);
        self.slots.get_mut(index)
    }

    pub fn place(&self, number: u64) -> Option<usize> {
        // The usual one is the first.
        if self.slot(0)?.number == number {
            return Some(0);
        }
        let (mut low, mut high) = (1, self.places);
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.slot(middle)?.number.cmp(&number) {
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        self.slot(self.place(number)?)?.value.as_ref()
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        Some(self.take(self.place(number)?)?.1)
    }

    /// The place of the first value that is wanted. It holds until a value is removed.
    #[inline(always)]
    pub fn find(&self, mut is_wanted: impl FnMut(&T) -> bool) -> Option<usize> {
        // The usual one is the first.
        match &self.slot(0)?.value {
            Some(value) if is_wanted(value) => Some(0),
            _ => (1..self.places).find(|place| {
                let value = self.slot(*place).and_then(|slot| slot.value.as_ref());
                value.is_some_and(&mut is_wanted)
            }),
        }
    }

    /// The value at a place.
    #[inline(always)]
    pub fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.slot_mut(place)?.value.as_mut()
    }

    /// Removes the value at a place where there is one.
    #[inline(always)]
    pub fn release(&mut self, place: usize) {
        if let Some(slot) = self.slot_mut(place) {
            slot.value = None;
            self.values -= 1;
            self.drop_empty();
        }
    }

    /// Removes the value at a place. The result has its number, too.
    pub fn take(&mut self, place: usize) -> Option<(u64, T)> {
        let slot = self.slot_mut(place)?;
        let taken = (slot.number, slot.value.take()?);
        self.values -= 1;
        self.drop_empty();
        Some(taken)
    }

    /// Drops empty places: all at the beginning, and others once there are many.
    #[inline(always)]
    fn drop_empty(&mut self) {
        while self.slot(0).is_some_and(|slot| slot.value.is_none()) {
            self.first = self.index(1);
            self.places -= 1;
        }
        if self.places > 2 * self.values + EMPTY_MAX {
            self.drop_all_empty();
        }
    }

    #[inline(never)]
    fn drop_all_empty(&mut self) {
        let mut kept = 0;
        for place in 0..self.places {
            let [target, source] = [kept, place].map(|place| self.index(place));
            if self.slots[source].value.is_some() {
                self.slots.swap(target, source);
                kept += 1;
            }
        }
        self.places = kept;
    }

    /// The values with their numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (0..self.places).filter_map(|place| {
            let slot = self.slot(place)?;
            Some((slot.number, slot.value.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_in_order_and_empty_places_go() {
        let mut ordered = Ordered::new();
        let oldest = ordered.push(|| u64::MAX);
        for value in 0..10_000 {
            let number = ordered.push(|| value);
            assert_eq!(ordered.get(number), Some(&value));
            if value % 100 != 0 {
                assert_eq!(ordered.remove(number), Some(value));
                assert_eq!(ordered.remove(number), None);
            }
            assert!(ordered.places <= 2 * ordered.len() + EMPTY_MAX);
        }
        let values: Vec<u64> = ordered.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [u64::MAX].into_iter().chain((0..10_000).step_by(100)).collect::<Vec<_>>());
        assert_eq!((ordered.remove(oldest), ordered.len()), (Some(u64::MAX), 100));
    }
    #[test]
    fn a_ring_of_values_is_a_list_of_them() {
        let mut random = 1u64;
        let mut next = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        let (mut ordered, mut model) = (Ordered::new(), Vec::new());
        for round in 0..100_000 {
            // Queues that grow, and queues that shrink.
            if next(10) < if round / 500 % 2 == 0 { 6 } else { 4 } {
                let number = ordered.push(|| round);
                model.push((number, round));
            } else if !model.is_empty() {
                // Mostly the first ones.
                let place = next(model.len() as u64).min(next(4)) as usize;
                let (number, value) = model.remove(place);
                match next(3) {
                    0 => assert_eq!(ordered.remove(number), Some(value)),
                    1 => ordered.release(ordered.place(number).expect("a place")),
                    _ => {
                        let found = ordered.find(|other| *other == value).expect("a place");
                        assert_eq!(ordered.at_mut(found).copied(), Some(value));
                        assert_eq!(ordered.take(found), Some((number, value)));
                    }
                }
            }
            assert_eq!(ordered.len(), model.len());
            if round % 64 == 0 {
                assert!(ordered.iter().map(|(number, value)| (number, *value)).eq(model.iter().copied()));
                assert_eq!(ordered.place(u64::MAX), None);
            }
        }
    }
}
