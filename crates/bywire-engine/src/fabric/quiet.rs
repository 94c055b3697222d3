//! Connections at which no turn of the engine looks.

use bywire_ring::hints;

/// The names of quiet connections, by the number of each.
#[derive(Debug, Default)]
pub struct Quiet {
    by_number: Vec<Vec<u64>>,
    /// Numbers for which news were counted. The list is kept for its memory.
    pub hinted: Vec<usize>,
}

impl Quiet {
    /// The connections with this number.
    pub fn of_number(&mut self, number: usize) -> &mut Vec<u64> {
        let number = number % hints::NUMBERS;
        if self.by_number.len() <= number {
            self.by_number.resize_with(number + 1, Vec::new);
        }
        &mut self.by_number[number]
    }

    /// Takes one out.
    pub fn remove(&mut self, number: usize, name: u64) {
        self.of_number(number).retain(|quiet| *quiet != name);
    }
}
