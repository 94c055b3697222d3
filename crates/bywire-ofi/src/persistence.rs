//! How long one read of a queue looks for messages: until the first look in vain, or for a moment longer.
//!
//! MPICH offers its core after each read that it waits with, which takes as long as several messages even if nobody wants the core. A
//! message that arrives meanwhile waits for the end of that. One that arrives within the read does not.

use std::time::Duration;

use bywire_sys::clock;

/// How long a read goes on at most.
const FURTHER: Duration = Duration::from_micros(4);
/// A program that was away for less between two reads only reads, so the next read looks as soon as this one would.
const AWAY_MIN: Duration = Duration::from_nanos(375);
/// One that was away for longer has something else to do, or others had its core.
const AWAY_MAX: Duration = Duration::from_nanos(1500);
/// So many reads in vain may go on in vain or do not go on, before the program is left alone. One that has gone on and found something
/// makes up for two.
const CREDIT_MAX: u32 = 8;
/// Without credit, two reads in a row of so many are considered. The first one has the time for the second one.
const CONSIDERED_EVERY: u32 = 64;

/// What is known of the program's reads in vain. All times are in cycles.
#[derive(Debug)]
pub struct Persistence {
    further: u64,
    away_min: u64,
    away_max: u64,
    /// When the last read in vain has ended, if nothing was found since and the time was taken.
    ended_at: Option<u64>,
    credit: u32,
    /// Reads without credit.
    reads: u32,
}

impl Default for Persistence {
    fn default() -> Self {
        Self {
            further: clock::cycles_in(FURTHER),
            away_min: clock::cycles_in(AWAY_MIN),
            away_max: clock::cycles_in(AWAY_MAX),
            ended_at: None,
            credit: 0,
            reads: 0,
        }
    }
}

impl Persistence {
    /// A read begins. Is its time of interest? Most are not, as the clock takes as long as a third of a look.
    #[inline]
    pub fn considers(&mut self) -> bool {
        if self.credit > 0 {
            return true;
        }
        self.reads = (self.reads + 1) % CONSIDERED_EVERY;
        self.reads >= CONSIDERED_EVERY - 2
    }

    /// A read that began at `began` has looked once in vain. Does it go on?
    pub fn goes_on(&mut self, began: u64) -> bool {
        let Some(ended) = self.ended_at else { return false };
        let does = (self.away_min..self.away_max).contains(&began.wrapping_sub(ended));
        if !does {
            self.credit = self.credit.saturating_sub(1);
        }
        does
    }

    /// When a read ends that goes on at `now`.
    pub fn end(&self, now: u64) -> u64 {
        now.wrapping_add(self.further)
    }

    /// A read that went on has found something, or nothing.
    pub fn went_on(&mut self, has_found: bool) {
        self.credit =
            if has_found { (self.credit + 2).min(CREDIT_MAX) } else { self.credit.saturating_sub(1) };
    }

    /// A read in vain ends at `now`.
    pub fn ended_in_vain(&mut self, now: u64) {
        self.ended_at = Some(now);
    }

    /// A read has found something.
    #[inline]
    pub fn found(&mut self) {
        self.ended_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that reads, waiting for messages, and the time.
    struct Program {
        persistence: Persistence,
        now: u64,
        went_on: u32,
    }

    impl Program {
        fn new() -> Self {
            Self {
                persistence: Persistence::default(),
                now: clock::cycles_in(Duration::from_secs(1)),
                went_on: 0,
            }
        }

        /// Reads after it was away for so long. The message is there once the read has gone on, or it is not.
        fn read(&mut self, away: Duration, is_there: bool) -> bool {
            self.now += clock::cycles_in(away);
            let goes_on = self.persistence.considers() && self.persistence.goes_on(self.now);
            if goes_on {
                self.went_on += 1;
                self.now = if is_there { self.now + 1 } else { self.persistence.end(self.now) };
                self.persistence.went_on(is_there);
            }
            match goes_on && is_there {
                true => self.persistence.found(),
                false => self.persistence.ended_in_vain(self.now),
            }
            goes_on && is_there
        }
    }

    /// As MPICH does, which offers its core in vain.
    const OFFER: Duration = Duration::from_nanos(700);

    #[test]
    fn reads_of_a_program_that_offers_its_core_go_on_while_that_pays() {
        let mut program = Program::new();
        let found = (0..1000).filter(|_| program.read(OFFER, true)).count();
        // The read after each message ends at once, and the first ones until one is considered.
        assert!(found > 450, "{found}");
    }

    #[test]
    fn reads_go_on_in_vain_for_a_fifth_of_the_time_at_most() {
        for paying in [0, 100] {
            let mut program = Program::new();
            let _found = (0..paying).filter(|_| program.read(OFFER, true)).count();
            (program.went_on, program.now) = (0, 0);
            let reads = 64 * 100_u32;
            (0..reads).for_each(|_| assert!(!program.read(OFFER, false)));
            assert!(program.went_on >= 90, "tried again {} times", program.went_on);
            let away = u64::from(reads) * clock::cycles_in(OFFER);
            assert!((program.now - away) * 5 < program.now, "{} reads of {reads} went on", program.went_on);
        }
    }

    #[test]
    fn reads_end_at_once_after_a_message_and_when_the_program_only_reads_or_does_other_things() {
        for away in [AWAY_MIN / 2, AWAY_MAX, Duration::from_micros(100)] {
            let mut program = Program::new();
            assert!((0..1000).all(|_| !program.read(away, true)));
            assert_eq!(program.went_on, 0, "{away:?}");
        }
        let mut program = Program::new();
        while !program.read(OFFER, true) {}
        let before = program.went_on;
        program.read(OFFER, true);
        assert_eq!(program.went_on, before, "the program may send something before it waits");
    }
}
