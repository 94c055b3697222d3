//! A plot: what is drawn, and said in the table below it.

use bywire_results::quantity;

/// One plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Its name, unique among the plots of a session.
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// One line below the heading: what is plotted and how to read it.
    pub about: String,
    /// Curves or bars.
    pub kind: Kind,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Names of the bars (`bars` only).
    pub categories: Vec<String>,
    /// Curves, or the parts that bars are stacked of.
    pub series: Vec<Series>,
    /// Remarks below the plot (sizes that fall out of line).
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
    /// What the figures count, for their formatting.
    pub quantity: Quantity,
    /// Whether it is logarithmic at first.
    pub logarithmic: bool,
}

/// What an axis counts.
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
    /// `value` as people read it.
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
    /// What it is.
    pub name: String,
    /// Its look.
    pub look: Look,
    /// Its colour and symbol: the place of its way in the session, the same in every plot.
    pub slot: usize,
    /// Its points, by x; one for each category in `bars`.
    pub points: Vec<Point>,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Measured now: a line with symbols, and its band where there is one.
    Measured,
    /// A floor or ceiling: a thin dashed line without symbols.
    Limit,
    /// What a model says: a line without symbols.
    Model,
    /// A historic figure: a hollow grey symbol.
    Historic,
    /// A mark on a curve (N½): a single large symbol.
    Mark,
    /// A part of a bar.
    Part,
}

/// One point: (x, y) and the band about y where there is one.
#[derive(Clone, Debug)]
pub struct Point {
    /// On the horizontal axis; the category's index in `bars`.
    pub x: f64,
    /// On the vertical axis.
    pub y: f64,
    /// What is drawn as a band: p5 to p95 of single samples, or the 95 % interval of the median.
    pub band: Option<[f64; 2]>,
    /// A word on this point (its hardware, what was printed).
    pub note: Option<String>,
}

impl Point {
    /// A point without a band.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, band: None, note: None }
    }
}

impl Plot {
    /// Curves, of nothing yet.
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

    /// Whether there is anything measured to show; limits and history alone make no plot.
    pub fn is_empty(&self) -> bool {
        let shown =
            |series: &Series| !series.points.is_empty() && matches!(series.look, Look::Measured | Look::Part);
        !self.series.iter().any(shown)
    }

    /// Part of the picture that belongs to the answer.
    pub fn is_ladder(&self) -> bool {
        self.id.starts_with("ladder")
    }

    /// Whether its vertical axis may be linear too.
    pub fn has_scales(&self) -> bool {
        self.kind == Kind::Curves && self.y.logarithmic
    }

    /// What a reader is told of a point.
    pub fn told(&self, series: &Series, point: &Point) -> String {
        let format = |value| self.y.quantity.format(value);
        let mut lines = vec![series.name.clone(), format!("{}: {}", self.x_text(point), format(point.y))];
        lines.extend(point.band.map(|[low, high]| format!("{} – {}", format(low), format(high))));
        lines.extend(point.note.clone());
        lines.join("\n")
    }

    /// Where a point is, in words.
    pub fn x_text(&self, point: &Point) -> String {
        match self.kind {
            Kind::Bars => self.categories.get(point.x as usize).cloned().unwrap_or_default(),
            Kind::Curves => self.x.quantity.format(point.x),
        }
    }
}
