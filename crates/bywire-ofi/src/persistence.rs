//! How long one read of a queue looks for messages: until the first look in vain, or for a moment longer.
//!
//! MPICH offers its core after each read that it waits with, which takes as long as several messages even if nobody wants the core. A
//! message that arrives meanwhile waits for the end of that. One that arrives within the read does not. A program that works
//! between its reads looks the same from here, and loses the time. So only little of it may pass for each message.

use std::time::Duration;

use bywire_sys::clock;

/// How long a read goes on at most.
const FURTHER: Duration = Duration::from_micros(4);
/// A program that was away for less between two reads only reads, so the next read looks as soon as this one would.
const AWAY_MIN: Duration = Duration::from_nanos(375);
/// One that was away for longer has something else to do, or others had its core.
const AWAY_MAX: Duration = Duration::from_nanos(1500);
/// So much time of reads that go on is granted for each of them that finds something.
const GRANT: Duration = Duration::from_nanos(800);
/// The most granted time that is kept.
const GRANTED_MAX: Duration = Duration::from_micros(16);
/// While no time is granted, two successive reads of this many look at the clock. The time between them is how long the program was
/// away.
const CONSIDERED_EVERY: u32 = 64;

/// What is known of the program's reads in vain. All times are in cycles.
#[derive(Debug)]
pub struct Persistence {
    /// Does only one thread at a time use the domain? Others would wait while a read goes on.
    is_serial: bool,
    further: u64,
    away_min: u64,
    away_max: u64,
    grant: u64,
    granted_max: u64,
    /// When the last read in vain has ended, if nothing was found since and the time was taken.
    ended_at: Option<u64>,
    granted: u64,
    /// Reads while nothing is granted.
    reads: u32,
}

impl Persistence {
    pub fn new(is_serial: bool) -> Self {
        Self {
            is_serial,
            further: clock::cycles_in(FURTHER),
            away_min: clock::cycles_in(AWAY_MIN),
            away_max: clock::cycles_in(AWAY_MAX),
            grant: clock::cycles_in(GRANT),
            granted_max: clock::cycles_in(GRANTED_MAX),
            ended_at: None,
            granted: 0,
            reads: 0,
        }
    }

    /// A read begins. Is its time of interest? Most are not, as the clock takes as long as a third of a look.
    #[inline]
    pub fn considers(&mut self) -> bool {
        if self.granted > 0 {
            return true;
        }
        self.reads = (self.reads + 1) % CONSIDERED_EVERY;
        self.reads >= CONSIDERED_EVERY - 2 && self.is_serial
    }

    /// A read that began at `began` has looked once in vain, until `now`. Until when does it go on, if it does?
    pub fn end(&mut self, began: u64, now: u64) -> Option<u64> {
        let away = began.wrapping_sub(self.ended_at?);
        if (self.away_min..self.away_max).contains(&away) {
            return Some(now.wrapping_add(self.further));
        }
        self.granted = self.granted.saturating_sub(self.further);
        None
    }

    /// A read that went on for so long has found something, or nothing.
    pub fn went_on(&mut self, cycles: u64, has_found: bool) {
        let granted = if has_found { self.granted + self.grant } else { self.granted };
        self.granted = granted.saturating_sub(cycles).min(self.granted_max);
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

    /// As MPICH does, which offers its core in vain.
    const OFFER: Duration = Duration::from_nanos(700);
    /// How long a look takes.
    const LOOK: Duration = Duration::from_nanos(100);

    /// A program that reads again and again, as [`crate::domain::Domain::poll`] has it. Times are in cycles.
    struct Program {
        persistence: Persistence,
        now: u64,
        /// When the next message arrives.
        arrives: u64,
        /// What passed in reads that went on.
        further: u64,
    }

    impl Program {
        fn new() -> Self {
            let now = clock::cycles_in(Duration::from_secs(1));
            Self { persistence: Persistence::new(true), now, arrives: u64::MAX, further: 0 }
        }

        /// A read after the program was away for so long. Has it found the message?
        fn read(&mut self, away: Duration) -> bool {
            self.now += clock::cycles_in(away);
            let began = self.persistence.considers().then_some(self.now);
            self.now += clock::cycles_in(LOOK);
            let mut has_found = self.now >= self.arrives;
            if let Some(began) = began.filter(|_| !has_found) {
                if let Some(end) = self.persistence.end(began, self.now) {
                    has_found = self.arrives <= end;
                    let until = end.min(self.arrives).max(self.now);
                    self.persistence.went_on(until - self.now, has_found);
                    self.further += until - self.now;
                    self.now = until;
                }
                if !has_found {
                    self.persistence.ended_in_vain(self.now);
                }
            }
            if has_found {
                self.arrives = u64::MAX;
                self.persistence.found();
            }
            has_found
        }

        /// How many messages it takes in a second, each of which comes so long after the last one was taken, and what part of the time it
        /// lost.
        fn receive(&mut self, away: Duration, every: Duration) -> (u32, f64) {
            let (began, mut messages) = (self.now, 0);
            self.further = 0;
            while self.now - began < clock::cycles_in(Duration::from_secs(1)) / 10 {
                self.arrives = self.arrives.min(self.now + clock::cycles_in(every));
                messages += u32::from(self.read(away));
            }
            (messages * 10, self.further as f64 / (self.now - began) as f64)
        }
    }

    #[test]
    fn reads_of_a_program_that_waits_for_answers_go_on() {
        let soon = Duration::from_nanos(1900);
        let (messages, lost) = Program::new().receive(OFFER, soon);
        assert!(lost > 0.1, "{messages} messages, and {lost} of the time in reads that went on");
        let alone = Program { persistence: Persistence::new(false), ..Program::new() }.receive(OFFER, soon);
        assert!(messages > alone.0 && alone.1 == 0.0, "{messages} messages, and {} without", alone.0);
    }

    #[test]
    fn a_program_that_works_between_its_reads_loses_little_of_its_time() {
        for away in [400, 700, 1200].map(Duration::from_nanos) {
            for every in [5, 6, 8, 12, 20, 50, 1000].map(Duration::from_micros) {
                let (messages, lost) = Program::new().receive(away, every);
                assert!(lost < 0.15, "away for {away:?}, a message every {every:?}: {messages}, {lost} lost");
            }
        }
    }

    #[test]
    fn reads_go_on_in_vain_for_little_time_and_are_tried_again() {
        let mut program = Program::new();
        let (_, lost) = program.receive(OFFER, Duration::from_secs(10));
        assert!(lost > 0.0 && lost < 0.15, "{lost}");
        let soon = program.receive(OFFER, Duration::from_nanos(1900));
        assert!(soon.1 > 0.1, "{soon:?}");
    }

    #[test]
    fn reads_end_at_once_where_the_program_only_reads_or_does_other_things() {
        for away in [AWAY_MIN / 2, AWAY_MAX, Duration::from_micros(100)] {
            let (_, lost) = Program::new().receive(away, Duration::from_micros(3));
            assert!(lost == 0.0, "{away:?}: {lost}");
        }
    }
}
