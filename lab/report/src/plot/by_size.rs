//! Rates and half-RTTs by the length of messages, with the ceilings. With a single length they are bars.

use std::collections::BTreeMap;

use bywire_results::cell::Cell;
use bywire_results::quantity;

use crate::ceiling::Ceilings;
use crate::comparison::rounded;
use crate::plot::data::{Axis, Look, Name, Plot, Point, Quantity, Series};
use crate::way::Way;

/// Bins for each factor of ten in the distribution of half-RTT.
const BINS_PER_DECADE: f64 = 40.0;

pub fn half_rtt(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series = curves(ways, "latency", middle_of_samples);
    let sizes = extent(&series);
    series.extend(limit("cache-line floor", ceilings.half_rtt_floor(), sizes));
    series.extend(limit("futex or pipe hand-off", ceilings.wake_floor(), sizes));
    let about = "Median of single round trips, halved; the band runs from p5 to p95. Lower is better.";
    Plot::curves(["half-rtt", "Half-RTT by message length"], about, [Axis::SIZE, Axis::HALF_RTT], series)
}

pub fn one_way(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series = curves(ways, "stream", |cell| cell.ci95);
    series.extend(ways.iter().enumerate().filter_map(sweep));
    let remarks = holes(&series);
    let sizes = extent(&series);
    series.extend(ways.iter().enumerate().filter_map(n_half_mark));
    series.extend(ceiling_curve("one core: write, copy and sum", ceilings.curve("touched"), sizes));
    series.extend(ceiling_curve("memcpy", ceilings.curve("memcpy"), sizes));
    let about = "Payload received per second; the band is the 95 % interval of the median. A large diamond is N½, the \
                 length at half of the highest rate. Higher is better.";
    let names = ["one-way", "One-way rate by message length"];
    Plot { remarks, ..Plot::curves(names, about, [Axis::SIZE, Axis::RATE], series) }
}

pub fn two_way(ways: &[Way], ceilings: &Ceilings) -> Plot {
    let mut series = curves(ways, "bidir", |cell| cell.ci95);
    let remarks = holes(&series);
    let sizes = extent(&series);
    series.extend(limit("memory read + write", ceilings.two_way(), sizes));
    let about =
        "Both directions at once, added up; the band is the 95 % interval of the median. Higher is better.";
    let names = ["two-way", "Two-way rate by message length"];
    Plot { remarks, ..Plot::curves(names, about, [Axis::SIZE, Axis::RATE], series) }
}

pub fn interleave(ways: &[Way]) -> Plot {
    let about = "Short messages by length while a long transfer runs in the same pair; the band runs from p5 to p95. \
                 Lower is better.";
    let (names, axes) = (["interleave", "Half-RTT beside a long transfer"], [Axis::SIZE, Axis::HALF_RTT]);
    Plot::curves(names, about, axes, curves(ways, "interleave", middle_of_samples))
}

pub fn transactions(ways: &[Way]) -> Plot {
    let about = "One request and its response at a time; the band is the 95 % interval of the median. Higher is better.";
    let axes = [Axis::SIZE, Axis::logarithmic("transactions", Quantity::PerSecond)];
    let series = curves(ways, "rr", |cell| cell.ci95);
    Plot::curves(["transactions", "Transactions per second by request length"], about, axes, series)
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
        let points = bins.iter().map(|(&bin, count)| Point::new(middle(bin), count / total));
        Some(Series::new(Name::of_label(way), Look::Measured, slot, points))
    });
    let about = format!("Share of all samples in each bin ({BINS_PER_DECADE} bins for each factor of ten).");
    let axes = [Axis::HALF_RTT, Axis::logarithmic("share of samples", Quantity::Share)];
    Plot::curves(["distribution", "Distribution of short half-RTTs"], &about, axes, series.collect())
}

/// Bars instead of curves, for a single length: each value has a row of its own, with the historic figures of about
/// that length below.
pub fn at_one_length(plot: Plot) -> Plot {
    let lengths = extent(plot.of_look(Look::Measured)).filter(|_| plot.x.quantity == Quantity::Size);
    let length = match lengths.map(|ends| ends.map(|end| rounded(end as u64))) {
        Some([length, longest]) if length == longest => length,
        _ => return plot,
    };
    let mut categories = Vec::new();
    let mut rows = |look: Look, shown_as: Look, name: &str| {
        let mut points = Vec::new();
        for series in plot.of_look(look) {
            let shown = series.points.iter().filter(|point| about_as_long(point.x, length as f64));
            for point in shown.take(if look == Look::Limit { 1 } else { usize::MAX }) {
                let label = Some(plot.y.quantity.format(point.y));
                points.push(Point { x: categories.len() as f64, label, ..point.clone() });
                categories.push(row_name(series, point, length));
            }
        }
        Series::new(name, shown_as, 0, points)
    };
    let series = vec![
        rows(Look::Measured, Look::Part, "measured"),
        rows(Look::Limit, Look::Limit, "floor or ceiling"),
        rows(Look::Historic, Look::Historic, "source documents"),
    ];
    let about = format!("{} Measured at {}.", without_band(&plot.about), quantity::size(length));
    let bars = Plot::bars([plot.id, plot.title], &about, plot.y, categories, series);
    Plot { remarks: plot.remarks, ..bars }
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
fn row_name(series: &Series, point: &Point, length: u64) -> Name {
    let hardware = point.note.as_deref().and_then(|note| note.split_once("; "));
    let Some((_, hardware)) = hardware.filter(|_| series.look == Look::Historic) else {
        let other = Some(point.x as u64).filter(|own| series.look == Look::Measured && *own != length);
        return series.name.clone().followed_by(&quantity::size_after(", ", other));
    };
    let short = hardware.split([',', ';']).next().unwrap_or(hardware);
    let protocol = ["TCP", "UDP"].into_iter().find(|name| hardware.ends_with(name)).unwrap_or_default();
    format!("{} ({})", format!("{short} {protocol}").trim_end(), series.name.plain).into()
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
        let points = way.by_size(test).into_iter().filter_map(|cell| {
            Some(Point { band: band(cell), ..Point::of(cell.size_bytes?.max(1) as f64, cell) })
        });
        Series::new(Name::of_label(way), Look::Measured, slot, points)
    };
    ways.iter().enumerate().map(curve).filter(|series| !series.points.is_empty()).collect()
}

/// The curve that N½ was read off, for a way whose rates were not measured one by one.
fn sweep((slot, way): (usize, &Way)) -> Option<Series> {
    if !way.by_size("stream").is_empty() {
        return None;
    }
    let cell = *way.by_size("nhalf").last()?;
    let points = cell.details.rates_by_size()?.into_iter().map(|(size, rate)| Point::new(size, rate));
    Some(Series::new(Name::of_label(way), Look::Measured, slot, points))
}

/// N½ is drawn at half of its reference rate.
fn n_half_mark((slot, way): (usize, &Way)) -> Option<Series> {
    let of_sweep =
        way.by_size("nhalf").last().and_then(|cell| cell.details.number("reference_bytes_per_second"));
    let highest = way.highest("stream").map(|cell| cell.value);
    let reference = of_sweep.or(highest)?;
    let note = Some(format!("N½ of {}", way.plain_label));
    let point = Point { note, ..Point::new(way.n_half()?.bytes.round(), reference / 2.0) };
    Some(Series::new(format!("N½, {}", way.plain_label), Look::Mark, slot, [point]))
}

/// The shortest and the longest message of the curves.
pub fn extent<'a>(series: impl IntoIterator<Item = &'a Series>) -> Option<[f64; 2]> {
    let ends = series.into_iter().flat_map(|series| &series.points).map(|point| [point.x; 2]);
    ends.reduce(|[low, high], [x, _]| [x.min(low), x.max(high)])
}

fn limit(name: &str, value: Option<f64>, sizes: Option<[f64; 2]>) -> Option<Series> {
    let (sizes, value) = (sizes?, value?);
    Some(Series::new(name, Look::Limit, 0, sizes.map(|size| Point::new(size, value))))
}

/// A ceiling that depends on length. A single point holds for every length.
fn ceiling_curve(name: &str, points: Vec<(u64, f64)>, sizes: Option<[f64; 2]>) -> Option<Series> {
    if let [(_, only)] = points[..] {
        return limit(name, Some(only), sizes);
    }
    let points = points.into_iter().map(|(size, rate)| Point::new(size as f64, rate));
    sizes.map(|_| Series::new(name, Look::Limit, 0, points)).filter(|series| !series.points.is_empty())
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
                    curve.name.plain,
                    quantity::size(here.x as u64),
                    quantity::rate(here.y)
                ));
            }
        }
    }
    remarks
}
