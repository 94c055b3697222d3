//! Figures that must be reached, and the table that tells which are.

use bywire_analysis::conditions::State;
use bywire_report::table::{Column, Entry, Row, Table};
use bywire_results::cell::Unit;

use Basis::{Less, Median, Over, OverHighest, OverLowest, Worst};
use Bound::{AtLeast, AtMost};

use crate::contestant::Contest;
use crate::figures::{DISTANCES, Figure, Figures, Rounds};
use crate::series::Series;
use crate::shown::{self, Show};

/// The required value of a figure, and the desired one.
#[derive(Clone, Copy)]
enum Bound {
    /// Less is better.
    AtMost { required: f64, goal: f64 },
    /// More is better.
    AtLeast { required: f64, goal: f64 },
}

/// The source of a figure.
#[derive(Clone, Copy)]
pub enum Basis {
    /// The median of a series.
    Median(Series<'static>),
    /// The highest round of all these series.
    Worst(&'static [Series<'static>]),
    /// One series over another.
    Over(Series<'static>, Series<'static>),
    /// The difference of two series.
    Less(Series<'static>, Series<'static>),
    /// One series over the highest of several, of which some may be missing.
    OverHighest(Series<'static>, &'static [Series<'static>]),
    /// One series over the lowest of several, of which some may be missing.
    OverLowest(Series<'static>, &'static [Series<'static>]),
}

/// A figure that must be reached.
pub struct Requirement {
    /// The name of the measurement in tables.
    pub measure: &'static str,
    /// Its source.
    pub basis: Basis,
    bound: Bound,
    show: Show,
}

/// A ratio of at most this much. [`Requirement::in_unit`] makes it something else.
pub const fn at_most(measure: &'static str, required: f64, goal: f64, basis: Basis) -> Requirement {
    Requirement { measure, basis, bound: AtMost { required, goal }, show: shown::ratio }
}

/// A ratio of at least this much.
pub const fn at_least(measure: &'static str, required: f64, goal: f64, basis: Basis) -> Requirement {
    Requirement { measure, basis, bound: AtLeast { required, goal }, show: shown::ratio }
}

/// A distance with fewer rounds has no figure.
const ROUNDS_MIN: usize = 3;

/// Each of `requirements` with its bounds, and at each distance of the cores what was measured and which bound that reaches.
pub fn table(requirements: &[Requirement], figures: &Figures) -> String {
    let rows = requirements.iter().map(|requirement| requirement.row(figures)).collect();
    let distances = DISTANCES.map(|(name, _)| name);
    let columns =
        Column::named(1, [&["measure", "required", "goal"], &distances[..], &["all rounds"]].concat());
    let (lost, pairs) = figures.at_no_distance();
    Table::new("", columns, rows).markdown()
        + &format!(
            "\nA distance has a figure from {ROUNDS_MIN} rounds on. The distance changed, or could not be read, while {lost} of \
             {pairs} pairs were taken: they count in the last column only.\n"
        )
}

/// Holds a contest to its table, for tests.
///
/// # Panics
/// When nobody in it yields a series that one of `requirements` is made of.
pub fn assert_contestants(requirements: &[Requirement], contest: &Contest) {
    let names: Vec<&str> = contest.entrants().map(|(name, _)| name).collect();
    for requirement in requirements {
        for series in requirement.basis.series() {
            assert!(names.contains(&series.contestant), "{}: nobody yields {series}", requirement.measure);
        }
    }
}

impl Requirement {
    /// A figure in `unit` in place of a ratio.
    pub const fn in_unit(self, unit: Unit) -> Self {
        Self { show: shown::of(unit), ..self }
    }

    /// A ratio that is written as its excess over 1.
    pub const fn as_rise(self) -> Self {
        Self { show: shown::rise, ..self }
    }

    fn row(&self, figures: &Figures) -> Row {
        let told =
            |figure| format!("{}: {}", shown::figure(figure, self.show), self.bound.verdict(figure.value));
        let at = |distance: State| {
            let rounds = figures.rounds_at(distance);
            let figure = self.basis.figure(rounds).filter(|_| self.basis.rounds(rounds) >= ROUNDS_MIN);
            figure.map_or("—".to_owned(), told)
        };
        let reason = || format!("not measured: {}", self.basis.reason(figures));
        let all = self.basis.figure(figures.rounds()).map_or_else(reason, told);
        let bounds = self.bound.shown(self.show);
        let entries = [self.measure.to_owned()].into_iter().chain(bounds);
        Row::of(entries.chain(DISTANCES.map(|(_, distance)| at(distance))).chain([all]).map(Entry::marked))
    }
}

impl Basis {
    fn figure(self, rounds: Rounds) -> Option<Figure> {
        let ratios = |above, others: &'static [Series<'static>]| {
            others.iter().filter_map(move |other| rounds.ratio(above, *other))
        };
        match self {
            Median(series) => rounds.figure(series),
            Over(above, below) => rounds.ratio(above, below),
            Less(more, less) => rounds.difference(more, less),
            OverHighest(above, others) => ratios(above, others).min_by(|a, b| a.value.total_cmp(&b.value)),
            OverLowest(above, others) => ratios(above, others).max_by(|a, b| a.value.total_cmp(&b.value)),
            Worst(series) => {
                let figures: Option<Vec<Figure>> =
                    series.iter().map(|series| rounds.figure(*series)).collect();
                let worst = figures?.into_iter().max_by(|a, b| a.high.total_cmp(&b.high))?;
                Some(Figure { value: worst.high, ..worst })
            }
        }
    }

    /// The rounds of the series that has fewest.
    fn rounds(self, rounds: Rounds) -> usize {
        let count = |series: Series| rounds.count(series);
        match self {
            Median(series) => count(series),
            Over(one, other) | Less(one, other) => count(one).min(count(other)),
            OverHighest(above, others) | OverLowest(above, others) => {
                count(above).min(others.iter().copied().map(count).max().unwrap_or(0))
            }
            Worst(series) => series.iter().copied().map(count).min().unwrap_or(0),
        }
    }

    /// Why there is no figure.
    fn reason(self, figures: &Figures) -> String {
        let reasons = self.series().into_iter().find_map(|series| figures.reason(series.contestant));
        reasons.unwrap_or("not taken").to_owned()
    }

    /// The series that it is made of.
    pub fn series(self) -> Vec<Series<'static>> {
        match self {
            Median(series) => vec![series],
            Worst(series) => series.to_vec(),
            Over(one, other) | Less(one, other) => vec![one, other],
            OverHighest(above, others) | OverLowest(above, others) => {
                std::iter::once(above).chain(others.iter().copied()).collect()
            }
        }
    }
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

    fn shown(self, show: Show) -> [String; 2] {
        match self {
            AtMost { required, goal } => [required, goal].map(|bound| format!("≤ {}", show(bound))),
            AtLeast { required, goal } => [required, goal].map(|bound| format!("≥ {}", show(bound))),
        }
    }
}

#[cfg(test)]
mod tests {
    use bywire_results::cell::Session;
    use serde_json::json;

    use super::*;
    use crate::series::value;

    /// A session with one round of these contestants.
    fn session(values: &[(&str, f64)]) -> Session {
        let cell = |(name, value): &(&str, f64)| {
            serde_json::from_value(json!({
                "schema": "bywire-cell/1", "level": "figure", "test": name, "between": "", "value": value, "unit": "ns",
                "blocks": [{ "pair": 0, "value": value, "seconds": 1.0, "operations": 1 }], "environment": {},
                "cpu": { "source": {}, "target": {}, "same_machine": true },
                "details": { "contestant": name, "rounds": [0] },
            }))
            .expect("a cell")
        };
        Session { cells: values.iter().map(cell).collect(), ..Session::default() }
    }

    #[test]
    fn the_best_of_several_others_counts() {
        const OTHERS: &[Series<'static>] = &[value("slow"), value("nowhere"), value("fast")];
        const NOWHERE: &[Series<'static>] = &[value("nowhere")];
        let session = session(&[("ours", 6.0), ("slow", 2.0), ("fast", 4.0)]);
        let figures = Figures::of(&session);
        let found = |basis: Basis| basis.figure(figures.rounds()).map(|figure| figure.value);
        assert_eq!(found(OverHighest(value("ours"), OTHERS)), Some(1.5));
        assert_eq!(found(OverLowest(value("ours"), OTHERS)), Some(3.0));
        assert_eq!(found(OverHighest(value("ours"), NOWHERE)), None);
    }

    #[test]
    fn verdicts_respect_the_direction_of_a_figure() {
        assert_eq!(AtMost { required: 1.3, goal: 1.1 }.verdict(1.2), "required");
        assert_eq!(AtMost { required: 1.3, goal: 1.1 }.verdict(1.4), "**missed**");
        assert_eq!(AtLeast { required: 20.0, goal: 40.0 }.verdict(41.0), "goal");
        assert_eq!(AtMost { required: 0.0, goal: 0.0 }.verdict(0.0), "goal");
    }
}
