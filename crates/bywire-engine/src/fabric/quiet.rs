//! Connections at which no turn of the engine looks.

use std::collections::HashMap;

/// The names of quiet connections, by the number of each.
#[derive(Debug, Default)]
pub struct Quiet {
    by_number: HashMap<usize, Vec<u64>>,
    /// Numbers for which news were counted. The list is kept for its memory.
    pub hinted: Vec<usize>,
}

impl Quiet {
    /// The connections with this number.
    pub fn of_number(&mut self, number: usize) -> &mut Vec<u64> {
        self.by_number.entry(number).or_default()
    }

    /// Takes one out.
    pub fn remove(&mut self, number: usize, name: u64) {
        self.of_number(number).retain(|quiet| *quiet != name);
    }
}
