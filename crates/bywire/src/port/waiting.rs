//! Waiting: spin a little, arm, look once more, sleep.

use std::time::{Duration, Instant};

use bywire_ring::doorbell::Wants;
use bywire_sys::clock;

use super::Port;
use super::polling::event_of;
use crate::message::error::WaitError;
use crate::message::event::Event;

/// Looks at only the hot lanes between two whole polls of a spinning wait. Quiet peers and answers wait a little
/// longer.
const HOT_LOOKS: u32 = 8;

/// The end of a wait. It is looked up only when it matters: reading a clock costs as much as a message.
struct Deadline {
    timeout: Option<Duration>,
    instant: Option<Instant>,
}

impl Deadline {
    /// The time left. `None`: forever.
    fn rest(&mut self) -> Option<Duration> {
        let timeout = self.timeout?;
        let now = Instant::now();
        match self.instant {
            Some(instant) => Some(instant.saturating_duration_since(now)),
            None => {
                // A timeout beyond the range of the clock means forever.
                self.instant = now.checked_add(timeout);
                self.timeout = self.instant.map(|_| timeout);
                self.timeout
            }
        }
    }
}

impl Port {
    /// Waits for the next event, at most `timeout` (`None`: forever). Spins for a bounded time, then sleeps. Returns
    /// `None` when the time is up.
    ///
    /// # Errors
    /// [`WaitError`].
    #[inline(always)]
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, WaitError> {
        if !self.guard.is_owner() {
            return Err(WaitError::Forked);
        }
        if let Some(event) = self.attend_when_due() {
            return Ok(Some(event));
        }
        match self.glance() {
            Some(event) => Ok(Some(event)),
            None => self.wait_longer(timeout),
        }
    }

    /// Looks at only the hot lanes for a moment. Most events come here, and a whole poll that finds nothing would
    /// delay them by half of its own length.
    #[inline(always)]
    fn glance(&mut self) -> Option<Event> {
        for _ in 0..HOT_LOOKS {
            if let Some(event) = self.poll_hot(event_of, |event| event) {
                return Some(event);
            }
            // Only whole polls move transfers on.
            if !self.pending.is_empty() {
                break;
            }
        }
        None
    }

    #[inline(never)]
    fn wait_longer(&mut self, timeout: Option<Duration>) -> Result<Option<Event>, WaitError> {
        // What has arrived from other machines costs no look at the clock.
        if self.fabric.is_some()
            && let Some(event) = self.poll_remote()
        {
            return Ok(Some(event));
        }
        let mut deadline = Deadline { timeout, instant: None };
        loop {
            if let Some(event) = self.spin_for_event::<false>(&mut deadline) {
                return Ok(Some(event));
            }
            let rest = deadline.rest();
            if rest == Some(Duration::ZERO) {
                return Ok(self.poll());
            }
            if self.arm_without_timer() {
                self.statistics.sleeps += 1;
                let asleep = clock::cycles();
                let rest = self.rest_of_sleep(rest);
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

    /// Prepares to sleep on the port's descriptor. `true`: there is nothing to do, and the descriptor becomes
    /// readable with the next event. `false`: poll again instead.
    ///
    /// After waking, poll until `None`, then arm again.
    pub fn arm(&mut self) -> bool {
        if !self.arm_without_timer() {
            return false;
        }
        if self.has_far_packets() {
            self.disarm();
            return false;
        }
        self.arm_remote();
        true
    }

    /// The same, without a timer for what is due with other machines.
    fn arm_without_timer(&mut self) -> bool {
        if !self.guard.is_owner() {
            return false;
        }
        if self.fabric.is_some() {
            self.settle_remote();
        }
        let wants = Wants { records: true, credit: !self.pending.is_empty() };
        self.sleeper.arm(&self.page, wants);
        let returned = self.returns.fall_asleep();
        let has_remote_input = self.fabric.is_some() && self.has_remote_input();
        if returned || has_remote_input || !self.resources.events.is_empty() || self.warm_all_ready() {
            self.disarm();
            return false;
        }
        self.is_armed = true;
        true
    }

    /// The first poll after arming deals with the cause of the descriptor's readiness. This works whether the program
    /// watches the descriptor level-triggered or edge-triggered.
    #[cold]
    pub(super) fn handle_readiness(&mut self) {
        self.disarm();
        // The next wait finds an error here again, and reports it.
        let _ = self.look_after_sockets(Some(Duration::ZERO));
        self.warm_all_ready();
    }

    /// Makes the descriptor readable after a call that followed arming: the call has made work, or has dealt with a
    /// descriptor that would have woken the program. The next poll finds out.
    #[inline(always)]
    pub(super) fn signal_if_armed(&mut self) {
        if self.is_armed {
            self.returns.eventfd.signal();
        }
    }

    /// How long to sleep, if something is due with other machines before `rest` is over.
    pub(super) fn rest_of_sleep(&mut self, rest: Option<Duration>) -> Option<Duration> {
        let due = self.fabric.as_deref_mut().and_then(|fabric| fabric.rest(clock::nanoseconds()));
        [rest, due].into_iter().flatten().min()
    }

    fn disarm(&mut self) {
        self.is_armed = false;
        self.sleeper.disarm(&self.page);
        self.returns.wake_up();
    }

    /// Looks at every ring once and warms the peers that have something. `true`: there were some.
    fn warm_all_ready(&mut self) -> bool {
        let mut any = false;
        for index in self.slots.indices() {
            let resources = &self.resources;
            if self.slots.ring_at(index).is_some_and(|connection| connection.is_ready(resources)) {
                self.warm(index);
                any = true;
            }
        }
        any
    }

    /// Spins until there is an event, or until something has moved on without one.
    pub(super) fn spin_once(&mut self) -> Option<Event> {
        self.spin_for_event::<true>(&mut Deadline { timeout: None, instant: None })
    }

    fn spin_for_event<const ENDS_WITH_PROGRESS: bool>(&mut self, deadline: &mut Deadline) -> Option<Event> {
        let budget = self.spin.budget();
        let start = clock::cycles();
        let mut turns = 0u32;
        loop {
            if let Some(event) = self.poll_with_quiet(1) {
                self.spin.paid();
                return Some(event);
            }
            if ENDS_WITH_PROGRESS && self.progressed {
                return None;
            }
            // Progress does not count as spinning: a long message continues until the time is up.
            if !self.progressed && clock::cycles().wrapping_sub(start) >= budget {
                break;
            }
            turns += 1;
            if turns.is_multiple_of(16) && deadline.rest() == Some(Duration::ZERO) {
                return None;
            }
            if let Some(event) = self.glance() {
                self.spin.paid();
                return Some(event);
            }
            if ENDS_WITH_PROGRESS && self.progressed {
                return None;
            }
        }
        if budget > 0 {
            self.spin.failed();
        }
        None
    }
}
