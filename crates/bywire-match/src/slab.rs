//! Values with a key that is never used again, so that a key of a peer or of a program that is out of date finds nothing.

/// A peer of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub(crate) u64);

impl PeerId {
    /// A number below [`crate::Limits::peers`] that no other peer has at the same time.
    pub fn index(self) -> usize {
        index(self.0)
    }
}

/// The index is in the low half of a key, the generation in the high half.
fn index(key: u64) -> usize {
    key as u32 as usize
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values by key.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    vacant: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// The key that the next value gets.
    pub fn next_key(&self) -> u64 {
        let Some(index) = self.vacant.last() else { return self.slots.len() as u64 };
        u64::from(self.slots[*index as usize].generation) << 32 | u64::from(*index)
    }

    pub fn insert(&mut self, value: T) -> u64 {
        let key = self.next_key();
        match self.vacant.pop() {
            Some(index) => self.slots[index as usize].value = Some(value),
            None => self.slots.push(Slot { generation: 0, value: Some(value) }),
        }
        key
    }

    #[inline]
    fn slot(&mut self, key: u64) -> Option<&mut Slot<T>> {
        self.slots.get_mut(index(key)).filter(|slot| u64::from(slot.generation) == key >> 32)
    }

    #[inline]
    pub fn value(&self, key: u64) -> Option<&T> {
        let slot = self.slots.get(index(key)).filter(|slot| u64::from(slot.generation) == key >> 32);
        slot?.value.as_ref()
    }

    #[inline]
    pub fn value_mut(&mut self, key: u64) -> Option<&mut T> {
        self.slot(key)?.value.as_mut()
    }

    pub fn remove(&mut self, key: u64) -> Option<T> {
        let slot = self.slot(key)?;
        let value = slot.value.take()?;
        // A slot whose generations are used up stays empty. There are 2^32 of each.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.vacant.push(index(key) as u32);
        }
        Some(value)
    }

    /// The keys of the values for which `is_wanted` is true.
    pub fn keys(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<u64> {
        let slots = self.slots.iter().enumerate();
        let wanted = slots.filter(|(_, slot)| slot.value.as_ref().is_some_and(&is_wanted));
        wanted.map(|(index, slot)| u64::from(slot.generation) << 32 | index as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_a_removed_value_finds_nothing_again() {
        let mut slab = Slab::new();
        let keys = ["a", "b"].map(|value| slab.insert(value));
        assert_eq!(slab.value(keys[0]), Some(&"a"));
        assert_eq!(slab.remove(keys[0]), Some("a"));
        assert_eq!((slab.remove(keys[0]), slab.value(keys[0]), slab.len()), (None, None, 1));
        let next = slab.next_key();
        assert_eq!(slab.insert("c"), next);
        assert_ne!(next, keys[0]);
        assert_eq!(slab.value_mut(keys[0]), None);
        assert_eq!(slab.value(next), Some(&"c"));
        assert_eq!(slab.keys(|value| *value != "b"), [next]);
        assert_eq!(slab.value(u64::MAX), None);
    }
}
