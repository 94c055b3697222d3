//! Figures that must be reached, and the table that tells which are.

use Basis::{Median, Over, Worst};
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
        must: f64,
        /// Better still.
        aim: f64,
    },
    /// More is better.
    AtLeast {
        /// The bound.
        must: f64,
        /// Better still.
        aim: f64,
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
}

/// A figure that must be reached.
pub struct Must {
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

/// Each of `musts` with its bounds, and at each distance of the cores what was measured and which bound that reaches.
pub fn table_by_distance(musts: &[Must], contest: &Contest) -> String {
    let names = Distance::ALL.map(Distance::name);
    let mut page = table::heading(&[&["measure", "must", "aim"], &names[..], &["all rounds"]].concat());
    for must in musts {
        let (least, aim) = must.bound.shown(must.show);
        let mut cells = vec![must.measure.to_owned(), least, aim];
        cells.extend(Distance::ALL.map(|distance| {
            let rounds = contest.rounds_at(distance);
            match must.basis.figure(rounds).filter(|_| must.basis.rounds(rounds) >= ROUNDS_MIN) {
                Some(figure) => must.told(figure),
                None => "—".to_owned(),
            }
        }));
        cells.push(match must.basis.figure(contest.rounds()) {
            Some(figure) => must.told(figure),
            None => format!("not measured: {}", must.basis.reason(contest)),
        });
        page.push_str(&table::row(&cells));
    }
    let (lost, values) = contest.at_no_distance();
    page + &format!(
        "\nA distance has a figure from {ROUNDS_MIN} rounds on. The distance changed, or could not be read, while {lost} of \
         {values} values were taken: they count in the last column only.\n"
    )
}

/// Each of `musts` with its bounds, what was measured, and which bound that reaches.
pub fn table(musts: &[Must], contest: &Contest) -> String {
    let mut page =
        table::heading(&["measure", "must", "aim", "measured (lowest to highest round)", "reached"]);
    for must in musts {
        let figure = must.basis.figure(contest.rounds());
        let (measured, reached) = match figure {
            Some(figure) => (table::figure(figure, must.show), must.bound.verdict(figure.value).to_owned()),
            None => ("not measured".to_owned(), must.basis.reason(contest)),
        };
        let (least, aim) = must.bound.shown(must.show);
        page.push_str(&table::row(&[must.measure.to_owned(), least, aim, measured, reached]));
    }
    page
}

/// Holds a contest to its table, for tests.
///
/// # Panics
/// When nobody in it yields a series that one of `musts` is made of.
pub fn assert_contestants(musts: &[Must], contest: &Contest) {
    let names: Vec<&str> = contest.entries().iter().map(|entry| entry.contestant.name.as_str()).collect();
    for must in musts {
        for name in must.basis.contestants() {
            assert!(names.contains(&name), "{}: nobody yields {name}", must.measure);
        }
    }
}

impl Must {
    fn told(&self, figure: Figure) -> String {
        format!("{}: {}", table::figure(figure, self.show), self.bound.verdict(figure.value))
    }
}

impl Basis {
    fn figure(self, rounds: Rounds) -> Option<Figure> {
        match self {
            Median(series) => rounds.figure(series),
            Over(above, below) => rounds.ratio(above, below),
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
            Over(above, below) => count(&above).min(count(&below)),
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
            Over(above, below) => vec![above, below],
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

impl Bound {
    fn verdict(self, value: f64) -> &'static str {
        let (must, aim) = match self {
            AtMost { must, aim } => (value <= must, value <= aim),
            AtLeast { must, aim } => (value >= must, value >= aim),
        };
        match (must, aim) {
            (_, true) => "aim",
            (true, false) => "must",
            (false, false) => "**missed**",
        }
    }

    fn shown(self, show: Show) -> (String, String) {
        match self {
            AtMost { must, aim } => (format!("≤ {}", show(must)), format!("≤ {}", show(aim))),
            AtLeast { must, aim } => (format!("≥ {}", show(must)), format!("≥ {}", show(aim))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_respect_the_direction_of_a_figure() {
        assert_eq!(AtMost { must: 1.3, aim: 1.1 }.verdict(1.2), "must");
        assert_eq!(AtMost { must: 1.3, aim: 1.1 }.verdict(1.4), "**missed**");
        assert_eq!(AtLeast { must: 20.0, aim: 40.0 }.verdict(41.0), "aim");
        assert_eq!(AtMost { must: 0.0, aim: 0.0 }.verdict(0.0), "aim");
    }
}
