//! Waiting: spin a little, arm, look once more, sleep.

use std::time::{Duration, Instant};

use bywire_ring::doorbell::Wants;
use bywire_sys::{clock, process};

use crate::error::WaitError;
use crate::event::Event;
use crate::port::Port;

/// How long to spin before sleeping: as long as it pays, up to the option.
#[derive(Debug)]
pub(crate) struct Spin {
    max_cycles: u64,
    cycles: u64,
    /// Involuntary switches of this thread at the last sleep: more of them means that others want the core.
    switches: u64,
}

impl Spin {
    pub fn new(max: Duration) -> Self {
        let max_cycles = clock::cycles_in(max);
        Self { max_cycles, cycles: max_cycles, switches: 0 }
    }

    /// Something came while spinning.
    fn paid(&mut self) {
        self.cycles = (self.cycles * 2).clamp(self.max_cycles.min(2_000), self.max_cycles);
    }

    /// Nothing came: spin half as long next time, and not at all while others want the core.
    fn failed(&mut self) {
        self.cycles /= 2;
        let switches = process::involuntary_switches();
        if switches != std::mem::replace(&mut self.switches, switches) {
            self.cycles = 0;
        }
    }

    /// The sleep was shorter than the longest spin: spinning would have paid.
    fn woken_after(&mut self, slept_cycles: u64) {
        if slept_cycles < self.max_cycles {
            self.cycles = (self.cycles * 2).clamp(self.max_cycles / 8, self.max_cycles);
        }
    }
}

impl Port {
    /// Waits for the next event, at most `timeout` (`None`: for ever). Spins a bounded time, then sleeps.
    /// `None` means that the time is up.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, WaitError> {
        if !self.guard.is_owner() {
            return Err(WaitError::Forked);
        }
        if let Some(event) = self.poll() {
            return Ok(Some(event));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.spin_for_event(deadline) {
                return Ok(Some(event));
            }
            let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if rest == Some(Duration::ZERO) {
                return Ok(self.poll());
            }
            if self.arm() {
                self.statistics.sleeps += 1;
                let asleep = clock::cycles();
                let result = self.look_after_sockets(rest);
                self.spin.woken_after(clock::cycles().wrapping_sub(asleep));
                self.disarm();
                result.map_err(WaitError::System)?;
                self.warm_all_ready();
            }
            if let Some(event) = self.poll() {
                return Ok(Some(event));
            }
        }
    }

    /// Prepares to sleep on the port's descriptor: `true` when there is nothing to do, and from then on
    /// the descriptor becomes readable with the next event. `false`: poll again instead.
    ///
    /// After waking, poll until `None`, then arm again.
    pub fn arm(&mut self) -> bool {
        if !self.guard.is_owner() {
            return false;
        }
        let wants = Wants { records: true, credit: !self.busy.is_empty() };
        self.sleeper.arm(&self.page, wants);
        let returned = self.resources.returns.fall_asleep();
        if returned || !self.resources.events.is_empty() || self.warm_all_ready() {
            self.disarm();
            return false;
        }
        self.is_armed = true;
        true
    }

    /// The first poll after arming: whatever made the descriptor readable is dealt with, whether the
    /// program watches it by level or by edge.
    #[cold]
    pub(crate) fn come_back(&mut self) {
        self.disarm();
        // An error here is found again by the next wait, which reports it.
        let _ = self.look_after_sockets(Some(Duration::ZERO));
        self.warm_all_ready();
    }

    fn disarm(&mut self) {
        self.is_armed = false;
        self.sleeper.disarm(&self.page);
        self.resources.returns.wake_up();
    }

    /// Looks at every ring once and warms those that have something. `true`: there were some.
    fn warm_all_ready(&mut self) -> bool {
        let mut any = false;
        for index in self.slots.indices() {
            let resources = &self.resources;
            if self.slots.connection_at(index).is_some_and(|connection| connection.is_ready(resources)) {
                self.warm(index);
                any = true;
            }
        }
        any
    }

    #[inline]
    fn spin_for_event(&mut self, deadline: Option<Instant>) -> Option<Event> {
        let start = clock::cycles();
        let mut turns = 0u32;
        loop {
            if let Some(event) = self.poll() {
                self.spin.paid();
                return Some(event);
            }
            // What moves is no spinning: a long message goes on as long as it can, until the time is up.
            if !self.progressed && clock::cycles().wrapping_sub(start) >= self.spin.cycles {
                break;
            }
            turns += 1;
            if turns.is_multiple_of(64) && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            std::hint::spin_loop();
        }
        if self.spin.cycles > 0 {
            self.spin.failed();
        }
        None
    }
}
