//! A plot: what the script draws, and the table below it that says the same in figures.

use bywire_results::quantity;
use maud::{Markup, html};
use serde::Serialize;

/// One plot.
#[derive(Clone, Debug, Serialize)]
pub struct Plot {
    /// Its name, unique among the plots of a session.
    #[serde(skip)]
    pub id: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// One line below the heading: what is plotted and how to read it.
    #[serde(skip)]
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
    #[serde(skip)]
    pub remarks: Vec<String>,
}

/// A plot at its place in the file, as the script reads it.
#[derive(Clone, Debug, Serialize)]
pub struct Placed<'a> {
    /// The name of its section.
    pub id: String,
    /// The plot itself.
    #[serde(flatten)]
    pub plot: &'a Plot,
}

/// How a plot is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Points joined by lines, over a numeric axis.
    Curves,
    /// Horizontal bars, stacked.
    Bars,
}

/// One axis.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Axis {
    /// Its name.
    pub name: &'static str,
    /// What the figures count, for their formatting.
    pub quantity: Quantity,
    /// Whether it is logarithmic at first.
    pub logarithmic: bool,
}

/// What an axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Clone, Debug, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// On the horizontal axis; the category's index in `bars`.
    pub x: f64,
    /// On the vertical axis.
    pub y: f64,
    /// What is drawn as a band: p5 to p95 of single samples, or the 95 % interval of the median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub band: Option<[f64; 2]>,
    /// A word on this point (its hardware, what was printed).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Point {
    /// A point without a band.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, band: None, note: None }
    }
}

impl Plot {
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

    /// The plot's section of the page, at `place`. The script fills `.plot`; without it the table still says everything.
    pub fn section(&self, place: &str) -> Markup {
        html! {
            section.card id=(place) {
                h3 { (self.title) }
                p.about { (self.about) }
                div.legend data-legend=(place) {}
                div.plot data-plot=(place) role="img" aria-label=(format!("{}. {} The table below holds its figures.", self.title, self.about)) {
                    noscript { p.about { "Plots need the page's own script; the table below holds the same figures." } }
                }
                @for remark in &self.remarks { p.remark { (remark) } }
                div.tools {
                    @if self.kind == Kind::Curves && self.y.logarithmic {
                        button type="button" data-scale=(place) aria-pressed="false" { "Linear scale" }
                    }
                    button type="button" data-download=(place) { "Download SVG" }
                }
                details {
                    summary { "Table: " (self.title) }
                    (self.table())
                }
            }
        }
    }

    fn table(&self) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label=(format!("Table of {}", self.title)) {
                table {
                    thead { tr {
                        th scope="col" { "series" }
                        th.figure scope="col" { (self.x.name) }
                        th.figure scope="col" { (self.y.name) }
                        th.figure scope="col" { "band" }
                        th scope="col" { "note" }
                    } }
                    tbody {
                        @for series in &self.series { @for point in &series.points {
                            tr {
                                th scope="row" { (series.name) }
                                td.figure { (self.x_text(point)) }
                                td.figure { (self.y.quantity.format(point.y)) }
                                td.figure { @if let Some([low, high]) = point.band {
                                    (self.y.quantity.format(low)) " – " (self.y.quantity.format(high))
                                } }
                                td { @if let Some(note) = &point.note { (note) } }
                            }
                        } }
                    }
                }
            }
        }
    }

    fn x_text(&self, point: &Point) -> String {
        match self.kind {
            Kind::Bars => self.categories.get(point.x as usize).cloned().unwrap_or_default(),
            Kind::Curves => self.x.quantity.format(point.x),
        }
    }
}
