//! How long a wait spins before it sleeps.

use std::time::Duration;

use bywire_sys::{clock, process};

/// How long to spin before sleeping: as long as it pays, and at most as long as the option says.
#[derive(Debug)]
pub(super) struct Spin {
    max_cycles: u64,
    cycles: u64,
    /// Involuntary switches of this thread when spinning last failed. More of them mean that others want the core.
    switches: u64,
    /// Waits that will not spin because others want the core.
    abstain: u32,
}

/// Waits without spinning after the core was taken from us.
const ABSTAIN: u32 = 8;

impl Spin {
    pub fn new(max: Duration) -> Self {
        let max_cycles = clock::cycles_in(max);
        Self { max_cycles, cycles: max_cycles, switches: process::involuntary_switches(), abstain: 0 }
    }

    /// How long this wait may spin.
    pub fn budget(&mut self) -> u64 {
        if self.abstain == 0 {
            return self.cycles;
        }
        self.abstain -= 1;
        0
    }

    /// Notes that something came while spinning.
    pub fn paid(&mut self) {
        self.cycles = self.max_cycles.min(self.cycles * 2);
    }

    /// Notes that nothing came. The next wait spins half as long, down to an eighth of the maximum. If the kernel has
    /// taken the core away meanwhile, the next waits do not spin at all.
    pub fn failed(&mut self) {
        self.cycles = (self.cycles / 2).max(self.max_cycles / 8);
        let switches = process::involuntary_switches();
        if switches != std::mem::replace(&mut self.switches, switches) {
            self.abstain = ABSTAIN;
        }
    }

    /// Notes the length of a sleep. If it was hardly longer than the longest spin, spinning would have paid. This is
    /// also the way out of a trap: a receiver that sleeps again before its sender has finished waking it is woken for
    /// every single message.
    pub fn woken_after(&mut self, slept_cycles: u64) {
        if slept_cycles / 2 < self.max_cycles {
            self.cycles = self.max_cycles;
        }
    }
}
