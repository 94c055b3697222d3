//! How long to look for the next frame before going to sleep.
//!
//! Sleeping and being woken costs several microseconds at each frame of a conversation; looking costs the core, which
//! somebody else may want. So the loop yields between two looks, the time is bounded and not spent where nothing came
//! of it several times, and for a while nobody looks once a yield has shown that somebody wants the core for long.

use std::time::Duration;

use bywire_sys::clock;

/// Waits without spinning after somebody else has wanted the core.
const ABSTAIN: u32 = 64;
/// Fruitless spins in a row after which only a quick answer starts it again.
const FRUITLESS_MAX: u32 = 4;

/// The budget of one loop.
#[derive(Debug)]
pub struct Spin {
    max_cycles: u64,
    abstain: u32,
    fruitless: u32,
}

impl Spin {
    /// At most `max` at a time; zero never spins.
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

    /// A frame came while spinning.
    pub fn paid(&mut self) {
        self.fruitless = 0;
    }

    /// None came.
    pub fn failed(&mut self) {
        self.fruitless += 1;
    }

    /// Somebody else wanted the core, and for long.
    pub fn give_way(&mut self) {
        self.abstain = ABSTAIN;
    }

    /// The sleep that followed lasted so long: hardly longer than a spin means that spinning would have paid.
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
        spin.give_way();
        let abstained = (0..1000).take_while(|_| spin.budget_cycles() == 0).count();
        assert_eq!(abstained, ABSTAIN as usize);
        assert_eq!(Spin::new(Duration::ZERO).budget_cycles(), 0);
    }
}
