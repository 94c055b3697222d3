//! The data of a plot, which is drawn and also printed in the table below it.

use bywire_results::cell::Cell;
use bywire_results::quantity;

use crate::disturbed_cells;

/// The number of series shown at first. The reader can add the others.
const SHOWN_AT_FIRST: usize = 5;

/// The remark on a disturbed point.
pub const DISTURBED: &str = "disturbed: do not use";

/// One plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Its name, unique among the plots of a session.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// One line below the heading: the quantity, and how to read the plot.
    pub about: String,
    /// Curves or bars.
    pub kind: Kind,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Names of the bars (`bars` only).
    pub categories: Vec<String>,
    /// Curves, or the parts that make up the bars.
    pub series: Vec<Series>,
    /// Remarks below the plot, for instance on sizes that do not fit the curve.
    pub remarks: Vec<String>,
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Points joined by lines, over a numeric axis.
    Curves,
    /// Horizontal bars, stacked.
    Bars,
}

/// One axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Its name.
    pub name: &'static str,
    /// The unit of its values, for formatting.
    pub quantity: Quantity,
    /// Whether it is logarithmic at first.
    pub logarithmic: bool,
}

impl Axis {
    /// Lengths of messages.
    pub const SIZE: Self = Self { name: "message length", quantity: Quantity::Size, logarithmic: true };
    /// Half of a round trip.
    pub const HALF_RTT: Self = Self { name: "half-RTT", quantity: Quantity::Duration, logarithmic: true };
    /// Payload per second.
    pub const RATE: Self = Self { name: "rate", quantity: Quantity::Rate, logarithmic: true };
    /// Names of bars.
    pub const NAMES: Self = Self { name: "way", quantity: Quantity::Name, logarithmic: false };
}

/// The unit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Nanoseconds.
    Duration,
    /// Bytes per second.
    Rate,
    /// Bytes.
    Size,
    /// Events per second.
    PerSecond,
    /// A share of one.
    Share,
    /// Names.
    Name,
}

impl Quantity {
    /// `value` in the form for readers.
    pub fn format(self, value: f64) -> String {
        match self {
            Self::Duration => quantity::duration(value),
            Self::Rate => quantity::rate(value),
            Self::Size => quantity::size(value as u64),
            Self::PerSecond => quantity::per_second(value),
            Self::Share => quantity::percent(value),
            Self::Name => value.to_string(),
        }
    }
}

/// One curve, or one part of every bar.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its look.
    pub look: Look,
    /// Its colour and symbol: the index of its way in the session, the same in every plot.
    pub slot: usize,
    /// Its points, by x; one for each category in `bars`.
    pub points: Vec<Point>,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A measured value: a line with symbols, and its band if it has one.
    Measured,
    /// A floor or ceiling: a thin dashed line without symbols, or a grey bar.
    Limit,
    /// A model's values: a line without symbols.
    Model,
    /// A historic figure: a hollow grey symbol.
    Historic,
    /// A mark on a curve (N½): a single large symbol.
    Mark,
    /// A bar, or a part of one.
    Part,
}

impl Look {
    /// True if it is drawn as a bar in a plot of bars. The others are symbols there.
    pub fn is_bar(self) -> bool {
        matches!(self, Self::Part | Self::Limit)
    }
}

/// One point (x, y), with the band around y if it has one.
#[derive(Clone, Debug)]
pub struct Point {
    /// On the horizontal axis; the category's index in `bars`.
    pub x: f64,
    /// On the vertical axis.
    pub y: f64,
    /// The ends of its band: p5 to p95 of single samples, or the 95 % interval of the median.
    pub band: Option<[f64; 2]>,
    /// A remark on this point, such as its hardware or the printed text.
    pub note: Option<String>,
    /// The text beside it, if it is a bar or a symbol in the row of a bar.
    pub label: Option<String>,
    /// True if it was disturbed. It is shown in grey.
    pub is_disturbed: bool,
}

impl Point {
    /// A point without a band.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, band: None, note: None, label: None, is_disturbed: false }
    }

    /// The value of a cell.
    pub fn of(x: f64, cell: &Cell) -> Self {
        Self { is_disturbed: disturbed_cells::is_disturbed(cell), ..Self::new(x, cell.value) }
    }
}

impl Plot {
    /// A plot of curves, without series yet.
    pub const CURVES: Self = Self {
        id: "",
        title: "",
        about: String::new(),
        kind: Kind::Curves,
        x: Axis { name: "", quantity: Quantity::Name, logarithmic: false },
        y: Axis { name: "", quantity: Quantity::Name, logarithmic: false },
        categories: Vec::new(),
        series: Vec::new(),
        remarks: Vec::new(),
    };

    /// True if it has neither series nor remarks.
    pub fn is_empty(&self) -> bool {
        !self.has_marks() && self.remarks.is_empty()
    }

    /// True if it has measured or modelled series. Limits and printed figures alone do not make a plot.
    pub fn has_marks(&self) -> bool {
        let is_own = |look| matches!(look, Look::Measured | Look::Part | Look::Model);
        let shown = |series: &Series| !series.points.is_empty() && is_own(series.look);
        self.series.iter().any(shown)
    }

    /// True if a series is shown at first. Of many curves, these are the nearest ways of different levels. The reader can
    /// add the others.
    pub fn starts_with(&self, number: usize) -> bool {
        let can_hide = |series: &&Series| !matches!(series.look, Look::Mark);
        if self.kind == Kind::Bars || self.series.iter().filter(can_hide).count() <= SHOWN_AT_FIRST {
            return true;
        }
        let own = &self.series[number];
        if own.look == Look::Mark {
            let on =
                self.series.iter().position(|other| other.look == Look::Measured && other.slot == own.slot);
            return on.is_none_or(|curve| self.starts_with(curve));
        }
        let level = |series: &Series| series.name.split(" · ").next().unwrap_or_default().to_owned();
        let is_first_of_level = |index: usize| {
            !self.series[..index].iter().any(|other| level(other) == level(&self.series[index]))
        };
        let mut order: Vec<usize> =
            (0..self.series.len()).filter(|index| can_hide(&&self.series[*index])).collect();
        // Limits are neither levels nor curves, so they come last.
        order.sort_by_key(|index| (self.series[*index].look == Look::Limit, !is_first_of_level(*index)));
        order.iter().take(SHOWN_AT_FIRST).any(|shown| *shown == number)
    }

    /// True for the plots of the ladder.
    pub fn is_ladder(&self) -> bool {
        self.id.starts_with("ladder")
    }

    /// Its title and what is compared: the beginning of its description.
    pub fn heading(&self) -> String {
        let about = self.about.split(". ").next().unwrap_or_default();
        if self.is_ladder() { about.to_owned() } else { self.title.to_owned() }
    }

    /// True if its vertical axis may also be linear. That is not useful if it spans the decades between the documents
    /// and today.
    pub fn has_scales(&self) -> bool {
        let has_printed = self.series.iter().any(|series| series.look == Look::Historic);
        self.kind == Kind::Curves && self.y.logarithmic && !has_printed
    }

    /// The text of a point for readers.
    pub fn told(&self, series: &Series, point: &Point) -> String {
        let format = |value| self.y.quantity.format(value);
        let mut lines = vec![series.name.clone(), format!("{}: {}", self.x_text(point), format(point.y))];
        lines.extend(point.band.map(|[low, high]| format!("{} – {}", format(low), format(high))));
        lines.extend(point.note.clone());
        lines.extend(point.is_disturbed.then(|| DISTURBED.to_owned()));
        lines.join("\n")
    }

    /// The position of a point, in words.
    pub fn x_text(&self, point: &Point) -> String {
        match self.kind {
            Kind::Bars => self.categories.get(point.x as usize).cloned().unwrap_or_default(),
            Kind::Curves => self.x.quantity.format(point.x),
        }
    }
}
