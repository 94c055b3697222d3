//! How long a loop polls for the next thing before it goes to sleep.
//!
//! Sleeping and waking costs several microseconds for each step of a conversation. Polling occupies the core, which other
//! programs may need. So a loop yields between two polls, and its polling time is bounded. It does not poll after several
//! fruitless attempts. It also stops for a while after a yield has shown that another program needs the core for long.

use std::time::Duration;

use crate::clock;

/// Waits without polling after another program needed the core.
const ABSTAIN: u32 = 64;
/// Fruitless spins in a row after which the loop does not spin. A quick wake-up resets the count.
const FRUITLESS_MAX: u32 = 4;

/// The spin budget of one loop.
#[derive(Debug)]
pub struct Spin {
    max_cycles: u64,
    abstain: u32,
    fruitless: u32,
}

impl Spin {
    /// Spins at most `max` at a time. With zero, it never spins.
    pub fn new(max: Duration) -> Self {
        Self { max_cycles: clock::cycles_in(max), abstain: 0, fruitless: 0 }
    }

    /// How many cycles this wait may spin.
    pub fn budget_cycles(&mut self) -> u64 {
        if self.max_cycles == 0 || self.fruitless >= FRUITLESS_MAX {
            return 0;
        }
        if self.abstain > 0 {
            self.abstain -= 1;
            return 0;
        }
        self.max_cycles
    }

    /// Notes that something came while spinning.
    pub fn paid(&mut self) {
        self.fruitless = 0;
    }

    /// Notes that nothing came while spinning.
    pub fn failed(&mut self) {
        self.fruitless += 1;
    }

    /// Stops polling for a while: another program needs the core.
    pub fn abstain(&mut self) {
        self.abstain = ABSTAIN;
    }

    /// Notes the length of the sleep that followed. If it was hardly longer than a spin, spinning would have paid.
    pub fn woken_after(&mut self, slept_cycles: u64) {
        if slept_cycles / 2 < self.max_cycles {
            self.fruitless = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_stops_where_it_does_not_pay_and_starts_again_where_it_would() {
        let mut spin = Spin::new(Duration::from_micros(50));
        for _ in 0..FRUITLESS_MAX {
            assert!(spin.budget_cycles() > 0);
            spin.failed();
        }
        assert_eq!(spin.budget_cycles(), 0);
        spin.woken_after(clock::cycles_in(Duration::from_millis(1)));
        assert_eq!(spin.budget_cycles(), 0, "an idle network");
        spin.woken_after(clock::cycles_in(Duration::from_micros(20)));
        assert!(spin.budget_cycles() > 0, "a conversation");
        spin.abstain();
        let abstained = (0..1000).take_while(|_| spin.budget_cycles() == 0).count();
        assert_eq!(abstained, ABSTAIN as usize);
        assert_eq!(Spin::new(Duration::ZERO).budget_cycles(), 0);
    }
}
