//! A plot as an SVG file of its own, for papers and READMEs: drawn here, without a browser, on white.

use maud::{Markup, html};

use crate::plot::{Axis, Kind, Look, Plot, Point, Quantity, Series};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 56.0;
const BODY: f64 = 400.0;
/// Room for the names of bars.
const NAMES: f64 = 260.0;
const BAR: f64 = 26.0;
const LEGEND_ROW: f64 = 20.0;
const LEGEND_COLUMNS: usize = 3;
/// Values beyond are drawn here: with those next to it, and their differences, they stay numbers.
const DRAWN_MAX: f64 = 1e100;
/// Powers that are named beside an axis, at most.
const TICKS_MAX: f64 = 24.0;

/// Okabe and Ito's colours, told apart without colour vision; the page has the same.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#b8558f", "#a87900", "#3a8fc4", "#5b5b5b", "#7a4fb5"];
const DASHES: [&str; 8] = ["none", "7 3", "2 2", "9 3 2 3", "4 2", "12 4", "1 3", "6 2 1 2"];
const SOFT: &str = "#5d5c57";
const GRID: &str = "#e3e0d8";

/// The whole file.
pub fn svg(plot: &Plot) -> String {
    let body = match plot.kind {
        Kind::Curves => BODY,
        Kind::Bars => BAR * plot.categories.len().max(1) as f64,
    };
    let rows = plot.series.len().div_ceil(LEGEND_COLUMNS) as f64;
    let height = TOP + body + 56.0 + LEGEND_ROW * rows + 12.0;
    let drawn = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {height}")) width=(WIDTH) height=(height) role="img" font-family="system-ui, sans-serif" font-size="13" {
            title { (plot.title) }
            desc { (plot.about) }
            rect width=(WIDTH) height=(height) fill="#ffffff" {}
            @if plot.kind == Kind::Bars { (hatches()) }
            text x="16" y="30" font-size="18" font-weight="600" { (plot.title) }
            @match plot.kind {
                Kind::Curves => (curves(plot, body)),
                Kind::Bars => (bars(plot, body)),
            }
            (legend(plot, TOP + body + 60.0))
        }
    };
    drawn.into_string()
}

/// From a value to its place between two ends of an axis.
struct Scale {
    from: f64,
    to: f64,
    logarithmic: bool,
    ends: [f64; 2],
}

impl Scale {
    fn of(axis: &Axis, values: impl Iterator<Item = f64>, ends: [f64; 2]) -> Self {
        let logarithmic = axis.logarithmic;
        let usable =
            values.filter(|value| value.is_finite() && (!logarithmic || *value > 0.0)).map(|value| {
                if logarithmic {
                    value.clamp(1.0 / DRAWN_MAX, DRAWN_MAX)
                } else {
                    value.clamp(-DRAWN_MAX, DRAWN_MAX)
                }
            });
        let (from, to) = usable
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), value| (from.min(value), to.max(value)));
        let base = if axis.quantity == Quantity::Size { 2.0 } else { 10.0 };
        let (from, to) = match (logarithmic, from <= to) {
            (_, false) => (1.0, 10.0),
            (true, _) => (f64::powf(base, from.log(base).floor()), f64::powf(base, to.log(base).ceil())),
            (false, _) => (from.min(0.0) * 1.04, to.max(f64::MIN_POSITIVE) * 1.04),
        };
        Self { from, to: if to > from { to } else { from * base }, logarithmic, ends }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.logarithmic {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        let place = self.ends[0] + share.clamp(0.0, 1.0) * (self.ends[1] - self.ends[0]);
        (place * 10.0).round() / 10.0
    }

    /// Decades, every fourth power of two, or about six round steps.
    fn ticks(&self, quantity: Quantity) -> Vec<f64> {
        let powers = |base: f64| {
            let [first, last] = [self.from.log(base).ceil(), (self.to * 1.001).log(base).floor()];
            // Where there is no room for every one.
            let step = ((last - first) / TICKS_MAX).ceil().max(1.0);
            let count = ((last - first) / step).floor().clamp(0.0, TICKS_MAX) as u32;
            (0..=count).map(|tick| base.powf(first + f64::from(tick) * step)).collect()
        };
        if self.logarithmic {
            return powers(if quantity == Quantity::Size { 16.0 } else { 10.0 });
        }
        let rough = (self.to - self.from) / 6.0;
        let decade = f64::powf(10.0, rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil();
        (0..=12).map(|tick| (first + f64::from(tick)) * step).take_while(|tick| *tick <= self.to).collect()
    }
}

fn curves(plot: &Plot, body: f64) -> Markup {
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let heights = points().flat_map(|point| point.band.into_iter().flatten().chain([point.y]));
    let x = Scale::of(&plot.x, points().map(|point| point.x), [LEFT, WIDTH - RIGHT]);
    let y = Scale::of(&plot.y, heights, [TOP + body, TOP]);
    html! {
        @for tick in y.ticks(plot.y.quantity) {
            line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y.at(tick)) y2=(y.at(tick)) stroke=(GRID) {}
            text x=(LEFT - 8.0) y=(y.at(tick) + 4.0) text-anchor="end" fill=(SOFT) { (plot.y.quantity.format(tick)) }
        }
        @for tick in x.ticks(plot.x.quantity) {
            text x=(x.at(tick)) y=(TOP + body + 18.0) text-anchor="middle" fill=(SOFT) { (plot.x.quantity.format(tick)) }
        }
        line x1=(LEFT) x2=(WIDTH - RIGHT) y1=(TOP + body) y2=(TOP + body) stroke=(SOFT) {}
        text x=((LEFT + WIDTH - RIGHT) / 2.0) y=(TOP + body + 38.0) text-anchor="middle" fill=(SOFT) { (plot.x.name) }
        text x=(LEFT) y=(TOP - 10.0) fill=(SOFT) { (plot.y.name) }
        @for series in &plot.series { (curve(series, &x, &y)) }
    }
}

fn curve(series: &Series, x: &Scale, y: &Scale) -> Markup {
    let joined = |points: &mut dyn Iterator<Item = (f64, f64)>| {
        points.map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
    };
    let line = joined(&mut series.points.iter().map(|point| (x.at(point.x), y.at(point.y))));
    let banded: Vec<(&Point, [f64; 2])> =
        series.points.iter().filter_map(|point| Some((point, point.band?))).collect();
    let there = banded.iter().map(|(point, band)| (x.at(point.x), y.at(band[1])));
    let back = banded.iter().rev().map(|(point, band)| (x.at(point.x), y.at(band[0])));
    let band = joined(&mut there.chain(back));
    let is_line = matches!(series.look, Look::Measured | Look::Limit | Look::Model);
    html! {
        @if series.look == Look::Measured && !banded.is_empty() {
            polygon points=(band) fill=(colour(series)) opacity="0.16" {}
        }
        @if is_line {
            polyline points=(line) fill="none" stroke=(colour(series)) stroke-width="2" stroke-dasharray=(dash(series)) {}
        }
        @if !matches!(series.look, Look::Limit | Look::Model) {
            @for point in &series.points { (symbol(series, x.at(point.x), y.at(point.y))) }
        }
    }
}

fn bars(plot: &Plot, body: f64) -> Markup {
    let count = plot.categories.len();
    let parts = |index: usize| {
        plot.series.iter().filter_map(move |series| {
            Some((series, series.points.iter().find(|point| point.x as usize == index)?))
        })
    };
    let dots = plot.y.logarithmic;
    let longest = (0..count).flat_map(|index| {
        let values: Vec<f64> = parts(index).map(|(_, point)| point.y).collect();
        let beyond = |wanted: fn(&&f64) -> bool| values.iter().filter(wanted).sum();
        if dots { values } else { vec![beyond(|value| **value > 0.0), beyond(|value| **value < 0.0)] }
    });
    let x = Scale::of(&plot.y, longest, [NAMES, WIDTH - RIGHT]);
    html! {
        @for tick in x.ticks(plot.y.quantity) {
            line x1=(x.at(tick)) x2=(x.at(tick)) y1=(TOP) y2=(TOP + body) stroke=(GRID) {}
            text x=(x.at(tick)) y=(TOP + body + 18.0) text-anchor="middle" fill=(SOFT) { (plot.y.quantity.format(tick)) }
        }
        text x=((NAMES + WIDTH - RIGHT) / 2.0) y=(TOP + body + 38.0) text-anchor="middle" fill=(SOFT) { (plot.y.name) }
        @for (index, name) in plot.categories.iter().enumerate() {
            @let middle = TOP + BAR * (index as f64 + 0.5);
            text x=(NAMES - 8.0) y=(middle + 4.0) text-anchor="end" { (name) }
            @if dots {
                @for (series, point) in parts(index) { (symbol(series, x.at(point.y), middle)) }
            } @else {
                (stacked(parts(index), &x, middle))
            }
        }
    }
}

fn stacked<'a>(parts: impl Iterator<Item = (&'a Series, &'a Point)>, x: &Scale, middle: f64) -> Markup {
    // What is below nought lies on the other side of it.
    let (mut above, mut below) = (0.0, 0.0);
    let parts: Vec<(&Series, f64, f64)> = parts
        .map(|(series, point)| {
            let sum = if point.y < 0.0 { &mut below } else { &mut above };
            let one_end = x.at(*sum);
            *sum += point.y;
            let other_end = x.at(*sum);
            (series, one_end.min(other_end), (one_end - other_end).abs())
        })
        .collect();
    html! {
        @for (series, from, width) in parts {
            rect x=(from) y=(middle - 9.0) width=(width) height="18" fill=(colour(series)) opacity=(if series.slot % 2 == 1 { "0.45" } else { "1" }) stroke="#ffffff" {}
            @if series.slot >= HATCHED {
                rect x=(from) y=(middle - 9.0) width=(width) height="18" fill=(format!("url(#hatch{})", series.slot % 4)) {}
            }
        }
    }
}

/// From this slot on a part of a bar carries a pattern too: colours alone do not tell so many apart.
const HATCHED: usize = 4;

fn hatches() -> Markup {
    html! {
        defs { @for (index, angle) in [0, 45, 135, 90].into_iter().enumerate() {
            pattern id=(format!("hatch{index}")) width="5" height="5" patternUnits="userSpaceOnUse" patternTransform=(format!("rotate({angle})")) {
                line x1="0" y1="0" x2="5" y2="0" stroke="#ffffff" stroke-width="3" stroke-opacity="0.6" {}
            }
        } }
    }
}

fn legend(plot: &Plot, top: f64) -> Markup {
    let column = (WIDTH - 32.0) / LEGEND_COLUMNS as f64;
    html! {
        @for (index, series) in plot.series.iter().enumerate() {
            @let left = 16.0 + column * (index % LEGEND_COLUMNS) as f64;
            @let middle = top + LEGEND_ROW * (index / LEGEND_COLUMNS) as f64;
            @if matches!(series.look, Look::Measured | Look::Limit | Look::Model) {
                line x1=(left) x2=(left + 26.0) y1=(middle) y2=(middle) stroke=(colour(series)) stroke-width="2" stroke-dasharray=(dash(series)) {}
            }
            @if !matches!(series.look, Look::Limit | Look::Model) { (symbol(series, left + 13.0, middle)) }
            text x=(left + 34.0) y=(middle + 4.0) font-size="12" { (series.name) }
        }
    }
}

/// A filled circle for what is measured, a hollow one for history, a diamond for a mark.
fn symbol(series: &Series, x: f64, y: f64) -> Markup {
    let ink = colour(series);
    html! {
        @match series.look {
            Look::Mark => { path d=(format!("M{x} {} L{} {y} L{x} {} L{} {y} Z", y - 8.0, x + 8.0, y + 8.0, x - 8.0)) fill=(ink) {} }
            Look::Historic => { circle cx=(x) cy=(y) r="4" fill="#ffffff" stroke=(ink) stroke-width="1.5" {} }
            Look::Part if series.slot % 4 == 1 => { rect x=(x - 4.0) y=(y - 4.0) width="8" height="8" fill=(ink) {} }
            Look::Part if series.slot % 4 == 2 => { path d=(format!("M{x} {} L{} {} L{} {} Z", y - 5.0, x + 5.0, y + 4.0, x - 5.0, y + 4.0)) fill=(ink) {} }
            Look::Part if series.slot % 4 == 3 => { path d=(format!("M{x} {} L{} {y} L{x} {} L{} {y} Z", y - 5.5, x + 5.5, y + 5.5, x - 5.5)) fill=(ink) {} }
            _ => { circle cx=(x) cy=(y) r="4" fill=(ink) {} }
        }
    }
}

fn colour(series: &Series) -> &'static str {
    match series.look {
        Look::Limit => "#77756e",
        Look::Historic => "#8b8980",
        _ => COLOURS[series.slot % COLOURS.len()],
    }
}

fn dash(series: &Series) -> &'static str {
    match series.look {
        Look::Limit => "3 4",
        _ => DASHES[series.slot % DASHES.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_from_the_least_to_the_greatest_number_has_few_ticks_and_all_are_numbers() {
        let extremes = [f64::from_bits(1), 1.7e308, f64::MAX, f64::INFINITY, f64::NAN, -1.7e308, 0.0];
        for (quantity, logarithmic) in [Quantity::Size, Quantity::Duration, Quantity::Rate]
            .into_iter()
            .flat_map(|quantity| [(quantity, true), (quantity, false)])
        {
            let axis = Axis { name: "", quantity, logarithmic };
            for (first, value) in extremes.into_iter().enumerate() {
                for values in [vec![value], extremes[first..].to_vec()] {
                    let scale = Scale::of(&axis, values.iter().copied(), [0.0, 100.0]);
                    let ticks = scale.ticks(quantity);
                    assert!(ticks.len() <= 30 && ticks.iter().all(|tick| tick.is_finite()), "{values:?}");
                    let places = ticks.iter().chain(&values).filter(|value| !value.is_nan());
                    for place in places.map(|value| scale.at(*value)) {
                        assert!((0.0..=100.0).contains(&place), "{values:?}: {place}");
                    }
                }
            }
        }
    }

    #[test]
    fn decades_and_powers_of_sixteen_stand_where_they_stood() {
        let ticks = |quantity, values: [f64; 2]| {
            let axis = Axis { name: "", quantity, logarithmic: true };
            Scale::of(&axis, values.into_iter(), [0.0, 1.0]).ticks(quantity)
        };
        assert_eq!(ticks(Quantity::Duration, [30.0, 20_000.0]), [10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(ticks(Quantity::Size, [1.0, 1048576.0]), [1.0, 16.0, 256.0, 4096.0, 65536.0, 1048576.0]);
    }
}
