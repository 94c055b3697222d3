//! The set of packets that have arrived, for acknowledgements and to drop duplicates.

use std::ops::RangeInclusive;

/// How far behind the newest packet an accepted one may be.
pub const WINDOW: u64 = 8192;

const WORDS: usize = (WINDOW / 64) as usize;

/// The numbers of packets that have arrived: the newest, and the [`WINDOW`] up to it.
#[derive(Clone, Debug)]
pub struct Received {
    /// One more than the newest, or 0 if there is none.
    end: u64,
    /// The first number of the newest range. Numbers that are no longer remembered count as well.
    newest_from: u64,
    /// A ring of bits, indexed by number.
    bits: Box<[u64; WORDS]>,
}

impl Default for Received {
    fn default() -> Self {
        Self { end: 0, newest_from: 0, bits: Box::new([0; WORDS]) }
    }
}

impl Received {
    /// The newest packet that has arrived.
    pub fn largest(&self) -> Option<u64> {
        self.end.checked_sub(1)
    }

    /// Has it arrived already, or is it too old to know? Checked before any work is done for a packet. It also holds
    /// for the highest number of all, which no packet has, because a connection ends long before its numbers do.
    pub fn is_known(&self, number: u64) -> bool {
        number == u64::MAX || number < self.end && (number < self.floor() || self.bit(number))
    }

    /// Notes an authentic packet. `false`: it is a duplicate, and must not be processed again.
    #[inline]
    pub fn insert(&mut self, number: u64) -> bool {
        if self.is_known(number) {
            return false;
        }
        if number == self.end {
            // Nearly always. Its bit was that of the oldest number, which is forgotten by this.
            self.bits[word(number)] |= 1 << (number % 64);
            self.end = number + 1;
        } else {
            self.insert_apart(number);
        }
        true
    }

    #[inline(never)]
    fn insert_apart(&mut self, number: u64) {
        let is_newest = number > self.end;
        if is_newest {
            self.forget(self.end..=number);
            (self.end, self.newest_from) = (number + 1, number);
        }
        self.bits[word(number)] |= 1 << (number % 64);
        if !is_newest && number + 1 == self.newest_from {
            self.newest_from = self.run_down(number, self.floor(), true);
        }
    }

    /// The only range that [`Self::ranges`] yields, if it is known without a look at the bits.
    #[inline]
    pub fn only_range(&self, from: u64) -> Option<RangeInclusive<u64>> {
        let floor = self.floor().max(from);
        (self.newest_from <= floor && floor < self.end).then(|| floor..=self.end - 1)
    }

    /// The ranges that have arrived, from the number `from` on, the newest first. Nothing below it is looked at.
    pub fn ranges(&self, from: u64) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        let floor = self.floor().max(from);
        let mut next = self.end;
        let newest_from = self.newest_from.max(floor);
        std::iter::from_fn(move || {
            if next == self.end && newest_from < next {
                // Mostly the only one, and known without a look at the bits.
                next = newest_from;
                return Some(newest_from..=self.end - 1);
            }
            let end = self.run_down(next, floor, false);
            let start = self.run_down(end, floor, true);
            next = start;
            (start < end).then(|| start..=end - 1)
        })
    }

    /// The lowest number that is remembered.
    fn floor(&self) -> u64 {
        self.end.saturating_sub(WINDOW)
    }

    fn bit(&self, number: u64) -> bool {
        self.bits[word(number)] >> (number % 64) & 1 == 1
    }

    /// Goes down from `end` to `floor` over numbers that have arrived, or over numbers that have not, and returns the
    /// lowest of them.
    fn run_down(&self, mut end: u64, floor: u64, arrived: bool) -> u64 {
        while end > floor {
            let offset = (end - 1) % 64;
            // The numbers of one word up to this one, at the top.
            let word = self.bits[word(end - 1)] << (63 - offset);
            let run = if arrived { word.leading_ones() } else { word.leading_zeros() };
            let run = u64::from(run).min(offset + 1);
            end = (end - run).max(floor);
            if run <= offset {
                break;
            }
        }
        end
    }

    /// Clears the bits of numbers that enter the window.
    fn forget(&mut self, numbers: RangeInclusive<u64>) {
        let (first, last) = (*numbers.start(), *numbers.end());
        if last - first >= WINDOW - 1 {
            self.bits.fill(0);
            return;
        }
        let mut next = first;
        while next <= last {
            let in_word = (64 - next % 64).min(last - next + 1);
            let mask = (u64::MAX >> (64 - in_word)) << (next % 64);
            self.bits[word(next)] &= !mask;
            next += in_word;
        }
    }
}

fn word(number: u64) -> usize {
    (number % WINDOW / 64) as usize
}
