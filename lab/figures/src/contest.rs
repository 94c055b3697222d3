//! Rounds in which every contestant runs once, in random order.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use bywire_analysis::statistics::median;
use bywire_measure::interrupt;
use rand::seq::SliceRandom;

use crate::distance::Distance;

/// A contestant that failed this often is left out of further rounds.
const FAILURES_MAX: usize = 3;

/// Something that can be measured by one fresh pair of processes at a time.
pub struct Contestant {
    /// Its name in the tables.
    pub name: String,
    /// The command that measures it alone.
    pub command: String,
    /// Runs one fresh pair.
    pub take: Box<dyn FnMut() -> Result<Taken>>,
}

/// The results of one pair.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// By series, each in a unit of its own.
    pub values: Vec<(String, f64)>,
    /// Blocks that were disturbed, by others on the same core or by the hypervisor.
    pub blocks_disturbed: u64,
    /// All blocks.
    pub blocks: u64,
}

impl Taken {
    /// A single value.
    pub fn one(series: &str, value: f64) -> Self {
        Self { values: vec![(series.to_owned(), value)], ..Self::default() }
    }
}

/// The contestants and their results so far.
#[derive(Default)]
pub struct Contest {
    entries: Vec<Entry>,
    /// By series and round.
    series: BTreeMap<String, BTreeMap<u32, Value>>,
}

/// The result of one round.
#[derive(Clone, Copy)]
struct Value {
    value: f64,
    /// The distance of the cores before and after, if it did not change.
    distance: Option<Distance>,
}

/// The rounds of a contest, or those at one distance.
#[derive(Clone, Copy)]
pub struct Rounds<'a> {
    contest: &'a Contest,
    at: Option<Distance>,
}

/// A contestant's record.
pub struct Entry {
    /// The contestant.
    pub contestant: Contestant,
    /// The reasons of its failures.
    pub failures: Vec<String>,
    /// Blocks that were disturbed, of all its blocks.
    pub blocks_disturbed: u64,
    /// All its blocks.
    pub blocks: u64,
    /// The series it yields.
    pub series: Vec<String>,
}

/// A median with the lowest and the highest of its rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The median over rounds, or the ratio of two medians.
    pub value: f64,
    /// The lowest round.
    pub low: f64,
    /// The highest round.
    pub high: f64,
}

impl Contest {
    /// Adds a contestant, or the reason why it is missing.
    pub fn add(&mut self, name: &str, contestant: Result<Contestant>) {
        let (contestant, failures) = match contestant {
            Ok(contestant) => (contestant, Vec::new()),
            Err(error) => (absent(name), vec![format!("{error:#}"); FAILURES_MAX]),
        };
        self.entries.push(Entry { contestant, failures, blocks_disturbed: 0, blocks: 0, series: Vec::new() });
    }

    /// Leaves out every contestant whose name is not kept.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.entries.retain(|entry| is_kept(&entry.contestant.name));
    }

    /// Runs this many rounds, or fewer if interrupted. Reports its progress on standard error.
    pub fn run(&mut self, rounds: u32) {
        let started = Instant::now();
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..self.entries.len()).collect();
            order.shuffle(&mut rand::rng());
            for index in order {
                if interrupt::requested() {
                    eprintln!(
                        "interrupted in round {} of {rounds}: the table holds what there is",
                        round + 1
                    );
                    return;
                }
                self.take(index, round);
            }
            let left = started.elapsed().as_secs_f64() / f64::from(round + 1) * f64::from(rounds - round - 1);
            eprintln!("round {} of {rounds} done, {left:.0} s left", round + 1);
        }
    }

    fn take(&mut self, index: usize, round: u32) {
        let entry = &mut self.entries[index];
        if entry.failures.len() >= FAILURES_MAX {
            return;
        }
        let before = Distance::now();
        match (entry.contestant.take)() {
            Ok(taken) => {
                let distance = before.filter(|_| Distance::now() == before);
                entry.blocks_disturbed += taken.blocks_disturbed;
                entry.blocks += taken.blocks;
                for (series, value) in taken.values {
                    if !entry.series.contains(&series) {
                        entry.series.push(series.clone());
                    }
                    self.series.entry(series).or_default().insert(round, Value { value, distance });
                }
            }
            Err(error) => {
                let reason = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
                eprintln!("{}: {reason}", entry.contestant.name);
                entry.failures.push(reason);
            }
        }
    }

    /// Every contestant's record.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// All rounds.
    pub fn rounds(&self) -> Rounds<'_> {
        Rounds { contest: self, at: None }
    }

    /// The rounds at a distance.
    pub fn rounds_at(&self, distance: Distance) -> Rounds<'_> {
        Rounds { contest: self, at: Some(distance) }
    }

    /// Values that were measured while the distance changed or could not be read, and all values.
    pub fn at_no_distance(&self) -> (usize, usize) {
        let values = || self.series.values().flat_map(BTreeMap::values);
        (values().filter(|value| value.distance.is_none()).count(), values().count())
    }

    /// The reason why a series has no values: the last failure of the contestant of that name.
    pub fn reason(&self, name: &str) -> Option<&str> {
        let entry = self.entries.iter().find(|entry| entry.contestant.name == name)?;
        entry.failures.last().map(String::as_str)
    }
}

impl Rounds<'_> {
    /// Median, lowest and highest of a series.
    pub fn figure(self, series: &str) -> Option<Figure> {
        let values: Vec<f64> = self.values(series).into_values().collect();
        let spread = spread(&values)?;
        Some(Figure { value: median(&values), ..spread })
    }

    /// The ratio of two series' medians, with the lowest and the highest of the ratios within a round.
    pub fn ratio(self, above: &str, below: &str) -> Option<Figure> {
        self.comparison((above, below), |above, below| above / below)
    }

    /// The difference of two series' medians, with the least and the greatest of the differences within a round.
    pub fn difference(self, more: &str, less: &str) -> Option<Figure> {
        self.comparison((more, less), |more, less| more - less)
    }

    fn comparison(self, (one, other): (&str, &str), compare: impl Fn(f64, f64) -> f64) -> Option<Figure> {
        let (one, other) = (self.values(one), self.values(other));
        if one.is_empty() || other.is_empty() {
            return None;
        }
        let middle = |series: &BTreeMap<u32, f64>| median(&series.values().copied().collect::<Vec<_>>());
        let value = compare(middle(&one), middle(&other));
        let of_rounds: Vec<f64> =
            one.iter().filter_map(|(round, value)| Some(compare(*value, *other.get(round)?))).collect();
        let spread = spread(&of_rounds).unwrap_or(Figure { value, low: value, high: value });
        Some(Figure { value, ..spread })
    }

    /// Rounds in which a series has a value.
    pub fn count(self, series: &str) -> usize {
        self.values(series).len()
    }

    fn values(self, series: &str) -> BTreeMap<u32, f64> {
        let rounds = self.contest.series.get(series).into_iter().flatten();
        rounds
            .filter(|(_, value)| self.at.is_none() || value.distance == self.at)
            .map(|(round, value)| (*round, value.value))
            .collect()
    }
}

fn absent(name: &str) -> Contestant {
    Contestant { name: name.to_owned(), command: String::new(), take: Box::new(|| Ok(Taken::default())) }
}

fn spread(values: &[f64]) -> Option<Figure> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    Some(Figure { value: low, low, high })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(series: &'static str, mut values: Vec<f64>) -> Result<Contestant> {
        Ok(Contestant {
            name: series.to_owned(),
            command: String::new(),
            take: Box::new(move || match values.pop() {
                Some(value) if value > 0.0 => Ok(Taken::one(series, value)),
                _ => anyhow::bail!("worn\nout"),
            }),
        })
    }

    #[test]
    fn ratios_and_differences_compare_medians_and_show_the_rounds() {
        let mut contest = Contest::default();
        contest.add("above", counting("above", vec![30.0, 20.0, 10.0]));
        contest.add("below", counting("below", vec![10.0, 10.0, 20.0]));
        contest.run(3);
        assert_eq!(
            contest.rounds().ratio("above", "below"),
            Some(Figure { value: 2.0, low: 0.5, high: 3.0 })
        );
        assert_eq!(
            contest.rounds().difference("above", "below"),
            Some(Figure { value: 10.0, low: -10.0, high: 20.0 })
        );
        assert_eq!(contest.rounds().figure("above"), Some(Figure { value: 20.0, low: 10.0, high: 30.0 }));
        assert_eq!(contest.rounds().ratio("above", "nobody"), None);
    }

    #[test]
    fn a_failed_contestant_is_left_out_with_its_reason_and_others_are_kept() {
        let mut contest = Contest::default();
        contest.add("weak", counting("weak", vec![1.0, -1.0, 2.0]));
        contest.add("strong", counting("strong", vec![1.0; 5]));
        contest.add("nowhere", Err(anyhow::anyhow!("not installed")));
        contest.run(5);
        assert_eq!(contest.reason("weak"), Some("worn out"));
        assert_eq!(contest.reason("nowhere"), Some("not installed"));
        assert_eq!(contest.rounds().figure("weak").map(|figure| figure.value), Some(1.5));
        // A round without one of the two is no ratio.
        assert_eq!(contest.rounds().ratio("weak", "strong").map(|figure| figure.high), Some(2.0));
        assert_eq!(contest.rounds().figure("nowhere"), None);
    }
}
