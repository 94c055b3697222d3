//! Counts by name.

use std::collections::BTreeMap;
use std::marker::PhantomData;

/// What one kind of simulation counts.
pub trait Names {
    /// The names. A simulation that counts another one panics, because its absence would not be noticed.
    fn names() -> Vec<&'static str>;
}

/// Counts by name, or 0.
#[derive(Clone, Debug)]
pub struct Tally<N> {
    numbers: BTreeMap<&'static str, u64>,
    names: PhantomData<N>,
}

impl<N: Names> Default for Tally<N> {
    fn default() -> Self {
        Self { numbers: N::names().into_iter().map(|name| (name, 0)).collect(), names: PhantomData }
    }
}

impl<N: Names> Tally<N> {
    /// Counts a name once.
    pub(crate) fn note(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    /// Counts a name `number` times.
    ///
    /// # Panics
    /// If the name is not listed.
    pub(crate) fn add(&mut self, name: &'static str, number: u64) {
        *self.numbers.get_mut(name).unwrap_or_else(|| panic!("{name}")) += number;
    }

    /// Adds several counts.
    ///
    /// # Panics
    /// If a name is not listed.
    pub(crate) fn add_all(&mut self, counts: impl IntoIterator<Item = (&'static str, u64)>) {
        counts.into_iter().for_each(|(name, number)| self.add(name, number));
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        self.add_all(other.iter());
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.numbers.iter().map(|(name, number)| (*name, *number))
    }
}
