//! Rates and half-RTTs by the length of messages, with the ceilings. With a single length they are bars.

use std::collections::BTreeMap;

use bywire_results::cell::Cell;
use bywire_results::quantity;

use crate::ceiling::Ceilings;
use crate::comparison::rounded;
use crate::plot::data::{Axis, Kind, Look, Plot, Point, Quantity, Series};
use crate::way::Way;
use crate::way_figures::n_half;

/// Bins for each factor of ten in the distribution of half-RTT.
const BINS_PER_DECADE: f64 = 40.0;

pub fn half_rtt(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series = curves(ways, "latency", middle_of_samples);
    let sizes = extent(&series);
    series.extend(limit("cache-line floor", ceilings.half_rtt_floor(), sizes));
    series.extend(limit("futex or pipe hand-off", ceilings.wake_floor(), sizes));
    Plot {
        id: "half-rtt",
        title: "Half-RTT by message length",
        about: "Median of single round trips, halved; the band runs from p5 to p95. Lower is better.".into(),
        x: Axis::SIZE,
        y: Axis::HALF_RTT,
        series,
        ..Plot::CURVES
    }
}

pub fn one_way(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series = curves(ways, "stream", |cell| cell.ci95);
    series.extend(ways.iter().enumerate().filter_map(sweep));
    let remarks = holes(&series);
    let sizes = extent(&series);
    series.extend(ways.iter().enumerate().filter_map(n_half_mark));
    series.extend(ceiling_curve("one core: write, copy and sum", ceilings.curve("touched"), sizes));
    series.extend(ceiling_curve("memcpy", ceilings.curve("memcpy"), sizes));
    Plot {
        id: "one-way",
        title: "One-way rate by message length",
        about: "Payload received per second; the band is the 95 % interval of the median. A large diamond is N½, the \
                length at half of the highest rate. Higher is better."
            .into(),
        x: Axis::SIZE,
        y: Axis::RATE,
        series,
        remarks,
        ..Plot::CURVES
    }
}

pub fn two_way(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series = curves(ways, "bidir", |cell| cell.ci95);
    let remarks = holes(&series);
    let sizes = extent(&series);
    series.extend(limit("memory read + write", ceilings.two_way(), sizes));
    Plot {
        id: "two-way",
        title: "Two-way rate by message length",
        about: "Both directions at once, added up; the band is the 95 % interval of the median. Higher is better.".into(),
        x: Axis::SIZE,
        y: Axis::RATE,
        series,
        remarks,
        ..Plot::CURVES
    }
}

pub fn interleave(ways: &[Way]) -> Plot {
    Plot {
        id: "interleave",
        title: "Half-RTT beside a long transfer",
        about: "Short messages by length while a long transfer runs in the same pair; the band runs from p5 to p95. \
                Lower is better."
            .into(),
        x: Axis::SIZE,
        y: Axis::HALF_RTT,
        series: curves(ways, "interleave", middle_of_samples),
        ..Plot::CURVES
    }
}

pub fn transactions(ways: &[Way]) -> Plot {
    Plot {
        id: "transactions",
        title: "Transactions per second by request length",
        about: "One request and its response at a time; the band is the 95 % interval of the median. Higher is better."
            .into(),
        x: Axis::SIZE,
        y: Axis {
            name: "transactions",
            quantity: Quantity::PerSecond,
            logarithmic: true,
        },
        series: curves(ways, "rr", |cell| cell.ci95),
        ..Plot::CURVES
    }
}

/// The distribution of short half-RTTs: samples by logarithmic bins, as a share of all.
pub fn distribution(ways: &[Way]) -> Plot {
    let series = ways.iter().enumerate().filter_map(|(slot, way)| {
        let cell = way.short("latency")?;
        // Counts from a file may have any size.
        let total: f64 = cell.histogram.iter().map(|bucket| bucket.1 as f64).sum();
        let mut bins = BTreeMap::<i64, f64>::new();
        for &(bound, count) in cell.histogram.iter().filter(|bucket| bucket.0 > 0.0) {
            *bins.entry((bound.log10() * BINS_PER_DECADE).floor() as i64).or_default() += count as f64;
        }
        let middle = |bin: i64| 10f64.powf((bin as f64 + 0.5) / BINS_PER_DECADE).min(f64::MAX);
        let points = bins.iter().map(|(&bin, count)| Point::new(middle(bin), count / total)).collect();
        Some(measured(&way.label, slot, points))
    });
    Plot {
        id: "distribution",
        title: "Distribution of short half-RTTs",
        about: format!("Share of all samples in each bin ({BINS_PER_DECADE} bins for each factor of ten)."),
        x: Axis::HALF_RTT,
        y: Axis { name: "share of samples", quantity: Quantity::Share, logarithmic: true },
        series: series.collect(),
        ..Plot::CURVES
    }
}

/// Bars instead of curves, for a single length: each value has a row of its own, with the historic figures of about
/// that length below.
pub fn at_one_length(plot: Plot) -> Plot {
    let measured: Vec<Series> =
        plot.series.iter().filter(|series| series.look == Look::Measured).cloned().collect();
    let lengths = extent(&measured).filter(|_| plot.x.quantity == Quantity::Size);
    let Some([length, longest]) = lengths.map(|ends| ends.map(|end| rounded(end as u64))) else {
        return plot;
    };
    if length != longest {
        return plot;
    }
    let mut categories = Vec::new();
    let mut rows = |look: Look, name: &str| {
        let mut points = Vec::new();
        for series in plot.series.iter().filter(|series| series.look == look) {
            let shown = series.points.iter().filter(|point| about_as_long(point.x, length as f64));
            for point in shown.take(if look == Look::Limit { 1 } else { usize::MAX }) {
                let label = Some(plot.y.quantity.format(point.y));
                points.push(Point { x: categories.len() as f64, label, ..point.clone() });
                categories.push(row_name(series, point, length));
            }
        }
        let (look, slot) = match look {
            Look::Measured => (Look::Part, 0),
            Look::Limit => (Look::Limit, 0),
            _ => (Look::Historic, 0),
        };
        Series { name: name.into(), look, slot, points }
    };
    let mut series = vec![
        rows(Look::Measured, "measured"),
        rows(Look::Limit, "floor or ceiling"),
        rows(Look::Historic, "source documents"),
    ];
    series.retain(|series| !series.points.is_empty());
    let about = format!("{} Measured at {}.", without_band(&plot.about), quantity::size(length));
    Plot { kind: Kind::Bars, x: Axis::NAMES, categories, series, about, ..plot }
}

/// A description without the words on the band: bars have none.
fn without_band(about: &str) -> String {
    match about.split_once("; the band") {
        Some((before, band)) => match band.split_once(". ") {
            Some((_, after)) => format!("{before}. {after}"),
            None => format!("{before}."),
        },
        None => about.to_owned(),
    }
}

/// The name of a way or a limit, with its length if that is another one. For a historic figure, the hardware in short and
/// the protocol.
fn row_name(series: &Series, point: &Point, length: u64) -> String {
    let hardware = point.note.as_deref().and_then(|note| note.split_once("; "));
    let Some((_, hardware)) = hardware.filter(|_| series.look == Look::Historic) else {
        let is_other = series.look == Look::Measured && point.x as u64 != length;
        let at = is_other.then(|| format!(", {}", quantity::size(point.x as u64)));
        return series.name.clone() + &at.unwrap_or_default();
    };
    let short = hardware.split([',', ';']).next().unwrap_or(hardware);
    let protocol = ["TCP", "UDP"].into_iter().find(|name| hardware.ends_with(name)).unwrap_or_default();
    format!("{short} {protocol}").trim_end().to_owned() + &format!(" ({})", series.name)
}

/// True if two lengths differ by less than a factor of two, or if neither is above 8 bytes.
fn about_as_long(one: f64, other: f64) -> bool {
    (one <= 8.0 && other <= 8.0) || (0.5..=2.0).contains(&(one / other))
}

/// The band from p5 to p95 of single samples. Samples of all pairs together may not include the median over pairs, and
/// then there is no band.
fn middle_of_samples(cell: &Cell) -> Option<[f64; 2]> {
    let percentiles = cell.percentiles?;
    let band = [percentiles.p5, percentiles.p95];
    (band[0] <= cell.value && cell.value <= band[1]).then_some(band)
}

/// One curve by size for each way with the test.
fn curves(ways: &[Way], test: &str, band: impl Fn(&Cell) -> Option<[f64; 2]>) -> Vec<Series> {
    let curve = |(slot, way): (usize, &Way)| {
        let points: Vec<Point> = way
            .by_size(test)
            .into_iter()
            .filter_map(|cell| {
                Some(Point { band: band(cell), ..Point::of(cell.size_bytes?.max(1) as f64, cell) })
            })
            .collect();
        (!points.is_empty()).then(|| measured(&way.label, slot, points))
    };
    ways.iter().enumerate().filter_map(curve).collect()
}

fn measured(name: &str, slot: usize, points: Vec<Point>) -> Series {
    Series { name: name.into(), look: Look::Measured, slot, points }
}

/// The curve that N½ was read off, for a way whose rates were not measured one by one.
fn sweep((slot, way): (usize, &Way)) -> Option<Series> {
    if !way.by_size("stream").is_empty() {
        return None;
    }
    let cell = *way.by_size("nhalf").last()?;
    let points = cell.details.rates_by_size()?;
    Some(measured(&way.label, slot, points.into_iter().map(|(size, rate)| Point::new(size, rate)).collect()))
}

/// N½ is drawn at half of its reference rate.
fn n_half_mark((slot, way): (usize, &Way)) -> Option<Series> {
    let of_sweep =
        way.by_size("nhalf").last().and_then(|cell| cell.details.number("reference_bytes_per_second"));
    let highest = way.highest("stream").map(|cell| cell.value);
    let reference = of_sweep.or(highest)?;
    let mut point = Point::new(n_half(way)?.bytes.round(), reference / 2.0);
    point.note = Some(format!("N½ of {}", way.label));
    Some(Series { name: format!("N½, {}", way.label), look: Look::Mark, slot, points: vec![point] })
}

/// The shortest and the longest message of the curves.
pub fn extent(series: &[Series]) -> Option<[f64; 2]> {
    let lengths = series.iter().flat_map(|series| &series.points).map(|point| point.x);
    lengths.fold(None, |extent, x| match extent {
        None => Some([x, x]),
        Some([low, high]) => Some([x.min(low), x.max(high)]),
    })
}

fn limit(name: &str, value: Option<f64>, sizes: Option<[f64; 2]>) -> Option<Series> {
    let ([low, high], value) = (sizes?, value?);
    Some(Series {
        name: name.into(),
        look: Look::Limit,
        slot: 0,
        points: vec![Point::new(low, value), Point::new(high, value)],
    })
}

/// A ceiling that depends on length. A single point holds for every length.
fn ceiling_curve(name: &str, points: Vec<(u64, f64)>, sizes: Option<[f64; 2]>) -> Option<Series> {
    if let [(_, only)] = points[..] {
        return limit(name, Some(only), sizes);
    }
    (points.len() > 1 && sizes.is_some()).then(|| Series {
        name: name.into(),
        look: Look::Limit,
        slot: 0,
        points: points.into_iter().map(|(size, rate)| Point::new(size as f64, rate)).collect(),
    })
}

/// The largest factor between neighbouring lengths.
const NEIGHBOUR: f64 = 4.0;

/// Sizes whose rate is below half of both neighbours', such as the hole that BIP found in Linux 2.0.
fn holes(series: &[Series]) -> Vec<String> {
    let mut remarks = Vec::new();
    for curve in series {
        for window in curve.points.windows(3) {
            let [before, here, after] = window else { continue };
            let near = here.x <= before.x * NEIGHBOUR && after.x <= here.x * NEIGHBOUR;
            if near && here.y < before.y.min(after.y) / 2.0 {
                remarks.push(format!(
                    "{} at {}: {} is under half of its neighbours' rate.",
                    curve.name,
                    quantity::size(here.x as u64),
                    quantity::rate(here.y)
                ));
            }
        }
    }
    remarks
}
