//! The figures of a session: the series of its contestants, and their medians, ratios and spread, over all rounds or at one
//! distance of the cores.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use bywire_analysis::conditions::{Conditions, State, pairs};
use bywire_analysis::statistics::median;
use bywire_results::cell::{Cell, Session, Unit};
use serde_json::{Map, Value};

/// Makes the enumeration of figures, each with its name in a stored session, and its unit, if it is not the contestant's own.
macro_rules! metrics {
    ($($(#[$doc:meta])* $metric:ident = $name:literal: $unit:expr;)+) => {
        /// A figure of a contestant.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Metric {
            $($(#[$doc])* $metric,)+
            /// The rate of messages of this length.
            Rate(u64),
        }

        /// All but the rates by length.
        const METRICS_NAMED: &[(Metric, &str, Option<Unit>)] = &[$((Metric::$metric, $name, $unit),)+];
    };
}

metrics! {
    /// The main figure. For the laboratory's tests it is the value of their cells.
    Value = "": None;
    /// The mean half-RTT.
    Mean = "mean": Some(Unit::Nanoseconds);
    /// The half-RTT of which one in a thousand takes longer.
    P999 = "p99.9": Some(Unit::Nanoseconds);
    /// The median half-RTT, if the value is another one.
    HalfRtt = "half-RTT": Some(Unit::Nanoseconds);
    Messages = "messages": Some(Unit::MessagesPerSecond);
    /// CPU of a message at both ends.
    Overhead = "overhead": Some(Unit::Nanoseconds);
    /// The length that reaches half of the rate.
    NHalf = "N½": Some(Unit::Bytes);
    /// The rate of long messages.
    Long = "long": Some(Unit::BytesPerSecond);
    /// The rate of long messages in both directions together.
    TwoWay = "two-way": Some(Unit::BytesPerSecond);
    /// CPU for each KB of everything that takes part.
    Demand = "demand": Some(Unit::MicrosecondsPerKb);
    /// CPU for each KB of the source.
    Source = "source": Some(Unit::MicrosecondsPerKb);
    /// CPU for each KB of the target.
    Target = "target": Some(Unit::MicrosecondsPerKb);
    /// CPU for each KB of the processes between both ends.
    Between = "between": Some(Unit::MicrosecondsPerKb);
    /// Segments that TCP sent again, where none counts as one so that a ratio can be told.
    Again = "again": Some(Unit::Count);
    /// The part that they are of all segments.
    AgainShare = "share again": Some(Unit::LostShare);
    /// The time of a first connect.
    Cold = "cold": Some(Unit::Nanoseconds);
    /// The time of a later connect.
    Warm = "warm": Some(Unit::Nanoseconds);
    /// Memory of an idle connection.
    Memory = "memory": Some(Unit::Bytes);
    /// CPU of idle connections.
    Cpu = "CPU": Some(Unit::NanosecondsPerSecond);
}

impl Metric {
    /// The metric of that name in a stored session.
    pub fn of_name(name: &str) -> Option<Self> {
        let named = METRICS_NAMED.iter().find(|row| row.1 == name);
        named.map(|row| row.0).or_else(|| name.parse().ok().map(Self::Rate))
    }

    /// Its unit, if it is not the contestant's own.
    pub fn unit(self) -> Option<Unit> {
        let named = METRICS_NAMED.iter().find(|row| row.0 == self);
        named.map_or(Some(Unit::BytesPerSecond), |row| row.2)
    }
}

impl Display for Metric {
    fn fmt(&self, formatter: &mut Formatter) -> fmt::Result {
        match self {
            Self::Rate(bytes) => write!(formatter, "{bytes}"),
            _ => METRICS_NAMED
                .iter()
                .filter(|row| row.0 == *self)
                .try_for_each(|row| formatter.write_str(row.1)),
        }
    }
}

/// A figure of a contestant, by the contestant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series<'a> {
    pub contestant: &'a str,
    pub metric: Metric,
}

pub const fn value(contestant: &str) -> Series<'_> {
    by(contestant, Metric::Value)
}

/// A figure of a contestant.
pub const fn by(contestant: &str, metric: Metric) -> Series<'_> {
    Series { contestant, metric }
}

impl Display for Series<'_> {
    fn fmt(&self, formatter: &mut Formatter) -> fmt::Result {
        match self.metric {
            Metric::Value => formatter.write_str(self.contestant),
            metric => write!(formatter, "{} {metric}", self.contestant),
        }
    }
}

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
    /// The session, with its machine and the reasons why contestants are missing.
    pub session: &'a Session,
    conditions: Conditions,
}

/// The rounds of a session, or those at one distance of the cores.
#[derive(Clone, Copy)]
pub struct Rounds<'a> {
    pub figures: &'a Figures<'a>,
    /// The distance, if not all rounds count.
    pub at: Option<State>,
}

/// The two distances, with their names in the tables. A machine that has only one shows it as near.
pub const DISTANCES: [(&str, State); 2] = [("near", State::Near), ("far", State::Far)];

/// A session in which a contestant is missing.
#[cfg(test)]
pub fn without(contestant: &str, reason: &str) -> Session {
    let (level, reason) = (contestant.to_owned(), reason.to_owned());
    let absent = vec![bywire_results::cell::Absence { level, test: None, reason }];
    Session { absent, ..Session::default() }
}

impl<'a> Figures<'a> {
    pub fn of(session: &'a Session) -> Self {
        let moments = session.cells.iter().flat_map(|cell| &cell.moments);
        Self { session, conditions: Conditions::of_moments(moments) }
    }

    pub fn rounds(&self) -> Rounds<'_> {
        Rounds { figures: self, at: None }
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

    /// The unit of a series that has values.
    pub fn unit(&self, series: Series) -> Option<Unit> {
        let (_, cell) = self.cells().find(|(name, _)| *name == series.contestant)?;
        Some(series.metric.unit().unwrap_or(cell.unit))
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

    pub fn values(self, series: Series) -> BTreeMap<u64, f64> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_named_by_their_contestant_and_figure() {
        assert_eq!(value("floor").to_string(), "floor");
        assert_eq!(by("ucx", Metric::Mean).to_string(), "ucx mean");
        assert_eq!(by("mpi", Metric::Rate(1024)).to_string(), "mpi 1024");
        for metric in METRICS_NAMED.iter().map(|row| row.0).chain([Metric::Rate(1024)]) {
            assert_eq!(Metric::of_name(&metric.to_string()), Some(metric));
        }
    }
}
