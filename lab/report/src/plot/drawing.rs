//! Draws every plot as SVG: for the page at two widths, and as a separate file.
//!
//! One drawing serves all three. In the page its colours are CSS variables, which have other values in dark mode. The
//! page has its own title and legend, so the drawing has none. The script adds both to a saved file.

use maud::{Markup, html};

use crate::plot::data::{Axis, Kind, Look, Plot, Point, Quantity, Series};

/// The height of the title above the plot. The page leaves it out.
const TITLE: f64 = 40.0;
/// The width for the name of the vertical axis.
const TOP: f64 = 28.0;
const RIGHT: f64 = 36.0;
/// The symbol before the label of a figure that a symbol shows. It has that symbol's colour.
pub const SYMBOL: &str = "■";
/// The height below the plot, for the labels and the name of the horizontal axis.
const BELOW: f64 = 52.0;
const LINE: f64 = 15.0;
const LEGEND_ROW: f64 = 20.0;
/// About the width of a letter.
const LETTER: f64 = 7.0;
/// The width of a letter in names, which have few digits and no room to the left.
const NAME_LETTER: f64 = 7.6;
/// The largest value that is drawn, so that positions and their differences stay finite.
const DRAWN_MAX: f64 = 1e100;
/// With more decades than this, only those with a label have a line of the grid.
const GRID_DECADES_MAX: f64 = 24.0;

/// The room of a drawing.
struct Frame {
    name: &'static str,
    width: f64,
    /// The width for the labels of the vertical axis of curves.
    left: f64,
    /// The width for the names of bars.
    names: f64,
    body: f64,
    legend_columns: usize,
}

const WIDE: Frame =
    Frame { name: "wide", width: 960.0, left: 84.0, names: 210.0, body: 380.0, legend_columns: 3 };
const NARROW: Frame =
    Frame { name: "narrow", width: 400.0, left: 70.0, names: 150.0, body: 280.0, legend_columns: 1 };

/// The least width for the longest bar.
const BARS_MIN: f64 = 90.0;

/// The width for the names of bars in a part of another drawing.
const PANEL_NAMES: f64 = 206.0;

/// The colours by name, on white and on a dark background. The first eight are Okabe and Ito's, which differ without
/// colour vision too. The dark row is lighter.
const INKS: [(&str, &str, &str); 15] = [
    ("c0", "#0072b2", "#56b4e9"),
    ("c1", "#d55e00", "#ff8a3d"),
    ("c2", "#009e73", "#2fd0a0"),
    ("c3", "#b8558f", "#e79ac4"),
    ("c4", "#a87900", "#f0c243"),
    ("c5", "#3a8fc4", "#9cd6ff"),
    ("c6", "#5b5b5b", "#c9c7c0"),
    ("c7", "#7a4fb5", "#b79bf0"),
    ("limit", "#77756e", "#9b988f"),
    ("historic", "#8b8980", "#8d8b84"),
    ("paper", "#ffffff", "#1e2024"),
    ("text", "#1d1d1b", "#e9e7e1"),
    ("label", "#5d5c57", "#a5a39c"),
    ("grid", "#e3e0d8", "#34363b"),
    ("hatch", "#ffffff", "#1e2024"),
];
/// The colours that are not grey.
const COLOURED: [usize; 7] = [0, 1, 2, 3, 4, 5, 7];
const DASHES: [&str; 8] = ["none", "7 3", "2 2", "9 3 2 3", "4 2", "12 4", "1 3", "6 2 1 2"];

/// The colours as variables of the page's style.
pub fn style() -> String {
    let row = |of: fn(&(&str, &str, &str)) -> String| INKS.iter().map(of).collect::<String>();
    let light = row(|(name, light, _)| format!("--plot-{name}:{light};"));
    let dark = row(|(name, _, dark)| format!("--plot-{name}:{dark};"));
    format!(":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}")
}

/// The colours on white as JSON, for plots that the script saves.
pub fn palette() -> String {
    let rows: Vec<String> =
        INKS.iter().map(|(name, light, _)| format!("\"--plot-{name}\":\"{light}\"")).collect();
    format!("{{{}}}", rows.join(","))
}

/// The whole plot as a file, on white.
pub fn svg(plot: &Plot) -> String {
    let drawing = Drawing { plot, frame: &WIDE, place: None, is_linear: false };
    on_white(drawing.markup().into_string())
}

/// A drawing in the colours for white.
pub fn on_white(mut drawing: String) -> String {
    for (name, light, _) in INKS {
        drawing = drawing.replace(&format!("var(--plot-{name})"), light);
    }
    drawing
}

/// The bars of a plot as a part of another drawing, from its upper left corner, and their height.
pub fn panel(plot: &Plot, width: f64) -> (Markup, f64) {
    let frame = Frame { width, names: PANEL_NAMES, name: "panel", left: 0.0, body: 0.0, legend_columns: 1 };
    let drawing = Drawing { plot, frame: &frame, place: None, is_linear: false };
    let body = drawing.body();
    let markup = html! { g transform=(format!("translate(0 {})", -drawing.top())) { (drawing.bars(body)) } };
    (markup, body + BELOW)
}

/// The plot in the page, at `place`: wide and narrow, and also with a linear axis if it has a logarithmic one. Only the
/// wide drawing of curves describes each point, because a phone has no pointer to ask with. That keeps the page small.
pub fn in_page(plot: &Plot, place: &str) -> Markup {
    html! {
        @for frame in [&WIDE, &NARROW] { @for is_linear in [false, true] {
            @if !is_linear || plot.has_scales() {
                (Drawing { plot, frame, place: Some(place), is_linear }.markup())
            }
        } }
    }
}

/// A series in the page's legend.
pub fn sample(plot: &Plot, series: &Series) -> Markup {
    html! {
        svg width="26" height="12" viewBox="0 0 26 12" aria-hidden="true" { (legend_mark(plot, series, 0.0, 6.0)) }
    }
}

/// The mark of a series in a legend, 26 points wide, from `left` and around the height `middle`.
fn legend_mark(plot: &Plot, series: &Series, left: f64, middle: f64) -> Markup {
    let style = Style::of(series);
    html! {
        @if plot.is_of_dots() && series.look.is_bar() {
            path d=(style.dot.path((left + 13.0, middle))) fill=(style.dot_fill) stroke=(style.ink) stroke-width="2" {}
        } @else if plot.kind == Kind::Bars && series.look.is_bar() {
            rect x=(left + 4.0) y=(middle - 5.0) width="18" height="10" fill=(style.ink) opacity=(style.opacity) {}
        } @else {
            @if style.is_line && plot.kind == Kind::Curves {
                path d=(format!("M{left} {middle}h26")) stroke=(style.ink) stroke-width="2" stroke-dasharray=(style.dash) {}
            }
            @if let Some(shape) = style.shape {
                path d=(shape.path((left + 13.0, middle))) fill=(style.fill) stroke=(style.ink) stroke-width="1.5" {}
            }
        }
    }
}

struct Drawing<'a> {
    plot: &'a Plot,
    frame: &'a Frame,
    /// Its place in the page. Absent for a file.
    place: Option<&'a str>,
    is_linear: bool,
}

impl Drawing<'_> {
    fn markup(&self) -> Markup {
        let (plot, width) = (self.plot, self.frame.width);
        let body = self.body();
        let rows = plot.series.len().div_ceil(self.frame.legend_columns) as f64;
        let drawn = self.top() + body + BELOW;
        let height = drawn + LEGEND_ROW * rows + 12.0;
        let whole = format!("0 0 {width} {height}");
        let (shown, shown_height) = match self.place {
            Some(_) => (format!("0 {TITLE} {width} {}", drawn - TITLE), drawn - TITLE),
            None => (whole.clone(), height),
        };
        let name = format!("{} {}", self.frame.name, if self.is_linear { "linear" } else { "usual" });
        html! {
            svg xmlns="http://www.w3.org/2000/svg" class=[self.place.map(|_| &name)] viewBox=(shown) width=(width) height=(shown_height) data-whole=[self.place.map(|_| &whole)] role="img" font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif" font-size="13" {
                @if self.place.is_none() { title { (plot.title) } desc { (plot.about) } }
                g.whole {
                    rect width=(width) height=(height) fill="var(--plot-paper)" {}
                    text x="16" y="26" font-size="18" font-weight="600" fill="var(--plot-text)" { (plot.title) }
                    (self.legend(drawn + 6.0))
                }
                @match plot.kind {
                    Kind::Curves => (self.curves(body)),
                    Kind::Bars => (self.bars(body)),
                }
            }
        }
    }

    /// The height of the plot without its labels.
    fn body(&self) -> f64 {
        match self.plot.kind {
            Kind::Curves => self.frame.body,
            Kind::Bars => self.rows().last().map_or(0.0, |row| row.bottom) - self.top(),
        }
    }

    fn top(&self) -> f64 {
        TITLE + if self.plot.kind == Kind::Curves { TOP } else { 4.0 }
    }

    fn curves(&self, body: f64) -> Markup {
        let (plot, top, left) = (self.plot, self.top(), self.frame.left);
        let (bottom, right) = (top + body, self.frame.width - RIGHT);
        let points = || plot.series.iter().flat_map(|series| &series.points);
        let heights = points().flat_map(|point| point.band.into_iter().flatten().chain([point.y]));
        let x = Scale::of(plot.x, points().map(|point| point.x), [left, right]);
        let axis = Axis { logarithmic: plot.y.logarithmic && !self.is_linear, ..plot.y };
        let y = Scale::of(axis, heights, [bottom, top]);
        html! {
            @for tick in y.ticks() {
                path d=(format!("M{left} {}H{right}", y.at(tick))) stroke="var(--plot-grid)" {}
                text x=(left - 8.0) y=(y.at(tick) + 4.0) text-anchor="end" fill="var(--plot-label)" { (label(axis.quantity, tick)) }
            }
            (x.horizontal(bottom))
            path d=(format!("M{left} {bottom}H{right}")) stroke="var(--plot-label)" {}
            text x=(left) y=(top - 12.0) fill="var(--plot-label)" { (plot.y.name) }
            @for (number, series) in plot.series.iter().enumerate() {
                // In the page, others are hidden until their buttons are pressed.
                g data-series=(number) hidden[self.place.is_some() && !plot.starts_with(number)] {
                    (self.curve(series, &x, &y))
                }
            }
        }
    }

    fn curve(&self, series: &Series, x: &Scale, y: &Scale) -> Markup {
        let style = Style::of(series);
        let place = |point: &Point| (x.at(point.x), y.at(point.y));
        let banded: Vec<(&Point, [f64; 2])> =
            series.points.iter().filter_map(|point| Some((point, point.band?))).collect();
        let there = banded.iter().map(|(point, band)| (x.at(point.x), y.at(band[1])));
        let back = banded.iter().rev().map(|(point, band)| (x.at(point.x), y.at(band[0])));
        html! {
            @if series.look == Look::Measured && !banded.is_empty() {
                path d=(joined(there.chain(back))) fill=(style.ink) opacity="0.16" {}
            }
            @if style.is_line {
                path d=(joined(series.points.iter().map(place))) fill="none" stroke=(style.ink) stroke-width="2" stroke-dasharray=(style.dash) {
                    title { (series.name.plain) }
                }
            }
            @if let Some(shape) = style.shape { @for is_disturbed in [false, true] {
                @let style = Style::of_point(series, is_disturbed);
                @let points: Vec<&Point> = series.points.iter().filter(|point| point.is_disturbed == is_disturbed).collect();
                @if !points.is_empty() { g fill=(style.fill) stroke=(style.ink) stroke-width="1.5" opacity=(style.opacity) {
                    @if self.is_linear || self.frame.name == NARROW.name {
                        path d=(points.iter().map(|point| shape.path(place(point))).collect::<String>()) {}
                    } @else { @for point in points {
                        path d=(shape.path(place(point))) { title { (self.plot.told(series, point)) } }
                    } }
                } }
            } }
        }
    }

    /// The rows of bars. A row is as high as its name, broken into lines, or as its labels.
    fn rows(&self) -> Vec<Row> {
        let mut bottom = self.top();
        let letters = ((self.frame.names - 12.0) / NAME_LETTER) as usize;
        let rows = self.plot.categories.iter().enumerate().map(|(index, name)| {
            let line = |is_technical: bool| move |text: String| NameLine { text, is_technical };
            let plain = broken(&name.plain, letters).into_iter().map(line(false));
            let technical = name.technical.iter().flat_map(|name| broken(name, letters)).map(line(true));
            let lines: Vec<NameLine> = plain.chain(technical).collect();
            let labels = self.pieces(index).flat_map(|piece| {
                let lines = piece.point.label.as_deref().unwrap_or_default().lines();
                let ink = Style::of_point(piece.series, piece.point.is_disturbed).ink;
                lines.map(move |line| Label { text: line.to_owned(), ink: ink.clone() })
            });
            let labels: Vec<Label> = labels.collect();
            let top = bottom;
            bottom += (LINE * lines.len().max(labels.len()) as f64 + 10.0).max(26.0);
            Row { middle: (top + bottom) / 2.0, bottom, lines, labels }
        });
        rows.collect()
    }

    /// The contents of a row.
    fn pieces(&self, row: usize) -> impl Iterator<Item = Piece<'_>> {
        self.plot.series.iter().enumerate().filter_map(move |(number, series)| {
            let point = series.points.iter().find(|point| point.x as usize == row)?;
            Some(Piece { number, series, point })
        })
    }

    /// The width between the start of the bars and the longest bar's end. It leaves room for the labels beside them.
    fn bar_scale(&self, rows: &[Row]) -> Scale {
        let plot = self.plot;
        let longest = rows.iter().enumerate().flat_map(|(index, _)| {
            let values: Vec<f64> = self.pieces(index).map(|piece| piece.point.y).collect();
            let beyond = |wanted: fn(&&f64) -> bool| values.iter().filter(wanted).sum();
            // On a logarithmic axis the shortest bar has a length too.
            let seen = values.iter().map(|value| value / 2.0);
            if plot.y.logarithmic {
                values.iter().copied().chain(seen).collect()
            } else {
                vec![beyond(|value| **value > 0.0), beyond(|value| **value < 0.0)]
            }
        });
        let letters = rows.iter().flat_map(|row| &row.labels).map(|label| label.text.chars().count()).max();
        let labels = letters.map_or(0.0, |letters| letters as f64 * LETTER + 4.0);
        let end = self.frame.width - f64::max(labels + 12.0, RIGHT);
        Scale::of(plot.y, longest, [self.frame.names, end.max(self.frame.names + BARS_MIN)])
    }

    fn bars(&self, body: f64) -> Markup {
        let (plot, top, rows) = (self.plot, self.top(), self.rows());
        let x = self.bar_scale(&rows);
        html! {
            @if !plot.y.logarithmic && plot.series.iter().any(|series| series.slot >= HATCHED) { (self.hatches()) }
            @for line in x.grid() {
                path d=(format!("M{} {top}V{}", x.at(line), top + body)) stroke="var(--plot-grid)" {}
            }
            (x.horizontal(top + body))
            @for (index, row) in rows.iter().enumerate() {
                @for (y, NameLine { text, is_technical }) in centred(&row.lines, row.middle) {
                    @let ink = if *is_technical { "var(--plot-label)" } else { "var(--plot-text)" };
                    text x=(self.frame.names - 8.0) y=(y) text-anchor="end" fill=(ink) font-size=[is_technical.then_some("11")] { (text) }
                }
                @if plot.y.logarithmic { (self.laid(index, &x, row.middle)) } @else { (self.stacked(self.pieces(index), &x, row.middle)) }
                @let ends = self.pieces(index).filter(|_| plot.y.logarithmic).map(|piece| x.at(piece.point.y));
                @let sum = self.pieces(index).map(|piece| piece.point.y.max(0.0)).sum::<f64>();
                @let end = ends.fold(if plot.y.logarithmic { 0.0 } else { x.at(sum) }, f64::max);
                // Lines of the grid stop before the letters.
                @for (y, Label { text, ink }) in centred(&row.labels, row.middle) {
                    text x=(end + 9.0) y=(y) text-anchor="start" fill="var(--plot-label)" stroke="var(--plot-paper)" stroke-width="4" stroke-linejoin="round" paint-order="stroke" {
                        @if let Some(rest) = text.strip_prefix(SYMBOL) { tspan fill=(ink) { (SYMBOL) } (rest) } @else { (text) }
                    }
                }
            }
        }
    }

    /// A row on a logarithmic axis: dots and symbols on a thin line. Such an axis has no nought, so the length of a bar would
    /// mean nothing.
    fn laid(&self, row: usize, x: &Scale, middle: f64) -> Markup {
        let start = x.ends[0];
        html! {
            @for Piece { number, series, point } in self.pieces(row) {
                @let style = Style::of_point(series, point.is_disturbed);
                @let symbol = style.shape.filter(|_| !series.look.is_bar());
                g data-series=(number) {
                    @if let Some(shape) = symbol {
                        path d=(shape.path((x.at(point.y), middle))) fill=(style.fill) stroke=(style.ink) stroke-width="1.5" { title { (self.plot.told(series, point)) } }
                    } @else if series.look.is_bar() {
                        path d=(format!("M{start} {middle}H{}", x.at(point.y))) stroke=(style.ink) stroke-dasharray="1 4" fill="none" {}
                        path d=(style.dot.path((x.at(point.y), middle))) fill=(style.dot_fill) stroke=(style.ink) stroke-width="2" { title { (self.plot.told(series, point)) } }
                    }
                }
            }
        }
    }

    fn stacked<'p>(&self, pieces: impl Iterator<Item = Piece<'p>>, x: &Scale, middle: f64) -> Markup {
        // Negative values are to the left of zero.
        let (mut above, mut below) = (0.0, 0.0);
        let pieces: Vec<(Piece, f64, f64)> = pieces
            .map(|piece| {
                let sum = if piece.point.y < 0.0 { &mut below } else { &mut above };
                let one_end = x.at(*sum);
                *sum += piece.point.y;
                let other_end = x.at(*sum);
                (piece, one_end.min(other_end), (one_end - other_end).abs())
            })
            .collect();
        html! {
            @for (Piece { number, series, point }, from, width) in pieces {
                @let style = Style::of_point(series, point.is_disturbed);
                @let area = format!("M{from} {}h{width}v18h-{width}z", middle - 9.0);
                g data-series=(number) {
                    path d=(area) fill=(style.ink) opacity=(style.opacity) stroke="var(--plot-paper)" {
                        title { (self.plot.told(series, point)) }
                    }
                    @if series.slot >= HATCHED {
                        path d=(area) fill=(format!("url(#{})", self.hatch(series.slot % 4))) pointer-events="none" {}
                    }
                }
            }
        }
    }

    fn hatch(&self, index: usize) -> String {
        format!("hatch-{}-{}-{index}", self.place.unwrap_or("file"), self.frame.name)
    }

    fn hatches(&self) -> Markup {
        html! {
            defs { @for (index, angle) in [0, 45, 135, 90].into_iter().enumerate() {
                pattern id=(self.hatch(index)) width="5" height="5" patternUnits="userSpaceOnUse" patternTransform=(format!("rotate({angle})")) {
                    path d="M0 0H5" stroke="var(--plot-hatch)" stroke-width="3" stroke-opacity="0.6" {}
                }
            } }
        }
    }

    fn legend(&self, top: f64) -> Markup {
        let column = ((self.frame.width - 32.0) / self.frame.legend_columns as f64).floor();
        html! {
            @for (index, series) in self.plot.series.iter().enumerate() {
                @let left = 16.0 + column * (index % self.frame.legend_columns) as f64;
                @let middle = top + LEGEND_ROW * (index / self.frame.legend_columns) as f64;
                (legend_mark(self.plot, series, left, middle))
                text x=(left + 34.0) y=(middle + 4.0) font-size="12" fill="var(--plot-text)" { (series.name.plain) }
            }
        }
    }
}

struct Row {
    middle: f64,
    bottom: f64,
    /// Its name in plain words, and below it that in the laboratory's terms.
    lines: Vec<NameLine>,
    /// The text beside its bar.
    labels: Vec<Label>,
}

/// A line of a name.
struct NameLine {
    text: String,
    is_technical: bool,
}

/// A line of text beside a bar, and the colour of its symbol.
struct Label {
    text: String,
    ink: String,
}

/// The values of one series in one row.
struct Piece<'a> {
    number: usize,
    series: &'a Series,
    point: &'a Point,
}

/// Lines of text with the heights of their feet, centred on a height.
fn centred<T>(lines: &[T], middle: f64) -> impl Iterator<Item = (f64, &T)> {
    let above = (lines.len() as f64 - 1.0) / 2.0;
    lines.iter().enumerate().map(move |(line, text)| (middle + LINE * (line as f64 - above) + 4.0, text))
}

/// A path through these points.
fn joined(places: impl Iterator<Item = (f64, f64)>) -> String {
    let places: Vec<String> = places.map(|(x, y)| format!("{x} {y}")).collect();
    format!("M{}", places.join("L"))
}

/// A name, broken into lines of about this many letters. A length and its unit stay together.
pub fn broken(name: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![String::new()];
    let mut words: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match words.last_mut() {
            Some(before) if UNITS.contains(&word) && before.ends_with(|end: char| end.is_ascii_digit()) => {
                *before += &format!(" {word}");
            }
            _ => words.push(word.to_owned()),
        }
    }
    for word in words {
        let line = lines.last_mut().expect("one line at least");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > letters {
            lines.push(word);
        } else {
            let blank = if line.is_empty() { "" } else { " " };
            *line += &format!("{blank}{word}");
        }
    }
    lines
}

const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];

/// A label without unnecessary digits: `1 µs`, `10 ns`, `0.00001 %`.
fn label(quantity: Quantity, value: f64) -> String {
    let percent = value * 100.0;
    if quantity == Quantity::Share && percent > 0.0 && percent < 1.0 {
        let digits = (-percent.log10() - 1e-9).ceil().clamp(1.0, 12.0) as usize;
        return format!("{percent:.digits$} %");
    }
    let text = quantity.format(value);
    match text.split_once(' ') {
        Some((digits, unit)) if digits.contains('.') => {
            format!("{} {unit}", digits.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Converts a value to a position between two ends of an axis.
struct Scale {
    axis: Axis,
    from: f64,
    to: f64,
    ends: [f64; 2],
}

impl Scale {
    fn of(axis: Axis, values: impl Iterator<Item = f64>, ends: [f64; 2]) -> Self {
        let logarithmic = axis.logarithmic;
        let drawn_min = if logarithmic { 1.0 / DRAWN_MAX } else { -DRAWN_MAX };
        let (from, to) = values
            .filter(|value| value.is_finite() && (!logarithmic || *value > 0.0))
            .map(|value| value.clamp(drawn_min, DRAWN_MAX))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), value| (from.min(value), to.max(value)));
        let base = if axis.quantity == Quantity::Size { 2.0 } else { 10.0 };
        let (from, to) = match (logarithmic, from <= to) {
            (_, false) => (1.0, 10.0),
            (true, _) => (f64::powf(base, from.log(base).floor()), f64::powf(base, to.log(base).ceil())),
            (false, _) => (from.min(0.0) * 1.04, to.max(f64::MIN_POSITIVE) * 1.04),
        };
        Self { axis, from, to: if to > from { to } else { from * base }, ends }
    }

    /// The labels and the name of a horizontal axis.
    fn horizontal(&self, bottom: f64) -> Markup {
        let middle = (self.ends[0] + self.ends[1]) / 2.0;
        html! {
            @for tick in self.ticks() {
                text x=(self.at(tick)) y=(bottom + 18.0) text-anchor="middle" fill="var(--plot-label)" { (label(self.axis.quantity, tick)) }
            }
            text x=(middle) y=(bottom + 38.0) text-anchor="middle" fill="var(--plot-label)" { (self.axis.name) }
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.axis.logarithmic {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        let place = self.ends[0] + share.clamp(0.0, 1.0) * (self.ends[1] - self.ends[0]);
        (place * 10.0).round() / 10.0
    }

    /// The lines of the grid: every decade of a logarithmic axis, also where only some have room for a label.
    fn grid(&self) -> Vec<f64> {
        let decades = (self.to / self.from).log10().round();
        if !self.axis.logarithmic || self.axis.quantity == Quantity::Size || decades > GRID_DECADES_MAX {
            return self.ticks();
        }
        let first = self.from.log10().round();
        (0..=decades as u32).map(|decade| 10f64.powf(first + f64::from(decade))).collect()
    }

    /// Decades, every fourth power of two, or about six round steps.
    fn ticks(&self) -> Vec<f64> {
        // Labels beside each other need more room than labels above each other.
        let [from, to] = self.ends;
        let room = if from < to { (to - from) / 66.0 } else { (from - to) / 22.0 };
        let ticks_max = room.floor().clamp(1.0, 24.0);
        let powers = |base: f64| {
            let [first, last] = [self.from.log(base).ceil(), (self.to * 1.001).log(base).floor()];
            // Only some of them, if there is no room for all.
            let step = ((last - first) / ticks_max).ceil().max(1.0);
            let count = ((last - first) / step).floor().clamp(0.0, ticks_max) as u32;
            (0..=count).map(|tick| base.powf(first + f64::from(tick) * step)).collect()
        };
        if self.axis.logarithmic {
            return powers(if self.axis.quantity == Quantity::Size { 16.0 } else { 10.0 });
        }
        let rough = (self.to - self.from) / ticks_max.min(6.0);
        let decade = f64::powf(10.0, rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.from / step).ceil();
        (0..=12).map(|tick| (first + f64::from(tick)) * step).take_while(|tick| *tick <= self.to).collect()
    }
}

/// From this slot on, a part of a bar also has a pattern, because colours alone cannot distinguish so many, and in grey not
/// even the two ends of a message.
const HATCHED: usize = 2;

/// The look of a series.
struct Style {
    ink: String,
    /// The fill of its symbols.
    fill: String,
    /// Its mark in a row of a logarithmic axis. Without colours the shape alone distinguishes series.
    dot: Shape,
    dot_fill: String,
    shape: Option<Shape>,
    dash: &'static str,
    is_line: bool,
    opacity: &'static str,
}

impl Style {
    /// The look of a point. A disturbed one is grey, and its symbol is hollow.
    fn of_point(series: &Series, is_disturbed: bool) -> Self {
        let own = Self::of(series);
        if !is_disturbed {
            return own;
        }
        let ink = "var(--plot-limit)".to_owned();
        let paper = || "var(--plot-paper)".to_owned();
        Self { fill: paper(), dot_fill: paper(), ink, opacity: "0.6", dot: Shape::Cross, ..own }
    }

    fn of(series: &Series) -> Self {
        // Colours repeat before combinations of symbol and dash do.
        let colours: &[usize] = match series.look {
            // Grey is for what was disturbed.
            Look::Measured | Look::Model | Look::Mark => &COLOURED,
            _ => &[0, 1, 2, 3, 4, 5, 6, 7],
        };
        let (slot, lap) = (colours[series.slot % colours.len()], series.slot / colours.len());
        let ink = match series.look {
            Look::Limit => "var(--plot-limit)".to_owned(),
            Look::Historic => "var(--plot-historic)".to_owned(),
            _ => format!("var(--plot-c{slot})"),
        };
        let paper = || "var(--plot-paper)".to_owned();
        let (fill, shape) = match series.look {
            Look::Limit | Look::Model => (ink.clone(), None),
            Look::Historic => (paper(), Some(Shape::ALL[(series.slot + 3) % 4])),
            Look::Mark => (ink.clone(), Some(Shape::Mark)),
            Look::Part => (ink.clone(), Some(Shape::ALL[series.slot % 4])),
            // Four symbols, first filled and then hollow.
            Look::Measured => {
                (if slot < 4 { ink.clone() } else { paper() }, Some(Shape::ALL[(slot + lap) % 4]))
            }
        };
        let (dot, dot_fill) = match series.look {
            Look::Limit => (Shape::Tick, ink.clone()),
            _ if series.slot == 0 => (Shape::Dot, ink.clone()),
            _ => (Shape::Dot, paper()),
        };
        Self {
            ink,
            fill,
            dot,
            dot_fill,
            shape,
            dash: if series.look == Look::Limit { "3 4" } else { DASHES[(slot + 3 * lap) % DASHES.len()] },
            is_line: matches!(series.look, Look::Measured | Look::Limit | Look::Model),
            // Parts differ in brightness too.
            opacity: match series.look {
                Look::Part if series.slot % 2 == 1 => "0.45",
                Look::Limit => "0.6",
                _ => "1",
            },
        }
    }
}

#[derive(Clone, Copy)]
enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
    /// A large diamond.
    Mark,
    /// A large circle.
    Dot,
    /// A line across its row.
    Tick,
    /// A cross, for what cannot be used.
    Cross,
}

impl Shape {
    const ALL: [Self; 4] = [Self::Circle, Self::Square, Self::Triangle, Self::Diamond];

    /// Its path around a point.
    fn path(self, (x, y): (f64, f64)) -> String {
        let about = match self {
            Self::Circle => "m-4 0a4 4 0 1 0 8 0 4 4 0 1 0-8 0z",
            Self::Square => "m-3.6-3.6h7.2v7.2h-7.2z",
            Self::Triangle => "m0-4.8l4.8 8.4h-9.6z",
            Self::Diamond => "m0-5.2l5.2 5.2-5.2 5.2-5.2-5.2z",
            Self::Mark => "m0-8l8 8-8 8-8-8z",
            Self::Dot => "m-6 0a6 6 0 1 0 12 0 6 6 0 1 0-12 0z",
            Self::Tick => "m0-8v16",
            Self::Cross => "m-5-5l10 10m0-10l-10 10",
        };
        format!("M{x} {y}{about}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_from_the_least_to_the_greatest_number_has_few_ticks_and_all_are_numbers() {
        let extremes = [f64::from_bits(1), 1.7e308, f64::MAX, f64::INFINITY, f64::NAN, -1.7e308, 0.0];
        let quantities = [Quantity::Size, Quantity::Duration, Quantity::Rate];
        let axes = quantities.map(|quantity| [Axis::linear("", quantity), Axis::logarithmic("", quantity)]);
        for axis in axes.into_iter().flatten() {
            for (first, value) in extremes.into_iter().enumerate() {
                for values in [vec![value], extremes[first..].to_vec()] {
                    let scale = Scale::of(axis, values.iter().copied(), [0.0, 100.0]);
                    let ticks = scale.ticks();
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
    fn a_label_of_a_small_share_is_not_zero() {
        let labels = [1.0, 1e-3, 1e-4, 1e-7].map(|share| label(Quantity::Share, share));
        assert_eq!(labels, ["100 %", "0.1 %", "0.01 %", "0.00001 %"]);
    }

    #[test]
    fn each_line_of_a_grid_is_ten_times_the_one_before_although_few_have_a_label() {
        let axis = Axis::logarithmic("", Quantity::Duration);
        let scale = Scale::of(axis, [30.0, 20_000.0].into_iter(), [0.0, 140.0]);
        assert_eq!(scale.ticks(), [10.0, 1e3, 1e5]);
        assert_eq!(scale.grid(), [10.0, 100.0, 1e3, 1e4, 1e5]);
        let endless = Scale::of(axis, [f64::from_bits(1), f64::MAX].into_iter(), [0.0, 140.0]);
        assert!(endless.grid().len() <= 30);
    }

    #[test]
    fn tick_positions_of_decades_and_powers_of_sixteen_are_stable() {
        let ticks = |quantity, values: [f64; 2]| {
            Scale::of(Axis::logarithmic("", quantity), values.into_iter(), [0.0, 800.0]).ticks()
        };
        assert_eq!(ticks(Quantity::Duration, [30.0, 20_000.0]), [10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(ticks(Quantity::Size, [1.0, 1048576.0]), [1.0, 16.0, 256.0, 4096.0, 65536.0, 1048576.0]);
    }
}
