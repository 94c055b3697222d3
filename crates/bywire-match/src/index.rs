//! An index over a long queue: what is looked for is found without a walk through the queue.
//!
//! Receives differ in what they leave open: whether any source will do, and which bits of the tag are ignored. That is the
//! class of a receive. A program has few classes, because its MPI library ignores the same bits in every receive. Within
//! a class a source and the other bits of the tag are compared whole, so they are a key. The rows are in a tree and not in
//! a hash table: a peer chooses the tags, and cannot make a tree slow.

use std::collections::BTreeSet;

/// The most classes that an index has. Receives of further ones are walked through.
pub const CLASSES_MAX: usize = 8;

/// What a receive leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub is_any_source: bool,
    pub ignore: u64,
}

/// A source and the bits of a tag, where the class leaves them open not.
pub(crate) type Key = (u64, u64);

impl Class {
    /// The key of a message with this source and tag, or of a receive that asks for them.
    pub fn key(self, source: u64, tag: u64) -> Key {
        (if self.is_any_source { u64::MAX } else { source }, tag & !self.ignore)
    }
}

/// Numbers of queued values, by class and key.
#[derive(Debug, Default)]
pub(crate) struct Index {
    classes: Vec<Class>,
    rows: BTreeSet<(usize, Key, u64)>,
}

impl Index {
    /// The classes, in the order of their numbers.
    pub fn classes(&self) -> impl Iterator<Item = (usize, Class)> + use<> {
        let mut classes = [None; CLASSES_MAX];
        for (place, class) in classes.iter_mut().zip(&self.classes) {
            *place = Some(*class);
        }
        classes.into_iter().flatten().enumerate()
    }

    /// The number of a class that is known.
    pub fn class(&self, class: Class) -> Option<usize> {
        self.classes.iter().position(|known| *known == class)
    }

    /// Adds a class, and returns its number, if there is room for it.
    pub fn learn(&mut self, class: Class) -> Option<usize> {
        if self.classes.len() == CLASSES_MAX {
            return None;
        }
        self.classes.push(class);
        Some(self.classes.len() - 1)
    }

    pub fn insert(&mut self, class: usize, key: Key, number: u64) {
        self.rows.insert((class, key, number));
    }

    pub fn remove(&mut self, class: usize, key: Key, number: u64) {
        self.rows.remove(&(class, key, number));
    }

    /// The numbers with a key, in order.
    pub fn numbers(&self, class: usize, key: Key) -> impl Iterator<Item = u64> {
        self.rows.range((class, key, 0)..=(class, key, u64::MAX)).map(|(_, _, number)| *number)
    }
}
