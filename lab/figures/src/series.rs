//! The names of what is measured: a contestant, and one of its figures.

use std::fmt::{self, Display, Formatter};

use bywire_results::cell::Unit;

/// A figure of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// The main figure. For the laboratory's tests it is the value of their cells.
    Value,
    /// The mean half-RTT.
    Mean,
    /// The half-RTT of which one in a thousand takes longer.
    P999,
    /// The median half-RTT, if the value is another one.
    HalfRtt,
    /// Messages per second.
    Messages,
    /// CPU of a message at both ends.
    Overhead,
    /// The length that reaches half of the rate.
    NHalf,
    /// The rate of long messages.
    Long,
    /// The rate of long messages in both directions together.
    TwoWay,
    /// The rate of messages of this length.
    Rate(u64),
    /// CPU for each KB of everything that takes part.
    Demand,
    /// CPU for each KB of the source.
    Source,
    /// CPU for each KB of the target.
    Target,
    /// CPU for each KB of the processes between both ends.
    Between,
    /// Segments that TCP sent again, where none counts as one so that a ratio can be told.
    Again,
    /// The part that they are of all segments.
    AgainShare,
    /// The time of a first connect.
    Cold,
    /// The time of a later connect.
    Warm,
    /// Memory of an idle connection.
    Memory,
    /// CPU of idle connections.
    Cpu,
}

impl Metric {
    /// All but the rates by length.
    const NAMED: [Self; 19] = [
        Self::Value,
        Self::Mean,
        Self::P999,
        Self::HalfRtt,
        Self::Messages,
        Self::Overhead,
        Self::NHalf,
        Self::Long,
        Self::TwoWay,
        Self::Demand,
        Self::Source,
        Self::Target,
        Self::Between,
        Self::Again,
        Self::AgainShare,
        Self::Cold,
        Self::Warm,
        Self::Memory,
        Self::Cpu,
    ];

    /// The metric of that name in a stored session.
    pub fn of_name(name: &str) -> Option<Self> {
        let named = Self::NAMED.into_iter().find(|metric| metric.to_string() == name);
        named.or_else(|| name.parse().ok().map(Self::Rate))
    }

    /// Its unit. That of a value is the contestant's own.
    pub const fn unit(self) -> Option<Unit> {
        Some(match self {
            Self::Value => return None,
            Self::Mean | Self::P999 | Self::HalfRtt | Self::Overhead | Self::Cold | Self::Warm => {
                Unit::Nanoseconds
            }
            Self::Messages => Unit::MessagesPerSecond,
            Self::NHalf | Self::Memory => Unit::Bytes,
            Self::Long | Self::TwoWay | Self::Rate(_) => Unit::BytesPerSecond,
            Self::Demand | Self::Source | Self::Target | Self::Between => Unit::MicrosecondsPerKb,
            Self::Again => Unit::Count,
            Self::AgainShare => Unit::LostShare,
            Self::Cpu => Unit::NanosecondsPerSecond,
        })
    }
}

impl Display for Metric {
    fn fmt(&self, formatter: &mut Formatter) -> fmt::Result {
        if let Self::Rate(bytes) = self {
            return write!(formatter, "{bytes}");
        }
        formatter.write_str(match self {
            Self::Value | Self::Rate(_) => "",
            Self::Mean => "mean",
            Self::P999 => "p99.9",
            Self::HalfRtt => "half-RTT",
            Self::Messages => "messages",
            Self::Overhead => "overhead",
            Self::NHalf => "N½",
            Self::Long => "long",
            Self::TwoWay => "two-way",
            Self::Demand => "demand",
            Self::Source => "source",
            Self::Target => "target",
            Self::Between => "between",
            Self::Again => "again",
            Self::AgainShare => "share again",
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Memory => "memory",
            Self::Cpu => "CPU",
        })
    }
}

/// A figure of a contestant, by the contestant's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series<'a> {
    /// The contestant.
    pub contestant: &'a str,
    /// Its figure.
    pub metric: Metric,
}

/// The value of a contestant.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_named_by_their_contestant_and_figure() {
        assert_eq!(value("floor").to_string(), "floor");
        assert_eq!(by("ucx", Metric::Mean).to_string(), "ucx mean");
        assert_eq!(by("mpi", Metric::Rate(1024)).to_string(), "mpi 1024");
        for metric in Metric::NAMED.into_iter().chain([Metric::Rate(1024)]) {
            assert_eq!(Metric::of_name(&metric.to_string()), Some(metric));
        }
    }
}
