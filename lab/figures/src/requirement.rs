//! Figures that must be reached, and the table that tells which are.

use Basis::{Less, Median, Over, OverHighest, OverLowest, Worst};
use Bound::{AtLeast, AtMost};

use crate::contest::{Contest, Figure, Rounds};
use crate::distance::Distance;
use crate::table::{self, Show};

/// The required value of a figure, and the desired one.
#[derive(Clone, Copy)]
pub enum Bound {
    /// Less is better.
    AtMost {
        /// The bound.
        required: f64,
        /// Better still.
        goal: f64,
    },
    /// More is better.
    AtLeast {
        /// The bound.
        required: f64,
        /// Better still.
        goal: f64,
    },
}

/// Where a figure comes from.
#[derive(Clone, Copy)]
pub enum Basis {
    /// The median of a series.
    Median(&'static str),
    /// The highest round of all these series.
    Worst(&'static [&'static str]),
    /// One series over another.
    Over(&'static str, &'static str),
    /// What one series has more than another.
    Less(&'static str, &'static str),
    /// One series over the highest of several, of which some may be missing.
    OverHighest(&'static str, &'static [&'static str]),
    /// One series over the lowest of several, of which some may be missing.
    OverLowest(&'static str, &'static [&'static str]),
}

/// A figure that must be reached.
pub struct Requirement {
    /// The name of the measurement in tables.
    pub measure: &'static str,
    /// The required value.
    pub bound: Bound,
    /// Where it comes from.
    pub basis: Basis,
    /// How it is written.
    pub show: Show,
}

/// A distance with fewer rounds has no figure.
const ROUNDS_MIN: usize = 3;

/// Each of `requirements` with its bounds, and at each distance of the cores what was measured and which bound that reaches.
pub fn table(requirements: &[Requirement], contest: &Contest) -> String {
    let names = Distance::ALL.map(Distance::name);
    let mut page = table::heading(&[&["measure", "required", "goal"], &names[..], &["all rounds"]].concat());
    for requirement in requirements {
        let (required, goal) = requirement.bound.shown(requirement.show);
        let mut cells = vec![requirement.measure.to_owned(), required, goal];
        cells.extend(Distance::ALL.map(|distance| {
            let rounds = contest.rounds_at(distance);
            match requirement.basis.figure(rounds).filter(|_| requirement.basis.rounds(rounds) >= ROUNDS_MIN)
            {
                Some(figure) => requirement.told(figure),
                None => "—".to_owned(),
            }
        }));
        cells.push(match requirement.basis.figure(contest.rounds()) {
            Some(figure) => requirement.told(figure),
            None => format!("not measured: {}", requirement.basis.reason(contest)),
        });
        page.push_str(&table::row(&cells));
    }
    let (lost, values) = contest.at_no_distance();
    page + &format!(
        "\nA distance has a figure from {ROUNDS_MIN} rounds on. The distance changed, or could not be read, while {lost} of \
         {values} values were taken: they count in the last column only.\n"
    )
}

/// Holds a contest to its table, for tests.
///
/// # Panics
/// When nobody in it yields a series that one of `requirements` is made of.
pub fn assert_contestants(requirements: &[Requirement], contest: &Contest) {
    let names: Vec<&str> = contest.entries().iter().map(|entry| entry.contestant.name.as_str()).collect();
    for requirement in requirements {
        for name in requirement.basis.contestants() {
            assert!(names.contains(&name), "{}: nobody yields {name}", requirement.measure);
        }
    }
}

impl Requirement {
    fn told(&self, figure: Figure) -> String {
        format!("{}: {}", table::figure(figure, self.show), self.bound.verdict(figure.value))
    }
}

impl Basis {
    fn figure(self, rounds: Rounds) -> Option<Figure> {
        match self {
            Median(series) => rounds.figure(series),
            Over(above, below) => rounds.ratio(above, below),
            Less(more, less) => rounds.difference(more, less),
            OverHighest(above, others) => {
                ratios(rounds, above, others).min_by(|a, b| a.value.total_cmp(&b.value))
            }
            OverLowest(above, others) => {
                ratios(rounds, above, others).max_by(|a, b| a.value.total_cmp(&b.value))
            }
            Worst(series) => {
                let mut figures = series.iter().map(|series| rounds.figure(series));
                let worst = figures.try_fold(None, |worst: Option<Figure>, figure| {
                    let figure = figure?;
                    Some(worst.filter(|worst| worst.high > figure.high).or(Some(figure)))
                })??;
                Some(Figure { value: worst.high, ..worst })
            }
        }
    }

    /// The rounds of the series that has fewest.
    fn rounds(self, rounds: Rounds) -> usize {
        let count = |series: &&'static str| rounds.count(series);
        match self {
            Median(series) => count(&series),
            Over(one, other) | Less(one, other) => count(&one).min(count(&other)),
            OverHighest(above, others) | OverLowest(above, others) => {
                count(&above).min(others.iter().map(count).max().unwrap_or(0))
            }
            Worst(series) => series.iter().map(count).min().unwrap_or(0),
        }
    }

    /// Why there is no figure.
    fn reason(self, contest: &Contest) -> String {
        self.contestants().iter().find_map(|name| contest.reason(name)).unwrap_or("not taken").to_owned()
    }

    /// Those whose series it is made of.
    fn contestants(self) -> Vec<&'static str> {
        let series = match self {
            Median(series) => vec![series],
            Worst(series) => series.to_vec(),
            Over(one, other) | Less(one, other) => vec![one, other],
            OverHighest(above, others) | OverLowest(above, others) => [&[above], others].concat(),
        };
        let endings = [
            " mean",
            " p99.9",
            " cold",
            " warm",
            " memory",
            " CPU",
            " short messages",
            " messages",
            " demand",
            " again",
            " long",
            " two-way",
            " N½",
            " half-RTT",
            " overhead",
        ];
        let name = |series: &'static str| {
            endings.iter().find_map(|ending| series.strip_suffix(ending)).unwrap_or(series)
        };
        series.into_iter().map(name).collect()
    }
}

/// One series over each of several that have values.
fn ratios(
    rounds: Rounds,
    above: &'static str,
    others: &'static [&'static str],
) -> impl Iterator<Item = Figure> {
    others.iter().filter_map(move |other| rounds.ratio(above, other))
}

impl Bound {
    fn verdict(self, value: f64) -> &'static str {
        let (required, goal) = match self {
            AtMost { required, goal } => (value <= required, value <= goal),
            AtLeast { required, goal } => (value >= required, value >= goal),
        };
        match (required, goal) {
            (_, true) => "goal",
            (true, false) => "required",
            (false, false) => "**missed**",
        }
    }

    fn shown(self, show: Show) -> (String, String) {
        match self {
            AtMost { required, goal } => (format!("≤ {}", show(required)), format!("≤ {}", show(goal))),
            AtLeast { required, goal } => (format!("≥ {}", show(required)), format!("≥ {}", show(goal))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::{Contestant, Taken};

    #[test]
    fn the_best_of_several_others_counts() {
        let mut contest = Contest::default();
        for (name, value) in [("ours", 6.0), ("slow", 2.0), ("fast", 4.0)] {
            let take = Box::new(move || Ok(Taken::one(name, value)));
            contest.add(name, Ok(Contestant { name: name.to_owned(), command: String::new(), take }));
        }
        contest.run(1);
        let value = |basis: Basis| basis.figure(contest.rounds()).map(|figure| figure.value);
        assert_eq!(value(OverHighest("ours", &["slow", "nowhere", "fast"])), Some(1.5));
        assert_eq!(value(OverLowest("ours", &["slow", "nowhere", "fast"])), Some(3.0));
        assert_eq!(value(OverHighest("ours", &["nowhere"])), None);
    }

    #[test]
    fn verdicts_respect_the_direction_of_a_figure() {
        assert_eq!(AtMost { required: 1.3, goal: 1.1 }.verdict(1.2), "required");
        assert_eq!(AtMost { required: 1.3, goal: 1.1 }.verdict(1.4), "**missed**");
        assert_eq!(AtLeast { required: 20.0, goal: 40.0 }.verdict(41.0), "goal");
        assert_eq!(AtMost { required: 0.0, goal: 0.0 }.verdict(0.0), "goal");
    }
}
