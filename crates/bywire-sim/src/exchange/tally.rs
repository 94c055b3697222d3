//! The counts of a run.

use std::collections::BTreeMap;

/// The names that must be counted in some run.
const NAMES: [&str; 24] = [
    "buffers posted late",
    "buffers posted too small",
    "connections ended by a death",
    "connections ended by a leave",
    "connections ended when all was done",
    "datagrams received",
    "datagrams that never came",
    "gets answered",
    "gets refused",
    "large windows",
    "messages copied: long",
    "messages copied: short",
    "messages delivered: long",
    "messages delivered: short",
    "messages sent at once",
    "messages that a death has lost",
    "notes received",
    "puts answered: long",
    "puts answered: short",
    "puts refused",
    "regions revoked",
    "sends that found no room",
    "transfers failed by the end",
    "transfers that found no token",
];

/// Counts by name, or 0.
#[derive(Clone, Debug)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Default for Counts {
    fn default() -> Self {
        Self(NAMES.map(|name| (name, 0)).into())
    }
}

impl Counts {
    /// Counts a name.
    ///
    /// # Panics
    /// If the name is not listed, because its absence would not be noticed.
    pub(crate) fn add(&mut self, name: &'static str, number: u64) {
        *self.0.get_mut(name).unwrap_or_else(|| panic!("{name}")) += number;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, number)| self.add(name, *number));
    }

    /// All counts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, number)| (*name, *number))
    }
}
