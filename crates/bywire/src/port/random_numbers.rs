//! Random numbers for keys of regions. One call of the kernel draws several, because a program may register memory for every message.

use bywire_sys::{Errno, process};

/// The numbers that one call draws.
const DRAWN: usize = 32;

/// Numbers that were drawn and not used yet. They are secret, so this has no `Debug`.
#[derive(Default)]
pub(super) struct RandomNumbers {
    bytes: [[u8; 8]; DRAWN],
    left: usize,
}

impl RandomNumbers {
    /// A number that was not used before.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(&mut self) -> Result<u64, Errno> {
        if self.left == 0 {
            process::random(self.bytes.as_flattened_mut())?;
            self.left = DRAWN;
        }
        self.left -= 1;
        // What was used is not kept.
        Ok(u64::from_ne_bytes(std::mem::take(&mut self.bytes[self.left])))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_number_comes_twice() {
        let mut numbers = RandomNumbers::default();
        let all: HashSet<u64> = (0..10 * DRAWN).map(|_| numbers.take().expect("random bytes")).collect();
        assert_eq!(all.len(), 10 * DRAWN);
    }
}
