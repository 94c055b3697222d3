//! The data of a plot, which is drawn and also printed in the table below it.

use bywire_results::cell::Cell;
use bywire_results::quantity;

use crate::disturbed_cells;
use crate::way::Way;

/// The number of series shown at first. The reader can add the others.
const SHOWN_AT_FIRST: usize = 5;

/// The remark on a disturbed point.
pub const DISTURBED: &str = "disturbed: do not use";

/// The identifier and the title of a plot.
pub type Names = [&'static str; 2];

#[derive(Clone, Debug)]
pub struct Plot {
    /// Its name, unique among the plots of a session.
    pub id: &'static str,
    pub title: &'static str,
    /// One line below the heading: the quantity, and how to read the plot.
    pub about: String,
    pub kind: Kind,
    pub x: Axis,
    pub y: Axis,
    /// Names of the bars (`bars` only).
    pub categories: Vec<Name>,
    /// Curves, or the parts that make up the bars.
    pub series: Vec<Series>,
    /// Remarks below the plot, for instance on sizes that do not fit the curve.
    pub remarks: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Points joined by lines, over a numeric axis.
    Curves,
    /// Horizontal bars, stacked.
    Bars,
}

/// An axis, with the unit of its values.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub name: &'static str,
    pub quantity: Quantity,
    /// Whether it is logarithmic at first.
    pub logarithmic: bool,
}

impl Axis {
    pub const SIZE: Self = Self::logarithmic("message length", Quantity::Size);
    pub const HALF_RTT: Self = Self::logarithmic("half-RTT", Quantity::Duration);
    pub const RATE: Self = Self::logarithmic("rate", Quantity::Rate);
    pub const NAMES: Self = Self::linear("way", Quantity::Name);

    pub const fn linear(name: &'static str, quantity: Quantity) -> Self {
        Self { name, quantity, logarithmic: false }
    }

    pub const fn logarithmic(name: &'static str, quantity: Quantity) -> Self {
        Self { name, quantity, logarithmic: true }
    }
}

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

/// A name in plain words, with that in the laboratory's terms, which is shown smaller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    pub plain: String,
    pub technical: Option<String>,
}

impl Name {
    /// The name of a way.
    pub fn of(way: &Way) -> Self {
        Self { plain: way.plain_name.clone(), technical: Some(way.name.clone()) }
    }

    /// The name of a way with one kind of waiting.
    pub fn of_label(way: &Way) -> Self {
        Self { plain: way.plain_label.clone(), technical: Some(way.label.clone()) }
    }

    /// Adds words to the plain name.
    pub fn followed_by(self, words: &str) -> Self {
        Self { plain: self.plain + words, ..self }
    }

    /// The name in a file of figures: the technical one, if there is one.
    pub fn in_file(&self) -> &str {
        self.technical.as_deref().unwrap_or(&self.plain)
    }
}

impl From<String> for Name {
    fn from(plain: String) -> Self {
        Self { plain, technical: None }
    }
}

impl From<&str> for Name {
    fn from(plain: &str) -> Self {
        plain.to_owned().into()
    }
}

/// One curve, or one part of every bar.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: Name,
    pub look: Look,
    /// Its colour and symbol: the index of its way in the session, the same in every plot.
    pub slot: usize,
    /// Its points, by x; one for each category in `bars`.
    pub points: Vec<Point>,
}

impl Series {
    pub fn new(
        name: impl Into<Name>,
        look: Look,
        slot: usize,
        points: impl IntoIterator<Item = Point>,
    ) -> Self {
        Self { name: name.into(), look, slot, points: points.into_iter().collect() }
    }
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

/// One point, with the band around y if it has one.
#[derive(Clone, Debug, Default)]
pub struct Point {
    /// On the horizontal axis; the category's index in `bars`.
    pub x: f64,
    pub y: f64,
    /// The ends of its band: p5 to p95 of single samples, or the 95 % interval of the median.
    pub band: Option<[f64; 2]>,
    /// A remark on this point, such as its hardware or the printed text.
    pub note: Option<String>,
    /// The text beside it, if it is a bar or a symbol in the row of a bar.
    pub label: Option<String>,
    /// It is shown in grey.
    pub is_disturbed: bool,
}

impl Point {
    /// A point without a band.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, ..Self::default() }
    }

    pub fn of(x: f64, cell: &Cell) -> Self {
        Self { is_disturbed: disturbed_cells::is_disturbed(cell), ..Self::new(x, cell.value) }
    }
}

impl Plot {
    /// A plot of curves over the axes of x and y.
    pub fn curves([id, title]: Names, about: &str, [x, y]: [Axis; 2], series: Vec<Series>) -> Self {
        let (about, categories, remarks) = (about.to_owned(), Vec::new(), Vec::new());
        Self { id, title, about, kind: Kind::Curves, x, y, categories, series, remarks }
    }

    /// A plot with a row of bars for each category. Series without points are left out.
    pub fn bars(names: Names, about: &str, y: Axis, rows: Vec<Name>, mut series: Vec<Series>) -> Self {
        series.retain(|series| !series.points.is_empty());
        Self { kind: Kind::Bars, categories: rows, ..Self::curves(names, about, [Axis::NAMES, y], series) }
    }

    pub fn of_look(&self, look: Look) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(move |series| series.look == look)
    }

    pub fn points(&self) -> impl Iterator<Item = (&Series, &Point)> {
        self.series.iter().flat_map(|series| series.points.iter().map(move |point| (series, point)))
    }

    /// True if it has figures of the source documents.
    pub fn has_printed(&self) -> bool {
        self.of_look(Look::Historic).next().is_some()
    }

    /// True if it has neither series nor remarks.
    pub fn is_empty(&self) -> bool {
        !self.has_marks() && self.remarks.is_empty()
    }

    /// True if it has measured or modelled series. Limits and printed figures alone do not make a plot.
    pub fn has_marks(&self) -> bool {
        self.points().any(|(series, _)| matches!(series.look, Look::Measured | Look::Part | Look::Model))
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
            let is_its_curve = |other: &Series| other.look == Look::Measured && other.slot == own.slot;
            return self.series.iter().position(is_its_curve).is_none_or(|curve| self.starts_with(curve));
        }
        let levels: Vec<_> =
            self.series.iter().map(|series| series.name.in_file().split(" · ").next()).collect();
        let is_first_of_level = |index: usize| !levels[..index].contains(&levels[index]);
        let mut order: Vec<usize> =
            (0..self.series.len()).filter(|index| can_hide(&&self.series[*index])).collect();
        // Limits are neither levels nor curves, so they come last.
        order.sort_by_key(|index| (self.series[*index].look == Look::Limit, !is_first_of_level(*index)));
        order.iter().take(SHOWN_AT_FIRST).any(|shown| *shown == number)
    }

    /// True if its rows have dots: on a logarithmic axis the length of a bar means nothing.
    pub fn is_of_dots(&self) -> bool {
        self.kind == Kind::Bars && self.y.logarithmic
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
        self.kind == Kind::Curves && self.y.logarithmic && !self.has_printed()
    }

    /// The text of a point for readers.
    pub fn told(&self, series: &Series, point: &Point) -> String {
        let format = |value| self.y.quantity.format(value);
        let mut lines =
            vec![series.name.plain.clone(), format!("{}: {}", self.x_text(point), format(point.y))];
        lines.extend(point.band.map(|[low, high]| format!("{} – {}", format(low), format(high))));
        lines.extend(point.note.clone());
        lines.extend(point.is_disturbed.then(|| DISTURBED.to_owned()));
        lines.join("\n")
    }

    /// The position of a point, in words.
    pub fn x_text(&self, point: &Point) -> String {
        self.category(point).unwrap_or_else(|| self.x.quantity.format(point.x))
    }

    /// The name of a point's bar. Absent from curves.
    pub fn category(&self, point: &Point) -> Option<String> {
        (self.kind == Kind::Bars).then(|| self.name_of_bar(point).plain)
    }

    fn name_of_bar(&self, point: &Point) -> Name {
        self.categories.get(point.x as usize).cloned().unwrap_or_default()
    }

    /// The position of a point in a file of figures.
    pub fn x_in_file(&self, point: &Point) -> String {
        match self.kind {
            Kind::Bars => self.name_of_bar(point).in_file().to_owned(),
            Kind::Curves => point.x.to_string(),
        }
    }
}
