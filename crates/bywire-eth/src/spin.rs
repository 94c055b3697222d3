//! How long to look for the next frame before going to sleep.
//!
//! Sleeping and being woken costs several microseconds at each frame of a conversation; looking costs the core, which
//! somebody else may want. So the time is bounded, shrinks while nothing comes of it, and falls to nothing for a
//! while whenever the kernel had to take the core away.

use std::time::Duration;

use bywire_sys::{clock, process};

/// Waits without spinning after the core was taken from us.
const ABSTAIN: u32 = 64;
/// Fruitless spins in a row after which only a quick answer starts it again.
const FRUITLESS_MAX: u32 = 4;

/// The budget of one loop.
#[derive(Debug)]
pub struct Spin {
    max_cycles: u64,
    switches: u64,
    abstain: u32,
    fruitless: u32,
}

impl Spin {
    /// At most `max` at a time; zero never spins.
    pub fn new(max: Duration) -> Self {
        let switches = process::involuntary_switches();
        Self { max_cycles: clock::cycles_in(max), switches, abstain: 0, fruitless: 0 }
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
        let switches = process::involuntary_switches();
        if switches != std::mem::replace(&mut self.switches, switches) {
            self.abstain = ABSTAIN;
        }
    }

    /// The sleep that followed lasted so long: hardly longer than a spin means that spinning would have paid.
    pub fn woken_after(&mut self, slept_cycles: u64) {
        if slept_cycles / 2 < self.max_cycles {
            self.fruitless = 0;
        }
    }
}
