//! What a program does that polls for nothing: it lets others have the core.

use std::time::Duration;

use bywire_sys::clock;

/// How long a program polls before it offers its core. Answers of a running peer are there sooner.
const PATIENCE: Duration = Duration::from_micros(20);
/// The same while others want the core. The awaited peer may be one of them.
const PATIENCE_AMONG_OTHERS: Duration = Duration::from_micros(1);
/// An offer that took so long was taken.
const TAKEN: Duration = Duration::from_micros(3);
/// A program sleeps once its offers have taken so long together, since it has last found something.
const LOST_MAX: Duration = Duration::from_micros(50);
/// An offer that took so long went to a program that does not wait. A sleeper gets its core back sooner.
const HOGGED: Duration = Duration::from_micros(500);
/// So long after an offer that was taken others are supposed to want the core.
const MEMORY: Duration = Duration::from_millis(20);
/// One poll in this many looks at the clock, which takes as long as a third of a poll. While others want the core, each does.
const CLOCK_EVERY: u32 = 8;
/// Polls farther apart than that are those of a program that does something between them.
const GAP: Duration = Duration::from_micros(20);
/// How long a program only offers its core after it has slept in vain. It may have little steps of its own between its polls,
/// as those that test for messages have, and does nothing of them while it sleeps.
const AWAKE: Duration = Duration::from_micros(300);
/// The same while another one keeps the core that gets it. It is not offered then.
const AWAKE_HOGGED: Duration = Duration::from_micros(25);

/// What the user wants (`FI_BYWIRE_IDLE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Sleeps only if others want the core.
    #[default]
    Auto,
    /// Keeps the core.
    Spin,
    /// Sleeps in any case.
    Sleep,
}

impl Policy {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "spin" => Some(Self::Spin),
            "sleep" => Some(Self::Sleep),
            _ => None,
        }
    }
}

/// What to do after a poll that has found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    Poll,
    /// Offer the core, and then call [`Idle::yielded`].
    Yield,
    /// Sleep until something arrives, for a moment, and then call [`Idle::slept`]. If that is impossible because there is something
    /// to do, ask [`Idle::may_offer_instead`] instead.
    Sleep,
}

/// Durations in cycles.
#[derive(Clone, Copy, Debug)]
struct Cycles {
    patience: u64,
    patience_among_others: u64,
    taken: u64,
    lost_max: u64,
    hogged: u64,
    memory: u64,
    gap: u64,
    awake: u64,
    awake_hogged: u64,
}

/// Polls that have found nothing, one after the other. All times are in cycles.
#[derive(Debug)]
pub struct Idle {
    policy: Policy,
    cycles: Cycles,
    /// How many, since the clock was last looked at.
    polls: u32,
    /// How many there were between the last two looks.
    polls_between: u32,
    /// Did others want the core when the clock was last looked at?
    is_among_others: bool,
    /// Since when.
    since: Option<u64>,
    /// The last one.
    last: u64,
    /// When others have last taken the core.
    taken_at: Option<u64>,
    /// When another one has last kept it.
    hogged_at: Option<u64>,
    /// How long offers took that were taken, since something was found.
    lost: u64,
    /// When it has last woken, since something was found.
    woken_at: Option<u64>,
}

impl Idle {
    pub fn new(policy: Policy) -> Self {
        let cycles = Cycles {
            patience: clock::cycles_in(PATIENCE),
            patience_among_others: clock::cycles_in(PATIENCE_AMONG_OTHERS),
            taken: clock::cycles_in(TAKEN),
            lost_max: clock::cycles_in(LOST_MAX),
            hogged: clock::cycles_in(HOGGED),
            memory: clock::cycles_in(MEMORY),
            gap: clock::cycles_in(GAP),
            awake: clock::cycles_in(AWAKE),
            awake_hogged: clock::cycles_in(AWAKE_HOGGED),
        };
        Self {
            policy,
            cycles,
            polls: 0,
            polls_between: 0,
            is_among_others: false,
            since: None,
            last: 0,
            taken_at: None,
            hogged_at: None,
            lost: 0,
            woken_at: None,
        }
    }

    /// A poll has found something.
    pub fn found(&mut self) {
        self.since = None;
        self.lost = 0;
        self.woken_at = None;
    }

    /// May a poll go on, because nobody else has wanted the core lately?
    pub fn keeps_core(&self, now: u64) -> bool {
        self.policy != Policy::Sleep
            && !self.is_recent(self.taken_at, now)
            && !self.is_recent(self.hogged_at, now)
    }

    /// Has something happened so recently at `now` that it still counts?
    fn is_recent(&self, time: Option<u64>, now: u64) -> bool {
        time.is_some_and(|time| now.wrapping_sub(time) < self.cycles.memory)
    }

    /// A poll has gone on in vain, for so long that the next one looks at the clock.
    pub fn passed(&mut self) {
        self.polls = CLOCK_EVERY;
    }

    /// A poll has found nothing. Is it one that looks at the clock, and calls [`Idle::found_nothing`]?
    #[inline]
    pub fn is_clock_due(&mut self) -> bool {
        self.polls += 1;
        if self.polls < CLOCK_EVERY && !self.is_among_others {
            return false;
        }
        self.polls_between = std::mem::take(&mut self.polls);
        true
    }

    /// A poll has found nothing.
    pub fn found_nothing(&mut self, now: u64) -> Advice {
        // The gap is one between two polls, and most polls do not look at the clock.
        let polls = u64::from(std::mem::take(&mut self.polls_between).max(1));
        if now.wrapping_sub(self.last) > polls * self.cycles.gap {
            self.since = None;
        }
        self.last = now;
        let since = *self.since.get_or_insert(now);
        let is_hogged = self.is_recent(self.hogged_at, now);
        let is_among_others = !is_hogged && self.is_recent(self.taken_at, now);
        let patience = match is_among_others {
            true => self.cycles.patience_among_others,
            false => self.cycles.patience,
        };
        self.is_among_others = is_among_others;
        if self.policy == Policy::Spin || now.wrapping_sub(since) < patience {
            return Advice::Poll;
        }
        let offers = self.policy == Policy::Auto && !is_hogged;
        if let Some(woken) = self.woken_at {
            let awake = if offers { self.cycles.awake } else { self.cycles.awake_hogged };
            if now.wrapping_sub(woken) < awake {
                return if offers { Advice::Yield } else { Advice::Poll };
            }
        }
        if offers && self.lost < self.cycles.lost_max { Advice::Yield } else { Advice::Sleep }
    }

    /// The core was offered from `began` until `now`.
    pub fn yielded(&mut self, began: u64, now: u64) {
        self.last = now;
        let cycles = now.wrapping_sub(began);
        if cycles >= self.cycles.taken {
            self.taken_at = Some(now);
            self.lost += cycles;
        }
        if cycles >= self.cycles.hogged {
            self.hogged_at = Some(now);
        }
    }

    /// A sleep was impossible, which is no sleep in vain. May the program offer its core instead? [`Idle::yielded`] follows then.
    pub fn may_offer_instead(&self) -> bool {
        self.policy == Policy::Auto && !self.is_recent(self.hogged_at, self.last)
    }

    /// The program has slept until `now`.
    pub fn slept(&mut self, now: u64) {
        self.last = now;
        self.woken_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls every microsecond from `now` on, and returns what was advised until something else than polling.
    fn polls_until_advice(idle: &mut Idle, now: &mut u64) -> (Duration, Advice) {
        let began = *now;
        let microsecond = clock::cycles_in(Duration::from_micros(1));
        loop {
            let advice = idle.found_nothing(*now);
            if advice != Advice::Poll {
                let microseconds = (*now - began) / microsecond;
                return (Duration::from_micros(microseconds), advice);
            }
            *now += microsecond;
            assert!(*now - began < 1000 * microsecond, "no advice");
        }
    }

    fn cycles(microseconds: u64) -> u64 {
        clock::cycles_in(Duration::from_micros(microseconds))
    }

    #[test]
    fn a_program_alone_offers_its_core_and_never_sleeps() {
        let (mut idle, mut now) = (Idle::new(Policy::Auto), cycles(1_000_000));
        let (waited, advice) = polls_until_advice(&mut idle, &mut now);
        assert!(waited >= PATIENCE && waited < 2 * PATIENCE, "{waited:?}");
        assert_eq!(advice, Advice::Yield);
        for _ in 0..100 {
            assert_eq!(idle.found_nothing(now), Advice::Yield);
            idle.yielded(now, now + cycles(1));
            now += cycles(1);
        }
        idle.found();
        assert_eq!(idle.found_nothing(now), Advice::Poll);
    }

    #[test]
    fn a_program_among_others_soon_sleeps_until_they_have_gone() {
        let (mut idle, mut now) = (Idle::new(Policy::Auto), cycles(1_000_000));
        for _ in 0..5 {
            assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Yield);
            idle.yielded(now, now + cycles(11));
            now += cycles(11);
        }
        for _ in 0..100 {
            // Asleep for as long as nothing wakes it, and then on offer for some time.
            assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Sleep);
            now += cycles(100);
            idle.slept(now);
            let woken = now;
            while now < woken + clock::cycles_in(AWAKE) {
                assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Yield);
                idle.yielded(now, now + cycles(11));
                now += cycles(11);
            }
        }
        idle.found();
        let (waited, advice) = polls_until_advice(&mut idle, &mut now);
        assert!(waited <= 2 * PATIENCE_AMONG_OTHERS && advice == Advice::Yield, "{waited:?} {advice:?}");
        now += clock::cycles_in(2 * MEMORY);
        idle.found();
        let (waited, advice) = polls_until_advice(&mut idle, &mut now);
        assert!(waited >= PATIENCE && advice == Advice::Yield, "{waited:?} {advice:?}");
    }

    #[test]
    fn a_program_whose_core_another_one_keeps_sleeps_instead_of_offering_it() {
        let (mut idle, mut now) = (Idle::new(Policy::Auto), cycles(1_000_000));
        assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Yield);
        idle.yielded(now, now + cycles(3000));
        now += cycles(3000);
        for _ in 0..10 {
            assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Sleep);
            now += cycles(100);
            idle.slept(now);
            idle.found();
        }
        now += clock::cycles_in(2 * MEMORY);
        idle.found();
        assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Yield);
    }

    #[test]
    fn a_program_that_does_something_between_its_polls_keeps_its_core() {
        let (mut idle, mut now) = (Idle::new(Policy::Sleep), cycles(1_000_000));
        for _ in 0..100 {
            assert_eq!(idle.found_nothing(now), Advice::Poll);
            now += cycles(30);
        }
        assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Sleep);
    }

    #[test]
    fn a_sleep_that_could_not_begin_is_none_in_vain() {
        let (mut idle, mut now) = (Idle::new(Policy::Sleep), cycles(1_000_000));
        assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Sleep);
        assert!(!idle.may_offer_instead(), "its user wants it to sleep");
        now += cycles(1);
        assert_eq!(idle.found_nothing(now), Advice::Sleep);
        idle.slept(now);
        now += cycles(1);
        assert_eq!(idle.found_nothing(now), Advice::Poll);

        let mut idle = Idle::new(Policy::Auto);
        for _ in 0..5 {
            assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Yield);
            idle.yielded(now, now + cycles(11));
            now += cycles(11);
        }
        assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Sleep);
        assert!(idle.may_offer_instead(), "others that want the core get it");
        idle.yielded(now, now + cycles(3000));
        now += cycles(3000);
        assert_eq!(polls_until_advice(&mut idle, &mut now).1, Advice::Sleep);
        assert!(!idle.may_offer_instead(), "one that keeps it does not");
    }

    /// How many polls a program makes in 10 ms that finds nothing and has a step of a microsecond between them, while others
    /// keep its core for so long whenever it is offered.
    fn polls_in_vain(policy: Policy, kept: Duration) -> u32 {
        let (mut idle, mut now) = (Idle::new(policy), cycles(1_000_000));
        let end = now + cycles(10_000) + clock::cycles_in(kept);
        let mut polls = 0;
        while now < end {
            polls += 1;
            match idle.found_nothing(now) {
                Advice::Poll => {}
                Advice::Yield => {
                    let began = now;
                    now += clock::cycles_in(kept);
                    idle.yielded(began, now);
                }
                Advice::Sleep => {
                    now += cycles(100);
                    idle.slept(now);
                }
            }
            now += cycles(1);
        }
        polls
    }

    #[test]
    fn a_program_with_little_steps_between_its_polls_gets_most_of_what_the_others_leave() {
        let shares = [
            (Policy::Auto, Duration::ZERO, 9_000),
            (Policy::Auto, Duration::from_micros(4), 1_500),
            (Policy::Auto, Duration::from_millis(3), 1_800),
            (Policy::Sleep, Duration::ZERO, 1_800),
        ];
        for (policy, kept, least) in shares {
            let polls = polls_in_vain(policy, kept);
            assert!(polls >= least, "{policy:?}, {kept:?}: {polls}");
        }
    }

    #[test]
    fn few_polls_look_at_the_clock_unless_others_want_the_core() {
        let (mut idle, mut now) = (Idle::new(Policy::Auto), cycles(1_000_000));
        let looks = |idle: &mut Idle| (0..80).filter(|_| idle.is_clock_due()).count();
        assert_eq!(looks(&mut idle), 80 / CLOCK_EVERY as usize);
        polls_until_advice(&mut idle, &mut now);
        idle.yielded(now, now + cycles(100));
        idle.found_nothing(now + cycles(100));
        assert_eq!(looks(&mut idle), 80);
    }

    /// What a program is advised that polls 200 times for nothing, with so long between two polls, after its first `Poll`.
    fn advice_with_steps(policy: Policy, step: Duration) -> Option<Advice> {
        let (mut idle, mut now) = (Idle::new(policy), cycles(1_000_000));
        (0..200).find_map(|_| {
            now += clock::cycles_in(step);
            let advice = if idle.is_clock_due() { idle.found_nothing(now) } else { Advice::Poll };
            (advice != Advice::Poll).then_some(advice)
        })
    }

    #[test]
    fn a_program_counts_as_a_waiting_one_by_the_time_between_its_polls_not_by_that_between_its_looks() {
        for microseconds in [1, 3, 10, 19] {
            let step = Duration::from_micros(microseconds);
            assert_eq!(advice_with_steps(Policy::Auto, step), Some(Advice::Yield), "{step:?}");
            assert_eq!(advice_with_steps(Policy::Sleep, step), Some(Advice::Sleep), "{step:?}");
        }
        for policy in [Policy::Auto, Policy::Sleep] {
            assert_eq!(advice_with_steps(policy, Duration::from_micros(21)), None, "{policy:?}");
        }
    }

    #[test]
    fn a_program_whose_user_wants_it_to_spin_always_polls() {
        let (mut idle, now) = (Idle::new(Policy::Spin), cycles(1_000_000));
        for turn in 0..1000 {
            assert_eq!(idle.found_nothing(now + cycles(turn)), Advice::Poll);
        }
    }
}
