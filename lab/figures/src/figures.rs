//! The figures of a session: medians, ratios and their spread, over all rounds or at one distance of the cores.

use std::collections::BTreeMap;

use bywire_analysis::conditions::{Conditions, State, pairs};
use bywire_analysis::statistics::median;
use bywire_results::cell::{Absence, Cell, Session, Unit};
use serde_json::{Map, Value};

use crate::series::{Metric, Series};

/// The detail of a cell that names its contestant.
pub const CONTESTANT: &str = "contestant";
/// The detail that names the figure which the cell's value is, if it is not the contestant's value.
pub const METRIC: &str = "metric";
/// The detail with further figures: for each a list of values by pair.
pub const METRICS: &str = "metrics";
/// The detail with the round of each pair.
pub const ROUNDS: &str = "rounds";

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

/// The figures of a session.
pub struct Figures<'a> {
    session: &'a Session,
    conditions: Conditions,
}

/// The rounds of a session, or those at one distance of the cores.
#[derive(Clone, Copy)]
pub struct Rounds<'a> {
    figures: &'a Figures<'a>,
    at: Option<State>,
}

/// The two distances, with their names in the tables. A machine that has only one shows it as near.
pub const DISTANCES: [(&str, State); 2] = [("near", State::Near), ("far", State::Far)];

/// A session in which a contestant is missing, for tests.
pub fn without(contestant: &str, reason: &str) -> Session {
    let (level, reason) = (contestant.to_owned(), reason.to_owned());
    Session { absent: vec![Absence { level, test: None, reason }], ..Session::default() }
}

impl<'a> Figures<'a> {
    /// Those of `session`.
    pub fn of(session: &'a Session) -> Self {
        let moments = session.cells.iter().flat_map(|cell| &cell.moments);
        Self { session, conditions: Conditions::of_moments(moments) }
    }

    /// All rounds.
    pub fn rounds(&self) -> Rounds<'_> {
        Rounds { figures: self, at: None }
    }

    /// The rounds at a distance.
    pub fn rounds_at(&self, distance: State) -> Rounds<'_> {
        Rounds { figures: self, at: Some(distance) }
    }

    /// The cells of contestants, in the order taken.
    pub fn cells(&self) -> impl Iterator<Item = (&str, &Cell)> {
        self.session.cells.iter().filter_map(|cell| Some((cell.details.text(CONTESTANT)?, cell)))
    }

    /// Pairs that were taken while the distance changed or could not be read, and all pairs.
    pub fn at_no_distance(&self) -> (usize, usize) {
        let states = || {
            let moments = self.session.cells.iter().flat_map(|cell| &cell.moments);
            moments.map(|moment| self.conditions.state(Some(moment)))
        };
        (states().filter(|state| *state == State::Between).count(), states().count())
    }

    /// The reason why a contestant has no values.
    pub fn reason(&self, contestant: &str) -> Option<&str> {
        let absent = self.session.absent.iter().rev().find(|absence| absence.level == contestant);
        absent.map(|absence| absence.reason.as_str())
    }

    /// Every reason, by contestant.
    pub fn reasons(&self) -> impl Iterator<Item = (&str, &str)> {
        self.session.absent.iter().map(|absence| (absence.level.as_str(), absence.reason.as_str()))
    }

    /// The unit of a series that has values.
    pub fn unit(&self, series: Series) -> Option<Unit> {
        let (_, cell) = self.cells().find(|(name, _)| *name == series.contestant)?;
        Some(series.metric.unit().unwrap_or(cell.unit))
    }

    /// The machine and the build.
    pub fn environment(&self) -> &Value {
        &self.session.environment
    }
}

impl Rounds<'_> {
    /// Median, lowest and highest of a series.
    pub fn figure(self, series: Series) -> Option<Figure> {
        let values: Vec<f64> = self.values(series).into_values().collect();
        let spread = spread(&values)?;
        Some(Figure { value: median(&values), ..spread })
    }

    /// The ratio of two series' medians, with the lowest and the highest of the ratios within a round.
    pub fn ratio(self, above: Series, below: Series) -> Option<Figure> {
        self.comparison([above, below], |above, below| above / below)
    }

    /// The difference of two series' medians, with the least and the greatest of the differences within a round.
    pub fn difference(self, more: Series, less: Series) -> Option<Figure> {
        self.comparison([more, less], |more, less| more - less)
    }

    fn comparison(self, series: [Series; 2], compare: impl Fn(f64, f64) -> f64) -> Option<Figure> {
        let [one, other] = series.map(|series| self.values(series));
        if one.is_empty() || other.is_empty() {
            return None;
        }
        let middle = |series: &BTreeMap<u64, f64>| median(&series.values().copied().collect::<Vec<_>>());
        let value = compare(middle(&one), middle(&other));
        let in_both = one.iter().filter_map(|(round, value)| Some(compare(*value, *other.get(round)?)));
        let spread =
            spread(&in_both.collect::<Vec<_>>()).unwrap_or(Figure { value, low: value, high: value });
        Some(Figure { value, ..spread })
    }

    /// Rounds in which a series has a value.
    pub fn count(self, series: Series) -> usize {
        self.values(series).len()
    }

    /// The values of a series by round.
    fn values(self, series: Series) -> BTreeMap<u64, f64> {
        let cells = self.figures.cells().filter(|(name, _)| *name == series.contestant);
        let values = cells.flat_map(|(_, cell)| {
            let further = further(cell).and_then(|metrics| metrics.get(&series.metric.to_string()));
            let is_own = own(cell) == Some(series.metric);
            let rounds = cell.details.numbers(ROUNDS);
            let at_distance = pairs(cell).filter(move |(_, _, moment)| {
                self.at.is_none_or(|at| self.figures.conditions.state(*moment) == at)
            });
            at_distance.filter_map(move |(pair, value, _)| {
                let further = || further?.get(pair as usize).and_then(Value::as_f64);
                let value = if is_own { Some(value) } else { further() };
                Some((*rounds.get(pair as usize)? as u64, value?))
            })
        });
        values.collect()
    }
}

/// The figures that a cell of a contestant has.
pub fn metrics(cell: &Cell) -> Vec<Metric> {
    let further = further(cell).into_iter().flat_map(|metrics| metrics.keys());
    own(cell).into_iter().chain(further.filter_map(|name| Metric::of_name(name))).collect()
}

/// The figure that a cell's value is.
fn own(cell: &Cell) -> Option<Metric> {
    Metric::of_name(cell.details.text(METRIC).unwrap_or_default())
}

fn further(cell: &Cell) -> Option<&Map<String, Value>> {
    cell.details.get(METRICS)?.as_object()
}

fn spread(values: &[f64]) -> Option<Figure> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    Some(Figure { value: low, low, high })
}
