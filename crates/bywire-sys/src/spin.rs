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
/// The most fruitless waits among the last ones, as many as [`Spin::history`] has bits, while it spins for the longer time.
const FRUITLESS_OF_LAST: u32 = 4;

/// The spin budget of one loop.
#[derive(Debug)]
pub struct Spin {
    max_cycles: u64,
    /// Until spins have failed, and while nearly all of them pay.
    longer_cycles: u64,
    abstain: u32,
    fruitless: u32,
    /// The last spins that have paid, and the sleeps after those that have not; the newest in the lowest bit. 1: a spin would not
    /// have paid.
    history: u16,
}

impl Spin {
    /// Spins at most `max` at a time. With zero, it never spins.
    pub fn new(max: Duration) -> Self {
        let max_cycles = clock::cycles_in(max);
        Self { max_cycles, longer_cycles: max_cycles, abstain: 0, fruitless: 0, history: 0 }
    }

    /// Spins for up to `longer` while nearly all of its spins pay, as those of two programs that talk without a pause.
    pub fn longer(self, longer: Duration) -> Self {
        Self { longer_cycles: clock::cycles_in(longer).max(self.max_cycles), ..self }
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
        self.most_cycles()
    }

    fn most_cycles(&self) -> u64 {
        if self.history.count_ones() > FRUITLESS_OF_LAST { self.max_cycles } else { self.longer_cycles }
    }

    /// Notes that something came while spinning.
    pub fn paid(&mut self) {
        self.fruitless = 0;
        self.history <<= 1;
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
        let would_pay = slept_cycles / 2 < self.max_cycles;
        if would_pay {
            self.fruitless = 0;
        }
        self.history = self.history << 1 | u16::from(!would_pay);
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

    #[test]
    fn it_spins_longer_only_while_nearly_all_spins_pay() {
        let [short, long] = [50, 200].map(Duration::from_micros);
        let mut spin = Spin::new(short).longer(long);
        let [short, long] = [short, long].map(clock::cycles_in);
        let mut talk = |fruitless: u32, of: u32| {
            let mut budget = 0;
            for wait in 0..64 {
                budget = spin.budget_cycles();
                if wait % of < fruitless {
                    spin.failed();
                    spin.woken_after(clock::cycles_in(Duration::from_millis(1)));
                } else {
                    spin.paid();
                }
            }
            budget
        };
        assert_eq!(talk(0, 16), long);
        assert_eq!(talk(1, 2), short, "a pause after each answer");
        assert_eq!(talk(1, 8), long, "a pause now and then");
    }
}
