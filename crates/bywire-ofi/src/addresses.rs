//! Address vectors: the names of endpoints that the program knows, by index.

use crate::name::EndpointName;

/// The most names in a vector.
const NAMES_MAX: usize = 1 << 24;

/// An address vector. The index of a name is its `fi_addr`.
#[derive(Debug, Default)]
pub struct Addresses {
    names: Vec<Option<EndpointName>>,
    /// Changes when an index gets another meaning.
    version: u64,
}

impl Addresses {
    /// Adds a name, and returns its index. `None`: the vector is full.
    pub fn insert(&mut self, name: EndpointName) -> Option<u64> {
        if self.names.len() >= NAMES_MAX {
            return None;
        }
        self.names.push(Some(name));
        Some(self.names.len() as u64 - 1)
    }

    /// Removes a name. The result says whether there was one. Its index is not used again.
    pub fn remove(&mut self, index: u64) -> bool {
        let name = usize::try_from(index).ok().and_then(|index| self.names.get_mut(index));
        let is_removed = name.is_some_and(|name| name.take().is_some());
        self.version += u64::from(is_removed);
        is_removed
    }

    pub fn name(&self, index: u64) -> Option<&EndpointName> {
        usize::try_from(index).ok().and_then(|index| self.names.get(index))?.as_ref()
    }

    /// The names from an index on, with their indices.
    pub fn names_from(&self, first: usize) -> impl Iterator<Item = (u64, &EndpointName)> {
        let names = self.names.iter().enumerate().skip(first);
        names.filter_map(|(index, name)| Some((index as u64, name.as_ref()?)))
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn version(&self) -> u64 {
        self.version
    }
}
